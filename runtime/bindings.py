"""The cheapest Python callable of an operator.

An operator called as ``torch.ops.aten.mm.default`` reads its arguments by its schema, which costs more than half a
microsecond more than ``torch.mm``, whose argument parser is generated. For frequent operators the latter is used where
it is known (and tested) to dispatch to the same overload with the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from .operators import resolve

# Overloads that take a Python number where another of the same name takes a tensor are left out on purpose: the parser
# would choose the other one.
_FUNCTIONS = (
    "_log_softmax.default",
    "_log_softmax_backward_data.default",
    "_softmax.default",
    "_softmax_backward_data.default",
    "abs.default",
    "add.Tensor",
    "addmm.default",
    "amax.default",
    "bmm.default",
    "cat.default",
    "clone.default",
    "convolution.default",
    "cos.default",
    "div.Tensor",
    "embedding.default",
    "eq.Scalar",
    "exp.default",
    "full_like.default",
    "gather.default",
    "ge.Scalar",
    "gt.Scalar",
    "index_select.default",
    "le.Scalar",
    "log.default",
    "lt.Scalar",
    "masked_fill.Scalar",
    "masked_fill.Tensor",
    "mean.dim",
    "mm.default",
    "mul.Tensor",
    "native_group_norm.default",
    "native_layer_norm.default",
    "ne.Scalar",
    "neg.default",
    "ones_like.default",
    "permute.default",
    "pow.Tensor_Scalar",
    "relu.default",
    "reshape.default",
    "rsqrt.default",
    "select.int",
    "sigmoid.default",
    "sin.default",
    "sqrt.default",
    "stack.default",
    "sub.Tensor",
    "sum.default",
    "sum.dim_IntList",
    "t.default",
    "tanh.default",
    "transpose.int",
    "tril.default",
    "unsqueeze.default",
    "zeros_like.default",
)
_METHODS = ("expand.default", "view.default")
_NN_FUNCTIONS = ("gelu.default", "silu.default")

BOUND = (*_FUNCTIONS, *_METHODS, *_NN_FUNCTIONS)
"""The ATen operators that have a cheaper callable."""


@cache
def callable_of(target: str) -> Callable[..., Any]:
    """Return what to call for the operator named `target`.

    Raises:
        RuntimeFault: this torch has no such operator.
    """
    operator = resolve(target)
    namespace, _, rest = target.partition(".")
    name = rest.partition(".")[0]
    found: Any = None
    if namespace == "aten":
        if rest in _FUNCTIONS:
            found = getattr(torch, name, None)
        elif rest in _METHODS:
            found = getattr(torch.Tensor, name, None)
        elif rest in _NN_FUNCTIONS:
            found = getattr(torch._C._nn, name, None)
    # Without what OpOverload.__call__ adds, which is one more Python call.
    return found if found is not None else operator._op
