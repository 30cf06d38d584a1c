"""Functions of a Program as FX graphs of torch operators, collectives as ``_c10d_functional`` ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from ..errors import RuntimeFault
from .collectives import RankOps
from .operators import literal_tensor, materialize, resolve, torch_dtype
from .packing import packing_of
from .program import COLLECTIVES, Function, Op, Program, Ref, TensorType
from .source_text import Names
from .wires import Future

_RANDOM = ("hp.uniform", "hp.normal")


def build_graph(program: Program, name: str, ops: RankOps) -> GraphModule:
    """Return a function as a GraphModule; its nodes carry module, phase and source line of the ops they stand for.

    Random draws are inputs after the function's own, in the order of `random_draws`: a graph is a pure function.

    Args:
        program: a valid Program.
        name: of the function. It may not call others, nor send or receive.
        ops: of the rank that will run it.

    Raises:
        RuntimeFault: an op has no counterpart in a graph.
    """
    return _GraphBuilder(program.functions[name], ops).build()


def random_draws(function: Function) -> list[Op]:
    """Return the random ops of a function."""
    return [op for op in function.ops if op.target in _RANDOM]


class _GraphBuilder:
    def __init__(self, function: Function, ops: RankOps):
        self.function = function
        self.ops = ops
        self.graph = Graph()
        self.tracer = GraphAppendingTracer(self.graph)
        self.root = nn.Module()
        self._inputs = Names(("self", "torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree"))
        self.values: dict[int, Any] = {}
        self.types: dict[int, TensorType | None] = {}

    def build(self) -> GraphModule:
        for index, argument in enumerate(self.function.arguments):
            self._define(index, self._input(argument.name), argument.type)
        draws = {op.results[0]: self._input(op.target) for op in random_draws(self.function)}
        for number, op in enumerate(self.function.ops):
            known = len(self.graph.nodes)
            try:
                results = [draws[op.results[0]]] if op.target in _RANDOM else self._trace(op)
            except RuntimeFault as fault:
                raise RuntimeFault(f"{self.function.name}: op {number} '{op.target}': {fault}") from None
            for value, type_, result in zip(op.results, op.types, results, strict=True):
                self._define(value, result, type_)
            self._describe(op, len(self.graph.nodes) - known)
        self.graph.output(tuple(_node(self.values[result.value]) for result in self.function.results))
        self.graph.lint()
        return GraphModule(self.root, self.graph, _identifier(self.function.name))

    def _input(self, name: str) -> Proxy:
        # A placeholder's target is a parameter of the generated function, which torch does not keep distinct.
        name = self._inputs.fresh(name)
        return Proxy(self.graph.placeholder(name), self.tracer)

    def _define(self, value: int, result: Any, type_: TensorType | None) -> None:
        self.values[value] = result
        self.types[value] = type_

    def _typed(self, value: int) -> Any:
        """Return a value as a proxy that has dtype and shape, as the ops of `RankOps` need them."""
        known, type_ = self.values[value], self.types[value]
        if not isinstance(known, Proxy) or type_ is None:
            return known
        if None in type_.shape:
            raise RuntimeFault(f"size of {type_} is not known before the run")
        proxy: Any = Proxy(known.node, self.tracer)
        proxy.dtype = torch_dtype(type_.dtype)
        proxy.shape = torch.Size([size for size in type_.shape if size is not None])
        return proxy

    def _trace(self, op: Op) -> Sequence[Any]:
        if op.target == "literal":
            name = f"literal_{op.results[0]}"
            self.root.register_buffer(name, literal_tensor(op, self.ops.device), persistent=False)
            return [Proxy(self.graph.get_attr(name), self.tracer)]
        if op.target in ("call", "hp.send", "hp.recv"):
            raise RuntimeFault("cannot stand in a compiled function")
        if op.target.startswith("hp."):
            return self._trace_hp(op)
        operator = resolve(op.target)
        args = [materialize(arg, self.values.__getitem__, self.ops.device) for arg in op.args]
        kwargs = {name: materialize(arg, self.values.__getitem__, self.ops.device) for name, arg in op.kwargs.items()}
        # Through the tracer and not by a call: an operator without tensor operands would run.
        result: Any = self.tracer.create_proxy("call_function", operator, tuple(args), kwargs)
        returns = operator._schema.returns
        is_list = len(returns) == 1 and str(returns[0].type).startswith("List[")
        if len(returns) > 1 or (is_list and op.types != (None,)):
            return [result[position] for position in range(len(op.results))]
        return [result] if op.results else []

    def _trace_hp(self, op: Op) -> Sequence[Any]:
        kwargs = {name: materialize(arg, self._typed, self.ops.device) for name, arg in op.kwargs.items()}
        kwargs.pop("label", None)
        if op.target == "hp.wait":
            (future,) = (self.values[value] for value in op.operands())
            assert isinstance(future, Future)
            return self.ops.wait(future)
        operands = [self._typed(value) for value in op.operands()]
        if op.target == "hp.accumulate":
            half = len(operands) // 2
            return [
                torch.ops.aten.add_.Tensor(torch.ops.aten.clone.default(total), value)
                for total, value in zip(operands[:half], operands[half:], strict=True)
            ]
        if op.target == "hp.pack":
            return [packing_of(op).concatenate(operands)]
        if op.target == "hp.unpack":
            return packing_of(op).traced(operands[0])
        method = getattr(self.ops, op.target.removeprefix("hp."))
        if op.target in COLLECTIVES:
            return [method(operands, **kwargs)]
        return [method(*operands, **kwargs)]

    def _describe(self, op: Op, count: int) -> None:
        """Give the `count` nodes made last a name and the trace of their op."""
        file, _, line = op.location.rpartition(":")
        for node in islice(reversed(self.graph.nodes), count):
            node.meta["hpir"] = {"module": op.module, "phase": op.phase, "location": op.location, "op": op.target}
            if file and line.isdigit():
                owner = op.module or self.function.name
                node.stack_trace = f'  File "{file}", line {line}, in {owner}\n    {op.target}'
            if op.module and node.op == "call_function":
                node._rename(f"{_identifier(op.module)}_{node.name}")


def _node(value: Any) -> Node:
    assert isinstance(value, Proxy)
    return value.node


def _identifier(name: str) -> str:
    return re.sub(r"[^0-9A-Za-z_]", "_", name)


def argument_types(function: Function) -> list[TensorType]:
    """Return the types of a function's inputs as a graph, random draws included.

    Raises:
        RuntimeFault: a size is known only at run time.
    """
    types = [argument.type for argument in function.arguments]
    for op in random_draws(function):
        if op.types[0] is not None:
            types.append(op.types[0])
    for type_ in types:
        if None in type_.shape:
            raise RuntimeFault(f"{function.name}: size of {type_} is not known before the run")
    return types


def draw_inputs(function: Function, ops: RankOps) -> list[torch.Tensor]:
    """Draw what `build_graph` made inputs of."""
    drawn = []
    for op in random_draws(function):
        (sizes,) = op.args
        dtype, stream, rows = op.kwargs["dtype"], op.kwargs["stream"], op.kwargs.get("rows")
        if isinstance(sizes, Ref) or not isinstance(stream, int) or not isinstance(rows, (int, type(None))):
            raise RuntimeFault(f"{function.name}: '{op.target}' has sizes that are not known before the run")
        values = materialize(sizes, _unknown, ops.device)
        kind, element = op.target.removeprefix("hp."), materialize(dtype, _unknown, ops.device)
        drawn.append(ops.draw(kind, values, element, stream, rows))
    return drawn


def _unknown(index: int) -> Any:
    raise RuntimeFault(f"value {index} is not known before the run")
