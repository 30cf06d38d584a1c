"""Modules at level "staged" written by hand: a chain of layers, one per stage, with what a real model may add to it.

Stage k computes ``y = tanh(x @ weight.T)``. They are what the passes before the schedule are to leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

WIDTH = 4
DECAY = 0.5

ARGUMENT_ORDER = ("param", "buffer", "constant", "input", "size", "incoming", "saved")
RESULT_ORDER = ("outgoing", "saved", "buffer", "loss", "weight", "output", "grad")


@dataclass(frozen=True)
class Chain:
    """A chain of stages.

    Attributes:
        stages: how many.
        ranks: positions of the pipeline axis.
        data: ranks of a data axis; 0 for none.
        rows: of a microbatch; None where they are a dynamic size (only with a weight).
        split_backward: input and weight backwards are functions of their own.
        skip: what the first stage makes is added to the last one's input.
        tied: the first and the last stage share their weight.
        detached: the last stage makes no part of the shared weight's gradient.
        weighted: the loss is a sum, with a weight.
        buffer: the second stage adds a buffer, which follows its results.
        outputs: the last stage returns a tensor with rows, the first one a number.
        frozen: the first stage has no trainable parameter, and so no backward.
        first_input: with split backwards, the first stage has an input backward too, which makes what its weight
            backward needs.
        scaled: the second stage, which has no input, multiplies by the rows of the microbatch.
    """

    stages: int = 2
    ranks: int = 2
    data: int = 0
    rows: int | None = 3
    split_backward: bool = False
    skip: bool = False
    tied: bool = False
    detached: bool = False
    weighted: bool = False
    buffer: bool = False
    outputs: bool = False
    frozen: bool = False
    scaled: bool = False
    first_input: bool = False

    @property
    def last(self) -> int:
        return self.stages - 1

    def names(self, stage: int) -> list[str]:
        """Names of a stage's weight."""
        return [f"w{at}" for at in ((0, self.last) if self.tied and stage in (0, self.last) else (stage,))]

    def text(self) -> str:
        """The module."""
        axes, sizes = ('["pp"]', f"{self.ranks}") if not self.data else ('["pp", "dp"]', f"{self.ranks}, {self.data}")
        tree = ', hp.output_tree = "{\\22dict\\22: {\\22first\\22: \\22first\\22, \\22out\\22: \\22out\\22}}"'
        attributes = f'hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = {self.stages} : i64'
        body = "\n".join(text for stage in range(self.stages) for text in _Stage(self, stage).functions())
        return (
            f"module attributes {{{attributes}{tree if self.outputs else ''}}} {{\n"
            f'"hp.mesh"() {{axis_names = {axes}, axis_sizes = array<i64: {sizes}>, sym_name = "mesh"}} : () -> ()\n'
            f"{body}\n}}\n"
        )

    def state(self, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Values of all parameters and buffers, by their first names."""
        generator = torch.Generator().manual_seed(0)
        state = {
            self.names(stage)[0]: torch.randn(WIDTH, WIDTH, generator=generator, dtype=dtype) / 2
            for stage in reversed(range(self.stages))
        }
        return {**state, "running": torch.randn(WIDTH, generator=generator, dtype=dtype)} if self.buffer else state

    def batch(self, rows: int) -> dict[str, Tensor]:
        """A global batch."""
        generator = torch.Generator().manual_seed(1)
        batch = {"x": torch.randn(rows, WIDTH, generator=generator)}
        return {**batch, "m": torch.rand(rows, generator=generator)} if self.weighted else batch


@dataclass
class _Function:
    """Text of one function."""

    name: str
    stage: int
    task: str
    arguments: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    results: list[tuple[str, str, str]] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)

    def argument(self, name: str, type_: str, attributes: str) -> str:
        self.arguments.append(f"%{name}: {type_} {{{attributes}}}")
        self.types[f"%{name}"] = type_
        return f"%{name}"

    def constant(self, result: str, kind: str, value: object = "") -> str:
        if f"%{result}" not in self.types:
            self.body.append(f"%{result} = torch.constant.{kind} {value}")
            self.types[f"%{result}"] = f"!torch.{kind}"
        return f"%{result}"

    def op(self, result: str, name: str, *operands: str, to: str) -> str:
        """Append an op of the torch dialect, its name without the dialect's."""
        types = ", ".join(self.types[operand] for operand in operands)
        types = f"({types})" if name == "prim.ListConstruct" else types
        self.body.append(f"%{result} = torch.{name} {', '.join(operands)} : {types} -> {to}")
        self.types[f"%{result}"] = to
        return f"%{result}"

    def add(self, result: str, first: str, second: str) -> str:
        one = self.constant("one", "int", 1)
        return self.op(result, "aten.add.Tensor", first, second, one, to=self.types[first])

    def reduced(self, value: str, reduce: str) -> str:
        """Append an all-reduce over the data axis."""
        type_, attributes = self.types[value], f'axes = ["dp"], mesh = @mesh, reduce = "{reduce}"'
        future = f"!hp.future<[{type_}]>"
        self.body.append(f'%future = "hp.all_reduce"({value}) {{{attributes}}} : ({type_}) -> {future}')
        self.body.append(f'%reduced = "hp.wait"(%future) : ({future}) -> {type_}')
        return "%reduced"

    def text(self) -> str:
        arguments = sorted(self.arguments, key=lambda text: ARGUMENT_ORDER.index(_role(text)))
        returned = sorted(self.results, key=lambda result: RESULT_ORDER.index(_role(result[2])))
        results = ", ".join(f"{type_} {{{attributes}}}" for _, type_, attributes in returned)
        values, types = (", ".join(column) for column in list(zip(*returned, strict=True))[:2])
        body = "\n  ".join(self.body)
        attributes = f'hp.stage = {self.stage} : i64, hp.task = "{self.task}"'
        return (
            f"func.func @{self.name}({', '.join(arguments)}) -> ({results}) attributes {{{attributes}}} {{\n"
            f"  {body}\n  return {values} : {types}\n}}"
        )


def _role(text: str) -> str:
    return text.split('hp.role = "')[1].split('"')[0]


def _tensor(*shape: object) -> str:
    return f"!torch.vtensor<[{','.join(map(str, shape))}],f32>"


_WEIGHT = _tensor(WIDTH, WIDTH)
_VECTOR = _tensor(WIDTH)
_SCALAR = _tensor()


class _Stage:
    def __init__(self, chain: Chain, stage: int):
        self.chain, self.stage = chain, stage
        self.rows = "?" if chain.rows is None else str(chain.rows)
        self.value = _tensor(self.rows, WIDTH)
        self.swapped = _tensor(WIDTH, self.rows)

    def functions(self) -> Iterator[str]:
        yield self.forward().text()
        if self.chain.frozen and self.stage == 0:
            return
        if not self.chain.split_backward:
            yield self.backward("backward", True, True).text()
            return
        has_input = self.stage > 0 or self.chain.first_input
        if has_input:
            yield self.backward("backward_input", True, False).text()
        if not (self.chain.detached and self.stage == self.chain.last):
            yield self.backward("backward_weight", not has_input, True).text()

    def begin(self, task: str) -> _Function:
        return _Function(f"stage{self.stage}_{task}", self.stage, task)

    def weight(self, f: _Function) -> str:
        names = ", ".join(f'"{name}"' for name in self.chain.names(self.stage))
        stages = "0, " + str(self.chain.last) if self.chain.tied and self.stage in (0, self.chain.last) else self.stage
        trainable = "" if self.chain.frozen and self.stage == 0 else ", hp.trainable"
        attributes = f'hp.fqn = [{names}], hp.role = "param", hp.stages = array<i64: {stages}>{trainable}'
        return f.argument("w", _WEIGHT, attributes)

    def input(self, f: _Function, name: str, type_: str) -> str:
        dims = ', hp.dim_names = ["n"' + (', ""' if name == "x" else "") + "]" if self.chain.rows is None else ""
        axes = '[["dp"], []]' if name == "x" else '[["dp"]]'
        sharding = f", hp.sharding = #hp.sharding<@mesh, {axes}>" if self.chain.data else ""
        attributes = f'hp.batch_dim = 0 : i64, hp.name = "{name}", hp.role = "input"{dims}{sharding}'
        return f.argument(name, type_, attributes)

    def size(self, f: _Function) -> str:
        return f.argument("n", "!torch.int", 'hp.name = "n", hp.role = "size", hp.example = 2 : i64')

    @property
    def is_scaled(self) -> bool:
        return self.chain.scaled and self.stage == 1

    def given(self, f: _Function, name: str) -> str:
        """A value that another function of this stage, or another stage, makes."""
        role = "saved" if int(name[1 : name.index(".")]) == self.stage else "incoming"
        argument = name.replace(".", "_")
        return f.argument(argument, self.value, f'hp.name = "{name}", hp.role = "{role}"')

    def crossing(self, f: _Function, value: str, name: str, role: str) -> None:
        f.results.append((value, self.value, f'hp.name = "{name}", hp.role = "{role}"'))

    def forward(self) -> _Function:
        chain, stage, f = self.chain, self.stage, self.begin("forward")
        weight = self.weight(f)
        buffer = ""
        if chain.buffer and stage == 1:
            attributes = 'hp.fqn = ["running"], hp.role = "buffer", hp.stages = array<i64: 1>'
            buffer = f.argument("running", _VECTOR, attributes)
        x = self.input(f, "x", self.value) if stage == 0 else ""
        mask = self.input(f, "m", _tensor(self.rows)) if chain.weighted and stage == chain.last else None
        size = self.size(f) if self.is_scaled or (chain.rows is None and stage == 0) else None
        x = x or self.given(f, f"f{stage - 1}.0")
        number = 0
        if chain.skip and stage == chain.last:
            x = f.add("x_sum", x, self.given(f, "f0.0"))
            self.crossing(f, x, f"f{stage}.{number}", "saved")
            number += 1
        z = f.op("z", "aten.mm", x, f.op("t", "aten.t", weight, to=_WEIGHT), to=self.value)
        if size and self.is_scaled:
            z = f.op("zn", "aten.mul.Scalar", z, size, to=self.value)
        if buffer:
            z = f.add("zb", z, buffer)
        y = f.op("y", "aten.tanh", z, to=self.value)
        self.crossing(f, y, f"f{stage}.{number}", "saved" if stage == chain.last else "outgoing")
        none = f.constant("none", "none")
        if buffer:
            dims = f.op("dims", "prim.ListConstruct", f.constant("zero", "int", 0), to="!torch.list<int>")
            false = f.constant("false", "bool", "false")
            total = f.op("total", "aten.sum.dim_IntList", y, dims, false, none, to=_VECTOR)
            old = f.op("old", "aten.mul.Scalar", buffer, f.constant("decay", "float", DECAY), to=_VECTOR)
            f.results.append((f.add("new", old, total), _VECTOR, 'hp.fqn = ["running"], hp.role = "buffer"'))
        if stage == chain.last:
            loss = f.op("loss", "aten.sum" if chain.weighted else "aten.mean", y, none, to=_SCALAR)
            f.results.append((loss, _SCALAR, 'hp.role = "loss"'))
            if mask:
                f.results.append((f.op("count", "aten.sum", mask, none, to=_SCALAR), _SCALAR, 'hp.role = "weight"'))
            if chain.outputs:
                f.results.append((y, self.value, 'hp.batch_dim = 0 : i64, hp.name = "out", hp.role = "output"'))
        if chain.outputs and stage == 0:
            first = f.op("first", "aten.sum", y, none, to=_SCALAR)
            f.results.append((first, _SCALAR, 'hp.name = "first", hp.role = "output"'))
        return f

    def backward(self, task: str, makes_input: bool, makes_weight: bool) -> _Function:
        chain, stage, f = self.chain, self.stage, self.begin(task)
        kind = "i" if chain.split_backward else "b"
        summed = chain.skip and stage == chain.last
        weight = self.weight(f) if makes_input and stage else ""
        x = self.input(f, "x", self.value) if makes_weight and stage == 0 else ""
        size = self.size(f) if self.is_scaled and makes_input else None
        if makes_input:
            y = self.given(f, f"f{stage}.{int(summed)}")
            d = f.op("dz", "aten.tanh_backward", self.outer_gradient(f, kind, y), y, to=self.value)
            if size:
                d = f.op("dzn", "aten.mul.Scalar", d, size, to=self.value)
        else:
            d = self.given(f, f"i{stage}.1")
        if makes_input and stage and not (chain.frozen and stage == 1):
            self.crossing(f, f.op("dx", "aten.mm", d, weight, to=self.value), f"{kind}{stage}.0", "outgoing")
        if not makes_weight and not (chain.detached and stage == chain.last):
            self.crossing(f, d, f"{kind}{stage}.1", "saved")
        if makes_weight and not (chain.detached and stage == chain.last):
            x = x or self.given(f, f"f{stage}.0" if summed else f"f{stage - 1}.0")
            grad = f.op("dw", "aten.mm", f.op("dt", "aten.t", d, to=self.swapped), x, to=_WEIGHT)
            if chain.data:
                grad = f.reduced(grad, "sum" if chain.weighted else "avg")
            names = ", ".join(f'"{name}"' for name in chain.names(stage))
            f.results.append((grad, _WEIGHT, f'hp.fqn = [{names}], hp.role = "grad"'))
        return f

    def outer_gradient(self, f: _Function, kind: str, y: str) -> str:
        """The gradient of what the stage makes."""
        chain = self.chain
        if self.stage != chain.last:
            d = self.given(f, f"{kind}{self.stage + 1}.0")
            return f.add("d", d, self.given(f, f"{kind}{chain.last}.0")) if chain.skip and self.stage == 0 else d
        part = 1.0 if chain.rows is None or chain.weighted else 1.0 / (chain.rows * WIDTH)
        ones = f.op("ones", "aten.ones_like", y, *[f.constant("none", "none")] * 5, to=self.value)
        return f.op("d", "aten.mul.Scalar", ones, f.constant("part", "float", repr(part)), to=self.value)


@dataclass
class Expected:
    """What a step gives."""

    loss: Tensor
    grads: dict[str, Tensor]
    buffers: dict[str, Tensor]
    out: Tensor
    first: Tensor


def reference(chain: Chain, batch: Mapping[str, Tensor], microbatches: int) -> Expected:
    """Run the loop over data ranks and microbatches that defines a step, in float64."""
    state = {name: value.double() for name, value in chain.state().items()}
    weights = {name: value.requires_grad_() for name, value in state.items() if name != "running"}
    ranks = max(chain.data, 1)
    losses: list[Tensor] = []
    counts: list[Tensor] = []
    outs: list[Tensor] = []
    firsts: list[Tensor] = []
    buffers: dict[str, Tensor] = {}
    for rank in range(ranks):
        running = state.get("running")
        part = {name: value.double().tensor_split(ranks)[rank] for name, value in batch.items()}
        for index in range(microbatches):
            x, *mask = (value.tensor_split(microbatches)[index] for value in part.values())
            values: list[Tensor] = []
            for stage in range(chain.stages):
                weight = weights[chain.names(stage)[0]]
                if (chain.detached and stage == chain.last) or (chain.frozen and stage == 0):
                    weight = weight.detach()
                if chain.skip and stage == chain.last:
                    x = x + values[0]
                z = x @ weight.T
                if chain.scaled and stage == 1:
                    z = z * len(x)
                if running is not None and stage == 1:
                    z = z + running
                x = z.tanh()
                if running is not None and stage == 1:
                    running = DECAY * running + x.detach().sum(0)
                values.append(x)
            losses.append(x.sum() if chain.weighted else x.mean())
            counts += [value.sum() for value in mask]
            outs.append(x.detach())
            firsts.append(values[0].detach().sum())
        if running is not None and rank == 0:
            buffers["running"] = running
    loss = torch.stack(losses).sum() / (torch.stack(counts).sum() if counts else len(losses))
    trained = {name: weight for name, weight in weights.items() if not (chain.frozen and name == "w0")}
    grads = dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))
    for stage in range(chain.stages):
        first, *others = chain.names(stage)
        grads.update({other: grads[first] for other in others if first in grads})
    return Expected(loss.detach(), grads, buffers, torch.cat(outs), torch.stack(firsts))


def relative(found: Tensor, expected: Tensor) -> float:
    """How far two tensors are from each other, relative to the largest value."""
    return float((found.double() - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


def largest(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The largest relative distance of pairs of found and expected values."""
    return max(relative(found, expected) for found, expected in pairs)
