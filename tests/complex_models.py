"""Models that compute with complex numbers: parameters, buffers, literals and inputs of complex dtypes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Spectral(nn.Module):
    """A Fourier layer as in neural operators: complex weights of 5 modes, of which 2 ranks hold an uneven part."""

    def __init__(self, width: int = 8, modes: int = 5):
        super().__init__()
        self.lift = nn.Linear(width, width)
        self.weight = nn.Parameter(0.3 * torch.randn(modes, dtype=torch.complex64))
        self.mix = nn.Parameter(0.3 * torch.randn(3, modes, dtype=torch.complex64))
        self.register_buffer("phase", torch.exp(1j * torch.arange(modes)))
        self.phase: Tensor
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.fft.rfft(self.lift(x), dim=-1) * self.weight * self.phase
        y = torch.fft.irfft(modes, n=self.width, dim=-1)
        power = torch.view_as_real(modes @ self.mix.T).square().sum(-1)
        z: Tensor = y * power.mean(-1, keepdim=True)
        return z


def train_spectral(model: nn.Module, x: Tensor) -> Tensor:
    """Mean square of the layer's output."""
    loss: Tensor = model(x).square().mean()
    return loss


def train_numbers(model: nn.Module, x: Tensor) -> Tensor:
    """Python numbers, literals, conjugates and casts."""
    y = model(x)
    z = (y * (1 + 2j) + 0.5j) * torch.tensor([1j, 2, 3 - 1j, 0, 1, 1, 1, -1j])
    z = torch.where(x > 0, z * z.conj(), z / 2j)
    z = z + torch.complex(y, x) + torch.polar(y.abs(), y) + torch.full((8,), 1j)
    loss: Tensor = (z.to(torch.complex128).imag.square() + z.real).mean() + (z.mH @ z).abs().mean()
    return loss


def train_signal(model: nn.Module, signal: Tensor, phase: Tensor) -> Tensor:
    """Complex inputs, one of them conjugated lazily and one given whole."""
    loss: Tensor = model((signal * phase).real).square().mean() + (model(signal.imag) * phase).angle().mean()
    return loss
