"""Messages between real gloo ranks: what they may hold, their order, and the memory they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from distributed_case import run_ranks
from pipeline_programs import Chain, Layout, batch_of, chain_program
from torch import Tensor

from hpir.mesh import Mesh
from hpir.runtime.acknowledgements import acknowledgements
from hpir.runtime.collectives import RankOps
from hpir.runtime.device import RankMesh, required_messages
from hpir.runtime.messages import _Slot
from hpir.runtime.operators import dtype_name
from hpir.runtime.step import Step

MESH = Mesh.of({"pp": 2})


def types_of(tensors: Sequence[Tensor], *, known: bool = True) -> Any:
    return tuple((dtype_name(each.dtype), tuple(size if known else None for size in each.shape)) for each in tensors)


def contents() -> list[list[Tensor]]:
    """Messages that are hard to send: of every width, without dims, without elements, views, conjugates, large."""
    base = torch.arange(12.0).reshape(3, 4)
    return [
        [base],
        [base.t(), base[0].expand(5, 4), base[:, ::2]],
        [torch.tensor(3.5), torch.tensor(True), torch.empty(0, 4), torch.arange(5)],
        [base > 5],
        [torch.complex(base, -base)],
        [torch.complex(base, -base).conj(), torch.complex(base, base).imag],
        [base.to(torch.float8_e4m3fn), base.bfloat16(), base.half(), base.to(torch.uint16), base > 2],
        [base.to(torch.float8_e5m2)],
        [torch.arange(40_000.0), base, torch.arange(40_000.0).bfloat16().reshape(2, -1)],
        [torch.empty(0)],
        [base.t().double().unsqueeze(0)],
    ]


def bits(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8)


def exchanging(rank: int) -> None:
    """Rank 0 sends every message twice, without and with a header; rank 1 asks for several ahead of the first."""
    ranks = RankMesh(MESH, torch.device("cpu"), channels=("pp",))
    ranks.open_channels({("pp", 0, 1), ("pp", 1, 0)})
    ops = RankOps(ranks)
    sent = contents()
    if rank == 0:
        for tensors in sent:
            ops.send(tensors, "pp", 1)
            ops.send(tensors, "pp", 1, header=True)
        ops.drain()
        return
    asked = []
    for tensors in sent:
        asked.append(ops.recv("pp", 0, types_of(tensors)))
        asked.append(ops.recv("pp", 0, types_of(tensors, known=False), header=True))
    # Not in the order in which they were asked for.
    order = [*range(0, len(asked), 3), *(at for at in range(len(asked)) if at % 3)]
    for at in order:
        tensors = ops.wait(asked[at])
        for received, expected in zip(tensors, sent[at // 2], strict=True):
            assert received.dtype == expected.dtype and received.shape == expected.shape, at
            assert received.is_contiguous(), at
            assert torch.equal(bits(received), bits(expected)), at
    assert not ops._pending


def test_whatever_a_tensor_is_it_arrives() -> None:
    run_ranks(exchanging, 2)


def reusing(rank: int) -> None:
    """Memory of a message is used again when nothing reads it, and not before."""
    ops = RankOps(RankMesh(MESH, torch.device("cpu"), channels=("pp",)))
    large = torch.arange(20_000.0)
    if rank == 0:
        for number in range(6):
            ops.send([large + number], "pp", 1)
        ops.drain()
        return

    def receive() -> Tensor:
        (tensor,) = ops.wait(ops.recv("pp", 0, types_of([large])))
        return tensor

    first = receive()
    place = first.data_ptr()
    second = receive()
    assert second.data_ptr() != place
    part = first[:5]
    del first
    third = receive()
    assert third.data_ptr() not in (place, second.data_ptr())
    assert torch.equal(part, torch.arange(5.0))
    del part
    assert receive().data_ptr() == place
    kept = [receive(), receive()]
    assert kept[0].data_ptr() == place
    assert torch.equal(kept[1], large + 5)
    ops.drain()
    assert not ops.messages._slots


def test_memory_is_used_again_when_nobody_reads_it() -> None:
    run_ranks(reusing, 2)


def held(rank: int, microbatches: Sequence[int]) -> list[tuple[int, int]]:
    """Return, per number of microbatches, what `measured` does."""
    return [measured(count) for count in microbatches]


def measured(microbatches: int) -> tuple[int, int]:
    """Return how many receive buffers are made in a step, and the most messages that are kept at once."""
    step = Step(chain_program(Layout(MESH, microbatches=microbatches)), Chain(2))
    kept, send = [0], step._ops.messages.send

    def counted(*arguments: Any) -> None:
        send(*arguments)
        kept.extend(len(link.sent) for link in step._ops.messages._links.values())

    with (
        mock.patch("hpir.runtime.messages._Slot", side_effect=_Slot) as made,
        mock.patch.object(step._ops.messages, "send", counted),
    ):
        step(**batch_of(2 * microbatches))
    return made.call_count, max(kept)


def test_what_is_held_does_not_grow_with_microbatches() -> None:
    for few, many in run_ranks(held, 2, (4, 16)):
        assert many == few
        assert max(few) <= 4


def test_what_is_known_to_have_arrived() -> None:
    program = chain_program(Layout(MESH, microbatches=4))
    # Rank 1 waits for f0..f3 in turn, each before it sends the gradient for it.
    assert acknowledgements(program, "train", 0) == {("pp", 1): [1, 2, 3, 4]}
    # Rank 0 sends two microbatches before it waits for the first gradient.
    assert acknowledgements(program, "train", 1) == {("pp", 0): [0, 0, 1, 2]}
    assert acknowledgements(program, "evaluate", 0) == {("pp", 1): []}
    assert required_messages(program) == {("pp", 0, 1), ("pp", 1, 0)}
