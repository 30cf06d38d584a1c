"""The model sweep: every architecture, in a tiny configuration."""

from __future__ import annotations

from . import (
    architectures_audio,
    architectures_experts,
    architectures_multimodal,
    architectures_own,
    architectures_state_space,
    architectures_text,
    architectures_vision,
)
from .architecture import Architecture

ARCHITECTURES: tuple[Architecture, ...] = (
    *architectures_text.ARCHITECTURES,
    *architectures_experts.ARCHITECTURES,
    *architectures_state_space.ARCHITECTURES,
    *architectures_vision.ARCHITECTURES,
    *architectures_audio.ARCHITECTURES,
    *architectures_multimodal.ARCHITECTURES,
    *architectures_own.ARCHITECTURES,
)
BY_NAME = {architecture.name: architecture for architecture in ARCHITECTURES}
