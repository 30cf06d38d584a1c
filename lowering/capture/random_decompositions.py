"""torch's random operators as arithmetic on `uniform` and `normal`, for use while a step is traced.

Masks and integers come from a float32 draw whatever the dtype of the data, so that a step in bfloat16, float32 and
float64 sees the same ones. A draw has 24 bits. A table entry that returns `NotImplemented` leaves its operator in the
graph, where it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .random_ops import normal, uniform

aten = torch.ops.aten

BITS = 24
STEPS = 1 << BITS
"""A uniform draw in float32 is a multiple of 1 / STEPS."""

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}
"""By operator overload, as `aot_export_joint_with_descriptors` takes it."""


def _decomposes(*operators: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        DECOMPOSITIONS.update(dict.fromkeys(operators, function))
        return function

    return register


def _uniform(size: Sequence[int], device: torch.device) -> Tensor:
    drawn: Tensor = uniform(list(size), dtype=torch.float32, device=device)
    return drawn


def _threshold(probability: float) -> float:
    """Return what to compare a draw with, so that the answer is the same in every precision.

    A draw is a multiple of 2^-24, so rounding the probability up to one changes no comparison, and it is exact in
    float32.
    """
    return math.ceil(probability * STEPS) / STEPS


def _integers(size: Sequence[int], low: int, high: int, dtype: torch.dtype, device: torch.device) -> Any:
    """Draw integers from `low` to `high` - 1, all equally likely but for a relative 2^-16."""
    span = high - low
    if not 0 < span <= 2**32:
        return NotImplemented
    if span <= 2**8:
        values = aten._to_copy.default(aten.mul.Tensor(_uniform(size, device), span), dtype=torch.int64)
    else:
        upper, lower = _halves(size, device)
        # (upper * 2^24 + lower) * span / 2^48, without a product that needs more than 63 bits.
        carried = aten.bitwise_right_shift.Tensor_Scalar(aten.mul.Tensor(lower, span), BITS)
        total = aten.add.Tensor(aten.mul.Tensor(upper, span), carried)
        values = aten.bitwise_right_shift.Tensor_Scalar(total, BITS)
    if low:
        values = aten.add.Tensor(values, low)
    return values if dtype == torch.int64 else aten._to_copy.default(values, dtype=dtype)


def _halves(size: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Draw two integers of 24 bits each per element, from one stream."""
    drawn = _uniform([*size, 2], device)
    bits = aten._to_copy.default(aten.mul.Tensor(drawn, STEPS), dtype=torch.int64)
    return aten.select.int(bits, -1, 0), aten.select.int(bits, -1, 1)


def _converted(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value if value.dtype == dtype else aten._to_copy.default(value, dtype=dtype)


def _real(dtype: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype of a factory's result, None for one that no draw has."""
    dtype = dtype if dtype is not None else torch.get_default_dtype()
    return dtype if dtype.is_floating_point else None


def _factory(operator: Any, size: Sequence[int], dtype: torch.dtype | None, device: torch.device | None) -> Any:
    drawn = _real(dtype)
    if drawn is None:
        return NotImplemented
    return operator(list(size), dtype=drawn, device=device if device is not None else torch.get_default_device())


@_decomposes(aten.rand.default)
def _rand(size: Sequence[int], *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _factory(uniform, size, dtype, device)


@_decomposes(aten.randn.default)
def _randn(size: Sequence[int], *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _factory(normal, size, dtype, device)


@_decomposes(aten.rand_like.default)
def _rand_like(like: Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _factory(uniform, like.shape, dtype or like.dtype, device or like.device)


@_decomposes(aten.randn_like.default)
def _randn_like(like: Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _factory(normal, like.shape, dtype or like.dtype, device or like.device)


@_decomposes(aten.native_dropout.default)
def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x, aten.ones_like.default(x, dtype=torch.bool)
    if p == 1:
        return aten.zeros_like.default(x), aten.zeros_like.default(x, dtype=torch.bool)
    kept = aten.ge.Scalar(_uniform(x.shape, x.device), _threshold(p))
    return aten.mul.Tensor(aten.mul.Tensor(x, kept), 1.0 / (1.0 - p)), kept


@_decomposes(aten.native_dropout_backward.default)
def _native_dropout_backward(gradient: Tensor, kept: Tensor, scale: float) -> Tensor:
    passed: Tensor = aten.mul.Tensor(aten.mul.Tensor(gradient, kept), scale)
    return passed


@_decomposes(aten.bernoulli.default)
def _bernoulli(probability: Tensor, *, generator: Any = None) -> Any:
    return _bernoulli_tensor(probability, probability, generator=generator)


@_decomposes(aten.bernoulli.Tensor)
def _bernoulli_tensor(like: Tensor, probability: Tensor, *, generator: Any = None) -> Any:
    if generator is not None:
        return NotImplemented
    return _converted(aten.lt.Tensor(_uniform(like.shape, like.device), probability), like.dtype)


@_decomposes(aten.bernoulli.p)
def _bernoulli_p(like: Tensor, p: float = 0.5, *, generator: Any = None) -> Any:
    if generator is not None:
        return NotImplemented
    return _converted(aten.lt.Scalar(_uniform(like.shape, like.device), _threshold(p)), like.dtype)


@_decomposes(aten.uniform.default)
def _uniform_between(like: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Any:
    if generator is not None or not like.dtype.is_floating_point:
        return NotImplemented
    if (low, high) == (0.0, 1.0):
        return uniform(list(like.shape), dtype=like.dtype, device=like.device)
    return _scaled(uniform, like, high - low, low)


@_decomposes(aten.normal_functional.default)
def _normal_functional(like: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    if generator is not None or not like.dtype.is_floating_point:
        return NotImplemented
    return _scaled(normal, like, std, mean)


def _scaled(operator: Any, like: Tensor, scale: float, shift: float) -> Tensor:
    # In at least float32: half precision has too few bits to be scaled.
    dtype = torch.promote_types(like.dtype, torch.float32)
    drawn: Tensor = operator(list(like.shape), dtype=dtype, device=like.device)
    drawn = drawn if scale == 1 else aten.mul.Tensor(drawn, scale)
    return _converted(drawn if shift == 0 else aten.add.Tensor(drawn, shift), like.dtype)


@_decomposes(aten.normal.float_float)
def _normal_of_size(
    mean: float,
    std: float,
    size: Sequence[int],
    *,
    generator: Any = None,
    dtype: Any = None,
    device: Any = None,
    **_: Any,
) -> Any:
    drawn = NotImplemented if generator is not None else _factory(normal, size, dtype, device)
    return drawn if drawn is NotImplemented else aten.add.Tensor(aten.mul.Tensor(drawn, std), mean)


@_decomposes(aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor)
def _normal_of_tensors(mean: Any, std: Any = 1.0, *, generator: Any = None) -> Any:
    like = mean if isinstance(mean, Tensor) else std
    if generator is not None or not like.dtype.is_floating_point:
        return NotImplemented
    if isinstance(mean, Tensor) and isinstance(std, Tensor):
        like, _ = aten.broadcast_tensors.default([mean, std])
    drawn = normal(list(like.shape), dtype=like.dtype, device=like.device)
    return aten.add.Tensor(aten.mul.Tensor(drawn, std), mean)


@_decomposes(aten.exponential.default)
def _exponential(like: Tensor, rate: float = 1.0, *, generator: Any = None) -> Any:
    if generator is not None or not like.dtype.is_floating_point:
        return NotImplemented
    drawn = _exponentials(like.shape, like.device)
    return _converted(drawn if rate == 1 else aten.div.Tensor(drawn, rate), like.dtype)


def _exponentials(size: Sequence[int], device: torch.device) -> Tensor:
    """Draw from the exponential distribution; never 0, of which users take the logarithm."""
    drawn: Tensor = aten.neg.default(aten.log1p.default(aten.neg.default(_uniform(size, device))))
    never_zero: Tensor = aten.clamp_min.default(drawn, 1.0 / STEPS)
    return never_zero


@_decomposes(aten.log_normal.default)
def _log_normal(like: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Any:
    drawn = _normal_functional(like, mean, std, generator=generator)
    return drawn if drawn is NotImplemented else aten.exp.default(drawn)


@_decomposes(aten.cauchy.default)
def _cauchy(like: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> Any:
    if generator is not None or not like.dtype.is_floating_point:
        return NotImplemented
    angle = aten.mul.Tensor(aten.sub.Tensor(_uniform(like.shape, like.device), 0.5), math.pi)
    return _converted(aten.add.Tensor(aten.mul.Tensor(aten.tan.default(angle), sigma), median), like.dtype)


@_decomposes(aten.geometric.default)
def _geometric(like: Tensor, p: float, *, generator: Any = None) -> Any:
    if generator is not None or not 0 < p < 1:
        return NotImplemented
    trials = aten.div.Tensor(aten.log1p.default(aten.neg.default(_uniform(like.shape, like.device))), math.log1p(-p))
    return _converted(aten.add.Tensor(aten.floor.default(trials), 1.0), like.dtype)


@_decomposes(aten.randint.default)
def _randint(high: int, size: Sequence[int], **options: Any) -> Any:
    return _randint_low(0, high, size, **options)


@_decomposes(aten.randint.low)
def _randint_low(low: int, high: int, size: Sequence[int], *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    device = device if device is not None else torch.get_default_device()
    return _integers(size, low, high, dtype if dtype is not None else torch.int64, device)


@_decomposes(aten.randint_like.default)
def _randint_like(like: Tensor, high: int, **options: Any) -> Any:
    return _randint_like_low(like, 0, high, **options)


@_decomposes(aten.randint_like.low_dtype)
def _randint_like_low(like: Tensor, low: int, high: int, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _integers(like.shape, low, high, dtype or like.dtype, device or like.device)


@_decomposes(aten.random.to)
def _random_to(like: Tensor, high: int, *, generator: Any = None) -> Any:
    return _random_from(like, 0, high, generator=generator)


@_decomposes(getattr(aten.random, "from"))
def _random_from(like: Tensor, low: int, high: int | None, *, generator: Any = None) -> Any:
    if generator is not None or high is None:
        return NotImplemented
    return _integers(like.shape, low, high, like.dtype, like.device)


@_decomposes(aten.randperm.default)
def _randperm(n: int, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    if n > STEPS:
        return NotImplemented
    upper, lower = _halves([n], device if device is not None else torch.get_default_device())
    keys = aten.add.Tensor(aten.mul.Tensor(upper, STEPS), lower)
    return _converted(aten.sort.default(keys)[1], dtype if dtype is not None else torch.int64)


@_decomposes(aten.multinomial.default)
def _multinomial(weights: Tensor, count: int, replacement: bool = False, *, generator: Any = None) -> Any:
    """Exponential races: the first arrivals at rates `weights` (Gumbel's trick, as torch does it too)."""
    if generator is not None:
        return NotImplemented
    if replacement or count == 1:
        rates = aten.unsqueeze.default(weights, -2)
        arrivals = _exponentials([*weights.shape[:-1], count, weights.shape[-1]], weights.device)
        return aten.argmax.default(aten.div.Tensor(rates, arrivals), -1)
    return aten.topk.default(aten.div.Tensor(weights, _exponentials(weights.shape, weights.device)), count)[1]


@_decomposes(aten.rrelu_with_noise_functional.default)
def _rrelu(
    x: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Any:
    if generator is not None:
        return NotImplemented
    if not training:
        return aten.leaky_relu.default(x, (lower + upper) / 2), noise
    slopes = aten.where.ScalarOther(aten.le.Scalar(x, 0), _scaled(uniform, x, upper - lower, lower), 1.0)
    slopes = _converted(slopes, x.dtype)
    return aten.mul.Tensor(x, slopes), slopes
