"""What the simulated ranks hold, and when it goes."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import replace

import torch
from fsdp_by_hand import PAIR, SCALAR, fsdp_step, state_and_batch
from program_builder import FunctionBuilder, on_ranks, program_of
from torch import Tensor

from hpir.mesh import Mesh
from hpir.runtime.program import Ref, TensorType, last_uses, private_accumulators
from hpir.runtime.simulate import simulate


def test_values_go_at_their_last_use() -> None:
    held: list[tuple[str, int]] = []

    def body(f: FunctionBuilder, x: Ref) -> list[Ref]:
        a = f.aten("neg.default", x)
        b = f.aten("neg.default", a)
        f.aten("neg.default", b)
        view = f.aten("t.default", b, type_=TensorType((1, 1024), "float32"))
        return [f.aten("neg.default", view)]

    x = torch.ones(1024, 1)
    on_ranks(Mesh.of({"all": 1}), [[x]], body, observe=lambda rank, name, op, size: held.append((op.target, size)))
    # Operand and result each time; the unused result goes at once; a view adds nothing.
    assert [size // 4096 for _, size in held[:5]] == [2, 2, 2, 1, 2]


def test_callees_free_what_the_caller_no_longer_needs() -> None:
    mesh = Mesh.of({"all": 1})
    inner = FunctionBuilder("inner", mesh)
    value = inner.argument("x", (1024,))
    for _ in range(3):
        value = inner.aten("neg.default", value)
    inner.result(value)
    callee = replace(inner.build(), results=tuple(inner.results[:1]))
    main = FunctionBuilder("main", mesh)
    y = main.argument("y", (1024,))
    main.argument("unused", (1024,))
    main.result(main.call(callee, main.call(callee, y)[0])[0])
    sizes: list[int] = []
    program = program_of(callee, main.build(), mesh=mesh)
    batch = {"y": torch.ones(1024), "unused": torch.ones(1024)}
    simulate(program, {}, batch, observe=lambda rank, name, op, size: sizes.append(size // 4096))
    assert max(sizes) == 2


def test_communication_counts_its_buffers_from_start_to_wait() -> None:
    held: dict[int, list[tuple[str, int]]] = {0: [], 1: []}

    def body(f: FunctionBuilder, x: Ref) -> list[Ref]:
        gathering = f.all_gather(x, axes=["dp"], dims=[0])
        other = f.literal(0.0, SCALAR)
        full = f.wait(gathering)
        f.aten("neg.default", full)
        return [other]

    on_ranks(
        PAIR,
        [[torch.ones(1024)] * 2],
        body,
        observe=lambda rank, name, op, size: held[rank].append((op.target, size // 4096)),
    )
    # The shard and the two shards' worth that arrive; after the wait the shard is gone.
    expected = [("hp.all_gather", 3), ("literal", 3), ("hp.wait", 2), ("aten.neg.default", 4)]
    assert held[0][:4] == expected
    assert held[1][:4] == expected


def test_observe_sees_every_op_of_every_rank_once() -> None:
    program = fsdp_step(PAIR, axes=("dp",))
    state, batch = state_and_batch()
    seen: Counter[tuple[int, str, str]] = Counter()
    simulate(program, state, batch, observe=lambda rank, name, op, size: seen.update([(rank, name, op.target)]))
    expected = Counter(op.target for op in program.functions["step"].ops)
    for rank in range(2):
        assert {target: count for (r, _, target), count in seen.items() if r == rank} == expected
    assert {name for _, name, _ in seen} == {"step"}


def test_no_tensor_of_a_step_outlives_it() -> None:
    program = fsdp_step(PAIR, axes=("dp",))
    state, batch = state_and_batch()
    simulate(program, state, batch)
    before = live_tensors()
    for _ in range(3):
        simulate(program, state, batch)
    assert live_tensors() <= before  # What other tests have left behind may go in the meantime.


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(item), Tensor) for item in gc.get_objects())


def test_last_uses_and_private_accumulators() -> None:
    f = FunctionBuilder("main", PAIR)
    x = f.argument("x", (2,))
    first = f.accumulate([x], [x])[0]
    second = f.accumulate([first], [x])[0]
    third = f.accumulate([second], [second])[0]
    f.result(third)
    function = f.build()
    # `second` is read twice by the last sum, `x` is not the function's own, `third` is returned.
    assert private_accumulators(function) == {first.index}
    assert last_uses(function) == [(), (x.index, first.index), (second.index,), ()]
