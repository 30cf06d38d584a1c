"""What one rank of `gpu_check` does: steps against the simulator, times, memory, waits and overlap."""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hpir.ir_passes.sharding.units import matches  # imports no MLIR
from hpir.lowering.check import random_batch, random_state
from hpir.runtime import torch_compat
from hpir.runtime.device import init_process_group
from hpir.runtime.host_copies import to_device
from hpir.runtime.local_ranks import module_of, rank_leaves
from hpir.runtime.profile import Recorder
from hpir.runtime.program import Program
from hpir.runtime.simulate import simulate
from hpir.runtime.step import Step
from hpir.runtime.trees import flatten_batch, nest_leaves
from hpir.runtime.weighted_loss import WeightedLoss

CHECKED_STEPS = 3
"""Steps that are compared with the simulator, each on a batch of its own."""


@dataclass(frozen=True)
class Setting:
    """What each rank's process is told."""

    program: str
    device: str
    ranks: int
    port: int
    steps: int
    backend: str
    allow: tuple[str, ...]
    seed: int
    model: str
    units: tuple[str, ...]


@dataclass
class Found:
    """What a rank reports.

    Attributes:
        differences: by result, the largest over the checked steps, relative to its largest value.
        step_ms: of each timed step.
        peak_mb: of the device's memory; of this process where that is the CPU.
        waiting: the part of a step that went by between the begin and the end of waits.
        overlap: milliseconds of communication kernels, and of those how many ran beside others; None where not traced.
        fsdp2_ms: of each timed FSDP2 step; empty where there was none.
        loaded_mlir: whether MLIR was loaded.
    """

    differences: dict[str, float]
    step_ms: list[float]
    peak_mb: float
    waiting: float
    overlap: tuple[float, float] | None
    fsdp2_ms: list[float]
    loaded_mlir: bool


def run_rank(rank: int, setting: Setting, reports: Any) -> None:
    """Run everything in a rank's process; put what was found, or the traceback, into the queue `reports`."""
    try:
        device = torch.device(setting.device)
        if device.type == "cpu":
            torch.set_num_threads(1)
        else:
            torch.accelerator.set_device_index(rank)
            device = torch.device(setting.device, rank)
        address = f"tcp://127.0.0.1:{setting.port}"
        init_process_group(setting.device, rank=rank, world_size=setting.ranks, init_method=address)
        found = _RankCheck(rank, setting, device).run()
        if dist.is_initialized():
            dist.destroy_process_group()
        reports.put((rank, found))
    except BaseException:
        reports.put((rank, traceback.format_exc()))
        raise


class _RankCheck:
    """Everything one rank does."""

    def __init__(self, rank: int, setting: Setting, device: torch.device):
        self.rank, self.setting, self.device = rank, setting, device
        self.program = Program.load(setting.program, allow=setting.allow)
        self.state = random_state(self.program, setting.seed)

    def run(self) -> Found:
        """Check, measure and return what was found."""
        differences, step_ms, peak, overlap = self._steps(self._step(None))
        waiting = self._waiting()
        fsdp2 = self._fsdp2()
        loaded = any(name.partition(".")[0] == "torch_mlir" for name in sys.modules)
        return Found(differences, step_ms, peak / 2**20, waiting, overlap, fsdp2, loaded)

    def _steps(self, step: Step) -> tuple[dict[str, float], list[float], int, tuple[float, float] | None]:
        differences = self._differences(step)
        leaves = {name: to_device(leaf, self.device) for name, leaf in self._leaves(0).items()}
        nested = nest_leaves({**leaves, **self.program.static_inputs})
        torch_compat.reset_peak_memory(self.device)
        times = self._timed(lambda: step(**nested), step.model)
        return differences, times, torch_compat.peak_memory(self.device), self._overlap(step)

    def _step(self, recorder: Recorder | None) -> Step:
        arguments = self.program.entry(self.rank).arguments
        constants = {
            name: self.state[name] for argument in arguments if argument.role == "constant" for name in argument.names
        }
        # In host memory: the step takes its shards to the device.
        return Step(
            self.program,
            module_of(arguments, self.state),
            constants=constants,
            backend="eager" if recorder else self.setting.backend,
            allow=self.setting.allow,
            device=self.device,
            recorder=recorder,
        )

    def _batch(self, number: int) -> dict[str, Any]:
        """Return this rank's part of a global batch, in host memory."""
        batch: dict[str, Any] = nest_leaves({**self._leaves(number), **self.program.static_inputs})
        return batch

    def _leaves(self, number: int) -> dict[str, Tensor]:
        given = flatten_batch(random_batch(self.program, self.setting.seed + number))
        own = rank_leaves(self.program, self.rank, self.program.entry(self.rank).arguments, given)
        return {name: leaf for name, leaf in own.items() if isinstance(leaf, Tensor)}

    def _differences(self, step: Step) -> dict[str, float]:
        """Run some steps on different batches, with other work's memory between them, and compare each."""
        found: dict[str, float] = {}
        buffers: dict[str, Tensor] = {}
        for number in range(CHECKED_STEPS):
            batch = random_batch(self.program, self.setting.seed + number)
            state = {name: tensor.to(self.device) for name, tensor in {**self.state, **buffers}.items()}
            expected = simulate(self.program, state, batch, step=number, device=self.device)
            buffers = {name: value.detach().clone() for name, value in expected.buffers.items()}
            loss = step(**self._batch(number))
            # What was freed too early would be overwritten by this.
            junk = [torch.full((1 << shift,), torch.nan, device=self.device) for shift in range(10, 20)]
            results = {"loss": (loss, expected.loss)}
            for name, parameter in step.named_parameters():
                if parameter.grad is not None and name in expected.grads:
                    results[f"gradient {name}"] = (_whole(parameter.grad), expected.grads[name])
            named = dict(step.model.named_buffers())
            results.update({f"buffer {name}": (named[name], value) for name, value in buffers.items() if name in named})
            missing = [name for name in expected.grads if f"gradient {name}" not in results]
            found.update({f"gradient {name}": float("inf") for name in missing})
            for name, (value, wanted) in results.items():
                found[name] = max(found.get(name, 0.0), _difference(value, wanted))
            del junk
            step.model.zero_grad(set_to_none=True)
        return found

    def _timed(self, action: Callable[[], object], model: nn.Module) -> list[float]:
        """Return milliseconds of each of the timed steps, after some that do not count."""
        samples = []
        for number in range(3 + self.setting.steps):
            self._synchronize()
            begin = time.perf_counter()
            action()
            self._synchronize()
            if number >= 3:
                samples.append(1e3 * (time.perf_counter() - begin))
            model.zero_grad(set_to_none=True)
        return samples

    def _synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        if dist.is_initialized():
            dist.barrier()
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def _overlap(self, step: Step) -> tuple[float, float] | None:
        """Trace a step; return milliseconds of communication kernels, and of those how many ran beside others."""
        if self.device.type != "cuda" or self.setting.ranks == 1:
            return None
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as trace:
            step(**self._batch(0))
            self._synchronize()
        step.model.zero_grad(set_to_none=True)
        kernels = [event for event in trace.events() or () if event.device_type.name == "CUDA"]
        spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for kernel in kernels:
            if "memcpy" not in kernel.name.lower() and "memset" not in kernel.name.lower():
                spans["nccl" in kernel.name.lower()].append((kernel.time_range.start, kernel.time_range.end))
        communication = merged(spans[True])
        total = sum(end - begin for begin, end in communication)
        return total / 1e3, shared_length(communication, merged(spans[False])) / 1e3

    def _waiting(self) -> float:
        """Return which part of a step goes by in waits."""
        recorder = Recorder(self.device)
        step = self._step(recorder)
        for _ in range(CHECKED_STEPS):
            step(**self._batch(0))
            step.model.zero_grad(set_to_none=True)
        spans = recorder.spans
        total = spans[-1][2] if spans else 0.0
        waits = sum(end - begin for number, begin, end in spans if recorder.table[number][1].kind == "wait")
        return waits / total if total else 0.0

    def _fsdp2(self) -> list[float]:
        """Time FSDP2's step of the same model, where one was named."""
        if not self.setting.model or not dist.is_initialized():
            return []
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        module, _, name = self.setting.model.partition(":")
        model, train, batch = getattr(importlib.import_module(module), name)()
        model = model.to(self.device)
        mesh = init_device_mesh(self.device.type, (self.setting.ranks,))
        for path, child in model.named_modules():
            if any(matches(unit, path) for unit in self.setting.units):
                fully_shard(child, mesh=mesh)
        fully_shard(model, mesh=mesh)
        own = {key: leaf.to(self.device) if isinstance(leaf, Tensor) else leaf for key, leaf in batch.items()}

        def step() -> None:
            made = train(model, **own)
            loss = made[0] if isinstance(made, tuple) else made
            loss = loss.sum / loss.weight if isinstance(loss, WeightedLoss) else loss
            torch.autograd.backward(loss)

        return self._timed(step, model)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _difference(value: Tensor, wanted: Tensor) -> float:
    """Return the largest difference relative to the largest value; infinite where one is not a number."""
    if not wanted.numel():
        return 0.0
    one, other = value.detach().cpu(), wanted.detach().cpu()
    wide = torch.complex128 if other.is_complex() else torch.float64
    one, other = one.to(wide), other.to(wide)
    difference = float((one - other).abs().max()) / max(float(other.abs().max()), 1e-30)
    return difference if difference == difference else float("inf")


def merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of spans as spans that do not touch, in order.

    Example:
        >>> merged([(4, 5), (0, 2), (1, 3)])
        [(0, 3), (4, 5)]
    """
    union: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if union and begin <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((begin, end))
    return union


def shared_length(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> float:
    """Return how long two unions of spans have in common.

    Example:
        >>> shared_length([(0, 4), (6, 8)], [(3, 7)])
        2
    """
    shared: float = 0
    at = here = 0
    while at < len(one) and here < len(other):
        shared += max(0, min(one[at][1], other[here][1]) - max(one[at][0], other[here][0]))
        if one[at][1] < other[here][1]:
            at += 1
        else:
            here += 1
    return shared
