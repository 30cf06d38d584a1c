"""hp-split-stages on random steps: views, casts, state of several stages and changed buffers in any legal order.

Each step is run whole and stage by stage. The values that cross are checked against the contract: each goes where it
may, once, and never with something that it is a view of.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch
from staged_program import check_crossings, check_no_views, staged_program
from torch_mlir import ir

import hpir
from hpir.dialect.parsing import parse_module
from hpir.dialect.signature import body_of, step_functions
from hpir.ir_passes.views import CASTS, VIEWS, operator_name
from hpir.lowering.to_program import to_program

_TYPES = {
    "square": "!torch.vtensor<[4,4],f64>",
    "wide": "!torch.vtensor<[2,4],f64>",
    "high": "!torch.vtensor<[4,2],f64>",
    "low": "!torch.vtensor<[4,4],f32>",
}


@dataclass
class _Value:
    name: str
    kind: str
    stage: int
    backward: bool = False


@dataclass
class _Step:
    """Builds the text of one random step."""

    seed: int
    stages: int
    lines: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    results: list[tuple[str, str]] = field(default_factory=list)
    values: list[_Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def argument(self, name: str, role: str, marks: str, stage: int) -> _Value:
        kind = "hp.name" if role == "input" else "hp.fqn"
        label = f'"{name}"' if role == "input" else f'["{name}"]'
        self.arguments.append(f'%{name}: {_TYPES["square"]} {{{kind} = {label}, hp.role = "{role}"{marks}}}')
        value = _Value(f"%{name}", "square", stage)
        self.values.append(value)
        return value

    def op(
        self, operator: str, operands: list[_Value], extra: str, kind: str, *, backward: bool, lowest: int = 0
    ) -> _Value:
        """Append an op on a random legal stage, of the backward not below `lowest`."""
        if backward:
            limit = min([value.stage for value in operands if value.backward], default=self.stages - 1)
            stage = self.random.choice([limit, limit, self.random.randint(lowest, limit)])
        else:
            limit = max([value.stage for value in operands], default=0)
            stage = self.random.choice([limit, limit, self.random.randint(limit, self.stages - 1)])
        name = f"%v{len(self.lines)}"
        phase = "backward" if backward else "forward"
        constants = [item for item in extra.split() if item]
        types = [_TYPES[value.kind] for value in operands] + [_CONSTANTS[item] for item in constants]
        self.lines.append(
            f"{name} = torch.{operator} {', '.join([*[value.name for value in operands], *constants])} "
            f'{{hp.phase = "{phase}", hp.stage = {stage} : i64}} : {", ".join(types)} -> {_TYPES[kind]}'
        )
        value = _Value(name, kind, stage, backward)
        self.values.append(value)
        return value

    def any_op(self, *, backward: bool) -> _Value:
        """Append a random op on random values; the backward likes its own."""
        usable = [value for value in self.values if backward or not value.backward]
        own = [value for value in usable if value.backward == backward] or usable
        first = self.random.choice(self.random.choice([usable, own]))
        squares = [value for value in usable if value.kind == "square"]
        second = self.random.choice(squares)
        if first.kind == "wide":
            choice = self.random.choice(("t", "mm"))
            if choice == "mm":
                return self.op("aten.mm", [first, second], "", "wide", backward=backward)
            return self.op("aten.t", [first], "", "high", backward=backward)
        if first.kind == "high":
            wide = self.op("aten.t", [first], "", "wide", backward=backward)
            return self.op("aten.mm", [first, wide], "", "square", backward=backward)
        if first.kind == "low":
            return self.op("prims.convert_element_type", [first], "%double", "square", backward=backward)
        operator = self.random.choice(("sin", "mul", "add", "t", "t", "slice", "slice", "cast"))
        if operator == "mul":
            return self.op("aten.mul.Tensor", [first, second], "", "square", backward=backward)
        if operator == "add":
            return self.op("aten.add.Tensor", [first, second], "%one", "square", backward=backward)
        if operator == "slice":
            return self.op("aten.slice.Tensor", [first], "%zero %zero %two %one", "wide", backward=backward)
        if operator == "cast":
            return self.op("prims.convert_element_type", [first], "%single", "low", backward=backward)
        return self.op(f"aten.{operator}", [first], "", "square", backward=backward)

    def text(self) -> str:
        """Return the module."""
        pick = self.random
        self.argument("x", "input", ", hp.batch_dim = 0 : i64", 0)
        self.argument("y", "input", ", hp.batch_dim = 0 : i64", 0)
        owners: dict[str, list[int]] = {}
        for number in range(4):
            held = sorted(pick.sample(range(self.stages), pick.randint(1, self.stages)))
            owners[f"p{number}"] = held
            listed = ", ".join(map(str, held))
            self.argument(f"p{number}", "param", f", hp.stages = array<i64: {listed}>, hp.trainable", held[0])
        home = pick.randrange(self.stages)
        held = sorted({home, pick.randint(home, self.stages - 1)})
        buffer = self.argument("b", "buffer", f", hp.stages = array<i64: {', '.join(map(str, held))}>", home)
        self.lines.append(
            f'%new = torch.aten.sin %b {{hp.phase = "forward", hp.stage = {buffer.stage} : i64}} : '
            f"{_TYPES['square']} -> {_TYPES['square']}"
        )
        self.values.append(_Value("%new", "square", home))
        for _ in range(14):
            self.any_op(backward=False)
        outputs = pick.sample([value for value in self.values if not value.name.startswith("%b")], 2)
        # As a loss's gradient does, the backward begins on the last stage.
        last = next(value for value in reversed(self.values) if value.kind == "square")
        seed = _Value("%seed", "square", self.stages - 1, backward=True)
        self.lines.append(
            f"%loss = torch.aten.sum {last.name}, %none "
            f'{{hp.phase = "forward", hp.stage = {self.stages - 1} : i64}} : {_TYPES["square"]}, !torch.none -> !s'
        )
        self.lines.append(
            f'%seed = torch.aten.cos {last.name} {{hp.phase = "backward", hp.stage = {self.stages - 1} : i64}} : '
            f"{_TYPES['square']} -> {_TYPES['square']}"
        )
        self.values.append(seed)
        for _ in range(16):
            self.any_op(backward=True)
        self.results.append(("%loss", '!s {hp.role = "loss"}'))
        for number, value in enumerate(outputs):
            self.results.append((value.name, f'{_TYPES[value.kind]} {{hp.name = "o{number}", hp.role = "output"}}'))
        for name, stages in owners.items():
            legal = [
                value for value in self.values if value.kind == "square" and value.backward and value.stage >= stages[0]
            ]
            terms = [pick.choice(legal) for _ in range(pick.randint(1, 3))]
            total = terms[0]
            for term in terms[1:]:
                total = self.op("aten.add.Tensor", [total, term], "%one", "square", backward=True, lowest=stages[0])
            fqn = f'{{hp.fqn = ["{name}"], hp.role = "grad"}}'
            self.results.append((total.name, f"{_TYPES['square']} {fqn}"))
        self.results.append(("%new", f'{_TYPES["square"]} {{hp.fqn = ["b"], hp.role = "buffer"}}'))
        returned = ", ".join(name for name, _ in self.results)
        types = ", ".join(type_.split(" {")[0] for _, type_ in self.results)
        body = "\n    ".join(self.lines)
        return f"""
!s = !torch.vtensor<[],f64>
module attributes {{hp.pipeline_axis = "pp", hp.stage_count = {self.stages} : i64}} {{
  "hp.mesh"() {{axis_names = ["pp"], axis_sizes = array<i64: 2>, sym_name = "mesh"}} : () -> ()
  func.func @joint({", ".join(self.arguments)}) -> ({", ".join(type_ for _, type_ in self.results)}) {{
    %zero = torch.constant.int 0
    %one = torch.constant.int 1
    %two = torch.constant.int 2
    %single = torch.constant.int 6
    %double = torch.constant.int 7
    %none = torch.constant.none
    {body}
    return {returned} : {types}
  }}
}}"""


_CONSTANTS = dict.fromkeys(("%zero", "%one", "%two", "%single", "%double"), "!torch.int")


def count_fixed(module: ir.Operation) -> dict[str, int]:
    """Count the ops by name, but views, casts and constants."""
    counts: dict[str, int] = {}
    for function in step_functions(module):
        for view in body_of(function).operations:
            name = view.operation.name
            if operator_name(view.operation) not in VIEWS | CASTS and "constant" not in name and name != "func.return":
                counts[name] = counts.get(name, 0) + 1
    return counts


# The last two had gradients of which a term is a forward op, seen through views and sums.
@pytest.mark.parametrize(("seed", "stages"), [*[(seed, 2 + seed % 4) for seed in range(20)], (1034, 5), (1046, 5)])
def test_random_steps(seed: int, stages: int) -> None:
    text = _Step(seed, stages).text()
    whole = to_program(parse_module(text), microbatches=2)
    draws = torch.Generator().manual_seed(seed)
    state = {name: torch.randn(4, 4, generator=draws, dtype=torch.float64) for name in ("p0", "p1", "p2", "p3", "b")}
    batch = {name: torch.randn(8, 4, generator=draws, dtype=torch.float64) for name in ("x", "y")}
    expected = hpir.simulate(whole, state, batch)
    for split in ("false", "true"):
        step = hpir.run_passes(parse_module(text).operation, "hp-simplify")
        before = count_fixed(step)
        staged = hpir.run_passes(step, f"hp-split-stages{{split-backward={split}}},hp-verify-level")
        check_crossings(staged)
        check_no_views(staged)
        after = count_fixed(staged)
        assert {name: count for name, count in after.items() if "add" not in name} == {
            name: count for name, count in before.items() if "add" not in name
        }
        found = hpir.simulate(staged_program(staged, whole), state, batch, check_types=True)
        assert torch.equal(found.loss, expected.loss)
        assert set(found.grads) == set(expected.grads)
        for name, gradient in expected.grads.items():
            torch.testing.assert_close(found.grads[name], gradient, rtol=1e-12, atol=1e-12)
        assert torch.equal(found.buffers["b"], expected.buffers["b"])
