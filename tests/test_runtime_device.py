"""Devices, backends and the environment, without any process group."""

from __future__ import annotations

import pytest
import torch
from program_builder import FunctionBuilder, program_of

from hpir.errors import RuntimeFault
from hpir.mesh import Mesh
from hpir.runtime.device import (
    RankMesh,
    backend_for,
    default_device_type,
    init_process_group,
    numbered,
    rank_device,
    required_channels,
    required_groups,
)

CPU = torch.device("cpu")


def test_backends_follow_the_device_type(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend_for("cpu") == "gloo"
    with pytest.raises(RuntimeFault, match="no process group backend is known for device type 'abacus'"):
        backend_for("abacus")
    monkeypatch.setattr("torch.distributed.is_backend_available", lambda name: False)
    with pytest.raises(
        RuntimeFault, match="device type 'npu' needs the process group backend 'hccl', which this torch"
    ):
        backend_for("npu")


def test_without_an_accelerator_the_device_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    assert default_device_type() == "cpu"
    assert rank_device() == CPU


def test_one_rank_needs_no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert not init_process_group()
    assert not init_process_group(rank=0, world_size=1)
    assert not torch.distributed.is_initialized()


def test_an_environment_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(RuntimeFault, match="environment variable WORLD_SIZE: expected a number, got: 'two'"):
        init_process_group()
    with pytest.raises(RuntimeFault, match="rank 5 is not within 0 to 1"):
        init_process_group("cpu", rank=5, world_size=2)
    with pytest.raises(RuntimeFault, match="rank 0 of 2 cannot join the process group 'gloo': "):
        init_process_group("cpu", rank=0, world_size=2, init_method="nowhere://")


def test_the_mesh_must_be_the_process_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RuntimeFault, match=r"mesh dp:2,tp:3 has 6 ranks but there is no process group; start 6 processes"
    ):
        RankMesh(Mesh(("dp", "tp"), (2, 3)), CPU)


def test_groups_of_one_rank_need_no_process_group() -> None:
    ranks = RankMesh(Mesh(("a", "b"), (1, 1)), CPU)
    for axes in (("a",), ("b", "a")):
        group = ranks.group(axes)
        assert (group.size, group.position, group.order) == (1, 0, None)
    assert ranks.state_mesh(("a", "b")) is None
    with pytest.raises(RuntimeFault, match="no process group was made for messages along mesh axis 'a'"):
        ranks.channel("a", 0, 1)


def test_groups_and_channels_are_found_in_an_order_all_ranks_share() -> None:
    mesh = Mesh(("pp", "dp", "tp"), (2, 2, 2))
    f = FunctionBuilder("main", mesh)
    x = f.argument("x", (4,))
    for axes in (("tp", "dp"), ("tp",), ("dp", "tp")):
        f.wait(f.all_reduce(x, axes=axes))
    f.wait(f.broadcast(x, axes=("pp",), root=1, coordinates=(0, 1)))
    f.send(x, axis="pp", peer=1)
    program = program_of(f.build(), mesh=mesh)
    assert required_groups(program) == [(("dp", "tp"), None), (("pp",), (0, 1)), (("tp",), None)]
    assert required_channels(program) == ["pp"]


@pytest.mark.parametrize("name", ("cpu", "meta", "cuda:3"))
def test_a_device_with_a_number_or_without_any_need_of_one_stays(name: str) -> None:
    assert numbered(torch.device(name)) == torch.device(name)


def test_a_device_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 2)
    assert numbered(torch.device("cuda")) == torch.device("cuda:2")
