"""Measuring the rates of the cost model on real ranks: what ``hp-run --calibrate`` does.

Collectives are timed as steps run them, over each mesh axis by itself, at several sizes. A latency and a bandwidth are
fitted to the medians; rounds are as long as their slowest rank takes. All ranks compute at once, as in a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from ..costs import AxisCosts, ComputeCosts, Costs, Link, traffic
from ..errors import RuntimeFault
from ..mesh import Mesh
from .collectives import RankOps
from .device import RankMesh
from .wires import Future

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")
DTYPES = ("float64", "float32", "bfloat16", "float16")
_MOST_BANDWIDTH = 1e15
"""Bytes per second that stand for no limit: where size made no difference."""


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        sizes: bytes of the tensors that travel.
        rounds: samples of each figure.
        product_s: what a timed matrix product is to take at least, in seconds; its size grows until it does.
        memory: bytes of the tensors of the memory-bound op.
        small_ops: ops to time the overhead of one by.
    """

    sizes: tuple[int, ...] = (1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22)
    rounds: int = 9
    product_s: float = 5e-3
    memory: int = 1 << 26
    small_ops: int = 1000


@dataclass
class Calibrator:
    """Measures on one rank; all ranks of the mesh make one and call the same methods in the same order.

    Attributes:
        mesh: the ranks, with the axes to measure.
        device: of this rank.
        effort: how much is measured.
        lines: what was found, for people.
    """

    mesh: Mesh
    device: torch.device
    effort: Effort = field(default_factory=Effort)
    lines: list[str] = field(default_factory=list)

    def measure(self) -> Costs:
        """Measure everything."""
        axes = [axis for axis, size in zip(self.mesh.axis_names, self.mesh.axis_sizes, strict=True) if size > 1]
        ranks = RankMesh(self.mesh, self.device, groups=[((axis,), None) for axis in axes], channels=axes)
        operations = RankOps(ranks)
        compute = self._compute()
        links = {axis: self._axis(operations, axis) for axis in axes}
        built_in = Costs.built_in(self.device.type)
        slowest = AxisCosts(
            latency=max((link.latency for link in links.values()), default=built_in.links.latency),
            bandwidth=min((link.bandwidth for link in links.values()), default=built_in.links.bandwidth),
        )
        return Costs(
            device=self.device.type,
            backend=ranks.backend or built_in.backend,
            compute=compute,
            links=slowest,
            axes=links,
        )

    def _compute(self) -> ComputeCosts:
        flops = {}
        for dtype in DTYPES:
            rate = self._products(getattr(torch, dtype))
            if rate is not None:
                flops[dtype] = _rounded(rate)
        elements = self.effort.memory // 4
        one, other = (torch.ones(elements, device=self.device) for _ in range(2))
        bandwidth = 3 * self.effort.memory / self._median(lambda: one + other)
        small = torch.ones(4, device=self.device)

        def many() -> None:
            for _ in range(self.effort.small_ops):
                torch.neg(small)

        overhead = self._median(many) / self.effort.small_ops
        self.lines.append(
            "compute: "
            + ", ".join(f"{dtype} {rate / 1e9:.3g} GFLOP/s" for dtype, rate in flops.items())
            + f"; memory {bandwidth / 1e9:.3g} GB/s; {overhead * 1e6:.3g} us per op"
        )
        return ComputeCosts(flops=flops, memory_bandwidth=_rounded(bandwidth), op_overhead=_rounded(overhead))

    def _products(self, dtype: torch.dtype) -> float | None:
        """Return the operations per second of matrix products; None where the device has none in the dtype."""
        size = 128
        while True:
            try:
                left, right = (torch.ones(size, size, dtype=dtype, device=self.device) for _ in range(2))
                torch.mm(left, right)
            except RuntimeError:
                return None
            seconds = self._median(lambda: torch.mm(left, right))  # noqa: B023 - called at once
            if seconds >= self.effort.product_s or size >= 16384:
                return 2 * size**3 / seconds
            size *= 2

    def _axis(self, operations: RankOps, axis: str) -> AxisCosts:
        ranks = self.mesh.axis_size(axis)
        fits: dict[str, Link] = {}
        points: list[tuple[float, float]] = []
        for kind in COLLECTIVES:
            timed = []
            for size in self.effort.sizes:
                seconds = self._median(self._collective(operations, kind, axis, size))
                timed.append((traffic(kind, size, ranks), seconds))
            fits[kind] = fit(timed)
            points += timed
        fits["p2p"] = fit([(size, self._message(operations, axis, size)) for size in self.effort.sizes])
        overall = fit(points)
        for kind, link in (("all kinds", overall), *fits.items()):
            self.lines.append(
                f"axis {axis} ({ranks} ranks): {kind} {link.latency * 1e6:.3g} us + {link.bandwidth / 1e9:.3g} GB/s"
            )
        return AxisCosts(latency=overall.latency, bandwidth=overall.bandwidth, **fits)

    def _collective(self, operations: RankOps, kind: str, axis: str, size: int) -> Callable[[], object]:
        """Return what runs a collective whose whole tensor has about so many bytes."""
        ranks = self.mesh.axis_size(axis)
        rows = max(1, size // (4 * ranks))
        whole, shard = (torch.ones(count, device=self.device) for count in (rows * ranks, rows))
        starts: dict[str, Callable[[], Future]] = {
            "all_gather": lambda: operations.all_gather([shard], [axis], [0]),
            "reduce_scatter": lambda: operations.reduce_scatter([whole], [axis], [0], "sum"),
            "all_reduce": lambda: operations.all_reduce([whole], [axis], "sum"),
            "all_to_all": lambda: operations.all_to_all([whole], [axis], [0], [0]),
            "broadcast": lambda: operations.broadcast([whole], [axis], 0),
        }
        start = starts[kind]
        return lambda: operations.wait(start())

    def _message(self, operations: RankOps, axis: str, size: int) -> float:
        """Return how long a message takes one way: half of there and back, between neighbours in pairs."""
        position = operations.ranks.coordinate[axis]
        peer = position ^ 1
        elements = max(1, size // 4)
        tensor = torch.ones(elements, device=self.device)
        types = (("float32", (elements,)),)

        def there_and_back() -> None:
            if peer >= self.mesh.axis_size(axis):
                return
            if position < peer:
                operations.send([tensor], axis, peer)
                operations.wait(operations.recv(axis, peer, types))
            else:
                operations.wait(operations.recv(axis, peer, types))
                operations.send([tensor], axis, peer)
            operations.drain()

        return self._median(there_and_back) / 2

    def _median(self, action: Callable[[], object]) -> float:
        """Return how long an action takes on the slowest rank, the median of some rounds."""
        seconds = []
        for _ in range(self.effort.rounds + 2):
            self._meet()
            begin = time.perf_counter()
            action()
            self._finish()
            seconds.append(time.perf_counter() - begin)
        samples = torch.tensor(seconds[2:], dtype=torch.float64, device=self._clock_device())
        return float(statistics.median(self._slowest(samples).tolist()))

    def _clock_device(self) -> torch.device:
        return self.device if dist.is_initialized() and dist.get_backend() != "gloo" else torch.device("cpu")

    def _slowest(self, samples: Tensor) -> Tensor:
        if dist.is_initialized():
            dist.all_reduce(samples, dist.ReduceOp.MAX)
        return samples.cpu()

    def _meet(self) -> None:
        self._finish()
        if dist.is_initialized():
            dist.barrier()

    def _finish(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


def fit(points: Sequence[tuple[float, float]]) -> Link:
    """Fit a latency and a bandwidth to measured times, by least squares of the relative errors.

    Args:
        points: bytes sent, and seconds.

    Raises:
        RuntimeFault: there is no point, or a time is not above 0.
    """
    if not points or any(seconds <= 0 for _, seconds in points):
        raise RuntimeFault(f"cannot fit a latency and a bandwidth to {list(points)}")
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_size = sum(weight * size for weight, (size, _) in zip(weights, points, strict=True)) / total
    mean_time = sum(weight * seconds for weight, (_, seconds) in zip(weights, points, strict=True)) / total
    spread = sum(weight * (size - mean_size) ** 2 for weight, (size, _) in zip(weights, points, strict=True))
    slope = 0.0
    if spread > 0:
        together = [
            weight * (size - mean_size) * (seconds - mean_time)
            for weight, (size, seconds) in zip(weights, points, strict=True)
        ]
        slope = max(0.0, sum(together) / spread)
    latency = mean_time - slope * mean_size
    if latency < 0:
        # Of the lines through nothing the nearest.
        latency = 0.0
        slope = sum(weight * size * seconds for weight, (size, seconds) in zip(weights, points, strict=True)) / sum(
            weight * size**2 for weight, (size, _) in zip(weights, points, strict=True)
        )
    bandwidth = min(_MOST_BANDWIDTH, 1 / slope) if slope > 0 else _MOST_BANDWIDTH
    return Link(latency=_rounded(latency), bandwidth=_rounded(bandwidth))


def _rounded(value: float) -> float:
    """Return a figure with the digits that a measurement has."""
    return float(f"{value:.4g}")
