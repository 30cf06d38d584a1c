"""`Step` on real gloo ranks: training, state, checkpoints, and what happens when a rank is wrong or gone."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed_case import RankError, run_ranks
from models import BY_NAME
from program_builder import FunctionBuilder, program_of
from runtime_cases import (
    assert_equal_models,
    expected_step,
    load_step,
    own_batch,
    plan_of,
    save_program,
    whole,
)
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, Replicate, Shard

from hpir.errors import RuntimeFault
from hpir.mesh import Mesh, Sharding
from hpir.runtime.device import init_process_group
from hpir.runtime.program import Program, TensorType
from hpir.runtime.step import Step


def training(rank: int, cases: list[tuple[str, str]]) -> list[str]:
    """Train each case for three optimiser steps beside the plain model; return the cases that were right."""
    done = []
    for name, where in cases:
        case = BY_NAME[name]
        model, reference = case.model(), case.model()
        step = load_step(where, model)
        optimisers = [torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=name != "tied") for m in (model, reference)]
        for number in range(3):
            loss = step(**own_batch(case, step.program, rank, number))
            expected = expected_step(case, step.program, reference, number, step=number)
            torch.testing.assert_close(loss.double(), expected.loss, rtol=1e-5, atol=1e-6, msg=name)
            if name not in ("convnet", "dropout"):  # AdamW makes steps of gradients that are zero but for rounding
                assert_equal_models(model, reference)
            for optimiser in optimisers:
                optimiser.step()
                optimiser.zero_grad()
        for parameter in step.parameters():
            assert isinstance(parameter, DTensor)
            assert isinstance(parameter, nn.Parameter)
        done.append(name)
    assert "torch_mlir" not in sys.modules
    return done


# Per number of ranks: mesh axes, options of `plan_of`, acceptance models.
SMALL = ("ignored", "tied", "twice", "uneven")
MESHES: dict[int, list[tuple[dict[str, int], dict[str, Any], Sequence[str]]]] = {
    2: [({"dp": 2}, {"microbatches": 2}, sorted(BY_NAME)), ({"dp": 2}, {"split": []}, SMALL)],
    3: [({"dp": 3}, {}, SMALL)],
    4: [({"dp": 2, "fsdp": 2}, {"split": ["fsdp"]}, SMALL), ({"a": 2, "one": 1, "b": 2}, {}, SMALL)],
}


@pytest.mark.parametrize("size", MESHES)
def test_training_equals_the_plain_loop(size: int, tmp_path: Path) -> None:
    cases = [
        (name, save_program(tmp_path, name, plan_of(BY_NAME[name], axes, **options)))
        for axes, options, names in MESHES[size]
        for name in names
    ]
    assert run_ranks(training, size, cases) == [[name for name, _ in cases]] * size


def one_rank_group(rank: int, where: str) -> None:
    """With a process group of one rank, parameters are DTensors all the same."""
    case = BY_NAME["tied"]
    model, reference = case.model(), case.model()
    step = load_step(where, model)
    assert all(isinstance(parameter, DTensor) for parameter in step.parameters())
    step(**own_batch(case, step.program, 0))
    expected_step(case, step.program, reference)
    assert_equal_models(model, reference)
    assert torch.allclose(step.clip_grad_norm_(0.1), torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1))


def test_a_process_group_of_one_rank(tmp_path: Path) -> None:
    run_ranks(one_rank_group, 1, save_program(tmp_path, "tied", plan_of(BY_NAME["tied"], {"dp": 1})))


def behaviour(rank: int, wheres: dict[str, str], folder: str) -> None:
    """Everything that needs two ranks and is not training, in one start of the processes."""
    check_placements_and_memory(rank, wheres["uneven"])
    check_accumulation_and_evaluation(rank, wheres["tied"])
    check_frozen(rank, wheres["adapters"])
    check_faults(rank, wheres["tied"])
    check_pending(rank)
    check_clipping(rank, wheres["ignored"])
    check_replaced_values(rank, wheres["uneven"])
    check_gathered_parameters_die(rank, wheres["tied"])
    check_meta(rank, wheres["tied"], wheres["convnet"])
    check_differences(rank, wheres["uneven"], wheres["tied"])
    check_outputs(rank, wheres["outputs"])
    check_inductor(rank, wheres["uneven"])
    save_checkpoint(rank, wheres["uneven"], folder)


def check_placements_and_memory(rank: int, where: str) -> None:
    case = BY_NAME["uneven"]
    model = case.model()
    old = dict(model.named_parameters())
    shapes = {name: parameter.shape for name, parameter in old.items()}
    # The whole tensors are gone once the model holds shards: nothing but this list refers to them.
    storages = [weakref.ref(parameter) for parameter in old.values()]
    old.clear()
    step = load_step(where, model)
    gc.collect()
    assert all(reference() is None for reference in storages)
    parameter: Any
    for name, parameter in step.named_parameters():
        assert isinstance(parameter, DTensor)
        assert parameter.shape == shapes[name], name
        assert parameter.placements == (Shard(0),), name
        rows = shapes[name][0]
        assert parameter.to_local().shape[0] == ((rows + 1) // 2 if rank == 0 else rows // 2), name
    step(**own_batch(case, step.program, rank))
    for name, parameter in step.named_parameters():
        assert isinstance(parameter.grad, DTensor), name
        assert parameter.grad.placements == parameter.placements, name
        assert parameter.grad.to_local().shape == parameter.to_local().shape, name


def check_accumulation_and_evaluation(rank: int, where: str) -> None:
    case = BY_NAME["tied"]
    model, reference = case.model(), case.model()
    step = load_step(where, model)
    embed, head = model.embed, model.head
    assert isinstance(embed, nn.Module)
    assert isinstance(head, nn.Module)
    assert embed.weight is head.weight
    step.evaluate(**own_batch(case, step.program, rank, 0))
    step(**own_batch(case, step.program, rank, 0))
    step.evaluate(**own_batch(case, step.program, rank, 2))
    step(**own_batch(case, step.program, rank, 1))
    for seed in (0, 1):
        expected_step(case, step.program, reference, seed)
    assert_equal_models(model, reference)


def check_frozen(rank: int, where: str) -> None:
    case = BY_NAME["adapters"]
    model = case.model()
    step = load_step(where, model)
    step(**own_batch(case, step.program, rank))
    frozen = [p for p in step.parameters() if not p.requires_grad]
    assert frozen
    for parameter in frozen:
        assert isinstance(parameter, DTensor)
        assert parameter.grad is None
        assert parameter.to_local().numel() < parameter.numel()


def check_faults(rank: int, where: str) -> None:
    """An error on all ranks in the middle of a step, one before any communication, then a good step."""
    case = BY_NAME["tied"]
    model, reference = case.model(), case.model()
    step = load_step(where, model)
    batch = own_batch(case, step.program, rank)
    with pytest.raises(RuntimeFault, match=rf"rank {rank}: stage0_step: op \d+ 'aten\.embedding\.default' \("):
        step(**{**batch, "ids": batch["ids"] + 100})
    with pytest.raises(RuntimeFault, match=r"nll_loss_forward"):
        step(**{**batch, "labels": batch["labels"] + 100})
    with pytest.raises(RuntimeFault, match=rf"rank {rank}: input 'ids': the step was compiled for int64"):
        step(**{**batch, "ids": batch["ids"].int()})
    assert all(parameter.grad is None for parameter in step.parameters())
    step(**batch)
    expected_step(case, step.program, reference)
    assert_equal_models(model, reference)


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12.0).reshape(6, 2))


def check_pending(rank: int) -> None:
    """An error while gathers and reductions are on their way: they are waited for, and the next step is right."""
    mesh = Mesh(("dp",), (2,))
    f = FunctionBuilder("rank0", mesh)
    weight = f.param("weight", (6, 2), sharding=(("dp",), ()))
    index = f.argument("index", (1,), "int64")
    gathers = [f.all_gather(weight, axes=("dp",), dims=(0,)) for _ in range(3)]
    reduction = f.all_reduce(weight, axes=("dp",), reduce="avg")
    rows = f.wait(gathers[0])
    picked = f.aten("index_select.default", rows, 0, index, type_=TensorType((1, 2), "float32"))
    f.wait(gathers[2])
    f.wait(reduction)
    f.result(f.aten("sum.default", picked, type_=TensorType((), "float32")), "loss")
    f.result(f.wait(gathers[1]), "output")
    step = Step(program_of(f.build(), mesh=mesh, output_tree="out1"), Table())
    for good in (1, 4):
        with pytest.raises(RuntimeFault, match=rf"rank {rank}: rank0: op \d+ 'aten.index_select.default': "):
            step(index=torch.tensor([9]))
        assert not step._ops._pending
        assert step(index=torch.tensor([good])) == 4 * good + 1
        loss, output = step.evaluate(index=torch.tensor([good]))
        assert loss == 4 * good + 1
        assert torch.equal(output, torch.arange(12.0).reshape(6, 2))


def check_clipping(rank: int, where: str) -> None:
    """Sharded and replicated parameters together, by our clipping and by torch's."""
    case = BY_NAME["ignored"]
    model, reference = case.model(), case.model()
    step = load_step(where, model)
    assert any(p.placements == (Replicate(),) for p in step.parameters() if isinstance(p, DTensor))
    for norm_type in (1.0, 2.0, float("inf")):
        for m in (model, reference):
            m.zero_grad()
        step(**own_batch(case, step.program, rank))
        expected_step(case, step.program, reference)
        expected = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1, norm_type)
        norm = step.clip_grad_norm_(0.1, norm_type)
        assert type(norm) is Tensor
        torch.testing.assert_close(norm, expected, rtol=1e-5, atol=0)
        everyone = [torch.empty(()) for _ in range(2)]
        dist.all_gather(everyone, norm)
        assert torch.equal(everyone[0], everyone[1])
        assert_equal_models(model, reference)
        if norm_type == 2.0:
            theirs = torch.nn.utils.clip_grad_norm_(step.parameters(), 0.05)
            torch.testing.assert_close(whole(theirs), torch.tensor(0.1), rtol=1e-4, atol=0)


def check_replaced_values(rank: int, where: str) -> None:
    """Loaded, assigned and in-place values all reach the Program, uneven shards included."""
    case = BY_NAME["uneven"]
    model, reference = case.model(), case.model()
    step = load_step(where, model)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        other = case.build()
    step.load_state_dict(other.state_dict())
    reference.load_state_dict(other.state_dict())
    assert_equal_models(model, reference)
    with torch.no_grad():
        for m in (model, reference):
            for parameter in m.parameters():
                parameter.mul_(1.5)
        for parameter in model.parameters():
            assert isinstance(parameter, DTensor)
            parameter._local_tensor = parameter._local_tensor + 1
        for parameter in reference.parameters():
            parameter.add_(1)
    for _ in range(2):
        for m in (model, reference):
            m.zero_grad()
        step(**own_batch(case, step.program, rank))
        expected_step(case, step.program, reference)
        assert_equal_models(model, reference)
        with torch.no_grad():
            for m in (model, reference):
                for parameter in m.parameters():
                    parameter.sub_(0.25)
    up = model.up
    assert isinstance(up, nn.Module)
    up.weight = nn.Parameter(torch.zeros(5, 3))
    with pytest.raises(RuntimeFault, match=r"parameter 'up.weight': expected a DTensor of placements .* replaced"):
        step(**own_batch(case, step.program, rank))


def check_gathered_parameters_die(rank: int, where: str) -> None:
    """Whole parameters live from their gather to their last use: of two layers and the root, never all."""
    case = BY_NAME["tied"]
    step = load_step(where, case.model())
    alive: dict[int, weakref.ref[Any]] = {}
    most = 0
    wait = step._ops.wait

    def watched(future: Any) -> list[Tensor]:
        nonlocal most
        tensors = wait(future)
        alive.update((id(tensor), weakref.ref(tensor)) for tensor in tensors if tensor.dim() == 2)
        # gloo's threads may hold a tensor for a moment after it has arrived.
        deadline = time.monotonic() + 2
        while (count := sum(reference() is not None for reference in alive.values())) > 3:
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        most = max(most, count)
        return tensors

    step._ops.wait = watched  # type: ignore[method-assign]
    gc.disable()
    step.evaluate(**own_batch(case, step.program, rank))
    gc.enable()
    # Five matrices: the tied one, which stays, and two in each of two layers, of which one is there at a time.
    assert most <= 3
    deadline = time.monotonic() + 5
    while any(reference() is not None for reference in alive.values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(reference() is None for reference in alive.values())


def check_meta(rank: int, tied: str, convnet: str) -> None:
    for name, where in (("tied", tied), ("convnet", convnet)):
        case = BY_NAME[name]
        with torch.device("meta"):
            model = case.build()
        step = load_step(where, model)
        plain = dict(case.model().named_parameters())
        for key, parameter in step.named_parameters():
            assert isinstance(parameter, DTensor)
            local = parameter.to_local()
            assert local.isfinite().all(), key
            assert local.untyped_storage().nbytes() <= 4 * -(-parameter.shape[0] // 2) * local[:1].numel() + 4, key
            full = whole(parameter)
            first = full.clone()
            dist.broadcast(first, 0)
            assert torch.equal(first, full), key
            assert full.std(correction=0).item() == pytest.approx(
                plain[key].std(correction=0).item(), rel=0.6, abs=1e-6
            )
            if parameter.dim() > 1:
                half = -(-full.shape[0] // 2)
                assert not torch.equal(full[: full.shape[0] - half], full[half:]), "both ranks drew the same"
        with torch.device("meta"):
            again = case.build()
        load_step(where, again)
        assert_equal_models(again, _plain(model, case.model()), rtol=0, atol=0)
        assert step(**own_batch(case, step.program, rank)).isfinite()


def _plain(model: nn.Module, like: nn.Module) -> nn.Module:
    with torch.no_grad():
        values = {name: whole(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
        for name, parameter in like.named_parameters(remove_duplicate=False):
            parameter.copy_(values[name])
    return like


def check_differences(rank: int, where: str, other: str) -> None:
    case = BY_NAME["uneven"]
    model = case.model()
    with torch.no_grad():
        mid = model.mid
        assert isinstance(mid, nn.Linear)
        mid.weight[1, 1] += 1e-7 * rank
    with pytest.raises(
        RuntimeFault, match=r"parameter 'mid.weight' differs between rank 0 and rank 1: build the model"
    ):
        load_step(where, model)
    programs = [Program.load(where), Program.load(other)]
    with pytest.raises(RuntimeFault, match=r"ranks have different Programs: rank 0 has [0-9a-f]{12}, rank 1 has"):
        Step(programs[rank], case.model())
    with pytest.raises(RuntimeFault, match="mesh dp:3 has 3 ranks but the process group has 2"):
        wide = Program.load(where)
        Step(_on_mesh_of_three(wide), case.model())


def _on_mesh_of_three(program: Program) -> Program:
    return replace(program, mesh=Mesh(("dp",), (3,)))


def check_outputs(rank: int, where: str) -> None:
    case = BY_NAME["outputs"]
    step = load_step(where, case.model())
    loss, outputs = step.evaluate(**own_batch(case, step.program, rank))
    expected = expected_step(case, step.program, case.model())
    torch.testing.assert_close(loss.double(), expected.loss, rtol=1e-5, atol=1e-6)
    wanted = torch.cat([part["logits"].detach() for part in expected.outputs])
    torch.testing.assert_close(outputs["logits"], wanted)


def check_inductor(rank: int, where: str) -> None:
    """Collectives and all, compiled."""
    case = BY_NAME["uneven"]
    model, reference = case.model(), case.model()
    step = load_step(where, model, backend="inductor")
    for seed in range(2):
        loss = step(**own_batch(case, step.program, rank, seed))
        expected = expected_step(case, step.program, reference, seed)
        torch.testing.assert_close(loss.double(), expected.loss, rtol=1e-5, atol=1e-6)
    assert_equal_models(model, reference)


def save_checkpoint(rank: int, where: str, folder: str) -> None:
    case = BY_NAME["uneven"]
    step = load_step(where, case.model())
    optimiser = torch.optim.AdamW(step.parameters(), lr=1e-2)
    step(**own_batch(case, step.program, rank))
    optimiser.step()
    save({"model": step.state_dict(), "optimiser": optimiser_state(step, optimiser)}, checkpoint_id=folder)


def load_alone(state: dict[str, Any], checkpoint: Path) -> None:
    """Load a checkpoint in this process, which has no process group; torch warns of that."""
    with pytest.warns(UserWarning, match="assuming the intent is to load in a single process"):
        load(state, checkpoint_id=str(checkpoint))


def optimiser_state(step: Step, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    names: dict[Any, str] = {parameter: name for name, parameter in step.named_parameters()}
    return {names[parameter]: dict(state) for parameter, state in optimiser.state.items()}


def test_two_ranks(tmp_path: Path) -> None:
    names = ("uneven", "tied", "adapters", "ignored", "convnet", "outputs")
    wheres = {name: save_program(tmp_path, name, plan_of(BY_NAME[name], {"dp": 2})) for name in names}
    checkpoint = tmp_path / "checkpoint"
    run_ranks(behaviour, 2, wheres, str(checkpoint), timeout=240)
    # What two ranks saved, one process without any process group loads and goes on with.
    case = BY_NAME["uneven"]
    model, reference = case.model(), case.model()
    step = load_step(save_program(tmp_path, "uneven", plan_of(case, {"dp": 1})), model)
    optimisers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, reference)]
    # States of the right shapes, to be loaded into.
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimisers[0].step()
    state = {"model": step.state_dict(), "optimiser": optimiser_state(step, optimisers[0])}
    load_alone(state, checkpoint)
    model.zero_grad()
    two = Program.load(wheres["uneven"])
    expected_step(case, two, reference)
    optimisers[1].step()
    reference.zero_grad()
    assert_equal_models(model, reference)
    for seed in (1, 2):
        step(**own_batch(case, step.program, 0, seed))
        expected_step(case, step.program, reference, seed)
        for optimiser in optimisers:
            optimiser.step()
        assert_equal_models(model, reference)


class Grids(nn.Module):
    """Parameters for shardings that `hp-fsdp` does not make."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.minor = nn.Parameter(torch.randn(8, 3))
            self.columns = nn.Parameter(torch.randn(2, 7))
            self.both = nn.Parameter(torch.randn(5, 3))
            self.nested = nn.Parameter(torch.randn(10, 2))


GRID = Mesh(("dp", "tp"), (2, 2))
SHARDINGS: dict[str, Sharding] = {
    # The data axis after the tensor axis, which is not mesh order.
    "minor": (("tp", "dp"), ()),
    "columns": ((), ("dp", "tp")),
    "both": (("tp",), ("dp",)),
    "nested": (("dp", "tp"), ()),
}


def grid_program(rows: int = 8) -> Program:
    """Build a step whose gradients are the parameters themselves, doubled."""
    f = FunctionBuilder("rank0", GRID)
    shapes = {name: tuple(p.shape) for name, p in Grids().named_parameters()} | {"minor": (rows, 3)}
    refs = {name: f.param(name, shapes[name], sharding=sharding) for name, sharding in SHARDINGS.items()}
    x = f.argument("x", ())
    f.result(f.aten("mul.Scalar", x, 1.0), "loss")
    for name, ref in refs.items():
        doubled = f.aten("mul.Tensor", ref, x)
        f.result(doubled, "grad", name, full_shape=shapes[name], sharding=SHARDINGS[name])
    return program_of(f.build(), mesh=GRID)


def grids(rank: int, folder: str) -> None:
    model = Grids()
    plain = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    step = Step(grid_program(), model)
    for calls in (1, 2):
        step(x=torch.tensor(2.0))
        for name, parameter in step.named_parameters():
            assert parameter.grad is not None
            assert torch.equal(whole(parameter), plain[name]), name
            assert torch.equal(whole(parameter.grad), 2 * calls * plain[name]), name
    expected = torch.stack([4 * value.norm() for value in plain.values()]).norm()
    torch.testing.assert_close(step.clip_grad_norm_(1.0), expected)
    torch.testing.assert_close(step.clip_grad_norm_(1.0), torch.tensor(1.0), rtol=1e-4, atol=0)
    torch.optim.SGD(step.parameters(), lr=1.0).step()
    save(step.state_dict(), checkpoint_id=folder)
    with pytest.raises(
        RuntimeFault,
        match=r"parameter 'minor': dim 0 of size 7 is split over mesh axes \['tp', 'dp'\], which are not in",
    ):
        uneven = Grids()
        uneven.minor = nn.Parameter(torch.ones(7, 3))
        Step(grid_program(7), uneven)


def test_shardings_in_any_order_of_axes(tmp_path: Path) -> None:
    run_ranks(grids, 4, str(tmp_path / "checkpoint"))
    model = Grids()
    state = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    load_alone(state, tmp_path / "checkpoint")
    norm = torch.stack([4 * p.detach().norm() for p in model.parameters()]).norm()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            state[name], (1 - 4 / norm * 1.0) * parameter.detach(), msg=name, rtol=1e-4, atol=1e-5
        )


def dying(rank: int, where: str, method: str, after: int) -> str:
    """Rank 1 is killed as it enters its `after`-th `method`; the others must notice."""
    case = BY_NAME["tied"]
    step = load_step(where, case.model())
    step(**own_batch(case, step.program, rank))
    if rank == 1:
        run, calls = getattr(step._ops, method), 0

        def killed(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == after:
                os.kill(os.getpid(), signal.SIGKILL)
            return run(*args, **kwargs)

        setattr(step._ops, method, killed)
    begin = time.monotonic()
    try:
        step(**own_batch(case, step.program, rank))
    except RuntimeFault as fault:
        assert time.monotonic() - begin < 20
        return str(fault)
    return "finished"


def test_a_rank_that_is_killed_is_an_error_on_the_others(tmp_path: Path) -> None:
    where = save_program(tmp_path, "tied", plan_of(BY_NAME["tied"], {"dp": 2}))
    (text, gone) = run_ranks(dying, 2, where, "wait", 5, may_die=(1,))
    assert gone is None
    assert re.match(r"rank 0: stage0_step: op \d+ 'hp\.wait' of 'hp\.\w+' over dp( \(.*\))?: ", text), text


def test_the_bucket_that_a_killed_rank_leaves_is_named(tmp_path: Path) -> None:
    plan = plan_of(BY_NAME["tied"], {"dp": 2})
    plan["fsdp"]["units"] = []  # one bucket of all parameters: the gather that rank 1 does not start is that of it
    where = save_program(tmp_path, "tied", {**plan, "buckets": {}})
    (text, _) = run_ranks(dying, 2, where, "all_gather", 2, may_die=(1,))
    pattern = (
        r"rank 0: stage0_step: op \d+ 'hp\.(wait|unpack)' of 'hp\.all_gather' over dp, "
        r"bucket 'root' in the backward( \(.*\))?: "
    )
    assert re.match(pattern, text), text


def from_environment(rank: int, where: str) -> None:
    """No process group yet: `Step` makes it from torchrun's environment."""
    assert not dist.is_initialized()
    case = BY_NAME["uneven"]
    step = load_step(where, case.model())
    assert dist.get_backend() == "gloo"
    assert not init_process_group()
    step(**own_batch(case, step.program, rank))


def test_the_process_group_is_made_from_torchruns_environment(tmp_path: Path) -> None:
    where = save_program(tmp_path, "uneven", plan_of(BY_NAME["uneven"], {"dp": 2}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run_ranks(from_environment, 2, where, process_group=False, environment={"MASTER_PORT": str(port)})


def refused(rank: int) -> None:
    raise ValueError(f"no from {rank}")


def test_the_launcher_reports_every_ranks_error() -> None:
    with pytest.raises(RankError, match=r"(?s)rank 0 failed \(exit code 1\):.*ValueError: no from 0.*no from 1"):
        # Without a process group: to the one that is slower to connect, the other would be gone.
        run_ranks(refused, 2, process_group=False)
