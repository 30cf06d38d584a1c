"""What a step sums over its microbatches and data ranks, and divides once: loss, weight and gradients.

With a plain loss all microbatches and data ranks count equally: loss and gradients are means. With a weight they are
sums, divided by the sum of the weights. Gradients come reduced over the data ranks already, each microbatch's; loss and
weight are reduced here, once per step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..runtime.program import Arg, Function, Named, Ref, TensorType

Emit = Callable[..., list[int]]
"""Appends an op: target, operands, result types and attributes; returns the numbers of its results."""

_HALVES = frozenset({"float16", "bfloat16"})
_REAL = {"complex128": "float64", "complex64": "float32", "complex32": "float32"}


@dataclass(frozen=True)
class _Value:
    number: int
    type: TensorType


class StepTotals:
    """Emits the sums of an entry function, and what makes means of them.

    Args:
        callee: the function of one microbatch.
        data_axes: axes that split the batch.
        emit: appends an op to the entry function.
        divide: whether sums are divided by the weight; for a function without one this changes nothing.
    """

    def __init__(self, callee: Function, data_axes: Sequence[str], emit: Emit, *, divide: bool = True):
        self._results = callee.results
        self._axes = tuple(data_axes)
        self._emit = emit
        self._divide = divide
        self.weighted = any(result.role == "weight" for result in callee.results)

    def finish(self, calls: Sequence[Sequence[int]], roles: Sequence[str]) -> dict[int, int]:
        """Return the value of each result of `roles`, by its index, for the whole step.

        Args:
            calls: the results of the callee, one list per microbatch.
            roles: some of "loss", "weight" and "grad".
        """
        totals = self._sums(calls, [i for i, result in enumerate(self._results) if result.role in roles])
        finished = self._weighted(totals) if self.weighted else self._means(totals, len(calls))
        # In the dtype that the step function gave it.
        return {i: self._cast(value, self._results[i].type.dtype).number for i, value in finished.items()}

    def _sums(self, calls: Sequence[Sequence[int]], indices: Sequence[int]) -> dict[int, _Value]:
        totals = {i: _Value(calls[0][i], self._results[i].type) for i in indices}
        for i in indices:
            # A sum of many losses rounds away in 16 bits.
            if self._results[i].role == "loss" and (self.weighted or len(calls) > 1 or self._axes):
                totals[i] = self._cast(totals[i], _wide(totals[i].type.dtype))
        for call in calls[1:]:
            operands = [Ref(totals[i].number) for i in indices] + [Ref(call[i]) for i in indices]
            types = [totals[i].type for i in indices]
            numbers = self._emit("hp.accumulate", operands, types)
            totals = {i: _Value(number, totals[i].type) for i, number in zip(indices, numbers, strict=True)}
        return totals

    def _means(self, totals: Mapping[int, _Value], microbatches: int) -> dict[int, _Value]:
        means = {}
        for i, value in totals.items():
            if microbatches > 1:
                value = self._op("aten.div.Scalar", (Ref(value.number), microbatches), value.type)
            if self._results[i].role == "loss":
                (value,) = self._reduced((value,), "avg")
            means[i] = value
        return means

    def _weighted(self, totals: Mapping[int, _Value]) -> dict[int, _Value]:
        """Divide by the total weight, in the dtype of what is divided, and at least in float32.

        A tensor without dims would otherwise take on the dtype of the weight, and a large count would overflow 16 bits.
        """
        reduced = [i for i in totals if self._results[i].role in ("loss", "weight")]
        values = dict(totals)
        values.update(zip(reduced, self._reduced([totals[i] for i in reduced], "sum"), strict=True))
        if not self._divide:
            return values
        (index,) = (i for i in reduced if self._results[i].role == "weight")
        weight = values[index]
        if weight.type.shape:
            weight = self._op("aten.reshape.default", (Ref(weight.number), ()), replace(weight.type, shape=()))
        divisors: dict[str, _Value] = {}
        for i, value in values.items():
            if i == index:
                continue
            value = self._cast(value, _wide(value.type.dtype))
            dtype = _REAL.get(value.type.dtype, value.type.dtype)
            if dtype not in divisors:
                divisors[dtype] = self._cast(weight, dtype)
            values[i] = self._op("aten.div.Tensor", (Ref(value.number), Ref(divisors[dtype].number)), value.type)
        return values

    def _reduced(self, values: Sequence[_Value], reduce: str) -> list[_Value]:
        """Reduce values over the data ranks, all at once."""
        if not self._axes:
            return list(values)
        futures = [
            self._emit("hp.all_reduce", (Ref(value.number),), (None,), axes=self._axes, reduce=reduce)[0]
            for value in values
        ]
        return [self._op("hp.wait", (Ref(future),), value.type) for future, value in zip(futures, values, strict=True)]

    def _cast(self, value: _Value, dtype: str) -> _Value:
        if value.type.dtype == dtype:
            return value
        type_ = replace(value.type, dtype=dtype)
        return self._op("aten._to_copy.default", (Ref(value.number),), type_, dtype=Named("dtype", dtype))

    def _op(self, target: str, args: Sequence[Arg], type_: TensorType, **kwargs: Arg) -> _Value:
        (number,) = self._emit(target, args, (type_,), **kwargs)
        return _Value(number, type_)


def _wide(dtype: str) -> str:
    return "float32" if dtype in _HALVES else dtype
