"""Generated code, its text for people, graphs and Inductor: one rank, no process group."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from exports import captured
from models import BY_NAME, CASES
from program_builder import FunctionBuilder, dtype, program_of, with_location
from torch import Tensor

from hpir.errors import RuntimeFault
from hpir.lowering.to_program import to_program
from hpir.mesh import Mesh
from hpir.runtime.aliasing import program_aliases
from hpir.runtime.build import Executable
from hpir.runtime.collectives import RankOps
from hpir.runtime.device import RankMesh
from hpir.runtime.graph import build_graph
from hpir.runtime.program import Function, Program, Ref, TensorType
from hpir.runtime.python_text import reachable_functions, to_python
from hpir.runtime.simulate import simulate

ONE = Mesh(("all",), (1,))
F32 = TensorType((2, 3), "float32")


def rank_ops(program: Program) -> RankOps:
    return RankOps(RankMesh(program.mesh, torch.device("cpu")))


def run_entry(program: Program, values: Sequence[Tensor], backend: str = "eager") -> list[Tensor]:
    entry = program.entry(0)
    executable = Executable(program, [entry.name], rank_ops(program), backend)
    with torch.no_grad():
        return list(executable.run(entry.name, list(values)))


def run_text(program: Program, values: Sequence[Tensor]) -> list[Tensor]:
    namespace: dict[str, Any] = {"hp": rank_ops(program)}
    exec(to_python(program), namespace)
    with torch.no_grad():
        return list(namespace[program.entry(0).name](*values))


def acceptance(name: str, microbatches: int) -> tuple[Program, list[Tensor], dict[str, Tensor], dict[str, Tensor]]:
    exported = captured(name, 2, torch.float32)
    program = to_program(exported.module, microbatches=microbatches)
    batch = BY_NAME[name].data(2 * microbatches)
    values = [
        batch[argument.name] if argument.role == "input" else exported.state[argument.name].detach()
        for argument in program.entry(0).arguments
    ]
    state = {a.name: exported.state[a.name].detach() for a in program.entry(0).arguments if a.role != "input"}
    return program, values, state, batch


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_code_and_text_equal_the_simulator_bitwise(name: str) -> None:
    program, values, state, batch = acceptance(name, 2)
    before = [value.clone() for value in values]
    expected = simulate(program, state, batch).per_rank[0]
    for found in (run_entry(program, values), run_text(program, values)):
        assert len(found) == len(expected)
        for result, got, wanted in zip(program.entry(0).results, found, expected, strict=True):
            assert torch.equal(got, wanted), result.name
    for argument, value, then in zip(program.entry(0).arguments, values, before, strict=True):
        assert torch.equal(value, then), f"{argument.name} was changed"


@pytest.mark.parametrize("name", ["uneven", "convnet"])
def test_inductor_equals_eager(name: str) -> None:
    program, values, _, _ = acceptance(name, 2)
    torch.testing.assert_close(run_entry(program, values, "inductor"), run_entry(program, values))


def test_inductor_takes_every_size_of_a_dim_that_changes_and_a_misspelling_is_refused() -> None:
    f = FunctionBuilder("main", ONE)
    x = f.argument("x", (2, 3))
    f.result(f.aten("relu.default", x))
    function = f.build()
    unknown = replace(function.arguments[0], type=TensorType((None, 3), "float32"))
    program = program_of(replace(function, arguments=(unknown,)), mesh=ONE)
    for rows in (2, 5):
        found = run_entry(program, [torch.arange(3.0).expand(rows, 3) - 1], "inductor")
        assert found[0].tolist() == [[0, 0, 1]] * rows
    with pytest.raises(RuntimeFault, match="unknown backend 'inducto', expected 'eager' or 'inductor', did you mean"):
        run_entry(program, [torch.ones(2, 3)], "inducto")


def test_inductor_draws_what_eager_draws() -> None:
    f = FunctionBuilder("draws", ONE)
    x = f.argument("x", (2, 3))
    uniform = f.random("uniform", (2, 3), 3)
    f.result(f.aten("add.Tensor", x, uniform))
    f.result(f.random("normal", (4,), 1))
    callee = f.build()
    g = FunctionBuilder("main", ONE)
    x = g.argument("x", (2, 3))
    for microbatch in range(2):
        for ref in g.call(callee, x, microbatch=microbatch)[:2]:
            g.result(ref)
    program = program_of(callee, g.build(), mesh=ONE, seed=7)
    operands = [torch.ones(2, 3)]
    eager = run_entry(program, operands)
    assert not torch.equal(eager[0], eager[2])
    assert all(torch.equal(a, b) for a, b in zip(run_entry(program, operands, "inductor"), eager, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(run_text(program, operands), eager, strict=True))


def constants_function() -> Function:
    """Every kind of constant, an operator that returns a list, and one that returns several tensors."""
    f = FunctionBuilder("constants", ONE)
    x = f.argument("x", (2, 3))
    f.result(f.aten("full.default", (2,), math.inf, type_=TensorType((2,), "float32")))
    f.result(f.aten("full.default", (2,), -math.inf, type_=TensorType((2,), "float32")))
    f.result(f.aten("full.default", (2,), math.nan, type_=TensorType((2,), "float32")))
    f.result(f.aten("full.default", (2,), complex(1, -2), type_=TensorType((2,), "complex64")))
    f.result(f.aten("_to_copy.default", x, type_=TensorType((2, 3), "bfloat16"), dtype=dtype("bfloat16")))
    f.result(f.literal(((1, -2), (3, 4)), TensorType((2, 2), "int16")))
    f.result(f.literal((), TensorType((0, 3), "float32")))
    f.result(f.literal(True, TensorType((), "bool")))
    parts = f.emit("aten.split.Tensor", x, 2, 1, types=[TensorType((2, 2), "float32"), TensorType((2, 1), "float32")])
    norm = f.emit("aten.native_layer_norm.default", x, (3,), None, None, 1e-5, types=[F32, *[None] * 2])
    for ref in (*parts, norm[0]):
        f.result(ref)
    f.result(f.aten("clamp.default", x, None, 0.5))
    return f.build()


def test_constants_lists_and_literals_in_code_text_and_graph() -> None:
    program = program_of(constants_function(), mesh=ONE)
    x = torch.randn(2, 3)
    expected = simulate(program, {}, {"x": x}).per_rank[0]
    graph = build_graph(program, "constants", rank_ops(program))
    for found in (run_entry(program, [x]), run_text(program, [x]), graph(x)):
        for got, wanted in zip(found, expected, strict=True):
            assert got.dtype == wanted.dtype
            assert torch.equal(got.nan_to_num(), wanted.nan_to_num()) or torch.equal(got, wanted)


def test_names_and_comments_from_a_program_cannot_become_code() -> None:
    evil = '");import sys;sys.evil=1;("\n\x00\nsys.evil = 1 #'
    f = FunctionBuilder(evil, ONE)
    x = f.argument(evil, (2, 3))
    f.result(f.aten("relu.default", x), name=evil)
    function = with_location(f.build(), 0, evil, evil)
    program = program_of(function, mesh=ONE)
    assert run_entry(program, [torch.ones(2, 3)])[0].sum() == 6
    namespace: dict[str, Any] = {"hp": rank_ops(program)}
    exec(to_python(program), namespace)
    assert not hasattr(sys, "evil")
    # A keyword that is no identifier is data too.
    (op, *rest) = function.ops
    bad = replace(op, target="aten._to_copy.default", kwargs={"dtype=None)\nimport sys #": None})
    program = program_of(replace(function, ops=(bad, *rest)), mesh=ONE)
    with pytest.raises(RuntimeError, match="Unknown keyword argument"):
        run_entry(program, [torch.ones(2, 3)])


def test_identifiers_are_told_apart() -> None:
    f = FunctionBuilder("f", ONE)
    names = ["a.b", "a_b", "a-b", "1", "class", "torch", "aten", "hp", "device", "inf", "relu"]
    refs = [f.argument(name, (1,)) for name in names]
    for ref in refs:
        f.result(f.aten("relu.default", ref))
    program = program_of(f.build(), mesh=ONE)
    operands = [torch.tensor([float(number)]) for number in range(len(names))]
    for found in (run_entry(program, operands), run_text(program, operands)):
        assert [value.item() for value in found[:-1]] == list(range(len(names)))


def test_text_shows_types_places_and_fqns() -> None:
    program, *_ = acceptance("uneven", 2)
    text = to_python(program)
    assert "# param up.weight: float32[5, 3]" in text
    assert "def stage0_step(\n    up_weight," in text
    assert "# loss loss: float32[]" in text
    assert "# up (forward)" in text
    assert "(backward)" in text
    assert "models.py:" in text
    assert "hp.microbatch(x, index=1, count=2, dim=0)  # float32[2, 3]" in text
    assert "in_place=(" in text
    assert max(map(len, text.splitlines())) < 200


def test_values_die_at_their_last_use_also_across_calls() -> None:
    """A chain of additions: at most the newest two results are alive, in the callee and in the caller."""
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    class Watching(RankOps):
        def shard_slice(self, tensor: Tensor, axes: Sequence[str], dim: int) -> Tensor:
            nonlocal most
            result = tensor + 1
            alive.append(weakref.ref(result))
            most = max(most, sum(reference() is not None for reference in alive))
            return result

    f = FunctionBuilder("callee", ONE)
    value = f.argument("x", (2, 3))
    for _ in range(5):
        value = f.shard_slice(value, ("all",), 0)
    f.result(value)
    callee = f.build()
    g = FunctionBuilder("main", ONE)
    value = g.shard_slice(g.argument("x", (2, 3)), ("all",), 0)
    for _ in range(3):
        value = g.call(callee, value)[0]
    g.result(value)
    program = program_of(callee, g.build(), mesh=ONE)
    executable = Executable(program, ["main"], Watching(RankMesh(ONE, torch.device("cpu"))))
    gc.disable()
    try:
        executable.run("main", [torch.zeros(2, 3)])
    finally:
        gc.enable()
    assert len(alive) == 16
    assert most == 2


def test_functions_that_call_each_other_are_refused() -> None:
    f = FunctionBuilder("f", ONE)
    x = f.argument("x", (2, 3))
    f.result(x)
    function = f.build()
    g = FunctionBuilder("f", ONE)
    x = g.argument("x", (2, 3))
    g.call(function, x)
    g.result(x)
    program = replace(program_of(function, mesh=ONE), functions={"f": g.build()})
    with pytest.raises(RuntimeFault, match="functions call each other in a circle: f -> f"):
        reachable_functions(program, ["f"])


def accumulated(body: Any, arguments: int = 2) -> tuple[bool, ...]:
    """Return which accumulators of the last ``hp.accumulate`` may be overwritten."""
    f = FunctionBuilder("f", ONE)
    refs = [f.argument(f"x{number}", (2, 3)) for number in range(arguments)]
    body(f, *refs)
    function = f.build()
    program = program_of(function, mesh=ONE)
    aliases = program_aliases(program, ["f"])["f"]
    last = max(aliases.in_place)
    values = [torch.randn(2, 3) for _ in range(arguments)]
    before = [value.clone() for value in values]
    expected = simulate(program, {}, {f"x{number}": value for number, value in enumerate(values)}).per_rank[0]
    found = run_entry(program, values)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(values, before, strict=True))
    return aliases.in_place[last]


def test_only_memory_that_nothing_else_reads_is_accumulated_into() -> None:
    def fresh(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        f.result(f.accumulate([f.aten("mul.Tensor", x, y)], [y])[0])

    def argument(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        f.result(f.accumulate([x], [y])[0])

    def view_of_argument(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        f.result(f.accumulate([f.aten("view.default", x, (2, 3))], [y])[0])

    def silent_view_of_argument(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        f.result(f.accumulate([f.aten("_unsafe_view.default", x, (2, 3))], [y])[0])

    def composite(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        f.result(f.accumulate([f.aten("contiguous.default", x)], [y])[0])

    def read_later(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        total = f.aten("mul.Tensor", x, y)
        f.result(f.accumulate([total], [y])[0])
        f.result(f.aten("relu.default", total))

    def view_read_later(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        total = f.aten("mul.Tensor", x, y)
        view = f.aten("view.default", total, (3, 2), type_=TensorType((3, 2), "float32"))
        f.result(f.accumulate([total], [y])[0])
        f.result(f.aten("relu.default", view))

    def dead_view(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        total = f.aten("view.default", f.aten("mul.Tensor", x, y), (2, 3))
        f.result(f.accumulate([total], [y])[0])

    def itself(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        total = f.aten("mul.Tensor", x, y)
        f.result(f.accumulate([total], [total])[0])

    def twins(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        total = f.aten("mul.Tensor", x, y)
        view = f.aten("view.default", total, (2, 3))
        for ref in f.accumulate([total, view], [x, y]):
            f.result(ref)

    def literal(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        f.result(f.accumulate([f.literal(((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)), F32)], [y])[0])

    def expanded(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        # One element of memory for each row: nobody else's, but not to be written to either.
        row = f.aten("sum.dim_IntList", x, (0,), True, type_=TensorType((1, 3), "float32"))
        f.result(f.accumulate([f.aten("expand.default", row, (2, 3), type_=F32)], [y])[0])

    def alone(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        # A collective over one rank gives its operand back.
        f.result(f.accumulate([f.wait(f.all_reduce(x, axes=("all",)))], [y])[0])

    def chained(f: FunctionBuilder, x: Ref, y: Ref) -> None:
        (total,) = f.accumulate([x], [y])
        f.result(f.accumulate([total], [y])[0])

    for body in (fresh, dead_view, expanded, chained):
        assert accumulated(body) == (True,), body.__name__
    for body in (argument, view_of_argument, silent_view_of_argument, composite, read_later, view_read_later, itself):
        assert accumulated(body) == (False,), body.__name__
    for body in (literal, alone):
        assert accumulated(body) == (False,), body.__name__
    assert accumulated(twins) == (False, False)


def test_accumulating_what_a_call_returned() -> None:
    """Results of a call that share memory, or are its arguments, stay; the others are added to in place."""
    f = FunctionBuilder("callee", ONE)
    x, y = f.argument("x", (2, 3)), f.argument("y", (2, 3))
    product = f.aten("mul.Tensor", x, y)
    shared = f.aten("add.Tensor", x, y)
    f.result(product)
    f.result(shared)
    f.result(f.aten("view.default", shared, (2, 3)))
    f.result(f.aten("view.default", x, (2, 3)))
    callee = f.build()
    g = FunctionBuilder("main", ONE)
    x, y = g.argument("x", (2, 3)), g.argument("y", (2, 3))
    first, second = g.call(callee, x, y)[:4], g.call(callee, y, x)[:4]
    for ref in g.accumulate(first, second):
        g.result(ref)
    program = program_of(callee, g.build(), mesh=ONE)
    aliases = program_aliases(program, ["callee", "main"])
    assert aliases["callee"].owned[:4] == (True, False, False, False)
    assert next(iter(aliases["main"].in_place.values())) == (True, False, False, False)
    assert aliases["main"].owned[:4] == (True,) * 4
    values = [torch.randn(2, 3), torch.randn(2, 3)]
    expected = simulate(program, {}, dict(zip("xy", values, strict=True))).per_rank[0]
    for backend in ("eager", "inductor"):
        found = run_entry(program, values, backend)
        torch.testing.assert_close(found, list(expected))


def test_graph_nodes_carry_module_and_source_line() -> None:
    f = FunctionBuilder("f", ONE)
    f.result(f.aten("relu.default", f.argument("x", (2, 3))))
    program = program_of(with_location(f.build(), 0, "model.py:12", "layers.0.up"), mesh=ONE)
    graph = build_graph(program, "f", rank_ops(program))
    (node,) = (node for node in graph.graph.nodes if node.op == "call_function")
    assert node.name == "layers_0_up_relu_default"
    assert node.meta["hpir"]["location"] == "model.py:12"
    assert "model.py:12 in layers.0.up" in graph.print_readable(print_output=False)
