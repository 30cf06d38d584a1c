"""hp-assign-stages on captured steps: the order of stages op by op, owners of state, and the automatic cut."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from exports import captured
from large_step import large_step
from models import BY_NAME, CASES
from torch_mlir import ir

import hpir
from hpir.dialect.context import make_context
from hpir.dialect.diagnostics import collect
from hpir.dialect.signature import STATE_ROLES, Signature, body_of, read_signature, step_functions
from hpir.ir_passes.phases import BACKWARD, Phases
from hpir.ir_passes.pipeline.partition import partition
from hpir.mesh import Mesh

MESH = Mesh.of({"pp": 1, "dp": 2})


def assigned(name: str, stages: str, *, fsdp: bool = False) -> ir.Operation:
    """Return an acceptance model's step with stages assigned on a mesh whose pipeline axis has one rank."""
    case = BY_NAME[name]
    units = f" units={','.join(case.units)}" if case.units else ""
    ignore = f" ignore={','.join(case.ignore)}" if case.ignore else ""
    sharding = f"hp-fsdp{{axes=dp{units}{ignore}}},hp-simplify," if fsdp else ""
    pipeline = f"hp-set-mesh{{axes=pp:1,dp:2}},hp-simplify,hp-recompute,{sharding}hp-assign-stages{{stages={stages}}}"
    return hpir.run_passes(captured(name, 2).module.operation.clone(), pipeline)


def signature_of(module: ir.Operation) -> Signature:
    (function,) = step_functions(module)
    return read_signature(function, MESH)


def owners(module: ir.Operation) -> dict[str, tuple[int, ...]]:
    return {info.name: info.stages for info in signature_of(module).arguments if info.role in STATE_ROLES}


def stage_of(op: ir.Operation) -> int | None:
    return ir.IntegerAttr(op.attributes["hp.stage"]).value if "hp.stage" in op.attributes else None


def check_order(module: ir.Operation) -> None:
    """Check what hp-assign-stages promises, op by op."""
    (function,) = step_functions(module)
    phases, signature = Phases(function), read_signature(function, MESH)
    count = ir.IntegerAttr(module.attributes["hp.stage_count"]).value
    forward: dict[ir.Value, int] = {}
    backward: dict[ir.Value, int] = {}
    lists: dict[ir.Value, list[ir.Value]] = {}
    held = dict(zip(body_of(function).arguments, signature.arguments, strict=True))
    unplaced: dict[ir.Value, list[ir.Value]] = {}
    seen: set[int] = set()
    for view in body_of(function).operations:
        op, stage = view.operation, stage_of(view.operation)
        operands = [value for operand in op.operands for value in lists.get(operand, [operand])]
        if op.name == "torch.prim.ListConstruct":
            assert stage is None
            lists.update(dict.fromkeys(op.results, operands))
            continue
        if stage is None:
            if op.name == "func.return" or op.name.startswith(("torch.constant.", "torch.vtensor.")):
                continue
            if all(str(result.type) in ("!torch.int", "!torch.float", "!torch.bool") for result in op.results):
                continue
            # A sum of the parts of several stages, or what reduces it.
            assert phases.of(op) == BACKWARD
            assert any(operand in backward or operand in unplaced for operand in operands), str(op)
            unplaced.update(dict.fromkeys(op.results, operands))
            continue
        assert 0 <= stage < count
        assert not any(operand in unplaced for operand in operands), str(op)
        for operand in operands:
            if operand in held and held[operand].role in STATE_ROLES:
                assert stage in held[operand].stages, f"{held[operand].name}: {op}"
        if phases.of(op) == BACKWARD:
            assert all(backward.get(operand, count) >= stage for operand in operands), str(op)
            backward.update(dict.fromkeys(op.results, stage))
        else:
            seen.add(stage)
            assert all(forward.get(operand, -1) <= stage for operand in operands), str(op)
            assert not any(operand in backward for operand in operands), str(op)
            forward.update(dict.fromkeys(op.results, stage))
    assert seen == set(range(count))
    check_gradients(function, signature, backward, unplaced)


def check_gradients(
    function: ir.Operation,
    signature: Signature,
    stages: dict[ir.Value, int],
    unplaced: dict[ir.Value, list[ir.Value]],
) -> None:
    """Check that each part of a gradient is made by an owner, and that only those of several owners are summed."""
    returned = body_of(function).operations[len(body_of(function).operations) - 1].operands
    by_name = {name: info for info in signature.arguments if info.role == "param" for name in info.names}
    for info in signature.results_with_role("grad"):
        open_, parts = [returned[info.index]], set()
        for value in open_:
            open_ += unplaced.get(value, ())
            if value in stages:
                parts.add(stages[value])
        assert parts <= set(by_name[info.name].stages), info.name
        assert (len(parts) > 1) == (returned[info.index] in unplaced), info.name


@pytest.mark.parametrize("fsdp", (False, True), ids=("joint", "fsdp"))
@pytest.mark.parametrize("stages", (1, 2, 3, 4))
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_stages_of_operands_are_in_order(name: str, stages: int, fsdp: bool) -> None:
    module = assigned(name, str(stages), fsdp=fsdp)
    check_order(module)
    assert set(itertools.chain(*owners(module).values())) <= set(range(stages))


def test_a_model_of_fewer_modules_than_stages_is_cut_between_ops() -> None:
    # Two modules: its forward runs four ops that a stage may begin with.
    with collect() as diagnostics:
        assigned("strided", "3")
    assert [line for line in map(str, diagnostics) if "ops, as it runs fewer modules than that" in line]
    with pytest.raises(hpir.PassError, match=r"cannot cut the model into 99 stages: its forward has \d+ ops"):
        assigned("strided", "99")


def test_a_tied_parameter_is_held_by_both_stages() -> None:
    assert owners(assigned("tied", "2"))["embed.weight"] == (0, 1)
    assert owners(assigned("tied", "3", fsdp=True))["embed.weight"] == (0, 2)


def test_buffers_of_the_root_are_held_by_all_stages_that_use_them() -> None:
    held = owners(assigned("rotary", "[embed,layers.0],[layers.1,norm,head]"))
    assert held["cos"] == held["sin"] == (0, 1)


@pytest.mark.parametrize("parts", range(1, 7))
@pytest.mark.parametrize("costs", [(1,) * 7, (5, 1, 1, 1, 1, 5), (0, 0, 9, 0, 0, 0), (3, 1, 4, 1, 5, 9, 2, 6)])
def test_no_cut_has_a_cheaper_costliest_part(costs: Sequence[int], parts: int) -> None:
    def loads(starts: Sequence[int]) -> list[int]:
        return [sum(costs[i:j]) for i, j in itertools.pairwise([*starts, len(costs)])]

    starts = partition(costs, parts)
    assert starts[0] == 0
    assert list(starts) == sorted(set(starts))
    every = [(0, *rest) for rest in itertools.combinations(range(1, len(costs)), parts - 1)]
    best = min((max(loads(each)), sum(load**2 for load in loads(each))) for each in every)
    assert (max(loads(starts)), sum(load**2 for load in loads(starts))) == best


def test_a_large_step_is_assigned_in_time() -> None:
    with make_context():
        module = ir.Module.parse(large_step(800, 59)).operation
    hpir.run_passes(module, "hp-set-mesh{axes=pp:8}")
    started = time.process_time()
    hpir.run_passes(module, "hp-assign-stages")
    assert time.process_time() - started < 6.0  # about 2 s
    check_order(module)
