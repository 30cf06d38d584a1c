"""Cheaper callables of operators do what the operators do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpir.errors import RuntimeFault
from hpir.runtime.bindings import BOUND, callable_of
from hpir.runtime.operators import resolve

X, Y = torch.randn(4, 6), torch.randn(4, 6)
SQUARE, BATCHED = torch.randn(6, 6), torch.randn(2, 4, 6)
INDEX = torch.tensor([[0, 2], [1, 0]])

# Arguments for every operator in the table, several where the parser of the cheaper one might go astray.
SAMPLES: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "_log_softmax.default": [((X, 1, False), {})],
    "_log_softmax_backward_data.default": [((X, Y, 1, torch.float32), {})],
    "_softmax.default": [((X, 1, False), {})],
    "_softmax_backward_data.default": [((X, Y, 1, torch.float32), {})],
    "add.Tensor": [((X, Y), {}), ((X, Y), {"alpha": 2}), ((X, 1.5), {}), ((X, 2), {})],
    "addmm.default": [((Y[0], X, SQUARE), {}), ((X, X, SQUARE), {"beta": 0.5, "alpha": 2})],
    "amax.default": [((X, [1]), {}), ((X, [0], True), {}), ((X,), {})],
    "bmm.default": [((BATCHED, BATCHED.transpose(1, 2)), {})],
    "cat.default": [(([X, Y],), {}), (([X, Y], 1), {})],
    "clone.default": [((X,), {}), ((X.t(),), {"memory_format": torch.contiguous_format})],
    "convolution.default": [
        ((torch.randn(2, 3, 5), torch.randn(4, 3, 3), None, [1], [0], [1], False, [0], 1), {}),
        ((torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3), X[:, 0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1), {}),
    ],
    "div.Tensor": [((X, Y), {}), ((X, 3.0), {})],
    "embedding.default": [((X, INDEX), {}), ((X, INDEX, 1), {}), ((X, INDEX, -1, False, False), {})],
    "eq.Scalar": [((X, 0), {}), ((X, 0.5), {})],
    "expand.default": [((X[:1], [4, 6]), {}), ((X, [-1, 6]), {}), ((X, [2, 4, 6]), {})],
    "full_like.default": [((X, 3), {}), ((X, 2.5), {"dtype": torch.float64})],
    "gather.default": [((X, 1, INDEX), {})],
    "ge.Scalar": [((X, 0), {})],
    "gelu.default": [((X,), {}), ((X,), {"approximate": "tanh"})],
    "gt.Scalar": [((X, 0), {})],
    "index_select.default": [((X, 1, INDEX[0]), {})],
    "le.Scalar": [((X, 0), {})],
    "lt.Scalar": [((X, 0), {})],
    "masked_fill.Scalar": [((X, X > 0, float("-inf")), {}), ((X, X > 0, 0), {})],
    "masked_fill.Tensor": [((X, X > 0, torch.tensor(1.0)), {})],
    "mean.dim": [((X, [1]), {}), ((X, [-1], True), {}), ((X, [0]), {"dtype": torch.float64}), ((X, None), {})],
    "mm.default": [((X, SQUARE), {})],
    "mul.Tensor": [((X, Y), {}), ((X, 2.5), {}), ((X, True), {})],
    "native_group_norm.default": [((BATCHED, Y[:, 0], None, 2, 4, 6, 2, 1e-5), {})],
    "native_layer_norm.default": [((X, [6], Y[0], Y[1], 1e-5), {}), ((X, [4, 6], None, None, 1e-5), {})],
    "ne.Scalar": [((X, 0), {})],
    "ones_like.default": [((X,), {}), ((X,), {"dtype": torch.int64})],
    "permute.default": [((BATCHED, [2, 0, 1]), {})],
    "pow.Tensor_Scalar": [((X, 2), {}), ((X, 0.5), {})],
    "reshape.default": [((X, [3, 8]), {}), ((X.t(), [-1]), {}), ((X[:1, 0], []), {})],
    "select.int": [((X, 1, 0), {}), ((X, 0, -1), {})],
    "stack.default": [(([X, Y],), {}), (([X, Y], 1), {})],
    "sub.Tensor": [((X, Y), {}), ((X, 1), {}), ((X, Y), {"alpha": 3})],
    "sum.default": [((X,), {}), ((X,), {"dtype": torch.float64})],
    "sum.dim_IntList": [((X, [0], True), {}), ((X, [0, 1]), {}), ((X, None), {}), ((X, [1]), {"dtype": torch.float64})],
    "transpose.int": [((BATCHED, 0, -1), {})],
    "tril.default": [((X,), {}), ((X, -1), {})],
    "unsqueeze.default": [((X, -1), {})],
    "view.default": [((X, [2, 12]), {}), ((X, [-1]), {})],
    "zeros_like.default": [((X,), {}), ((X,), {"dtype": torch.bool})],
}
UNARY = ("abs", "cos", "exp", "log", "neg", "relu", "rsqrt", "sigmoid", "silu", "sin", "sqrt", "t", "tanh")


class Recorded(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch is untyped here
    """Writes down every operator that is dispatched, with what it was given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((function, _plain(args), _plain(kwargs or {})))
        return function(*args, **(kwargs or {}))


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (
            ("tensor", value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
            if value.dim()
            else value.item()
        )
    if isinstance(value, dict):
        # Some parsers pass a default on, such as pin_memory=False.
        return {key: _plain(item) for key, item in value.items() if item is not None and item is not False}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


@pytest.mark.parametrize("name", BOUND)
def test_the_same_overload_is_dispatched_with_the_same_arguments(name: str) -> None:
    samples = SAMPLES.get(name) or [((X,), {})]
    assert name in SAMPLES or name.removesuffix(".default") in UNARY, "the table has an operator without a sample"
    operator, bound = resolve(f"aten.{name}"), callable_of(f"aten.{name}")
    assert bound is not operator._op
    for args, kwargs in samples:
        recorded = []
        for function in (operator, bound):
            with Recorded() as mode, torch.no_grad():
                function(*args, **kwargs)
            recorded.append(mode.calls)
        assert len(recorded[0]) == len(recorded[1])
        # Later calls of a decomposition get tensors made by earlier ones, which lie elsewhere.
        assert [call[0] for call in recorded[0]] == [call[0] for call in recorded[1]]
        assert recorded[0][0] == recorded[1][0]


def test_other_operators_are_called_directly() -> None:
    assert callable_of("aten.mul.Scalar") is resolve("aten.mul.Scalar")._op
    assert callable_of("prims.convert_element_type.default") is resolve("prims.convert_element_type.default")._op
    with pytest.raises(RuntimeFault, match=r"has no operator 'aten.mul.Scaler', did you mean 'Scalar'"):
        callable_of("aten.mul.Scaler")
