"""Random operators in a captured step: what they draw, that gradients follow, what is refused."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from random_draws import Draws
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hpir

pytestmark = pytest.mark.one_in(3)

ROWS, WIDTH = 4, 16


class Scale(nn.Module):
    """One linear layer without bias, and a buffer for noise."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.register_buffer("noise", torch.zeros(3))
        self.noise: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y


@functools.cache
def model_and_input(dtype: torch.dtype = torch.float32) -> tuple[Scale, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Scale().to(dtype), torch.randn(ROWS, WIDTH).to(dtype)


def heads(y: Tensor) -> Tensor:
    return y.view(y.shape[0], 2, 4, -1)


class Noisy(torch.autograd.Function):
    """Adds noise on the way forward, and drops gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (torch.rand_like(gradient) < 0.5)


class NoisyReference(torch.autograd.Function):
    """The same with its draws given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, noise: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(kept)
        return x + noise

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return gradient * kept, None, None


def noisy_reference(y: Tensor, d: Draws) -> Tensor:
    apply: Any = NoisyReference.apply
    result: Tensor = apply(y, d("normal", *y.shape), d("uniform", *y.shape) < 0.5)
    return result


def without_gradient(y: Tensor) -> Tensor:
    with torch.no_grad():
        mask = torch.bernoulli(torch.full_like(y, 0.25))
    return y * mask


def alpha_reference(y: Tensor, kept: Tensor, p: float = 0.3) -> Tensor:
    alpha = 1.7580993408473766
    a = 1 / math.sqrt((alpha**2 * p + 1) * (1 - p))
    return torch.where(kept, y * a, -alpha * a) + alpha * a * p


def attention(**options: Any) -> Callable[[Tensor], Tensor]:
    return lambda y: F.scaled_dot_product_attention(heads(y), heads(y) * 0.5, heads(y) - 1, dropout_p=0.3, **options)


def attention_reference(mask: Tensor | None = None, scale: float | None = None) -> Callable[[Tensor, Draws], Tensor]:
    def reference(y: Tensor, d: Draws) -> Tensor:
        q, k, v = heads(y), heads(y) * 0.5, heads(y) - 1
        scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        return d.dropout(scores.softmax(-1), 0.3) @ v

    return reference


CAUSAL = torch.ones(4, 4, dtype=torch.bool).tril()
SLOPE = torch.arange(16.0).reshape(4, 4) / 10


def grouped(y: Tensor) -> Tensor:
    kv = heads(y)[:, :1]
    return F.scaled_dot_product_attention(heads(y), kv, kv, dropout_p=0.3, enable_gqa=True)


def grouped_reference(y: Tensor, d: Draws) -> Tensor:
    q, kv = heads(y), heads(y)[:, :1].expand(-1, 2, -1, -1)
    return d.dropout((q @ kv.mT * q.shape[-1] ** -0.5).softmax(-1), 0.3) @ kv


def gumbel_reference(y: Tensor, d: Draws) -> Tensor:
    exponential = (-torch.log1p(-d("uniform", *y.shape))).clamp(min=2**-24)
    return ((y - exponential.log()) / 0.7).softmax(-1)


def swapped(y: Tensor) -> Tensor:
    y = y + torch.randn_like(y)
    return F.dropout(y, 0.5) * torch.rand(y.shape[0], 1)


Function = Callable[[Tensor], Tensor]
Reference = Callable[[Tensor, Draws], Tensor]

PAIRS: dict[str, tuple[Function, Reference]] = {
    "dropout": (lambda y: F.dropout(y, 0.3), lambda y, d: d.dropout(y, 0.3)),
    "dropout_in_place": (
        lambda y: F.dropout(y * 1, 0.3, inplace=True),
        lambda y, d: y * (d("uniform", *y.shape) < 0.7) / 0.7,
    ),
    "dropout_always": (lambda y: F.dropout(y, 1.0) + y, lambda y, d: y),
    "dropout_twice": (
        lambda y: F.dropout(y, 0.3) + F.dropout(y, 0.3),
        lambda y, d: d.dropout(y, 0.3) + d.dropout(y, 0.3),
    ),
    "dropout1d": (
        lambda y: F.dropout1d(y.view(ROWS, 4, -1), 0.3),
        lambda y, d: y.view(ROWS, 4, -1) * (d("uniform", ROWS, 4, 1) < 0.7) / 0.7,
    ),
    "dropout2d": (
        lambda y: F.dropout2d(y.view(ROWS, 4, 2, -1), 0.3),
        lambda y, d: y.view(ROWS, 4, 2, -1) * (d("uniform", ROWS, 4, 1, 1) < 0.7) / 0.7,
    ),
    "alpha_dropout": (
        lambda y: F.alpha_dropout(y, 0.3, training=True),
        lambda y, d: alpha_reference(y, d("uniform", *y.shape) < 0.7),
    ),
    "feature_alpha_dropout": (
        lambda y: F.feature_alpha_dropout(y.view(ROWS, 4, 2, -1), 0.3, training=True),
        lambda y, d: alpha_reference(y.view(ROWS, 4, 2, -1), d("uniform", ROWS, 4, 1, 1) < 0.7),
    ),
    "rrelu": (
        lambda y: F.rrelu(y, 0.1, 0.4, training=True),
        lambda y, d: torch.where(y <= 0, y * (d("uniform", *y.shape) * (0.4 - 0.1) + 0.1), y),
    ),
    "rrelu_in_place": (
        lambda y: F.rrelu_(y * 1, 0.1, 0.4, training=True),
        lambda y, d: torch.where(y <= 0, y * (d("uniform", *y.shape) * (0.4 - 0.1) + 0.1), y),
    ),
    "rand": (lambda y: y * torch.rand(ROWS, WIDTH), lambda y, d: y * d("uniform", *y.shape)),
    "rand_like": (lambda y: y * torch.rand_like(y), lambda y, d: y * d("uniform", *y.shape)),
    "randn": (lambda y: y * torch.randn(ROWS, 1), lambda y, d: y * d("normal", ROWS, 1)),
    "randn_like": (lambda y: y + y * torch.randn_like(y), lambda y, d: y + y * d("normal", *y.shape)),
    "uniform_": (
        lambda y: y * torch.empty_like(y).uniform_(-1, 2),
        lambda y, d: y * (d("uniform", *y.shape) * 3 - 1),
    ),
    "normal_": (
        lambda y: y * torch.empty_like(y).normal_(1, 2),
        lambda y, d: y * (d("normal", *y.shape) * 2 + 1),
    ),
    "normal_of_tensors": (
        lambda y: torch.normal(y.detach(), y.detach().exp()) * y,
        lambda y, d: (y.detach() + d("normal", *y.shape) * y.detach().exp()) * y,
    ),
    "normal_of_mean": (
        lambda y: torch.normal(y.detach(), 2.0) * y,
        lambda y, d: (y.detach() + 2 * d("normal", *y.shape)) * y,
    ),
    "normal_of_deviation": (
        lambda y: torch.normal(1.0, y.detach().exp()) * y,
        lambda y, d: (1 + d("normal", *y.shape) * y.detach().exp()) * y,
    ),
    "normal_of_size": (
        lambda y: torch.normal(1.0, 2.0, (ROWS, WIDTH)) * y,
        lambda y, d: (1 + d("normal", *y.shape) * 2) * y,
    ),
    "bernoulli": (
        lambda y: y * torch.bernoulli(y.detach().sigmoid()),
        lambda y, d: y * (d("uniform", *y.shape) < y.detach().sigmoid()),
    ),
    "bernoulli_p": (lambda y: y * torch.bernoulli(y.detach(), 0.2), lambda y, d: y * (d("uniform", *y.shape) < 0.2)),
    "bernoulli_": (
        lambda y: y * torch.empty_like(y).bernoulli_(0.2),
        lambda y, d: y * (d("uniform", *y.shape) < 0.2),
    ),
    "bernoulli_of_tensor": (
        lambda y: y * torch.empty_like(y).bernoulli_(torch.full((WIDTH,), 0.25)),
        lambda y, d: y * (d("uniform", *y.shape) < 0.25),
    ),
    "gumbel_softmax": (lambda y: F.gumbel_softmax(y, tau=0.7), gumbel_reference),
    "no_grad": (without_gradient, lambda y, d: y * (d("uniform", *y.shape) < 0.25)),
    "backward_of_a_custom_function": (Noisy.apply, noisy_reference),
    "checkpoint": (
        lambda y: checkpoint(lambda z: F.dropout(z.sin(), 0.3).tanh(), y, use_reentrant=False),
        lambda y, d: d.dropout(y.sin(), 0.3).tanh(),
    ),
    "attention": (attention(), attention_reference()),
    "attention_scale": (attention(scale=0.2), attention_reference(scale=0.2)),
    "attention_causal": (attention(is_causal=True), attention_reference(CAUSAL)),
    "attention_bool_mask": (attention(attn_mask=CAUSAL), attention_reference(CAUSAL)),
    "attention_float_mask": (attention(attn_mask=SLOPE), attention_reference(SLOPE)),
    "attention_grouped": (grouped, grouped_reference),
    "several": (
        swapped,
        lambda y, d: d.dropout(y + d("normal", *y.shape), 0.5) * d("uniform", ROWS, 1),
    ),
    "no_rows": (
        lambda y: y * torch.rand(3).sum(),
        lambda y, d: y * d("uniform", 3, by_row=False).sum(),
    ),
}


@pytest.mark.parametrize("step", (0, 7))
@pytest.mark.parametrize("name", PAIRS)
def test_loss_and_gradients_follow_the_draws(name: str, step: int) -> None:
    _, reference = PAIRS[name]
    model, x = model_and_input()
    exported, program = captured(name)
    if name != "dropout_always":
        assert "hp.uniform" in str(exported.module) or "hp.normal" in str(exported.module)
    result = hpir.simulate(program, exported.state, {"x": x}, step=step, dtype=torch.float64)
    weight = model.linear.weight.detach().double().requires_grad_()
    y = x.double() @ weight.t()
    loss = reference(y, Draws(ROWS, seed=5, step=step)).square().mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    torch.testing.assert_close(result.loss, loss.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(result.grads["linear.weight"], gradient, rtol=1e-11, atol=1e-12)


@functools.cache
def captured(name: str) -> tuple[Any, Any]:
    function, _ = PAIRS[name]
    model, x = model_and_input()

    def train(model: nn.Module, x: Tensor) -> Tensor:
        return function(model(x)).square().mean()

    exported = hpir.export(model, train, {"x": x})
    return exported, hpir.compile_program(exported, {"data": {"seed": 5}})


def test_the_captured_graph_draws_as_step_0_of_seed_0() -> None:
    exported, _ = captured("several")
    program = hpir.compile_program(exported)
    model, x = model_and_input()
    loss = exported.graph_module(model.linear.weight, model.noise, x)[0]
    assert torch.equal(loss.detach(), hpir.simulate(program, exported.state, {"x": x}).loss)


def test_capture_moves_no_generator() -> None:
    model, x = model_and_input()
    before = torch.get_rng_state()
    hpir.export(model, lambda model, x: F.dropout(model(x), 0.3).mean(), {"x": x})
    assert torch.equal(torch.get_rng_state(), before)


GENERATOR = torch.Generator()


@torch.library.custom_op("hpir_test_random::noisy", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def noisy(x: Tensor) -> Tensor:
    """Add noise in a custom operator."""
    return x + torch.randn_like(x)


@noisy.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


REFUSED: tuple[tuple[Callable[[Tensor], Any], str], ...] = (
    (
        lambda y: torch.rand(3, generator=GENERATOR),
        "uses a torch.Generator .leave it out; a compiled step draws from the plan's data.seed",
    ),
    (lambda y: torch.rand(3, generator=torch.Generator()), "a random generator is made within the step"),
    (lambda y: torch.manual_seed(1), "seeds the random generator within the step"),
    (lambda y: torch.get_rng_state(), "reads or sets the random generator's state within the step"),
    (lambda y: y * random.random(), "Python random number"),
    (lambda y: torch.poisson(y.abs()), r"'aten.poisson.default' .*cannot be made of uniform draws: draw it outside"),
    (lambda y: torch.randint(0, 2**40, (3,)), r"has a range above 2\^32, .*: give it a smaller one"),
    (lambda y: torch.randn(3, dtype=torch.complex64).abs(), "of dtype torch.complex64 .*draw real numbers and convert"),
    (lambda y: torch.randperm(2**25)[:3], r"has more than 2\^24 elements, .*: permute a smaller dim"),
    (lambda y: noisy(y), r"'hpir_test_random.noisy.default' draws inside a custom operator, .*: pass it what is drawn"),
)


@pytest.mark.parametrize(("draws", "message"), REFUSED, ids=(str(number) for number in range(len(REFUSED))))
def test_what_has_no_stream_is_refused_at_the_users_line(draws: Callable[[Tensor], Any], message: str) -> None:
    model, x = model_and_input()

    def train(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        drawn = draws(y.detach())
        loss: Tensor = y.mean() + (drawn.float().mean() if isinstance(drawn, Tensor) else 0)
        return loss

    with pytest.raises(hpir.CaptureError, match=message) as error:
        hpir.export(model, train, {"x": x})
    assert str(error.value).startswith(f"{__file__}:{draws.__code__.co_firstlineno}: ")


def samples(make: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float32, *, wide: bool = False) -> Tensor:
    """Return what 64 x 512 elements of `make(x)` are in a captured step; `wide` runs the step in float64."""

    def train(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        drawn = make(x)
        return model(x).mean(), drawn

    x = torch.zeros(64, 512, dtype=dtype)
    exported = hpir.export(nn.Linear(512, 1).to(dtype), train, {"x": x})
    run = torch.float64 if wide else None
    result = hpir.simulate(hpir.compile_program(exported), exported.state, {"x": x}, check_types=True, dtype=run)
    assert isinstance(result.outputs, Tensor)
    return result.outputs


# Make, then mean, standard deviation and range of what is drawn.
STATISTICS: dict[str, tuple[Callable[[Tensor], Tensor], float, float, float, float]] = {
    "rand": (torch.rand_like, 0.5, 12**-0.5, 0, 1),
    "randn": (torch.randn_like, 0, 1, -6, 6),
    "uniform_": (lambda x: x.clone().uniform_(-1, 3), 1, 4 * 12**-0.5, -1, 3),
    "normal_": (lambda x: x.clone().normal_(2, 3), 2, 3, -16, 20),
    "bernoulli": (lambda x: torch.bernoulli(x + 0.3), 0.3, 0.21**0.5, 0, 1),
    "dropout": (lambda x: F.dropout(x + 1, 0.2), 1, 0.5, 0, 1.25),
    "alpha_dropout": (lambda x: F.alpha_dropout(torch.randn_like(x), 0.2, training=True), 0, 1, -6, 6),
    "exponential_": (lambda x: x.clone().exponential_(2.0), 0.5, 0.5, 0, 9),
    "log_normal_": (lambda x: x.clone().log_normal_(0.0, 0.25), math.exp(1 / 32), 0.26, 0, 4),
    "geometric_": (lambda x: x.clone().geometric_(0.25), 4, 12**0.5, 1, 60),
    "randint": (lambda x: torch.randint(-3, 7, (64, 512)), 1.5, (99 / 12) ** 0.5, -3, 6),
    "randint_like": (lambda x: torch.randint_like(x, 100), 49.5, (9999 / 12) ** 0.5, 0, 99),
    "randint_wide": (
        lambda x: torch.randint(0, 2**32, (64, 512)).double() / 2**32,
        0.5,
        12**-0.5,
        0,
        1,
    ),
    "randint_1000": (lambda x: torch.randint_like(x, 1, 1001), 500.5, 1000 * 12**-0.5, 1, 1000),
    "multinomial": (
        lambda x: torch.multinomial(torch.tensor([0.5, 0.0, 0.25, 0.25]).expand(64, 4), 512, replacement=True),
        1.25,
        (3.25 - 1.25**2) ** 0.5,
        0,
        3,
    ),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_what_is_drawn_has_the_right_distribution(name: str) -> None:
    make, mean, deviation, low, high = STATISTICS[name]
    values = samples(make).double()
    assert values.shape == (64, 512)
    error = 5 * deviation / values.numel() ** 0.5
    assert values.mean().item() == pytest.approx(mean, abs=error)
    assert values.std().item() == pytest.approx(deviation, rel=0.05)
    assert low <= values.min().item() and values.max().item() <= high


def test_cauchy_has_the_right_quartiles() -> None:
    values = samples(lambda x: x.clone().cauchy_(1.0, 2.0))
    quartiles = values.quantile(torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quartiles, torch.tensor([-1.0, 1.0, 3.0]), rtol=0, atol=0.1)


@pytest.mark.parametrize(("low", "high"), ((0, 7), (-2, 5), (0, 300)))
def test_integers_are_equally_likely(low: int, high: int) -> None:
    values = samples(lambda x: torch.randint(low, high, (64, 512)))
    assert values.dtype == torch.int64
    expected = values.numel() / (high - low)
    counts = torch.bincount((values - low).flatten(), minlength=high - low)
    assert len(counts) == high - low
    # Chi-squared, whose mean is its degrees of freedom: far beyond it would be a bias.
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert chi < (high - low - 1) + 5 * (2 * (high - low - 1)) ** 0.5


@pytest.mark.parametrize("dtype", (torch.int32, torch.uint8, torch.int64, torch.float32))
def test_integers_come_in_the_dtype_asked_for(dtype: torch.dtype) -> None:
    values = samples(lambda x: torch.randint(0, 200, (64, 512), dtype=dtype))
    assert values.dtype == dtype
    assert values.min().item() == 0 and values.max().item() == 199


def test_permutations() -> None:
    values = samples(lambda x: torch.stack([torch.randperm(512) for _ in range(64)]))
    assert torch.equal(values.sort().values, torch.arange(512).expand(64, 512))
    assert len({tuple(row) for row in values.tolist()}) == 64
    # Each place gets each of the numbers: the mean of a column is that of a number.
    assert (values.double().mean(0) - 255.5).abs().max().item() < 5 * 148 / 8


def test_drawing_without_replacement_never_repeats() -> None:
    values = samples(lambda x: torch.multinomial(torch.tensor([4.0, 3.0, 0.0, 2.0, 1.0]).expand(64, 5), 4))
    assert torch.equal(values.sort().values, torch.tensor([0, 1, 3, 4]).expand(64, 4))
    assert (values[:, 0] == 0).sum().item() > (values[:, 0] == 4).sum().item()


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float64))
def test_every_precision_sees_the_same_mask(dtype: torch.dtype) -> None:
    def mask(x: Tensor) -> Tensor:
        return F.dropout(torch.ones_like(x), 0.1) != 0

    exact = samples(mask)
    assert exact.dtype == torch.bool
    assert torch.equal(samples(mask, dtype), exact)
    assert torch.equal(samples(mask, wide=True), exact)


def test_exponential_draws_are_never_zero() -> None:
    # Of which a Gumbel softmax takes the logarithm.
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert samples(lambda x: x.clone().exponential_(), dtype).min().item() > 0


def noise(model: Scale, x: Tensor) -> tuple[Tensor, Tensor]:
    """Renew a buffer of noise and use its new value."""
    model.noise.normal_()
    return (model(x) * model.noise.sum()).square().mean(), model.noise


def test_a_buffer_of_noise_gets_a_new_value_each_step() -> None:
    model, x = model_and_input()
    exported = hpir.export(model, noise, {"x": x})
    program = hpir.compile_program(exported, {"data": {"microbatches": 2}})
    batch = {"x": torch.cat([x, x])}
    for step in (0, 1):
        result = hpir.simulate(program, exported.state, batch, step=step, dtype=torch.float64)
        last = Draws(ROWS, step=step, microbatch=1)("normal", 3, by_row=False)
        assert torch.equal(result.buffers["noise"], last)
        means = [Draws(ROWS, step=step, microbatch=m)("normal", 3, by_row=False).sum().square() for m in (0, 1)]
        plain = (x.double() @ model.linear.weight.detach().double().t()).square().mean()
        torch.testing.assert_close(result.loss, torch.stack(means).mean() * plain, rtol=1e-12, atol=0)


def test_attention_module_with_dropout() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(WIDTH, 4, dropout=0.3, batch_first=True)
    x = torch.randn(ROWS, 3, WIDTH)

    def train(model: nn.Module, x: Tensor) -> Tensor:
        loss: Tensor = model(x, x, x, need_weights=False)[0].square().mean()
        return loss

    exported = hpir.export(module, train, {"x": x})
    assert "rows = 4" in str(exported.module)
    result = hpir.simulate(hpir.compile_program(exported), exported.state, {"x": x}, dtype=torch.float64)
    module = module.double()
    q, k, v = (
        part.reshape(ROWS, 3, 4, -1).transpose(1, 2)
        for part in F.linear(x.double(), module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    )
    kept = Draws(ROWS).dropout((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1), 0.3)
    loss = module.out_proj((kept @ v).transpose(1, 2).flatten(-2)).square().mean()
    torch.autograd.backward(loss)
    torch.testing.assert_close(result.loss, loss.detach(), rtol=1e-12, atol=0)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(result.grads[name], parameter.grad, rtol=1e-10, atol=1e-13, msg=name)


class Given(nn.Module):
    """Dropout from given draws."""

    def __init__(self, draws: Draws, p: float) -> None:
        super().__init__()
        self.draws, self.p = draws, p

    def forward(self, x: Tensor) -> Tensor:
        return self.draws.dropout(x, self.p)


def test_transformer_layer_with_dropout() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.3, batch_first=True)
    layer.self_attn.dropout = 0.0
    x = torch.randn(ROWS, 3, WIDTH)

    def train(model: nn.Module, x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().mean()
        return loss

    exported = hpir.export(layer, train, {"x": x})
    result = hpir.simulate(hpir.compile_program(exported), exported.state, {"x": x}, dtype=torch.float64)
    draws = Draws(ROWS)
    layer = layer.double()
    layer.dropout1 = layer.dropout = layer.dropout2 = Given(draws, 0.3)  # type: ignore[assignment]
    loss = train(layer, x.double())
    torch.autograd.backward(loss)
    torch.testing.assert_close(result.loss, loss.detach(), rtol=1e-12, atol=0)
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(result.grads[name], parameter.grad, rtol=1e-10, atol=1e-12, msg=name)
