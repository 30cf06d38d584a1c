"""The cost model: how long operators and communication take, by a few rates of a machine.

An operator takes the longer of its operations over the compute rate and its bytes over the memory bandwidth, and an
overhead (the roofline of Williams et al., 2009). Communication takes a latency and its bytes over the bandwidth of the
axis (alpha and beta; Hockney, 1994), where the bytes are those that a rank sends, as ring algorithms do (Thakur et al.,
2005). The rates are built in per type of device, or measured by ``hp-run --calibrate`` and read from a TOML file.

Both the passes and the report use it: nothing here imports torch or MLIR.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from .cost_tables import KEY, inherit, is_given, merged, toml_lines
from .dtypes import DTYPE_BYTES
from .errors import PlanError, nearest
from .operator_costs import Typed, is_free, is_matrix_product, item_bytes, moved_bytes, op_flops, tensor_bytes
from .toml_file import read_toml

__all__ = ["AxisCosts", "Costs", "Link", "op_flops", "tensor_bytes"]

DEFAULT_DEVICE = "cuda"
"""Whose rates count where nothing is said: plans are made for accelerators, wherever they are compiled."""

# Rounded figures of one device's data sheet and of one machine's links (a core of a server and gloo, an A100 and
# NCCL, an Ascend 910B and HCCL, a Data Center GPU Max and oneCCL): right within a factor of a few. Calibration is
# for the rest.
_BUILT_IN: dict[str, dict[str, Any]] = {
    "cpu": {
        "backend": "gloo",
        "compute": {
            "flops": {"float64": 2e10, "float32": 5e10, "float16": 5e9, "bfloat16": 1e10},
            "memory_bandwidth": 1e10,
            "op_overhead": 4e-6,
        },
        "links": {"latency": 1e-4, "bandwidth": 2e9},
    },
    "cuda": {
        "backend": "nccl",
        "compute": {
            "flops": {"float64": 1.5e13, "float32": 1.5e13, "float16": 2.5e14, "bfloat16": 2.5e14},
            "memory_bandwidth": 1.5e12,
            "op_overhead": 5e-6,
        },
        "links": {"latency": 2e-5, "bandwidth": 2e11},
    },
    "npu": {
        "backend": "hccl",
        "compute": {
            "flops": {"float64": 1e12, "float32": 6e13, "float16": 2.5e14, "bfloat16": 2.5e14},
            "memory_bandwidth": 1.2e12,
            "op_overhead": 1e-5,
        },
        "links": {"latency": 3e-5, "bandwidth": 1e11},
    },
    "xpu": {
        "backend": "xccl",
        "compute": {
            "flops": {"float64": 2e13, "float32": 2e13, "float16": 2e14, "bfloat16": 2e14},
            "memory_bandwidth": 1.5e12,
            "op_overhead": 1e-5,
        },
        "links": {"latency": 3e-5, "bandwidth": 1e11},
    },
}
DEVICES = tuple(_BUILT_IN)
"""The types of device that have built-in rates."""

# What a rank sends of a tensor's bytes among n ranks. The tensor is the whole one: what a gather gives, what a
# reduction takes.
_TRAFFIC: dict[str, Callable[[int], float]] = {
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
}

COLLECTIVE_KINDS = tuple(_TRAFFIC)
"""The collectives, as `Costs.collective_seconds` names them."""


def traffic(kind: str, size: float, ranks: int) -> float:
    """Return the bytes that each rank sends in a collective.

    Args:
        kind: ``all_gather`` (or ``hp.all_gather``), ``reduce_scatter``, ``all_reduce``, ``all_to_all``, ``broadcast``.
        size: bytes of the whole tensor: what a gather gives, what any other collective is given.
        ranks: members of the group.
    """
    return size * _TRAFFIC[kind.removeprefix("hp.")](ranks) if ranks > 1 else 0.0


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# Wider than any machine is, and narrow enough that sums over a step are finite, whatever its sizes.
Rate = Annotated[float, Field(ge=1, le=1e21, allow_inf_nan=False)]
"""Something per second."""
Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
"""A duration."""
_LATENCY = "a number of seconds from 0 to 3600"
_BANDWIDTH = "a number of bytes per second from 1 to 1e21"
_FLOPS = "a number of operations per second from 1 to 1e21"


def device_problem(device: str) -> str:
    """Return what is wrong with a type of device: nothing where it has built-in rates."""
    if device in DEVICES:
        return ""
    return f"no built-in rates for '{device}'" + (nearest(device, DEVICES) or f" (devices: {', '.join(DEVICES)})")


def _known_device(device: str) -> str:
    if problem := device_problem(device):
        raise ValueError(problem)
    return device


def _known_dtype(dtype: str) -> str:
    if dtype not in DTYPE_BYTES:
        hint = nearest(dtype, DTYPE_BYTES) or f" (dtypes: {', '.join(DTYPE_BYTES)})"
        raise ValueError(f"no dtype is named '{dtype}'{hint}")
    return dtype


class Link(_Section):
    """A way between ranks: what a message costs however small, and what each byte adds."""

    latency: Seconds = Field(description=_LATENCY)
    bandwidth: Rate = Field(description=_BANDWIDTH)

    def seconds(self, size: float) -> float:
        """Return how long `size` bytes take."""
        return self.latency + size / self.bandwidth


class AxisCosts(Link):
    """The links along a mesh axis: its own `latency` and `bandwidth` count for whatever has no table of its own."""

    all_gather: Link | None = Field(default=None, description="a table")
    reduce_scatter: Link | None = Field(default=None, description="a table")
    all_reduce: Link | None = Field(default=None, description="a table")
    all_to_all: Link | None = Field(default=None, description="a table")
    broadcast: Link | None = Field(default=None, description="a table")
    p2p: Link | None = Field(default=None, description="a table")

    def link(self, kind: str) -> Link:
        """Return what a collective of a kind, or ``p2p``, costs."""
        found: Link | None = getattr(self, kind)
        return found or self


class ComputeCosts(_Section):
    """What a device computes."""

    flops: dict[Annotated[str, AfterValidator(_known_dtype)], Rate] = Field(
        description="a table of operations per second by dtype"
    )
    memory_bandwidth: Rate = Field(description=_BANDWIDTH)
    op_overhead: Seconds = Field(description=_LATENCY)


class Costs(_Section):
    """Rates of a machine, and the times that follow from them, in seconds.

    Attributes:
        device: type of device, one of `DEVICES`: whose built-in rates count where a file has none.
        backend: of the process groups; for people only.
        compute: rates of a device.
        links: between ranks along any axis that is not in `axes`.
        axes: mesh axis to its links.

    Example:
        >>> costs = Costs.of({"device": "cpu", "axes": {"dp": {"latency": 1e-4, "bandwidth": 1e9}}})
        >>> round(costs.collective_seconds("all_gather", 2e6, 2, ["dp"]), 6)
        0.0011
    """

    device: Annotated[str, AfterValidator(_known_device)] = Field(description="a type of device such as 'cuda'")
    backend: str = Field(default="", description="text")
    compute: ComputeCosts = Field(description="a table")
    links: AxisCosts = Field(description="a table")
    axes: dict[str, AxisCosts] = Field(default_factory=dict, description="a table of tables, one per mesh axis")

    @classmethod
    def built_in(cls, device: str = DEFAULT_DEVICE) -> Costs:
        """Return the built-in rates of a type of device.

        Raises:
            PlanError: it has none; the text names the nearest that has.
        """
        return cls.of({"device": device})

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Costs:
        """Make costs of the dict that a TOML file would give.

        What a table leaves out is that of the table around it, ``axes.dp`` for ``axes.dp.all_reduce``; what an axis
        leaves out is that of ``links``; and what is left out there, or in ``compute``, is built in.

        Raises:
            PlanError: a key or a value is wrong; the text is ``costs: axes.dp.latency: ...``.
        """
        device = data.get("device", DEFAULT_DEVICE)
        built_in = _BUILT_IN.get(device if isinstance(device, str) else "", _BUILT_IN[DEFAULT_DEVICE])
        tables = merged(copy.deepcopy({"device": device, **built_in}), data)
        inherit(tables, [*COLLECTIVE_KINDS, "p2p"])
        try:
            return cls(**tables)
        except ValidationError as error:
            # What a table has inherited is wrong where it was given.
            found = [details for details in error.errors(include_url=False) if is_given(data, details["loc"])]
            problems = dict(map(_problem, found))
            raise PlanError("\n".join(f"costs: {key}: {text}" for key, text in problems.items())) from None

    @classmethod
    def load(cls, path: str | Path) -> Costs:
        """Read a TOML file, such as ``hp-run --calibrate`` writes.

        Raises:
            PlanError: it cannot be read, is no TOML, or what it says is wrong; the text begins with the path.
        """
        data = read_toml(path, "costs")
        try:
            return cls.of(data)
        except PlanError as error:
            raise PlanError(re.sub("^costs: ", lambda _: f"{path}: ", str(error), flags=re.MULTILINE)) from None

    def save(self, path: str | Path) -> None:
        """Write the TOML file that `load` reads."""
        lines = toml_lines(self.model_dump(exclude_none=True))
        Path(path).write_text("\n".join(lines).lstrip("\n") + "\n", encoding="utf-8")

    def axis(self, axes: Sequence[str], kind: str) -> Link:
        """Return the link of a collective over `axes`, or of ``p2p`` along one: of several axes the slowest counts."""
        links = [self.axes.get(axis, self.links).link(kind) for axis in axes] or [self.links.link(kind)]
        return Link(
            latency=max(link.latency for link in links),
            bandwidth=min(link.bandwidth for link in links),
        )

    def collective_seconds(self, kind: str, size: float, ranks: int, axes: Sequence[str] = ()) -> float:
        """Return how long a collective takes from when all ranks are there.

        Args:
            kind: ``all_gather`` (or ``hp.all_gather``), ``reduce_scatter``, ``all_reduce``, ``all_to_all``,
                ``broadcast``.
            size: bytes of the whole tensor: what a gather gives, what any other collective is given.
            ranks: members of the group; nothing is sent where there is one.
            axes: mesh axes it goes over.
        """
        if ranks <= 1:
            return 0.0
        name = kind.removeprefix("hp.")
        return self.axis(axes, name).seconds(traffic(name, size, ranks))

    def p2p_seconds(self, size: float, axis: str = "") -> float:
        """Return how long `size` bytes take from one rank to another along an axis."""
        return self.axis([axis], "p2p").seconds(size)

    def flop_rate(self, dtype: str) -> float:
        """Return the operations per second of matrix products in a dtype; one without a rate has the nearest's."""
        rates = self.compute.flops
        if dtype in rates:
            return rates[dtype]
        wide = "float64" if item_bytes(dtype) >= 8 and dtype != "complex64" else "float32"
        return rates.get(wide) or max(rates.values())

    def op_seconds(self, flops: float, size: float, dtype: str = "float32") -> float:
        """Return how long an operator takes.

        Args:
            flops: its operations.
            size: bytes that it reads and writes.
            dtype: that it computes in.
        """
        return self.compute.op_overhead + max(flops / self.flop_rate(dtype), size / self.compute.memory_bandwidth)

    def estimate(self, target: str, operands: Sequence[Typed], results: Sequence[Typed]) -> float:
        """Return how long an operator takes, by the types of its tensors; 0 for a view.

        Args:
            target: such as ``aten.mm.default`` or ``torch.aten.mm``.
            operands: types of its tensor operands, in order.
            results: types of its results.
        """
        if is_free(target):
            return 0.0
        size = moved_bytes(target, operands, results)
        if not is_matrix_product(target):
            return self.op_seconds(0, size)
        flops = op_flops(target, [item.shape for item in operands], [item.shape for item in results])
        return self.op_seconds(flops, size, results[0].dtype if results else "float32")


_MODELS: dict[str, type[_Section]] = {"compute": ComputeCosts, "links": AxisCosts, "axes": AxisCosts}


def _problem(details: ErrorDetails) -> tuple[str, str]:
    """Return (key, message) for what pydantic found."""
    path = [str(part) for part in details["loc"]]
    if details["type"] == "value_error":  # of a name; the text is ours
        return ".".join(part for part in path if part != KEY), str(details["ctx"]["error"])
    key = ".".join(path)
    model = _MODELS.get(path[0], Costs) if len(path) > 1 else Costs
    if len(path) > 3 or (len(path) > 2 and path[0] == "links"):
        model = Link
    if details["type"] == "extra_forbidden":
        valid = list(model.model_fields)
        return key, "unknown key" + (nearest(path[-1], valid) or f" (keys: {', '.join(valid)})")
    field = model.model_fields.get(path[-1])
    expected = _FLOPS if path[:2] == ["compute", "flops"] and len(path) > 2 else "a table"
    if field is not None and field.description:
        expected = field.description
    value = details["input"]
    shown = f"'{value}'" if isinstance(value, str) else str(value)
    return key, f"expected {expected}, got: " + (shown if len(shown) <= 60 else f"{shown[:57]}...")
