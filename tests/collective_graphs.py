"""Random step functions with collectives, for tests that a pass keeps what they compute.

`collective_graphs()` is a hypothesis strategy: functions at level "spmd" with views, casts and padding, gathers and
reductions over several axes and dtypes, uneven sizes, shared inputs, collectives that feed each other, some without the
name of a parameter, and waits anywhere between the start and the first use. `simulate_graph` runs one on all ranks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from program_builder import program_of
from torch import Tensor
from torch_mlir import ir

from hpir.dialect.context import make_context
from hpir.dialect.parsing import parse_module
from hpir.dialect.signature import step_functions
from hpir.dialect.types import TORCH_DTYPE_CODES, TensorType
from hpir.lowering.to_program import lower_function
from hpir.mesh import Mesh
from hpir.runtime.operators import torch_dtype
from hpir.runtime.simulate import simulate

MESHES = (Mesh.of({"dp": 2}), Mesh.of({"dp": 3}), Mesh.of({"rep": 2, "dp": 2}), Mesh.of({"one": 1, "dp": 2}))
FLOATS = ("float64", "float32", "bfloat16")
UNITS = ("", "layers.0", "layers.1")


def examples(number: int) -> int:
    """Return how many functions a test tries: a third of `number` unless everything is to be tested."""
    return number if os.environ.get("HPIR_TEST_EVERYTHING") else number // 3


@dataclass(frozen=True)
class CollectiveGraph:
    """A function as text, the mesh of its module, and the global inputs: dim 0 is split over all ranks."""

    text: str
    mesh: Mesh
    inputs: tuple[TensorType, ...]

    def module(self) -> ir.Module:
        """Parse it, in a context of its own."""
        return parse_module(self.text, make_context())

    def batch(self) -> dict[str, Tensor]:
        """Return values for the inputs."""
        generator = torch.Generator().manual_seed(0)
        batch = {}
        for number, type_ in enumerate(self.inputs):
            shape = [size or 0 for size in type_.shape]
            shape[0] *= self.mesh.size
            batch[f"x{number}"] = torch.randn(shape, generator=generator, dtype=torch.float64).to(
                torch_dtype(type_.dtype)
            )
        return batch


def simulate_graph(module: ir.Operation, graph: CollectiveGraph) -> list[list[Tensor]]:
    """Run the function of a module made from `graph` on all ranks; return what each rank returns."""
    (function,) = step_functions(module)
    program = program_of(lower_function(function, graph.mesh), mesh=graph.mesh)
    result = simulate(program, {}, graph.batch(), check_types=True)
    return [list(values) for values in result.per_rank]


@dataclass
class _Writer:
    """Writes ops.

    `values` are the tensors made so far with their names, `pending` the futures not waited for, `late` tensors that
    only views and casts use before they are returned.
    """

    draw: Any
    mesh: Mesh
    dtypes: Sequence[str]
    axes: Sequence[tuple[str, ...]]
    reductions: Sequence[str]
    units: Sequence[str]
    lines: list[str] = field(default_factory=list)
    values: list[tuple[str, TensorType]] = field(default_factory=list)
    pending: list[tuple[str, TensorType, str]] = field(default_factory=list)
    late: list[tuple[str, TensorType]] = field(default_factory=list)
    phase: str = "forward"
    count: int = 0
    parameters: int = 0

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def constant(self, kind: str, value: str, type_: str) -> str:
        name = self.name()
        self.lines.append(f"{name} = torch.constant.{kind} {value}".rstrip())
        return f"{name} : {type_}"

    def integer(self, value: int) -> str:
        return self.constant("int", str(value), "!torch.int")

    def integers(self, values: Sequence[int]) -> str:
        items = [self.integer(value).partition(" : ")[0] for value in values]
        name = self.name()
        types = ", ".join(["!torch.int"] * len(items))
        self.lines.append(f"{name} = torch.prim.ListConstruct {', '.join(items)} : ({types}) -> !torch.list<int>")
        return f"{name} : !torch.list<int>"

    def op(self, operator: str, operands: Sequence[str], result: TensorType) -> None:
        names, types = zip(*[operand.split(" : ") for operand in operands], strict=True)
        name = self.name()
        self.lines.append(
            f'{name} = torch.aten.{operator} {", ".join(names)} {{hp.phase = "{self.phase}"}} '
            f": {', '.join(types)} -> {result}"
        )
        self.values.append((name, result))

    def some(self) -> tuple[str, TensorType]:
        # Late values more often: graphs with depth.
        number = self.draw(st.integers(0, min(len(self.values), 6) - 1))
        value: tuple[str, TensorType] = self.values[-1 - number]
        return value

    # What a step may do.

    def compute(self) -> None:
        name, type_ = self.some()
        others = [(other, of) for other, of in self.values[-6:] if of == type_]
        other = self.draw(st.sampled_from(others))[0]
        if self.draw(st.booleans()):
            self.op(self.draw(st.sampled_from(("sin", "neg", "tanh"))), [f"{name} : {type_}"], type_)
        else:
            self.op("mul.Tensor", [f"{name} : {type_}", f"{other} : {type_}"], type_)

    def view(self) -> None:
        name, type_ = self.some()
        kind = self.draw(st.sampled_from(("alias", "t", "view", "slice", "pad", "cast")))
        value, shape = f"{name} : {type_}", [size or 0 for size in type_.shape]
        if kind == "alias":
            self.op("alias", [value], type_)
        elif kind == "t":
            self.op("t", [value], type_.with_shape(shape[::-1]))
        elif kind == "view":
            self.op(
                "view", [value, self.integers([shape[0] * shape[1], 1])], type_.with_shape([shape[0] * shape[1], 1])
            )
        elif kind == "slice":
            rows = self.draw(st.integers(1, shape[0]))
            bounds = [self.integer(number) for number in (0, 0, rows, 1)]
            self.op("slice.Tensor", [value, *bounds], type_.with_size(0, rows))
        elif kind == "pad":
            rows = self.draw(st.integers(1, 2))
            pads = self.integers([0, 0, 0, rows])
            zero = self.constant("float", "0.0", "!torch.float")
            self.op("constant_pad_nd", [value, pads, zero], type_.with_size(0, shape[0] + rows))
        else:
            dtype = self.draw(st.sampled_from(self.dtypes))
            code = self.integer(TORCH_DTYPE_CODES[dtype])
            none = self.constant("none", "", "!torch.none")
            false = self.constant("bool", "false", "!torch.bool")
            self.op("_to_copy", [value, code, none, none, none, false, none], type_.with_dtype(dtype))

    def gradient(self) -> None:
        """Compute something, reduce it and wait for it at once, as gradients are; it is used at the end."""
        self.compute()
        pending = len(self.pending)
        self.start(("all_reduce", "reduce_scatter"))
        if len(self.pending) > pending:
            self.wait(pending)
            self.late.append(self.values.pop())

    def late_view(self) -> None:
        """View or cast what is used at the end, or reduce it once more."""
        if self.late:
            number = self.draw(st.integers(0, len(self.late) - 1))
            self.values.append(self.late.pop(number))
            (self.start if self.draw(st.integers(0, 3)) == 0 else self.view)()
            self.late.append(self.values.pop())

    def start(self, kinds: Sequence[str] = ("all_gather", "all_reduce", "reduce_scatter")) -> None:
        name, type_ = self.some()
        axes = self.draw(st.sampled_from(self.axes))
        ranks = self.mesh.count(axes)
        dims = [dim for dim, size in enumerate(type_.shape) if size and size % ranks == 0]
        kind = self.draw(st.sampled_from([kind for kind in kinds if kind != "reduce_scatter" or dims]))
        spelled = ", ".join(f'"{axis}"' for axis in axes)
        attributes = [f"axes = [{spelled}]", "mesh = @mesh", f'hp.phase = "{self.phase}"']
        result = type_
        if kind != "all_reduce":
            dim = self.draw(st.sampled_from(dims if kind == "reduce_scatter" else [0, 1]))
            size = type_.shape[dim] or 0
            result = type_.with_size(dim, size * ranks if kind == "all_gather" else size // ranks)
            attributes.append(f"dims = array<i64: {dim}>")
        if result.elements > 2000:
            return
        if kind != "all_gather":
            attributes.append(f'reduce = "{self.draw(st.sampled_from(self.reductions))}"')
        if self.draw(st.integers(0, 5)):
            self.parameters += 1
            unit = self.draw(st.sampled_from(self.units))
            parameter = f"{unit}{unit and '.'}w{self.parameters}"
            attributes += [f'hp.fqn = ["{parameter}"]', f'hp.unit = "{unit}"', f'hp.module = "{unit}"']
        future = self.name()
        self.lines.append(
            f'{future} = "hp.{kind}"({name}) {{{", ".join(attributes)}}} : ({type_}) -> !hp.future<[{result}]>'
        )
        self.pending.append((future, result, self.phase))

    def wait(self, number: int | None = None) -> None:
        if not self.pending:
            return
        if number is None:
            number = self.draw(st.integers(0, len(self.pending) - 1))
        future, type_, phase = self.pending.pop(number)
        name = self.name()
        self.lines.append(f'{name} = "hp.wait"({future}) {{hp.phase = "{phase}"}} : (!hp.future<[{type_}]>) -> {type_}')
        self.values.append((name, type_))


@st.composite
def collective_graphs(draw: Any, max_steps: int = 28) -> CollectiveGraph:
    """Draw a function at level "spmd" and the mesh of its module."""
    mesh = draw(st.sampled_from(MESHES))
    # Few choices for one function, or hardly any two collectives could ever share a bucket.
    dtypes = draw(st.lists(st.sampled_from(FLOATS), min_size=1, max_size=2))
    axes = draw(
        st.lists(st.sampled_from([*((axis,) for axis in mesh.axis_names), mesh.axis_names]), min_size=1, max_size=2)
    )
    reductions = draw(st.lists(st.sampled_from(("sum", "avg")), min_size=1, max_size=2))
    units = draw(st.lists(st.sampled_from(UNITS), min_size=1, max_size=2))
    shapes = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4))
    inputs = tuple(TensorType(shape, draw(st.sampled_from(dtypes))) for shape in shapes)
    writer = _Writer(draw, mesh, dtypes, axes, reductions, units)
    writer.values = [(f"%x{number}", type_) for number, type_ in enumerate(inputs)]
    forward = (writer.compute, writer.view, writer.start, writer.start, writer.wait)
    backward = (*forward, writer.gradient, writer.gradient, writer.gradient, writer.late_view)
    for phase, steps in (("forward", forward), ("backward", backward)):
        writer.phase = phase
        for _ in range(draw(st.integers(3, max_steps // 2))):
            draw(st.sampled_from(steps))()
    while writer.pending:
        writer.wait(0)
    writer.values += writer.late
    writer.lines.append("%loss = torch.vtensor.literal(dense<0.0> : tensor<f32>) : !torch.vtensor<[],f32>")
    # Some values are returned, some stay unused.
    returned = [value for value in writer.values[len(inputs) :] if draw(st.integers(0, 3))]
    return CollectiveGraph(_module_text(mesh, inputs, writer.lines, returned), mesh, inputs)


def _module_text(
    mesh: Mesh, inputs: Sequence[TensorType], lines: Sequence[str], returned: Sequence[tuple[str, TensorType]]
) -> str:
    axes = ", ".join(f'"{axis}"' for axis in mesh.axis_names)
    sizes = ", ".join(map(str, mesh.axis_sizes))
    arguments = ", ".join(
        f'%x{number}: {type_} {{hp.name = "x{number}", hp.role = "input", hp.batch_dim = 0 : i64, '
        f"hp.sharding = #hp.sharding<@mesh, [[{axes}], []]>}}"
        for number, type_ in enumerate(inputs)
    )
    results = ", ".join(
        f'{type_} {{hp.name = "o{number}", hp.role = "output"}}' for number, (_, type_) in enumerate(returned)
    )
    values = ", ".join(["%loss", *(name for name, _ in returned)])
    types = ", ".join(["!torch.vtensor<[],f32>", *(str(type_) for _, type_ in returned)])
    body = "\n".join(f"    {line}" for line in lines)
    return f"""module attributes {{hp.level = "spmd"}} {{
  "hp.mesh"() {{axis_names = [{axes}], axis_sizes = array<i64: {sizes}>, sym_name = "mesh"}} : () -> ()
  func.func @joint({arguments}) -> (!torch.vtensor<[],f32> {{hp.role = "loss"}}{results and ", "}{results}) {{
{body}
    return {values} : {types}
  }}
}}
"""
