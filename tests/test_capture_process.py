"""What an export leaves in its process: caches, threads, limits; arrays and buffers that it must not lose."""

from __future__ import annotations

import functools
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

import hpir

BATCH = {"x": torch.randn(4, 4)}


def mean(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).mean()
    return loss


@functools.lru_cache
def positions(size: int) -> Tensor:
    return torch.arange(size).float()


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(x) * positions(4)
        return y


def test_a_cache_of_the_users_holds_no_fake_tensor_afterwards() -> None:
    positions.cache_clear()
    hpir.export(Cached(), mean, BATCH)
    assert type(positions(4)) is Tensor
    assert positions(4).tolist() == [0, 1, 2, 3]


MADE_LATER: dict[str, Callable[[int], Tensor]] = {}


class Made(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(x) * MADE_LATER["scales"](4)
        return y


def test_a_cache_that_is_made_and_filled_between_two_captures_is_left_alone() -> None:
    hpir.export(nn.Linear(4, 4), mean, BATCH)
    made = functools.lru_cache(lambda size: torch.arange(size).float())
    kept = made(3)
    MADE_LATER["scales"] = made
    try:
        hpir.export(Cached(), mean, BATCH)
        assert made(3) is kept
        hpir.export(Made(), mean, BATCH)
        assert type(made(4)) is Tensor
    finally:
        MADE_LATER.clear()


def test_nothing_keeps_a_captured_model_alive() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    hpir.export(model, mean, BATCH)
    gc.collect()
    before = count_graphs()
    gone = weakref.ref(model)
    hpir.export(model, mean, BATCH)
    del model
    gc.collect()
    assert gone() is None
    assert count_graphs() <= before


def count_graphs() -> int:
    return sum(issubclass(type(item), GraphModule) for item in gc.get_objects())


def test_exports_from_several_threads_wait_for_each_other() -> None:
    faults: list[BaseException] = []

    def export() -> None:
        try:
            hpir.export(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), mean, BATCH)
        except BaseException as error:
            faults.append(error)

    before = sys.stdout
    threads = [threading.Thread(target=export) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert sys.stdout is before
    hpir.export(nn.Linear(4, 4), mean, BATCH)


def test_modules_nested_a_hundred_deep() -> None:
    model: nn.Module = nn.Linear(4, 4)
    for _ in range(100):
        model = nn.Sequential(model)
    limit = sys.getrecursionlimit()
    hpir.export(model, mean, BATCH)
    assert sys.getrecursionlimit() == limit


def test_inference_mode_around_the_capture_is_refused() -> None:
    with (
        torch.inference_mode(),
        pytest.raises(hpir.CaptureError, match="inference_mode\\(\\) is on around the capture"),
    ):
        hpir.export(nn.Linear(4, 4), mean, BATCH)


class Counts(nn.Module):
    """Counts on an array that was there before the step."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.count = np.zeros(2)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "item":
            self.count[0] += 1
        elif self.how == "slice":
            self.count[:] = 3
        elif self.how == "fill":
            self.count.fill(2)
        elif self.how == "out":
            np.add(self.count, 1, out=self.count)
        else:
            self.count[1:] += 1
        y: Tensor = self.up(x)
        return y


@pytest.mark.parametrize("how", ["item", "slice", "fill", "out", "view"])
def test_an_array_that_a_step_changes_is_refused_at_the_line(how: str) -> None:
    with pytest.raises(
        hpir.CaptureError, match="a NumPy array is changed in place, which a compiled step would not do"
    ):
        hpir.export(Counts(how), mean, BATCH)


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.scale = np.asarray([1.0, 2.0, 3.0, 4.0], dtype=np.float32)

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.scale * 2
        scaled[0] += 1  # of the step's own
        y: Tensor = self.up(x) * torch.as_tensor(scaled)
        return y


def test_an_array_that_a_step_reads_is_a_constant() -> None:
    model = Reads()
    exported = hpir.export(model, mean, BATCH)
    found = hpir.simulate(hpir.compile_program(exported, {}), exported.state, BATCH).loss
    torch.testing.assert_close(found, mean(model, BATCH["x"]).detach())


class Region(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.calls: Tensor

    def region(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        y: Tensor = self.up(x).relu()
        return y

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.region, x, use_reentrant=False)
        return y


def test_a_buffer_changed_in_a_checkpointed_region_is_remarked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="hpir"):
        hpir.export(Region(), mean, BATCH)
    assert "buffer 'calls' is changed in a checkpointed region: once, where eager torch does it twice" in caplog.text
