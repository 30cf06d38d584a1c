"""hp-bucket-collectives on random functions: the same bits on every rank, and only what may move has moved."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from collective_graphs import UNITS, CollectiveGraph, collective_graphs, examples, simulate_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_mlir import ir

import hpir
from hpir.dialect.signature import body_of, step_functions
from hpir.ir_passes.bucketing.bucket_plan import plans_to_json
from hpir.ir_passes.bucketing.collectives import FunctionOps
from hpir.ir_passes.bucketing.planner import plan_function
from hpir.ir_passes.bucketing.scopes import by_module

SCOPES = ("by=module", "by=size cap-mb=0.0001", "by=size cap-mb=1", "groups")


def ops_of(module: ir.Operation) -> list[ir.Operation]:
    (function,) = step_functions(module)
    return [view.operation for view in body_of(function).operations]


def groups_for(module: ir.Operation) -> str:
    """Return groups that claim what there is of two units each in one bucket, whatever its unit."""
    (function,) = step_functions(module)
    present = {each.unit for each in FunctionOps(function).collectives}
    patterns = [unit or "w*" for unit in UNITS if unit in present]
    return f"by=[{','.join(patterns[:2])}]" if patterns else "by=module"


def staying(module: ir.Operation) -> list[str]:
    """Return the ops that may not move, by name and type, in order."""
    (function,) = step_functions(module)
    ops = FunctionOps(function)
    ops.meet(range(ops.count))
    moving = {number for each in ops.collectives for number in (each.start, each.wait)}
    return [
        f"{op.name} {[str(result.type) for result in op.results]}"
        for number, op in enumerate(map(ops.op, range(ops.count)))
        if number not in moving and not ops.is_link(number) and "hp.bucket" not in op.attributes
    ]


@settings(max_examples=examples(310), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(collective_graphs(), st.sampled_from(SCOPES))
def test_buckets_keep_what_a_function_computes(graph: CollectiveGraph, scope: str) -> None:
    module = graph.module().operation
    expected = simulate_graph(module, graph)
    options = groups_for(module) if scope == "groups" else scope
    before, stay = Counter(op.name for op in ops_of(module)), staying(module)
    alone = [each.parameters[0] for each in FunctionOps(next(iter(step_functions(module)))).collectives]
    hpir.run_passes(module, f"hp-bucket-collectives{{{options}}}")
    # Nothing is lost, and what may not move has not.
    after = ops_of(module)
    buckets = [op for op in after if "hp.bucket" in op.attributes and op.name != "hp.wait"]
    for kind in ("hp.all_gather", "hp.reduce_scatter", "hp.all_reduce"):
        operands = sum(len(op.operands) for op in after if op.name == kind)
        assert operands == before[kind]
    assert staying(module) == stay
    names = [(op.attributes["hp.bucket"], op.name, op.attributes["hp.phase"]) for op in buckets]
    assert len(set(map(str, names))) == len(names)
    fused = [str(name) for op in buckets for name in op.attributes["hp.fqn"]]
    assert len(fused) == len(set(fused)) and {name.strip('"') for name in fused} <= set(alone)
    # The same bits on every rank.
    for one, other in zip(expected, simulate_graph(module, graph), strict=True):
        for value, same in zip(one, other, strict=True):
            assert value.dtype == same.dtype
            assert torch.equal(value, same)


@settings(max_examples=examples(40), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(collective_graphs())
def test_a_stored_plan_does_the_same(graph: CollectiveGraph) -> None:
    module = graph.module().operation
    planned = str(hpir.run_passes(module.clone(), "hp-bucket-collectives"))
    (function,) = step_functions(module)
    text = plans_to_json([plan_function(FunctionOps(function), by_module).plan])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(text)
        assert str(hpir.run_passes(module, f"hp-bucket-collectives{{plan={path}}}")) == planned
