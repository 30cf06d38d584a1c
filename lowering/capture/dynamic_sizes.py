"""Sizes that may change from step to step: from ``dynamic={"ids": {1: "seq"}}`` to symbols, size arguments and guards.

A name stands for one size wherever it is given. While a step is traced it is a symbol of torch's `ShapeEnv`; in the
graph that comes out it is an argument of its own, and every condition that tracing took for granted of the names is a
guard, checked before a step runs.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.functions import Min
from torch.utils._sympy.printers import PythonPrinter

from ...errors import CaptureError, RuntimeFault, nearest
from ...runtime.size_guards import Guard
from ...runtime.torch_compat import unspecialized_sizes

Dynamic = Mapping[str, Mapping[int, str]]
"""By input: the name of each dim whose size may change."""


# What has a meaning of its own in a guard.
_RESERVED = frozenset({*keyword.kwlist, "min", "max"})


@dataclass
class DynamicSizes:
    """The dynamic sizes of one capture.

    Attributes:
        dims: by input, the name of each dynamic dim.
        examples: by name, the size in the example batch, in the order in which names are met.
        symbols: by name, its symbols; the last is that of the joint graph.
        values: by name, that symbol as a size.
        equal: expressions that a guard says are a symbol.
    """

    dims: dict[str, dict[int, str]] = field(default_factory=dict)
    examples: dict[str, int] = field(default_factory=dict)
    symbols: dict[str, list[sympy.Symbol]] = field(default_factory=dict)
    values: dict[str, torch.SymInt] = field(default_factory=dict)
    equal: dict[Any, sympy.Symbol] = field(default_factory=dict)

    def dim_names(self, name: str, rank: int) -> tuple[str, ...]:
        """Return the names of all dims of an input, empty for fixed ones; an empty tuple without dynamic ones."""
        dims = self.dims.get(name)
        return tuple(dims.get(dim, "") for dim in range(rank)) if dims else ()

    @contextmanager
    def tracing(self, example: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Mark the example's dims for dynamo, and let sizes 0 and 1 be like any other."""
        for name, dims in self.dims.items():
            for dim in dims:
                torch._dynamo.mark_dynamic(example[name], dim)
        if not self.dims:
            yield
            return
        with unspecialized_sizes():
            yield

    def fake_inputs(
        self, mode: FakeTensorMode, example: Mapping[str, torch.Tensor], traced: GraphModule
    ) -> tuple[torch.Tensor, ...]:
        """Return the inputs of the joint graph: fake tensors that share one symbol per name.

        Args:
            mode: of the dynamo graph.
            example: the inputs by name.
            traced: the dynamo graph, whose own symbols are noted.
        """
        if not self.dims:
            return tuple(mode.from_tensor(leaf, static_shapes=True) for leaf in example.values())
        environment = mode.shape_env
        assert environment is not None
        self._note_symbols(traced, list(example))
        self.values = sizes = {name: self._new_symbol(environment, name, size) for name, size in self.examples.items()}
        inputs: list[torch.Tensor] = []
        for name, leaf in example.items():
            dims = self.dims.get(name, {})
            if not dims:
                inputs.append(mode.from_tensor(leaf, static_shapes=True))
                continue
            shape = [sizes[dims[dim]] if dim in dims else size for dim, size in enumerate(leaf.shape)]
            with mode:
                inputs.append(torch.empty(shape, dtype=leaf.dtype, device=leaf.device))
        return tuple(inputs)

    def _note_symbols(self, traced: GraphModule, names: Sequence[str]) -> None:
        for node in traced.graph.find_nodes(op="placeholder"):
            position = _leaf_position(str(node.target))
            if position is None:
                continue
            for dim, name in self.dims.get(names[position], {}).items():
                size = node.meta["val"].shape[dim]
                if isinstance(size, torch.SymInt) and isinstance(size.node._expr, sympy.Symbol):
                    self.symbols.setdefault(name, []).append(size.node._expr)

    def _new_symbol(self, environment: ShapeEnv, name: str, size: int) -> torch.SymInt:
        source = ConstantSource(f"__size_{name}")
        symbol = environment.create_symbol(
            size, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None, do_not_specialize_zero_one=True
        )
        self.symbols.setdefault(name, []).append(symbol)
        made = environment.create_symintnode(symbol, hint=size, source=source)
        assert isinstance(made, torch.SymInt)
        return made

    def guards(self, mode: FakeTensorMode, source: str) -> tuple[str, ...]:
        """Return what tracing took for granted of the sizes, each once, as `runtime.size_guards` spells it.

        Raises:
            CaptureError: the step works for one size only.
        """
        environment = mode.shape_env
        if not self.dims or environment is None:
            return ()
        by_name = {name: sympy.Symbol(name, integer=True, nonnegative=True) for name in self.examples}
        named: dict[sympy.Symbol, Any] = {
            symbol: by_name[name] for name, symbols in self.symbols.items() for symbol in symbols
        }
        texts: dict[str, None] = {}
        conditions = [guard.expr for guard in environment.guards]
        for name, symbols in self.symbols.items():
            for symbol in symbols:
                replaced = environment.replace(symbol)
                if replaced != symbol:
                    conditions.append(sympy.Eq(by_name[name], replaced, evaluate=False))
        for condition in conditions:
            self._note_equal(condition)
            others = {s: environment.backed_var_to_val.get(s) for s in condition.free_symbols if s not in named}
            known = {s: value for s, value in others.items() if value is not None and s not in by_name.values()}
            condition = condition.xreplace({**named, **known})
            condition = sympy.sympify(condition).doit()
            if condition == sympy.true:
                continue
            self._refuse_fixed(condition, source)
            text = _guard_text(condition)
            try:
                Guard.parse(text)
            except RuntimeFault:
                raise CaptureError(
                    f"{source}: dynamic: cannot state the condition '{text}' on the sizes: leave them out of dynamic"
                ) from None
            texts[text] = None
        return tuple(texts)

    def _note_equal(self, condition: Any) -> None:
        """Note what a guard says a size equals, such as the smaller of it and a table's length."""
        if isinstance(condition, sympy.Eq):
            for side, other in ((condition.lhs, condition.rhs), (condition.rhs, condition.lhs)):
                if isinstance(side, sympy.Symbol) and not isinstance(other, sympy.Symbol):
                    self.equal[other] = side

    def _refuse_fixed(self, condition: Any, source: str) -> None:
        """Refuse a guard that leaves only the example's size."""
        if condition == sympy.false:
            raise CaptureError(f"{source}: dynamic: the step's conditions on its sizes contradict the example batch")
        if not isinstance(condition, sympy.Eq):
            return
        sides = (condition.lhs, condition.rhs)
        for symbol, value in (sides, sides[::-1]):
            if isinstance(symbol, sympy.Symbol) and value.is_Integer:
                raise CaptureError(
                    f"{source}: dynamic: size '{symbol}' must be {value} for this step: give the other inputs' dims "
                    f"that it has to equal the same name, or leave '{symbol}' out"
                )
        if all(isinstance(side, sympy.Symbol) for side in sides):
            raise CaptureError(
                f"{source}: dynamic: sizes '{sides[0]}' and '{sides[1]}' must be equal for this step: give them one "
                "name"
            )


def _guard_text(condition: Any) -> str:
    if isinstance(condition, sympy.Eq):
        # A slice of a table up to a size: that the table is long enough.
        for side, other in ((condition.lhs, condition.rhs), (condition.rhs, condition.lhs)):
            if isinstance(other, Min) and side in other.args:
                rest = [arg for arg in other.args if arg != side]
                least: Any = rest[0] if len(rest) == 1 else other.func(*rest)
                condition = sympy.Le(side, least, evaluate=False)
                break
    text: str = PythonPrinter().doprint(condition)
    return text[1:-1] if text.startswith("(") and text.endswith(")") and text.count("(") == 1 else text


def _leaf_position(target: str) -> int | None:
    # Dynamo's name of the step module's i-th leaf.
    head, _, number = target.rstrip("_").rpartition("_")
    return int(number) if head == "L_leaves" and number.isdigit() else None


def read_dynamic(
    dynamic: Dynamic | None,
    leaves: Mapping[str, torch.Tensor],
    batch_dims: Mapping[str, int | None],
    source: str,
) -> DynamicSizes:
    """Check the `dynamic` argument of `hpir.export` against the batch.

    A dynamic batch dim of one input is that of all inputs: they have equally many rows.

    Raises:
        CaptureError: an unknown input, dim or name, or one name for two sizes.
    """
    sizes = DynamicSizes()
    if dynamic is None:
        return sizes
    where = f"{source}: dynamic"
    if not isinstance(dynamic, Mapping):
        raise CaptureError(f"{where}: expected a mapping of inputs, got: {type(dynamic).__name__}")
    given: dict[str, dict[int, str]] = {}
    for name, dims in dynamic.items():
        if name not in leaves:
            raise CaptureError(f"{where}: no input '{name}'{nearest(str(name), leaves)}")
        if not isinstance(dims, Mapping):
            raise CaptureError(f"{where}: expected a mapping of dims to names for '{name}', got: {dims!r}")
        rank = leaves[name].dim()
        for dim, size_name in dims.items():
            if type(dim) is not int or not -rank <= dim < rank:
                raise CaptureError(f"{where}: input '{name}' has {rank} dims, got dim: {dim!r}")
            if not isinstance(size_name, str) or not size_name.isidentifier() or size_name in _RESERVED:
                raise CaptureError(f"{where}: expected an identifier for dim {dim} of '{name}', got: {size_name!r}")
            if size_name in leaves:
                raise CaptureError(f"{where}: size '{size_name}' has the name of an input: choose another")
            other = given.setdefault(name, {}).setdefault(dim % rank, size_name)
            if other != size_name:
                raise CaptureError(f"{where}: dim {dim} of '{name}' has two names, '{other}' and '{size_name}'")
    _spread_batch_dim(given, batch_dims, where)
    for name in leaves:
        for dim, size_name in sorted(given.get(name, {}).items()):
            size = leaves[name].shape[dim]
            first = next((f"dim {d} of '{n}'" for n, ds in sizes.dims.items() for d in ds if ds[d] == size_name), "")
            if sizes.examples.setdefault(size_name, size) != size:
                raise CaptureError(
                    f"{where}: size '{size_name}' is {sizes.examples[size_name]} at {first} but {size} at dim {dim} of "
                    f"'{name}'"
                )
            sizes.dims.setdefault(name, {})[dim] = size_name
    small = [name for name, size in sizes.examples.items() if size < 2]
    if small:
        raise CaptureError(
            f"{where}: size '{small[0]}' is {sizes.examples[small[0]]} in the example batch: give one of at least 2, "
            "which stands for any size"
        )
    return sizes


def _spread_batch_dim(given: dict[str, dict[int, str]], batch_dims: Mapping[str, int | None], where: str) -> None:
    names = {dims[dim]: name for name, dims in given.items() if (dim := batch_dims[name]) is not None and dim in dims}
    if len(names) > 1:
        (first, one), (second, other) = list(names.items())[:2]
        raise CaptureError(f"{where}: the batch dim is '{first}' in '{one}' but '{second}' in '{other}': give one name")
    for size_name in names:
        for name, batch_dim in batch_dims.items():
            if batch_dim is not None:
                given.setdefault(name, {})[batch_dim] = size_name


def lift_sizes(graph_module: GraphModule, sizes: DynamicSizes) -> dict[str, Node]:
    """Make each dynamic size a placeholder of its own, in place; return them by name.

    Every node whose value is the bare size (of whatever tensor) becomes a use of it.
    """
    graph = graph_module.graph
    placeholders: dict[str, Node] = {}
    by_symbol = {symbols[-1]: name for name, symbols in sizes.symbols.items()}
    first = next(iter(graph.nodes))
    for name, value in sizes.values.items():
        with graph.inserting_before(first):
            placeholders[name] = graph.placeholder(f"size_{name}")
        placeholders[name].meta["val"] = value
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.SymInt):
            continue
        expression = value.node.expr
        found = by_symbol.get(sizes.equal.get(expression, expression))
        if found is None:
            continue
        node.replace_all_uses_with(placeholders[found])
        graph.erase_node(node)
    return placeholders
