"""hp-overlap-collectives on captured steps: bits are kept, memory stays within its limit, time is linear in ops.

What goes where is in filecheck/overlap/.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator

import large_modules
import pytest
import torch
from exports import captured
from models import BY_NAME, CASES
from torch_mlir import ir

import hpir
from hpir.dialect.attributes import future_types
from hpir.dialect.context import make_context
from hpir.dialect.diagnostics import collect
from hpir.dialect.parsing import parse_module
from hpir.dialect.signature import body_of, step_functions
from hpir.ir_passes.overlap.overlap_collectives import HpOverlapCollectives
from hpir.ir_passes.views import VIEWS, operator_name
from hpir.lowering.to_program import to_program

MESHES = {
    "dp2": ("dp:2", "axes=dp", 2),
    "dp3": ("dp:3", "axes=dp", 3),
    "keep": ("dp:2", "axes=dp reshard-after-forward=false", 2),
    "hsdp2x2": ("rep:2,dp:2", "axes=dp replicate-axes=rep", 4),
    "ddp2": ("dp:2", "replicate-axes=dp", 2),
}


@functools.cache
def _sharded(name: str, mesh: str) -> ir.Operation:
    case, (axes, options, _) = BY_NAME[name], MESHES[mesh]
    units = f" units={','.join(case.units)}" if case.units else ""
    pipeline = f"hp-simplify,hp-set-mesh{{axes={axes}}},hp-fsdp{{{options}{units}}},hp-simplify"
    return hpir.run_passes(captured(name, 2).module.operation, pipeline)


def sharded(name: str, mesh: str) -> ir.Operation:
    """Return an acceptance model on a mesh, before communication is moved."""
    return _sharded(name, mesh).clone()


def ops_of(module: ir.Operation) -> Iterator[ir.Operation]:
    (function,) = step_functions(module)
    for view in body_of(function).operations:
        yield view.operation


def peak_of(module: ir.Operation) -> int:
    """Return the most bytes of gathered parameters that are alive at once, op by op."""
    ops = list(ops_of(module))
    alive: dict[int, tuple[int, int]] = {}
    held: dict[ir.Value, int] = {}
    sizes: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, op in enumerate(ops):
        for operand in op.operands:
            if operand in held:
                last[held[operand]] = number
        if op.name == "hp.all_gather":
            elements = re.findall(r"\[([\d,]*)\],f(\d+)", str(future_types(op.results[0].type)))
            sizes[number] = sum(
                int(bits) // 8 * torch.Size(map(int, filter(None, shape.split(",")))).numel()
                for shape, bits in elements
            )
            held[op.results[0]] = last[number] = number
        elif op.name == "hp.wait" or (operator_name(op) in VIEWS and operator_name(op) != "aten.clone"):
            for operand in op.operands:
                if operand in held:
                    held.update(dict.fromkeys(op.results, held[operand]))
    alive = {start: (start, last[start]) for start in sizes}
    return max(
        (sum(sizes[at] for at, (begin, end) in alive.items() if begin <= number <= end) for number in range(len(ops))),
        default=0,
    )


def reported_peak(module: ir.Operation, options: str) -> int:
    """Overlap and return what the remark says of memory."""
    with collect() as said:
        hpir.run_passes(module, f"hp-overlap-collectives{{{options}}}")
    found = re.search(r"gathered parameters take at most (\d+) bytes", "\n".join(map(str, said)))
    assert found is not None
    return int(found[1])


NAMES = [case.name for case in CASES]
FEW = ("tied", "rotary", "convnet", "dropout")


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        *((name, mesh) for name in NAMES for mesh in ("dp2", "dp3", "hsdp2x2")),
        *((name, mesh) for name in FEW for mesh in ("keep", "ddp2")),
    ],
)
def test_results_are_kept_bitwise(name: str, mesh: str) -> None:
    batch = BY_NAME[name].data(2 * MESHES[mesh][2], torch.float64)
    state = captured(name, 2).state
    module = sharded(name, mesh)
    before = hpir.simulate(to_program(module.clone()), state, batch)
    for options in ("prefetch=1", "prefetch=3"):
        moved = hpir.run_passes(module.clone(), f"hp-overlap-collectives{{{options}}},hp-verify-level")
        assert sorted(op.name for op in ops_of(moved)) == sorted(op.name for op in ops_of(module))
        after = hpir.simulate(to_program(moved), state, batch, check_types=True)
        assert torch.equal(before.loss, after.loss)
        assert before.grads.keys() == after.grads.keys()
        for key, gradient in before.grads.items():
            assert torch.equal(gradient, after.grads[key]), (options, key)
        for key, buffer in before.buffers.items():
            assert torch.equal(buffer, after.buffers[key]), (options, key)


BUCKETS = "hp-bucket-collectives{by=module}"
COMBINED = {
    "module": f"{BUCKETS},hp-overlap-collectives{{prefetch=2}}",
    "size": "hp-bucket-collectives{by=size cap-mb=0.001},hp-overlap-collectives{prefetch=2}",
    "fused afterwards": f"hp-overlap-collectives{{prefetch=2}},{BUCKETS}",
    "then flat": f"{BUCKETS},hp-overlap-collectives{{prefetch=2}},hp-expand-buckets{{layout=flat}}",
    "then packed": f"{BUCKETS},hp-overlap-collectives{{prefetch=2}},hp-expand-buckets{{layout=packed}}",
    "behind flat": f"{BUCKETS},hp-expand-buckets{{layout=flat}},hp-overlap-collectives{{prefetch=2}}",
    "behind packed": f"{BUCKETS},hp-expand-buckets{{layout=packed}},hp-overlap-collectives{{prefetch=2}}",
}


@pytest.mark.parametrize("mesh", ("dp2", "dp3", "hsdp2x2"))
@pytest.mark.parametrize("name", (*FEW, "uneven", "ignored"))
def test_results_are_kept_bitwise_with_buckets(name: str, mesh: str) -> None:
    batch = BY_NAME[name].data(2 * MESHES[mesh][2], torch.float64)
    state = captured(name, 2).state
    module = sharded(name, mesh)
    before = hpir.simulate(to_program(module.clone()), state, batch)
    for pipeline in COMBINED.values():
        moved = hpir.run_passes(module.clone(), f"{pipeline},hp-verify-level")
        after = hpir.simulate(to_program(moved), state, batch, check_types=True)
        assert torch.equal(before.loss, after.loss)
        for key, gradient in before.grads.items():
            assert torch.equal(gradient, after.grads[key]), (pipeline, key)


@pytest.mark.parametrize("layout", ("flat", "packed"))
def test_expanded_buckets_are_moved_as_buckets_are(layout: str) -> None:
    overlap, expand = "hp-overlap-collectives{prefetch=2}", f"hp-expand-buckets{{layout={layout}}}"
    module = hpir.run_passes(sharded("rotary", "dp2"), BUCKETS)
    orders = []
    for pipeline in (f"{overlap},{expand}", f"{expand},{overlap}"):
        moved = hpir.run_passes(module.clone(), pipeline)
        # All but what puts shards into shape.
        orders.append([op.name for op in ops_of(moved) if op.name.startswith(("hp.a", "hp.r", "hp.w", "torch.aten"))])
    assert orders[0] == orders[1]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", NAMES)
def test_running_it_again_changes_nothing(name: str, mesh: str) -> None:
    module = hpir.run_passes(sharded(name, mesh), "hp-overlap-collectives{prefetch=2}")
    before = str(module)
    assert str(hpir.run_passes(module, "hp-overlap-collectives{prefetch=2}")) == before


@pytest.mark.parametrize("name", FEW)
def test_it_does_not_depend_on_where_things_stood(name: str) -> None:
    module = sharded(name, "dp2")
    once = str(hpir.run_passes(module.clone(), "hp-overlap-collectives{prefetch=2}"))
    assert once == str(hpir.run_passes(module.clone(), "hp-overlap-collectives{prefetch=2}"))
    other = hpir.run_passes(module, "hp-overlap-collectives{prefetch=0},hp-overlap-collectives{prefetch=2}")
    starts = [str(op.attributes["hp.fqn"]) for op in ops_of(other) if op.name == "hp.all_gather"]
    assert starts == re.findall(r'"hp.all_gather".*?hp\.fqn = (\[.*?\])', once)


@pytest.mark.parametrize("mesh", ("dp2", "dp3", "keep"))
@pytest.mark.parametrize("name", ("tied", "rotary", "uneven", "image_text", "dropout"))
def test_memory_stays_within_the_limit(name: str, mesh: str) -> None:
    module = sharded(name, mesh)
    least = reported_peak(module.clone(), "prefetch=0")
    most = reported_peak(module.clone(), "prefetch=3")
    assert least <= most
    for limit in sorted({least, (least + most) // 2, most}):
        options = f"prefetch=3 memory-limit-mb={limit / 2**20!r}"
        reported = reported_peak(module, options)
        assert peak_of(module) <= reported <= limit, options
    if mesh == "dp2" and least > 1:
        before = str(module)
        with pytest.raises(hpir.PassError, match=r"gathered parameters need \d+ bytes at once where it is used"):
            hpir.run_passes(module, f"hp-overlap-collectives{{memory-limit-mb={(least - 1) / 2**20!r}}}")
        assert str(module) == before


def test_prefetch_hides_what_the_limit_exposes_again() -> None:
    def exposed(options: str) -> float:
        with collect() as said:
            hpir.run_passes(sharded("rotary", "dp2"), f"hp-overlap-collectives{{{options}}}")
        found = re.search(r"takes ([\d.]+) (us|ms), ([\d.]+) (us|ms) of it exposed", "\n".join(map(str, said)))
        assert found is not None
        return float(found[3]) * {"us": 1e-6, "ms": 1e-3}[found[4]]

    least = reported_peak(sharded("rotary", "dp2"), "prefetch=0")
    limited = exposed(f"prefetch=2 memory-limit-mb={least / 2**20!r}")
    assert exposed("prefetch=2") < exposed("prefetch=1") < exposed("prefetch=0")
    assert exposed("prefetch=2") < limited <= exposed("prefetch=0")


def seconds(operations: int) -> float:
    module = parse_module(large_modules.training_step(large_modules.blocks_for(operations)), make_context())
    hpir.run_passes(module, "hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp units=blocks.*}")
    with module.context:
        begin = time.process_time()
        HpOverlapCollectives().run(module.operation)
        return time.process_time() - begin


def test_time_is_linear_in_ops() -> None:
    small = min(seconds(10_000) for _ in range(3))
    assert min(seconds(100_000) for _ in range(2)) < 20 * small
