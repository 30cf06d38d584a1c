"""Guards: what a Program takes for granted of its dynamic sizes, such as ``seq <= 32``.

A guard is a Python expression over size names, integers, arithmetic, comparisons, ``and``, ``or``, ``not``, ``min`` and
``max``: nothing that could do anything but compare.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import RuntimeFault

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max}


@dataclass(frozen=True)
class Guard:
    """One condition on sizes.

    Attributes:
        text: the expression.
        names: the sizes in it, in order of appearance.
    """

    text: str
    names: tuple[str, ...]
    _tree: ast.expr

    @classmethod
    def parse(cls, text: str) -> Guard:
        """Read a guard.

        Raises:
            RuntimeFault: it is not an expression of the kind described above.
        """
        try:
            tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise RuntimeFault(f"malformed guard: {text!r}") from None
        names: dict[str, None] = {}
        _check(tree, names, text)
        return cls(text, tuple(names), tree)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the condition is true of `sizes`, which has all of `names`."""
        try:
            return bool(_value(self._tree, sizes))
        except ZeroDivisionError:
            return False


def _check(node: ast.expr, names: dict[str, None], text: str) -> None:
    children: list[ast.expr]
    if isinstance(node, ast.Name):
        names[node.id] = None
        return
    if isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        return
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        children = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        children = [node.operand]
    elif isinstance(node, ast.BoolOp):
        children = list(node.values)
    elif isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        children = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS and node.args:
        children = list(node.args)
    else:
        raise RuntimeFault(f"malformed guard: {text!r}")
    for child in children:
        _check(child, names, text)


def _value(node: ast.expr, sizes: Mapping[str, int]) -> Any:
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, sizes)
        return not value if isinstance(node.op, ast.Not) else -value
    if isinstance(node, ast.BoolOp):
        values = (_value(item, sizes) for item in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.Compare):
        items = [_value(item, sizes) for item in (node.left, *node.comparators)]
        return all(_COMPARE[type(op)](a, b) for op, a, b in zip(node.ops, items, items[1:], strict=False))
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return _CALLS[node.func.id](*(_value(item, sizes) for item in node.args))
