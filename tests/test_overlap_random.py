"""hp-overlap-collectives on random functions: the same bits on every rank, and what may not move has not."""

from __future__ import annotations

import re
from collections import Counter

import torch
from collective_graphs import CollectiveGraph, collective_graphs, examples, simulate_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_mlir import ir

import hpir
from hpir.dialect.context import make_context
from hpir.dialect.diagnostics import collect
from hpir.dialect.hp import COMMUNICATION
from hpir.dialect.parsing import parse_module
from hpir.dialect.signature import body_of, step_functions
from hpir.ir_passes.views import CASTS, VIEWS, operator_name

PIPELINES = (
    "hp-overlap-collectives{{{}}}",
    "hp-bucket-collectives,hp-overlap-collectives{{{}}}",
    "hp-bucket-collectives{{by=size cap-mb=0.0001}},hp-overlap-collectives{{{}}}",
    "hp-overlap-collectives{{{}}},hp-bucket-collectives",
    "hp-bucket-collectives,hp-overlap-collectives{{{}}},hp-expand-buckets{{layout=packed}}",
    "hp-bucket-collectives,hp-expand-buckets{{layout=packed}},hp-overlap-collectives{{{}}}",
)
SHAPING = {"aten.constant_pad_nd", "aten.cat", "prim.ListConstruct", "hp.pack", "hp.unpack", *VIEWS, *CASTS}


def with_parameters(graph: CollectiveGraph, numbers: set[int]) -> ir.Operation:
    """Return a graph's module with some inputs for parameters, so that their gathers are prefetched."""
    text = graph.text
    for number in numbers:
        text = text.replace(
            f'hp.name = "x{number}", hp.role = "input", hp.batch_dim = 0 : i64',
            f'hp.fqn = ["p{number}"], hp.role = "param"',
        )
    return parse_module(text, make_context()).operation


def as_inputs(module: ir.Operation, graph: CollectiveGraph) -> ir.Operation:
    """Return the module with the arguments' attributes that the graph was made with."""
    original = graph.module()
    (function,), (given,) = step_functions(module), step_functions(original.operation)
    function.attributes["arg_attrs"] = ir.Attribute.parse(str(given.attributes["arg_attrs"]), module.context)
    return module


def ops_of(module: ir.Operation) -> list[ir.Operation]:
    (function,) = step_functions(module)
    return [view.operation for view in body_of(function).operations]


def computed(module: ir.Operation) -> list[str]:
    """Return the ops that compute, in order."""
    return [
        f"{op.name} {[str(result.type) for result in op.results]}"
        for op in ops_of(module)
        if op.name not in COMMUNICATION
        and operator_name(op) not in SHAPING
        and not op.name.startswith(("torch.constant.", "torch.vtensor."))
    ]


@st.composite
def cases(draw: st.DrawFn) -> tuple[CollectiveGraph, set[int], str, str]:
    """Draw a function, which inputs are parameters, options, and what else runs."""
    graph = draw(collective_graphs())
    numbers = range(len(graph.inputs))
    parameters = draw(st.sets(st.sampled_from(numbers))) if numbers else set()
    limit = draw(st.sampled_from(("", "", " memory-limit-mb=0.0001", " memory-limit-mb=0.0004")))
    return graph, parameters, f"prefetch={draw(st.integers(0, 3))}{limit}", draw(st.sampled_from(PIPELINES))


@settings(max_examples=examples(100), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_what_a_function_computes_is_kept(case: tuple[CollectiveGraph, set[int], str, str]) -> None:
    graph, parameters, options, pipeline = case
    module = with_parameters(graph, parameters)
    before = str(module)
    expected = simulate_graph(as_inputs(module.clone(), graph), graph)
    names, order = Counter(op.name for op in ops_of(module)), computed(module)
    try:
        with collect() as said:
            hpir.run_passes(module, pipeline.format(options))
    except hpir.PassError as error:
        assert "memory-limit-mb" in options and "gathered parameters need" in str(error)
        if pipeline.startswith("hp-overlap"):
            assert str(module) == before
        return
    assert computed(module) == order
    if pipeline == PIPELINES[0]:
        assert Counter(op.name for op in ops_of(module)) == names
        once = str(module)
        assert str(hpir.run_passes(module, pipeline.format(options))) == once
    for peak in re.findall(r"gathered parameters take at most (\d+) bytes", "\n".join(map(str, said))):
        limit = re.search(r"mb=([\d.]+)", options)
        assert limit is None or int(peak) <= float(limit[1]) * 2**20
    for one, other in zip(expected, simulate_graph(as_inputs(module, graph), graph), strict=True):
        for value, same in zip(one, other, strict=True):
            assert value.dtype == same.dtype
            assert torch.equal(value, same)
