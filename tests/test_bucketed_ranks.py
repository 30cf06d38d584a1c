"""Expanded buckets on real gloo ranks: training, where shards and gathered parameters lie, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed_case import run_ranks
from models import BY_NAME
from runtime_cases import assert_equal_models, expected_step, load_step, own_batch, plan_of, save_program, whole
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from hpir.runtime.program import Program
from hpir.runtime.step import Step

LAYOUTS = ("flat", "packed")


def bucketed(name: str, mesh: dict[str, int], layout: str, **options: Any) -> dict[str, Any]:
    return {**plan_of(BY_NAME[name], mesh, **options), "buckets": {"layout": layout}}


def local_of(parameter: Tensor) -> Tensor:
    assert isinstance(parameter, DTensor)
    return parameter.to_local()


class Watch:
    """What a step packs and unpacks: memory of each pack and of its operands, and the unpacked tensors' storages."""

    def __init__(self, step: Step):
        self.copies = 0
        self.views = 0
        self.unpacked: list[tuple[str, list[Tensor]]] = []
        ops: Any = step._ops
        pack, unpack, unpack_arrival = ops.pack, ops.unpack, ops.unpack_arrival

        def watched_pack(tensors: Any, **said: Any) -> Tensor:
            packed: Tensor = pack(tensors, **said)
            if said["ranks"] == 1:
                is_view = packed.untyped_storage().data_ptr() == tensors[0].untyped_storage().data_ptr()
                self.views += is_view
                self.copies += not is_view
            return packed

        def watched_unpack(packed: Tensor, **said: Any) -> list[Tensor]:
            values: list[Tensor] = unpack(packed, **said)
            if said["ranks"] > 1:
                self.unpacked.append((said["layout"], values))
            return values

        def watched_arrival(future: Any, **said: Any) -> list[Tensor]:
            values: list[Tensor] = unpack_arrival(future, **said)
            self.unpacked.append((said["layout"], values))
            return values

        ops.pack, ops.unpack, ops.unpack_arrival = watched_pack, watched_unpack, watched_arrival


def train(rank: int, cases: list[tuple[str, str, str]]) -> None:
    """Train each case for three optimiser steps beside the plain model and beside the unfused step."""
    for name, unfused, where in cases:
        case = BY_NAME[name]
        model, other, reference = case.model(), case.model(), case.model()
        steps = load_step(where, model), load_step(unfused, other)
        kind: dict[str, Any] = {"tied": {"fused": True}, "uneven": {"foreach": True}}.get(name, {})
        optimisers = [torch.optim.AdamW(m.parameters(), lr=1e-2, **kind) for m in (model, other, reference)]
        for number in range(3):
            losses = [step(**own_batch(case, step.program, rank, number)) for step in steps]
            expected = expected_step(case, steps[0].program, reference, number, step=number)
            assert torch.equal(*losses), name
            torch.testing.assert_close(losses[0].double(), expected.loss, rtol=1e-5, atol=1e-6, msg=name)
            for (key, parameter), twin in zip(model.named_parameters(), other.parameters(), strict=True):
                assert (parameter.grad is None) == (twin.grad is None), (name, key)
                if parameter.grad is not None and twin.grad is not None:
                    assert torch.equal(local_of(parameter.grad), local_of(twin.grad)), (name, key)
                assert torch.equal(local_of(parameter), local_of(twin)), (name, key)
            if name not in ("convnet", "dropout"):
                assert_equal_models(model, reference)
            for optimiser in optimisers:
                optimiser.step()
                optimiser.zero_grad()
        evaluated = [step.evaluate(**own_batch(case, step.program, rank))[0] for step in steps]
        assert torch.equal(*evaluated), name


MESHES: dict[int, list[tuple[dict[str, int], dict[str, Any], tuple[str, ...]]]] = {
    2: [({"dp": 2}, {"microbatches": 2}, ("tied", "uneven", "adapters", "twice", "dropout", "convnet", "outputs"))],
    3: [({"dp": 3}, {}, ("tied", "uneven"))],
    4: [({"dp": 2, "fsdp": 2}, {"split": ["fsdp"]}, ("tied", "uneven"))],
}


@pytest.mark.one_in(2)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", MESHES)
def test_training_is_the_same_bit_for_bit(size: int, layout: str, tmp_path: Path) -> None:
    cases = [
        (
            name,
            save_program(tmp_path, name, plan_of(BY_NAME[name], mesh, **options)),
            save_program(tmp_path, name, bucketed(name, mesh, layout, **options)),
        )
        for mesh, options, names in MESHES[size]
        for name in names
    ]
    run_ranks(train, size, cases, timeout=240)


def state_on_two_ranks(rank: int, wheres: dict[str, str], folder: str) -> None:
    check_memory(rank, wheres)
    for key in ("tied", "tied packed"):
        check_counted(rank, wheres[key])
    check_replaced_values(rank, wheres["uneven"])
    check_meta(rank, wheres["tied"])
    check_accumulation(rank, wheres["tied"])
    save_checkpoint(rank, wheres["uneven"], folder)
    load_checkpoint(rank, [wheres["uneven packed"], wheres["uneven"]], folder)
    check_inductor(rank, wheres)


def check_memory(rank: int, wheres: dict[str, str]) -> None:
    """Flat: shards side by side, packs are views, gathered parameters are views. Packed: each its own memory."""
    for name in ("tied", "uneven"):
        case = BY_NAME[name]
        model = case.model()
        step = load_step(wheres[name], model)
        arguments = [a for a in step.program.entry(rank).arguments if a.buffer]
        assert len(arguments) > 2
        places: dict[str, list[int]] = {}
        for argument in arguments:
            local = local_of(model.get_parameter(argument.name))
            storage = local.untyped_storage().data_ptr()
            places.setdefault(argument.buffer, []).append(storage)
            if local.numel():
                assert local.data_ptr() - storage == argument.offset, argument.name
        for members in places.values():
            assert len(set(members)) == 1
        watch = Watch(step)
        step(**own_batch(case, step.program, rank))
        assert (watch.copies, watch.views > 0) == (0, True), name
        assert len(watch.unpacked) > 1
        for layout, values in watch.unpacked:
            assert layout == "flat"
            assert len({value.untyped_storage().data_ptr() for value in values}) == 1
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert len({local_of(grad).untyped_storage().data_ptr() for grad in grads}) < len(grads)
        packed = load_step(wheres[f"{name} packed"], case.model())
        assert not any(a.buffer for a in packed.program.entry(rank).arguments)
        watch = Watch(packed)
        packed(**own_batch(case, packed.program, rank))
        assert (watch.copies > 0, watch.views) == (True, 0)
        assert len(watch.unpacked) > 1
        for layout, values in watch.unpacked:
            assert layout == "packed"
            assert [value.untyped_storage().nbytes() for value in values] == [value.nbytes for value in values]


def check_counted(rank: int, where: str) -> None:
    """What is taken out of a gathered bucket counts as gathered, until its last member is gone."""
    case = BY_NAME["tied"]
    step = load_step(where, case.model())
    batch = own_batch(case, step.program, rank)
    starts = [
        op
        for op in step.program.functions["stage0_step"].ops
        if op.target == "hp.all_gather" and op.phase == "forward" and len(op.members) > 1
    ]
    with step.watch_gathers() as gathered:
        step(**batch)
    assert gathered.current == 0
    assert gathered.peak >= max(2 * sum(op.member_bytes) for op in starts)


def check_replaced_values(rank: int, where: str) -> None:
    """What a user puts in place of a shard reaches the Program; it no longer lies with the others, so it is copied."""
    case = BY_NAME["uneven"]
    model, reference = case.model(), case.model()
    step = load_step(where, model)
    watch = Watch(step)
    with torch.no_grad():
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
    assert watch.copies > 0
    with torch.random.fork_rng():
        torch.manual_seed(3)
        other = case.build()
    step.load_state_dict(other.state_dict())
    for key, value in other.state_dict().items():
        assert torch.equal(whole(step.state_dict()[key]), value), key


def check_meta(rank: int, where: str) -> None:
    case = BY_NAME["tied"]
    with torch.device("meta"):
        model = case.build()
    step = load_step(where, model)
    watch = Watch(step)
    for key, parameter in step.named_parameters():
        first = whole(parameter).clone()
        assert first.isfinite().all(), key
        dist.broadcast(first, 0)
        assert torch.equal(first, whole(parameter)), key
    assert step(**own_batch(case, step.program, rank)).isfinite()
    assert watch.copies == 0


def check_accumulation(rank: int, where: str) -> None:
    """Gradients of two calls add up; members of a bucket do not write into each other."""
    case = BY_NAME["tied"]
    model, reference = case.model(), case.model()
    step = load_step(where, model)
    for seed in (1, 2, 3):
        step(**own_batch(case, step.program, rank, seed))
        expected_step(case, step.program, reference, seed, step=seed - 1)
        assert_equal_models(model, reference)
    norms = [
        step.clip_grad_norm_(0.1),
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1),
    ]
    torch.testing.assert_close(*norms)
    assert_equal_models(model, reference)


def optimiser_state(step: Step, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    names: dict[Any, str] = {parameter: name for name, parameter in step.named_parameters()}
    return {names[parameter]: dict(state) for parameter, state in optimiser.state.items()}


def save_checkpoint(rank: int, where: str, folder: str) -> None:
    case = BY_NAME["uneven"]
    step = load_step(where, case.model())
    optimiser = torch.optim.AdamW(step.parameters(), lr=1e-2)
    step(**own_batch(case, step.program, rank))
    optimiser.step()
    save({"model": step.state_dict(), "optimiser": optimiser_state(step, optimiser)}, checkpoint_id=folder)


def load_checkpoint(rank: int, wheres: list[str], folder: str) -> None:
    """What the flat layout saved, the packed one goes on with, and so does the flat one itself."""
    case = BY_NAME["uneven"]
    reference = case.model()
    optimiser = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    program = Program.load(wheres[0])
    expected_step(case, program, reference)
    optimiser.step()
    reference.zero_grad()
    for seed in (1, 2):
        expected_step(case, program, reference, seed)
        optimiser.step()
    for where in wheres:
        step = load_step(where, case.model())
        optimiser = torch.optim.AdamW(step.parameters(), lr=1e-2)
        for parameter in step.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()  # makes states of the right shapes, to be loaded into
        load({"model": step.state_dict(), "optimiser": optimiser_state(step, optimiser)}, checkpoint_id=folder)
        assert step.steps == 1
        step.model.zero_grad()
        for seed in (1, 2):
            step(**own_batch(case, step.program, rank, seed))
            optimiser.step()
        assert_equal_models(step.model, reference)


def check_inductor(rank: int, wheres: dict[str, str]) -> None:
    for where in (wheres["uneven"], wheres["uneven packed"]):
        case = BY_NAME["uneven"]
        model, reference = case.model(), case.model()
        step = load_step(where, model, backend="inductor")
        for seed in (1, 2):
            step(**own_batch(case, step.program, rank, seed))
            expected_step(case, step.program, reference, seed)
            assert_equal_models(model, reference)


@pytest.mark.timeout(300)
def test_state_on_two_ranks(tmp_path: Path) -> None:
    wheres = {}
    for name in ("tied", "uneven"):
        for layout, key in (("flat", name), ("packed", f"{name} packed")):
            folder = tmp_path / layout
            folder.mkdir(exist_ok=True)
            wheres[key] = save_program(folder, name, bucketed(name, {"dp": 2}, layout))
    run_ranks(state_on_two_ranks, 2, wheres, str(tmp_path / "checkpoint"), timeout=240)
