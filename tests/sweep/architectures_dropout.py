"""Architectures with dropout on: no eager run draws the same numbers, but every number of ranks must."""

from __future__ import annotations

from .architecture import hugging_face, image_batch, language_batch, masked_batch
from .architectures_text import DECODER, DECODER_LAYERS, ENCODER
from .architectures_vision import TRANSFORMER

_PROBABILITIES = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}

ARCHITECTURES = (
    hugging_face(
        "llama", "Llama", "ForCausalLM", language_batch, DECODER_LAYERS, {**DECODER, "attention_dropout": 0.2}
    ),
    hugging_face("bert", "Bert", "ForMaskedLM", masked_batch, ("bert.encoder.layer.*",), {**ENCODER, **_PROBABILITIES}),
    hugging_face(
        "vit", "ViT", "ForImageClassification", image_batch(16), ("vit.layers.*",), {**TRANSFORMER, **_PROBABILITIES}
    ),
)
