"""Ranks that disagree, hang, or leave something over: each is a message that names both ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fsdp_by_hand import PAIR, SCALAR, fsdp_step, state_and_batch
from program_builder import FunctionBuilder, by_position, program_of, run
from program_pair import X, pair_program

from hpir.errors import RuntimeFault
from hpir.mesh import Mesh
from hpir.runtime.program import Named, Op, TensorType
from hpir.runtime.simulate import simulate


@pytest.mark.parametrize(
    ("first", "second", "mine", "theirs"),
    [
        (
            lambda f: f.all_reduce(X, axes=["pp"]),
            lambda f: f.all_gather(X, axes=["pp"], dims=[0]),
            "'hp.all_gather' over ranks [0, 1], dims = [0] of float32[1, 2]",
            "'hp.all_reduce' over ranks [0, 1], reduce = 'sum' of float32[1, 2]",
        ),
        (
            lambda f: f.all_reduce(X, axes=["pp"]),
            lambda f: f.all_reduce(X, axes=["pp"], reduce="avg"),
            "'hp.all_reduce' over ranks [0, 1], reduce = 'avg' of float32[1, 2]",
            "'hp.all_reduce' over ranks [0, 1], reduce = 'sum' of float32[1, 2]",
        ),
        (
            lambda f: f.all_gather(X, axes=["pp"], dims=[0]),
            lambda f: f.all_gather(X, axes=["pp"], dims=[1]),
            "'hp.all_gather' over ranks [0, 1], dims = [1] of float32[1, 2]",
            "'hp.all_gather' over ranks [0, 1], dims = [0] of float32[1, 2]",
        ),
        (
            lambda f: f.all_reduce(X, axes=["pp"]),
            lambda f: f.all_reduce(X, X, axes=["pp"]),
            "'hp.all_reduce' over ranks [0, 1], reduce = 'sum' of float32[1, 2], float32[1, 2]",
            "'hp.all_reduce' over ranks [0, 1], reduce = 'sum' of float32[1, 2]",
        ),
        (
            lambda f: f.broadcast(X, axes=["pp"], root=0),
            lambda f: f.broadcast(X, axes=["pp"], root=1),
            "'hp.broadcast' over ranks [0, 1], root = 1 of float32[1, 2]",
            "'hp.broadcast' over ranks [0, 1], root = 0 of float32[1, 2]",
        ),
    ],
)
def test_collectives_that_differ(first: Any, second: Any, mine: str, theirs: str) -> None:
    with pytest.raises(RuntimeFault) as caught:
        run(pair_program(first, second))
    target, other = mine.split("'")[1], theirs.split("'")[1]
    assert str(caught.value) == (
        f"rank 1: second: op 1 '{target}' in module 'layers.0' at second.py:1: collective 0 of ranks [0, 1] is {mine}, "
        f"but rank 0: first: op 1 '{other}' in module 'layers.0' at first.py:1 has {theirs}"
    )


def test_collectives_of_other_shapes_and_dtypes_differ() -> None:
    def double(f: FunctionBuilder) -> None:
        wide = f.aten("_to_copy.default", X, type_=TensorType((1, 2), "float64"), dtype=Named("dtype", "float64"))
        f.all_reduce(wide, axes=["pp"])

    with pytest.raises(RuntimeFault, match=r"'hp.all_reduce' .* of float64\[1, 2\], but rank 0: .* of float32\[1, 2\]"):
        run(pair_program(lambda f: f.all_reduce(X, axes=["pp"]), double))


def test_collectives_match_by_position() -> None:
    def body(order: str) -> Callable[[FunctionBuilder], object]:
        def emit(f: FunctionBuilder) -> None:
            for kind in order:
                if kind == "r":
                    f.all_reduce(X, axes=["pp"])
                else:
                    f.all_gather(X, axes=["pp"], dims=[0])

        return emit

    with pytest.raises(RuntimeFault, match=r"rank 1: .* op 3 .*: collective 2 of ranks \[0, 1\] is"):
        run(pair_program(body("rgr"), body("rgg")))


def test_message_of_another_type_than_expected() -> None:
    program = pair_program(
        lambda f: f.send(X, axis="pp", peer=1),
        lambda f: f.wait(f.recv(TensorType((2, 1), "float32"), axis="pp", peer=0)),
    )
    with pytest.raises(RuntimeFault) as caught:
        run(program)
    assert str(caught.value) == (
        "rank 1: second: op 1 'hp.recv' in module 'layers.0' at second.py:1: expects float32[2, 1], "
        "but rank 0: first: op 1 'hp.send' in module 'layers.0' at first.py:1 sends float32[1, 2]"
    )


def test_message_of_another_type_than_expected_when_the_receiver_was_first() -> None:
    program = pair_program(
        lambda f: f.wait(f.recv(TensorType((1, 2), "int64"), axis="pp", peer=1)),
        lambda f: f.send(X, X, axis="pp", peer=0),
    )
    expected = r"rank 1: second: op 1 'hp.send' .* sends float32\[1, 2\], .*, but rank 0: .* expects int64\[1, 2\]"
    with pytest.raises(RuntimeFault, match=expected):
        run(program)


def test_message_that_nobody_receives() -> None:
    with pytest.raises(RuntimeFault) as caught:
        run(pair_program(lambda f: f.send(X, axis="pp", peer=1), lambda f: None))
    assert str(caught.value) == (
        "the step ended with communication left over:\n"
        "  rank 0: first: op 1 'hp.send' in module 'layers.0' at first.py:1: rank 1 never receives it"
    )


def test_receive_that_nobody_sends_and_nobody_waits_for() -> None:
    with pytest.raises(RuntimeFault, match=r"rank 0: first: op 1 'hp.recv' .*: rank 1 never sends it"):
        run(pair_program(lambda f: f.recv(SCALAR, axis="pp", peer=1), lambda f: None))


def test_collective_that_not_all_reach_and_nobody_waits_for() -> None:
    with pytest.raises(RuntimeFault, match=r"rank 0: first: op 1 'hp.all_reduce' .*: rank 1 has not arrived"):
        run(pair_program(lambda f: f.all_reduce(X, axes=["pp"]), lambda f: None))


def test_send_to_itself() -> None:
    with pytest.raises(
        RuntimeFault, match=r"rank 0: first: op 1 'hp.send' .*: position 0 on axis 'pp' is this rank itself"
    ):
        run(pair_program(lambda f: f.send(X, axis="pp", peer=0), lambda f: None))


def test_replicated_results_that_differ() -> None:
    f = FunctionBuilder("main", PAIR)
    x = f.argument("x", (2,), sharding=(("dp",),), batch_dim=0)
    f.result(x, "grad", "layers.0.weight")
    batch = {"x": torch.tensor([1.0, 1.5])}
    with pytest.raises(RuntimeFault) as caught:
        simulate(program_of(f.build(), mesh=PAIR), {}, batch)
    assert str(caught.value) == (
        "gradient of 'layers.0.weight' differs between rank 0 and rank 1 by up to 0.5 (float32)"
    )
    f.results[0] = replace(f.results[0], role="output")
    simulate(program_of(f.build(), mesh=PAIR), {}, batch)


def test_losses_that_differ() -> None:
    f = FunctionBuilder("main", PAIR)
    x = f.argument("x", (2,), sharding=(("dp",),), batch_dim=0)
    f.result(f.aten("mean.default", x, type_=SCALAR), "loss")
    with pytest.raises(RuntimeFault, match=r"^loss differs between rank 0 and rank 1 by up to 1 "):
        simulate(program_of(f.build(), mesh=PAIR), {}, {"x": torch.tensor([1.0, 2.0])})


def test_equal_nans_do_not_differ_and_signs_of_zeros_do() -> None:
    f = FunctionBuilder("main", PAIR)
    x = f.argument("x", (2,), sharding=(("dp",),), batch_dim=0)
    f.result(x, "grad", "w")
    program = program_of(f.build(), mesh=PAIR)
    result = simulate(program, {}, {"x": torch.full((2,), torch.nan)})
    assert result.grads["w"].isnan().all()
    with pytest.raises(RuntimeFault, match="gradient of 'w' differs"):
        simulate(program, {}, {"x": torch.tensor([0.0, -0.0])})


def test_result_of_another_shape_than_stated() -> None:
    f = FunctionBuilder("main", PAIR)
    x = f.argument("x", (2,))
    f.result(f.aten("sum.default", x, type_=TensorType((2,), "float32")), "grad", "w")
    program = program_of(f.build(), mesh=PAIR)
    with pytest.raises(RuntimeFault, match=r"gradient of 'w' on rank 0: expected float32\[2\], got: float32\[\]"):
        simulate(program, {}, {"x": torch.zeros(2)})
    with pytest.raises(
        RuntimeFault, match=r"rank 0: main: op 0 'aten.sum.default': gives float32\[\], expected float32\[2\]"
    ):
        simulate(program, {}, {"x": torch.zeros(2)}, check_types=True)


def test_result_that_is_a_future() -> None:
    f = FunctionBuilder("main", PAIR)
    future = f.all_reduce(f.literal(1.0, SCALAR), axes=["dp"])
    f.types[future.index] = SCALAR
    f.result(future, "grad", "w")
    with pytest.raises(RuntimeFault, match="rank 0: main: result 'w' is no tensor, got: Future"):
        simulate(program_of(f.build(), mesh=PAIR), {}, {})


def test_program_without_loss() -> None:
    f = FunctionBuilder("main", PAIR)
    f.result(f.literal(1.0, SCALAR))
    function = replace(f.build(), results=())
    with pytest.raises(RuntimeFault, match="the program returns no loss"):
        simulate(program_of(function, mesh=PAIR), {}, {})


# Ranks that hang.


def test_deadlock_of_two_receivers() -> None:
    def receive(peer: int) -> Callable[[FunctionBuilder], object]:
        def body(f: FunctionBuilder) -> None:
            f.wait(f.recv(TensorType((1, 2), "float32"), axis="pp", peer=peer))
            f.send(X, axis="pp", peer=peer)

        return body

    with pytest.raises(RuntimeFault) as caught:
        run(pair_program(receive(1), receive(0)))
    assert str(caught.value) == (
        "deadlock: 2 of 2 ranks cannot proceed\n"
        "  rank 0: first: op 2 'hp.wait' in module 'layers.0' at first.py:2: waits for a message from rank 1\n"
        "  rank 1: second: op 2 'hp.wait' in module 'layers.0' at second.py:2: waits for a message from rank 0"
    )


def test_deadlock_of_collectives_in_another_order() -> None:
    mesh = Mesh.of({"pp": 2, "dp": 2})
    functions = []
    for name, order in (("first", ("pp", "dp")), ("second", ("dp", "pp"))):
        f = FunctionBuilder(name, mesh)
        x = f.literal(1.0, SCALAR)
        # Over pp and over all: two sets of ranks, reached in another order by the two functions.
        for axis in order:
            f.wait(f.all_reduce(x, axes=["pp"] if axis == "pp" else ["pp", "dp"]))
        functions.append(f.build())
    with pytest.raises(RuntimeFault) as caught:
        run(by_position(functions, mesh, "pp"))
    lines = str(caught.value).splitlines()
    assert lines[0] == "deadlock: 4 of 4 ranks cannot proceed"
    assert lines[1] == (
        "  rank 0: first: op 2 'hp.wait': waits for 'hp.all_reduce' over ranks [0, 2], reduce = 'sum' of float32[]: "
        "rank 2 has not arrived"
    )
    assert lines[4] == (
        "  rank 3: second: op 2 'hp.wait': waits for 'hp.all_reduce' over ranks [0, 1, 2, 3], reduce = 'sum' of "
        "float32[]: ranks [0, 1] have not arrived"
    )


def test_deadlock_names_the_ranks_that_have_finished() -> None:
    mesh = Mesh.of({"pp": 2})
    with pytest.raises(RuntimeFault) as caught:
        run(pair_program(lambda f: f.wait(f.all_reduce(X, axes=["pp"])), lambda f: None))
    assert mesh.size == 2
    lines = str(caught.value).splitlines()
    assert lines[0] == "deadlock: 1 of 2 ranks cannot proceed"
    assert lines[1].endswith("of float32[1, 2]: rank 1 has not arrived")
    assert lines[2] == "  rank 1: has finished"


def test_collectives_started_in_another_order_do_not_deadlock_when_waited_for_later() -> None:
    def body(sends_first: bool, peer: int) -> Callable[[FunctionBuilder], object]:
        def emit(f: FunctionBuilder) -> None:
            if sends_first:
                f.send(X, axis="pp", peer=peer)
                future = f.all_reduce(X, axes=["pp"])
            else:
                future = f.all_reduce(X, axes=["pp"])
                f.wait(f.recv(TensorType((1, 2), "float32"), axis="pp", peer=peer))
            f.result(f.wait(future))

        return emit

    result = run(pair_program(body(True, 1), body(False, 0)))
    assert [values[0].tolist() for values in result.per_rank] == [[[2.0, 4.0]]] * 2


def test_the_same_program_runs_after_one_that_raised() -> None:
    state, batch = state_and_batch()
    program = fsdp_step(PAIR, axes=("dp",))
    expected = simulate(program, state, batch).loss
    with pytest.raises(RuntimeFault):
        simulate(program, state, {"x": torch.zeros(1)})
    with pytest.raises(RuntimeFault):
        simulate(program, state, batch, observe=raising)
    assert torch.equal(simulate(program, state, batch).loss, expected)


def raising(rank: int, function: str, op: Op, size: int) -> None:
    if rank == 1:
        raise RuntimeFault("stop")
