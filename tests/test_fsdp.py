"""hp-fsdp on captured steps: what it computes, in which precision, and how long it takes.

Plans and models against the plain loop are in test_acceptance, peak memory in test_memory, the IR in
filecheck/sharding/fsdp*.mlir.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exports import captured
from large_step import large_step
from models import BY_NAME, CASES, reference_step
from torch import Tensor, nn
from torch_mlir import ir

import hpir
from hpir.dialect.attributes import read_strings
from hpir.dialect.context import make_context
from hpir.dialect.signature import body_of, read_signature, step_functions
from hpir.ir_passes.sharding.fsdp import HpFsdp
from hpir.ir_passes.sharding.uneven import padded_rows, row_runs
from hpir.lowering.exported import Exported
from hpir.lowering.to_program import to_program
from hpir.mesh import Mesh, padded_shard_size, shard_spans
from hpir.runtime.simulate import SimulationResult


def simulated(
    exported: Exported, batch: dict[str, Tensor], pipeline: str, state: dict[str, Tensor] | None = None
) -> SimulationResult:
    module = hpir.run_passes(exported.module.operation.clone(), pipeline)
    return hpir.simulate(to_program(module), state or exported.state, batch, check_types=True)


def assert_grads_close(
    result: SimulationResult, expected: dict[str, Tensor], tolerance: float = 1e-10, exact_dtype: bool = True
) -> None:
    assert set(result.grads) == set(expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(
            result.grads[name], gradient, rtol=tolerance, atol=tolerance, check_dtype=exact_dtype, msg=name
        )


def ops_of(module: ir.Operation) -> Iterator[ir.Operation]:
    (function,) = step_functions(module)
    for view in body_of(function).operations:
        yield view.operation


# Rows of uneven shards.


@pytest.mark.parametrize("counts", [(1,), (2,), (3,), (2, 2), (2, 3), (3, 2), (1, 2, 1), (2, 2, 2)])
@pytest.mark.parametrize("rows", range(14))
def test_runs_put_the_rows_back_together(rows: int, counts: tuple[int, ...]) -> None:
    size = padded_shard_size(rows, counts)
    gathered: list[int | None] = []
    for start, held in shard_spans(rows, counts):
        gathered += [*range(start, start + held), *[None] * (size - held)]
    assert len(gathered) == padded_rows(rows, counts)
    runs = row_runs(rows, counts)
    assert [row for run in runs for row in gathered[run.padded : run.padded + run.rows]] == list(range(rows))
    assert [run.start for run in runs] == [sum(run.rows for run in runs[:number]) for number in range(len(runs))]
    if len(counts) == 1 and rows:
        assert len(runs) == 1  # no slice and no concatenation but one


# What it computes.


class Views(nn.Module):
    """Weights reach the backward through splits, casts, slices and transposes; one is used by the loss itself."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 4))
        self.v = nn.Parameter(torch.randn(3, 4))
        self.frozen = nn.Parameter(torch.randn(4, 4), requires_grad=False)
        self.scale = nn.Parameter(torch.randn(()))

    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.split(self.w, 3)
        a, b, c = self.v.unbind()
        y = x @ first.t() + x @ second.t() + (a * b + c).sum()
        y = y + F.linear(torch.tanh(x @ self.frozen.t()), self.w[:3].float().to(x.dtype))
        z: Tensor = y * self.scale
        return z


def train_views(model: Views, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean() + 0.5 * model.w.square().sum()
    return loss


@pytest.mark.parametrize("before", ("", "cse,", "canonicalize,cse,", "hp-simplify,"))
@pytest.mark.parametrize("options", ("", " reshard-after-forward=false", " units=w,v,frozen", " param-dtype=float32"))
def test_views_of_parameters_reach_the_backward(before: str, options: str) -> None:
    torch.manual_seed(0)
    model = Views().double()
    batch = {"x": torch.randn(6, 4, dtype=torch.float64)}
    exported = hpir.export(model, train_views, {"x": batch["x"][:2]})
    result = simulated(exported, batch, f"{before}hp-set-mesh{{axes=dp:3}},hp-fsdp{{axes=dp{options}}}")
    expected = reference_step(model, train_views, batch, data_ranks=3).grads
    assert_grads_close(result, expected, 1e-5 if "float32" in options else 1e-10)


@pytest.mark.parametrize("reshard", ("true", "false"))
@pytest.mark.parametrize("name", ("tied", "rotary", "convnet"))
def test_simplifying_around_it_changes_nothing(name: str, reshard: str) -> None:
    case = BY_NAME[name]
    batch = case.data(6, torch.float64)
    fsdp = f"hp-set-mesh{{axes=dp:3}},hp-fsdp{{axes=dp units={','.join(case.units)} reshard-after-forward={reshard}}}"
    plain = simulated(captured(name, 2), batch, fsdp)
    cleaned = simulated(captured(name, 2), batch, f"cse,hp-simplify,{fsdp},cse,hp-simplify,canonicalize")
    assert torch.equal(plain.loss, cleaned.loss)
    assert all(torch.equal(plain.grads[parameter], cleaned.grads[parameter]) for parameter in plain.grads)


def test_one_rank_computes_the_same_bits() -> None:
    for case in CASES:
        batch = case.data(2, torch.float64)
        exported = captured(case.name, 2)
        before = hpir.simulate(to_program(exported.module.operation.clone()), exported.state, batch)
        units = f" units={','.join(case.units)}" if case.units else ""
        after = simulated(exported, batch, f"hp-set-mesh{{axes=dp:1}},hp-fsdp{{axes=dp{units}}}")
        assert torch.equal(before.loss, after.loss), case.name
        for name, gradient in before.grads.items():
            assert torch.equal(gradient, after.grads[name]), (case.name, name)


def test_equal_batches_give_the_mean_not_the_sum() -> None:
    case = BY_NAME["uneven"]
    part = case.data(2, torch.float64)
    whole = {name: torch.cat([leaf] * 3) for name, leaf in part.items()}
    alone = hpir.simulate(to_program(captured("uneven", 2).module), captured("uneven", 2).state, part)
    for options in ("axes=dp", "replicate-axes=dp", "axes=dp ignore=mid"):
        result = simulated(captured("uneven", 2), whole, f"hp-set-mesh{{axes=dp:3}},hp-fsdp{{{options}}}")
        assert_grads_close(result, alone.grads)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_every_gradient_is_reduced_once_over_every_axis(name: str) -> None:
    module = captured(name, 2).module.operation
    (function,) = step_functions(module)
    trained = [info.name for info in read_signature(function).results_with_role("grad")]
    ignore = f"ignore={trained[-1]}"
    hpir.run_passes(module, f"hp-set-mesh{{axes=rep:2,one:1,dp:2}},hp-fsdp{{axes=dp,one replicate-axes=rep {ignore}}}")
    reduced: Counter[tuple[str, str]] = Counter()
    for op in ops_of(module):
        if op.name in ("hp.reduce_scatter", "hp.all_reduce"):
            names, axes = (read_strings(op.attributes[key]) for key in ("hp.fqn", "axes"))
            assert names and axes
            reduced.update((names[0], axis) for axis in axes)
            assert len(list(op.results[0].uses)) == 1  # its wait
    assert reduced == {(name, axis): 1 for name in trained for axis in ("rep", "one", "dp")}


# Precision.


class Rounded(torch.autograd.Function):
    """A parameter as its low precision shows it; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, low: torch.dtype) -> Tensor:
        return parameter.to(low).to(parameter.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class LowLinear(torch.autograd.Function):
    """What a linear layer computes under `param-dtype`: the products that read the weight are low, the others not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, low: torch.dtype) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.low = low
        return F.linear(x.to(low), weight.to(low), bias.to(low)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        dx = (gradient.to(ctx.low) @ weight.to(ctx.low)).to(x.dtype)
        return dx, gradient.t() @ x, gradient.sum(0), None


apply_rounded: Callable[..., Tensor] = Rounded.apply
apply_low_linear: Callable[..., Tensor] = LowLinear.apply


class Mixed(nn.Module):
    """An embedding, linear layers one after the other and with a norm between, and a plain scale."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.up = nn.Linear(6, 8)
        self.mid = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.down = nn.Linear(8, 5)
        self.scale = nn.Parameter(torch.randn(5))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.mid(self.up(self.embed(ids)))
        y: Tensor = self.down(torch.tanh(self.norm(x))) * self.scale
        return y

    def low(self, ids: Tensor, low: torch.dtype) -> Tensor:
        """Compute what `forward` is to compute under `param-dtype`."""

        def rounded(parameter: Tensor) -> Tensor:
            return apply_rounded(parameter, low)

        def linear(x: Tensor, layer: nn.Linear) -> Tensor:
            return apply_low_linear(x, layer.weight, layer.bias, low)

        x = linear(linear(F.embedding(ids, rounded(self.embed.weight)), self.up), self.mid)
        x = F.layer_norm(x, (8,), rounded(self.norm.weight), rounded(self.norm.bias))
        return linear(torch.tanh(x), self.down) * rounded(self.scale)


@pytest.mark.parametrize("options", ("axes=dp", "axes=dp reshard-after-forward=false", "replicate-axes=dp"))
@pytest.mark.parametrize("before", ("", "cse,canonicalize,hp-simplify,"))
def test_param_dtype_computes_in_the_low_dtype(options: str, before: str) -> None:
    torch.manual_seed(0)
    model = Mixed()
    batch = {"ids": torch.randint(0, 7, (6,)), "y": torch.randn(6, 5)}

    def train(model: Mixed, ids: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(model(ids), y)

    def train_low(model: Mixed, ids: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(model.low(ids, torch.bfloat16), y)

    exported = hpir.export(model, train, {name: leaf[:3] for name, leaf in batch.items()})
    pipeline = f"{before}hp-set-mesh{{axes=dp:2}},hp-fsdp{{{options} param-dtype=bfloat16}}"
    result = simulated(exported, batch, pipeline)
    expected = reference_step(model, train_low, batch, data_ranks=2)
    assert abs(result.loss.item() - expected.loss.item()) < 1e-6
    assert_grads_close(result, expected.grads, 1e-6)
    model.zero_grad()
    full = reference_step(model, train, batch, data_ranks=2)
    assert abs(result.loss.item() - full.loss.item()) > 1e-5  # it did round


def test_param_dtype_halves_what_is_gathered() -> None:
    exported = captured("tied", 2, torch.float32)
    module = hpir.run_passes(exported.module.operation, "hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp param-dtype=bfloat16}")
    gathers = [op for op in ops_of(module) if op.name == "hp.all_gather"]
    assert gathers and all("bf16" in str(op.results[0].type) for op in gathers)
    (function,) = step_functions(module)
    stored = read_signature(function, Mesh.of({"dp": 2})).with_role("param")
    assert all(info.type.dtype == "float32" for info in stored)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_param_dtype_fits_every_model(name: str) -> None:
    case = BY_NAME[name]
    batch = case.data(4, torch.float64)
    units = f" units={','.join(case.units)}" if case.units else ""
    pipeline = f"hp-set-mesh{{axes=dp:2}},hp-fsdp{{axes=dp param-dtype=float32{units}}}"
    result = simulated(captured(name, 2), batch, pipeline)
    expected = reference_step(
        case.model(torch.float64), case.train, batch, data_ranks=2, batch_dims=case.batch_dims
    ).grads
    assert_grads_close(result, expected, 1e-5)
    assert any((result.grads[key] - expected[key]).abs().max() > 1e-12 for key in expected)


def test_reduce_dtype_is_the_reductions_alone() -> None:
    case = BY_NAME["uneven"]
    batch = case.data(4, torch.float64)
    result = simulated(
        captured("uneven", 2), batch, "hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp ignore=mid.bias reduce-dtype=bfloat16}"
    )
    halves = []
    for half in range(2):
        part = {name: leaf.chunk(2)[half] for name, leaf in batch.items()}
        halves.append(reference_step(case.model(torch.float64), case.train, part).grads)
    for name, gradient in result.grads.items():
        one, other = (half[name].to(torch.bfloat16) for half in halves)
        assert gradient.dtype == torch.float64
        # One rounding for the sum, one for the division: both within bfloat16's half unit in the last place.
        torch.testing.assert_close(gradient, ((one + other) / 2).double(), rtol=2**-7, atol=1e-12)
        assert torch.equal(gradient, gradient.to(torch.bfloat16).double())
        assert not torch.equal(gradient, (halves[0][name] + halves[1][name]) / 2)


# The module as a whole.


@pytest.mark.parametrize(
    "pipeline", ("hp-fsdp{axes=dp units=nothing.*}", "hp-fsdp{axes=dp ignore=nothing}", "hp-fsdp{axes=pd}")
)
def test_a_refused_module_is_left_as_it_was(pipeline: str) -> None:
    module = hpir.run_passes(captured("tied", 2).module.operation, "hp-set-mesh{axes=dp:2}")
    before = str(module)
    with pytest.raises(hpir.PassError, match="hp-fsdp"):
        hpir.run_passes(module, pipeline)
    assert str(module) == before


@pytest.mark.parametrize("again", ("axes=a", "axes=b", "replicate-axes=b"))
def test_running_it_twice_is_refused(again: str) -> None:
    module = captured("unused", 2).module.operation
    hpir.run_passes(module, "hp-set-mesh{axes=a:2,b:2},hp-fsdp{axes=a}")
    before = str(module)
    with pytest.raises(hpir.PassError, match="was made by hp-fsdp, which runs once"):
        hpir.run_passes(module, f"hp-fsdp{{{again}}}")
    assert str(module) == before


def test_it_is_deterministic() -> None:
    pipeline = "hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp units=layers.* param-dtype=bfloat16 reduce-dtype=float32}"
    texts = {str(hpir.run_passes(captured("rotary", 2).module.operation, pipeline)) for _ in range(3)}
    assert len(texts) == 1


def seconds(layers: int, pass_: HpFsdp) -> float:
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(large_step(layers, 22))
        hpir.run_passes(module, "hp-set-mesh{axes=dp:2}")
        start = time.process_time()
        pass_.run(module.operation)
        return time.process_time() - start


@pytest.mark.parametrize(("param_dtype", "growth"), [("", 10), ("bfloat16", 4)])
def test_time_is_linear_in_ops(param_dtype: str, growth: int) -> None:
    pass_ = HpFsdp(axes=("dp",), units=("layers.*",), param_dtype=param_dtype)
    small = min(seconds(200, pass_) for _ in range(3))  # 10,000 ops
    assert seconds(200 * growth, pass_) < 2.5 * growth * small
