"""What a rank did when in a step: times of its blocks of ops, written as one JSON file per rank.

A profiled `Step` runs code with a mark at the begin of each block; without a recorder there are no marks. On the CPU a
mark is a clock reading. On an accelerator it is an event on the compute stream, so that times are the device's: what
lies between the events around a wait is how long the stream stood still for it. Ranks begin together, at a barrier.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..errors import RuntimeFault
from .blocks import OpBlock
from .program import Program

PROFILE_SCHEMA = 1
"""Version of the files."""


@dataclass
class Recorder:
    """Records the blocks of a rank's latest step.

    Attributes:
        device: that the rank runs on.
        table: the blocks by their number in marks, with their function; filled by what writes the marks.
    """

    device: torch.device
    table: list[tuple[str, OpBlock]] = field(default_factory=list)
    _marks: list[int] = field(default_factory=list)
    _times: list[Any] = field(default_factory=list)
    _begin: Any = None
    _spans: list[tuple[int, float, float]] = field(default_factory=list)

    def add(self, function: str, block: OpBlock) -> int:
        """Give a block a number for its marks."""
        self.table.append((function, block))
        return len(self.table) - 1

    @property
    def spans(self) -> list[tuple[int, float, float]]:
        """The latest step: number of a block, and the seconds from the step's begin to the block's begin and end."""
        return self._spans

    def start(self) -> None:
        """Begin a step, together with all ranks. What was noted of a step that failed goes."""
        self._marks, self._times, self._spans = [], [], []
        if dist.is_initialized():
            dist.barrier()
        self._begin = self._now()

    def mark(self, number: int) -> None:
        """Note that a block begins, and that the one before it is over; outside of a recorded step nothing is."""
        if self._begin is None:
            return
        self._marks.append(number)
        self._times.append(self._now())

    def stop(self) -> None:
        """End the step."""
        times = [*self._times, self._now()]
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
            seconds = [self._begin.elapsed_time(event) / 1e3 for event in times]
        else:
            seconds = [reading - self._begin for reading in times]
        self._begin = None
        self._spans = list(zip(self._marks, seconds[:-1], seconds[1:], strict=True))

    def _now(self) -> Any:
        if self.device.type == "cpu":
            return time.perf_counter()
        event = torch.Event(self.device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self.device))
        return event

    def save(self, folder: str | Path, program: Program, rank: int) -> Path:
        """Write the latest step's times to ``rank<rank>.json`` in a folder, made when missing.

        Args:
            folder: for the files of all ranks.
            program: that was run.
            rank: this rank.

        Returns:
            The file.

        Raises:
            RuntimeFault: it cannot be written.
        """
        encoded = {
            "schema": PROFILE_SCHEMA,
            "digest": program.digest,
            "rank": rank,
            "ranks": program.mesh.size,
            "device": self.device.type,
            "torch": torch.__version__,
            "blocks": [[function, block.kind, block.first, block.last] for function, block in self.table],
            "times": [list(span) for span in self._spans],
        }
        file = Path(folder) / f"rank{rank}.json"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            scratch = file.with_name(file.name + ".partial")
            scratch.write_text(json.dumps(encoded, separators=(",", ":")), encoding="utf-8")
            scratch.replace(file)
        except OSError as error:
            raise RuntimeFault(f"{file}: cannot write a profile: {(error.strerror or str(error)).lower()}") from None
        return file


def make_profile_folder(folder: str | Path) -> None:
    """Make the folder that ranks write their files to; those of an earlier run go.

    Raises:
        RuntimeFault: it cannot be made.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for file in Path(folder).glob("rank*.json"):
            file.unlink()
    except OSError as error:
        raise RuntimeFault(f"{folder}: cannot write a profile: {(error.strerror or str(error)).lower()}") from None
