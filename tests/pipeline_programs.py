"""Pipelined training steps built by hand: a chain of linear layers, one per stage, in the order of 1f1b.

They are what the passes are to make: stage functions, and per position of the pipeline axis an entry for training and
one for evaluation, which call them, send and receive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from program_builder import FunctionBuilder, program_of
from torch import Tensor, nn

from hpir.mesh import Mesh, Sharding
from hpir.runtime.program import Function, Program, Ref, TensorType

WIDTH = 4
AXIS = "pp"


class Chain(nn.Module):
    """Layers with a tanh after each; the first and the last may share their weight."""

    def __init__(self, layers: int, *, tied: bool = False, dtype: torch.dtype = torch.float32):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False, dtype=dtype) for _ in range(layers))
        if tied:
            self.layers[-1].weight = self.layers[0].weight

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def train(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a batch, and the model's output."""
    out = model(x)
    return ((out - y) ** 2).mean(), {"out": out}


def batch_of(rows: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return a batch."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(rows, WIDTH, generator=generator, dtype=dtype) for name in ("x", "y")}


@dataclass
class Layout:
    """How a chain is laid out on ranks.

    Attributes:
        mesh: has the pipeline axis, and perhaps "dp".
        microbatches: per step and data rank.
        rows: of a microbatch; None where they are a dynamic size.
        tied: the first and the last layer share their weight.
        split: parameters are split over "dp".
        picky: a stage whose forward looks up a row of its weight, an input, which may not exist.
    """

    mesh: Mesh
    microbatches: int = 4
    rows: int | None = 2
    tied: bool = False
    split: bool = False
    picky: int | None = None
    dtype: str = "float32"

    @property
    def stages(self) -> int:
        return self.mesh.axis_size(AXIS)

    @property
    def data_axes(self) -> tuple[str, ...]:
        return ("dp",) if "dp" in self.mesh.axis_names else ()

    @property
    def value(self) -> TensorType:
        """The type of what crosses: one microbatch."""
        return TensorType((self.rows, WIDTH), self.dtype)

    @property
    def sharding(self) -> Sharding:
        return (("dp",) if self.split else (), ())

    def weight(self, f: FunctionBuilder, stage: int) -> Ref:
        last = self.stages - 1
        names = [f"layers.{at}.weight" for at in ((0, last) if self.tied and stage in (0, last) else (stage,))]
        return f.param(names[0], (WIDTH, WIDTH), dtype=self.dtype, sharding=self.sharding, aliases=names[1:])

    def given(self, f: FunctionBuilder, name: str, *, parts: int = 1, role: str = "input") -> Ref:
        """Add an input (or what another function made), of one microbatch or of all of a data rank."""
        axes = self.data_axes if role == "input" else ()
        full = ((self.rows or 1) * parts * self.mesh.count(axes), WIDTH)
        dim = 0 if role == "input" else None
        ref = f.argument(name, full, self.dtype, role=role, batch_dim=dim, sharding=(axes, ()))
        if self.rows is None:
            type_ = TensorType((None, WIDTH), self.dtype)
            dims = ("rows", "") if role == "input" else ()
            found = f.arguments[ref.index]
            f.arguments[ref.index] = replace(found, type=type_, full_shape=type_.shape, dim_names=dims)
            f.types[ref.index] = type_
        return ref

    def pick(self, f: FunctionBuilder, *, parts: int = 1) -> Ref:
        """Add the input that a picky stage looks up."""
        rows = parts * self.mesh.count(self.data_axes)
        return f.argument("pick", (rows,), "int64", batch_dim=0, sharding=(self.data_axes,))

    def gathered(self, f: FunctionBuilder, weight: Ref) -> Ref:
        return f.wait(f.all_gather(weight, axes=("dp",), dims=(0,))) if self.split else weight


def _scalar(layout: Layout) -> TensorType:
    return TensorType((), layout.dtype)


def _located(f: FunctionBuilder, stage: int, task: str) -> Function:
    ops = (replace(op, location=f"chain.py:{number}", module=f"layers.{stage}") for number, op in enumerate(f.ops))
    return Function(f.name, tuple(f.arguments), tuple(ops), tuple(f.results), stage, task)


def _forward(layout: Layout, stage: int, *, outputs: bool = False) -> Function:
    f = FunctionBuilder(f"stage{stage}_forward" + ("_out" if outputs else ""), layout.mesh)
    weight = layout.weight(f, stage)
    h = layout.given(f, "x") if stage == 0 else layout.given(f, f"f{stage - 1}.0", role="incoming")
    last = stage == layout.stages - 1
    y = layout.given(f, "y") if last else None
    if stage == layout.picky:
        pick = layout.pick(f)
        f.aten("index_select.default", weight, 0, pick, type_=TensorType((1, WIDTH), layout.dtype))
    turned = f.aten("t.default", layout.gathered(f, weight), type_=TensorType((WIDTH, WIDTH), layout.dtype))
    out = f.aten("tanh.default", f.aten("mm.default", h, turned, type_=layout.value))
    f.result(out, "output" if outputs else "saved" if last else "outgoing", "out" if outputs else f"f{stage}.0")
    if y is not None:
        error = f.aten("sub.Tensor", out, y)
        f.result(f.aten("mean.default", f.aten("mul.Tensor", error, error), type_=_scalar(layout)), "loss")
    return _located(f, stage, "forward")


def _backward(layout: Layout, stage: int) -> Function:
    """Gradients of a stage: its weight's (of the sum over a microbatch's mean), and what it was given's."""
    f = FunctionBuilder(f"stage{stage}_backward", layout.mesh)
    weight = layout.weight(f, stage)
    last = stage == layout.stages - 1
    h = layout.given(f, "x") if stage == 0 else layout.given(f, f"f{stage - 1}.0", role="incoming")
    out = layout.given(f, f"f{stage}.0", role="saved")
    given = layout.given(f, "y") if last else layout.given(f, f"b{stage + 1}.0", role="incoming")
    full = TensorType((WIDTH, WIDTH), layout.dtype)
    grad = given
    if last:
        error = f.aten("mul.Scalar", f.aten("sub.Tensor", out, given), 2.0)
        count = f.emit("aten.numel.default", error, types=[None])[0]
        grad = f.aten("div.Scalar", error, count)
    inner = f.aten("mul.Tensor", grad, f.aten("rsub.Scalar", f.aten("mul.Tensor", out, out), 1.0))
    whole = f.aten(
        "mm.default", f.aten("t.default", inner, type_=TensorType((WIDTH, layout.rows), layout.dtype)), h, type_=full
    )
    if stage:
        f.result(f.aten("mm.default", inner, layout.gathered(f, weight)), "outgoing", f"b{stage}.0")
    if layout.split:
        whole = f.wait(f.reduce_scatter(whole, axes=("dp",), dims=(0,), reduce="avg"))
    elif layout.data_axes:
        whole = f.wait(f.all_reduce(whole, axes=layout.data_axes, reduce="avg"))
    name, *aliases = f.arguments[weight.index].names
    f.result(whole, "grad", name, aliases=aliases, full_shape=(WIDTH, WIDTH), sharding=layout.sharding)
    return _located(f, stage, "backward")


def order_of(position: int, ranks: int, microbatches: int) -> list[tuple[str, int]]:
    """Return the actions of a position in the order of 1f1b: kind and microbatch."""
    warm = min(ranks - 1 - position, microbatches)
    actions = [("F", number) for number in range(warm)]
    for number in range(microbatches - warm):
        actions += [("F", warm + number), ("B", number)]
    return actions + [("B", number) for number in range(microbatches - warm, microbatches)]


class _RankBuilder:
    """Builds the entries of one position."""

    def __init__(self, layout: Layout, position: int, stages: dict[str, Function], name: str):
        self.layout = layout
        self.position = position
        self.stages = stages
        self.last = position == layout.stages - 1
        self.f = f = FunctionBuilder(name, layout.mesh)
        self.weight = layout.weight(f, position)
        count = layout.microbatches
        self.x = layout.given(f, "x", parts=count) if position == 0 else None
        self.y = layout.given(f, "y", parts=count) if self.last else None
        self.pick = layout.pick(f, parts=count) if position == layout.picky else None
        if layout.rows is None:
            f.argument("rows", (), "int64", role="size")
        self.posted: dict[tuple[str, int], Ref] = {}
        self.kwargs: dict[str, Any] = {"header": True} if layout.rows is None else {}

    def part(self, ref: Ref | None, number: int) -> Ref:
        assert ref is not None
        layout, f = self.layout, self.f
        return f.emit("hp.microbatch", ref, types=[layout.value], index=number, count=layout.microbatches, dim=0)[0]

    def post(self, action: tuple[str, int] | None) -> None:
        """Start to receive what an action needs."""
        if action is None:
            return
        peer = self.position + (-1 if action[0] == "F" else 1)
        if 0 <= peer < self.layout.stages and action not in self.posted:
            made = ("f", peer) if action[0] == "F" else ("b", peer)
            label = f"{made[0]}{peer}.0 mb {action[1]}"
            self.posted[action] = self.f.recv(self.layout.value, axis=AXIS, peer=peer, label=label, **self.kwargs)

    def send(self, value: Ref, kind: str, number: int) -> None:
        peer = self.position + (1 if kind == "f" else -1)
        self.f.send(value, axis=AXIS, peer=peer, label=f"{kind}{self.position}.0 mb {number}", **self.kwargs)

    def forward(self, number: int, callee: str) -> list[Ref]:
        first = self.part(self.x, number) if self.position == 0 else self.f.wait(self.posted[("F", number)])
        labels = [self.part(self.y, number)] if self.last else []
        if self.pick is not None:
            type_ = TensorType((1,), "int64")
            count = self.layout.microbatches
            labels += self.f.emit("hp.microbatch", self.pick, types=[type_], index=number, count=count, dim=0)
        results = self.f.call(self.stages[callee], self.weight, first, *labels, microbatch=number)
        if not self.last:
            self.send(results[0], "f", number)
        return [first, *results]

    def backward(self, number: int, first: Ref, out: Ref) -> Ref:
        given = self.part(self.y, number) if self.last else self.f.wait(self.posted[("B", number)])
        callee = self.stages[f"stage{self.position}_backward"]
        results = self.f.call(callee, self.weight, first, out, given, microbatch=number)
        if self.position:
            self.send(results[0], "b", number)
        return results[-1]

    def mean(self, values: Sequence[Ref]) -> Ref:
        total = values[0]
        for value in values[1:]:
            (total,) = self.f.accumulate([total], [value])
        return self.f.aten("div.Scalar", total, len(values))

    def loss(self, losses: Sequence[Ref]) -> None:
        f, layout = self.f, self.layout
        loss = f.literal(0.0, _scalar(layout))
        if self.last:
            loss = self.mean(losses)
            if layout.data_axes:
                loss = f.wait(f.all_reduce(loss, axes=layout.data_axes, reduce="avg"))
        f.result(f.wait(f.broadcast(loss, axes=(AXIS,), root=layout.stages - 1)), "loss")

    def train(self) -> Function:
        f, layout = self.f, self.layout
        actions: list[tuple[str, int] | None] = list(order_of(self.position, layout.stages, layout.microbatches))
        self.post(actions[0])
        made: dict[int, list[Ref]] = {}
        losses, grads = [], []
        for action, following in zip(actions, [*actions[1:], None], strict=True):
            assert action is not None
            self.post(following)
            kind, number = action
            if kind == "F":
                made[number] = self.forward(number, f"stage{self.position}_forward")
                losses += made[number][2:]
            else:
                grads.append(self.backward(number, *made[number][:2]))
        self.loss(losses)
        grad = self.mean(grads)
        if layout.tied and self.position in (0, layout.stages - 1):
            grad = f.wait(f.all_reduce(grad, axes=(AXIS,), reduce="sum", coordinates=(0, layout.stages - 1)))
        name, *aliases = f.arguments[self.weight.index].names
        f.result(grad, "grad", name, aliases=aliases, full_shape=(WIDTH, WIDTH), sharding=layout.sharding)
        return f.build()

    def evaluate(self) -> Function:
        f, layout = self.f, self.layout
        losses, outs = [], []
        self.post(("F", 0))
        for number in range(layout.microbatches):
            if number + 1 < layout.microbatches:
                self.post(("F", number + 1))
            _, out, *loss = self.forward(number, f"stage{self.position}_forward" + ("_out" if self.last else ""))
            outs.append(out)
            losses += loss
        self.loss(losses)
        if self.last:
            rows = None if layout.rows is None else layout.rows * layout.microbatches
            (whole,) = f.emit("aten.cat.default", tuple(outs), 0, types=[TensorType((rows, WIDTH), layout.dtype)])
            if layout.data_axes:
                whole = f.wait(f.all_gather(whole, axes=layout.data_axes, dims=(0,)))
            f.result(whole, "output", "out")
        return f.build()


def chain_program(layout: Layout) -> Program:
    """Build the Program of a chain with one layer per stage."""
    stages: dict[str, Function] = {}
    for stage in range(layout.stages):
        for function in (_forward(layout, stage), _backward(layout, stage)):
            stages[function.name] = function
    final = _forward(layout, layout.stages - 1, outputs=True)
    stages[final.name] = final
    positions = range(layout.stages)
    train_entries = [_RankBuilder(layout, at, stages, f"rank{at}").train() for at in positions]
    evaluate_entries = [_RankBuilder(layout, at, stages, f"evaluate{at}").evaluate() for at in positions]
    return program_of(
        *stages.values(),
        *train_entries,
        *evaluate_entries,
        mesh=layout.mesh,
        data_axes=layout.data_axes,
        train=[function.name for function in train_entries],
        evaluate=[function.name for function in evaluate_entries],
        microbatches=layout.microbatches,
        pipeline_axis=AXIS,
        output_tree={"dict": {"out": "out"}},
    )
