"""What ranks hold, read from a program: each op's bytes, counted by hand, and microbatches alive."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpir.dialect.diagnostics import IRError
from hpir.dialect.parsing import parse_module
from hpir.dialect.signature import body_of, step_functions
from hpir.ir_passes.verification.live_bytes import RankMemory, live_bytes

PROGRAM = (Path(__file__).parent / "filecheck" / "verification" / "program.mlir").read_text()


def memories(text: str) -> dict[str, RankMemory]:
    return {memory.name: memory for memory in live_bytes(parse_module(text).operation)}


def held_at(memory: RankMemory, text: str = PROGRAM) -> list[tuple[str, int]]:
    """Return what a rank holds while each of its ops runs."""
    module = parse_module(text)
    (function,) = [op for op in step_functions(module.operation) if f"@{memory.name}(" in str(op)]
    names = [view.operation.name for view in body_of(function).operations]
    return list(zip(names, memory.alive, strict=True))


def test_bytes_alive() -> None:
    """An activation is 32 bytes, a gradient or buffer 16, a loss 4."""
    memory = memories(PROGRAM)["rank0"]
    assert held_at(memory) == [
        ("torch.constant.int", 0),
        ("hp.microbatch", 0),  # a view of the batch
        ("hp.microbatch", 0),
        ("func.call", 64),  # two activations inside, more than the one and the buffer that it returns
        ("hp.send", 48),
        ("hp.recv", 48),  # the activation has gone, its gradient's buffer has come
        ("func.call", 48 + 64),
        ("hp.send", 48 + 32),  # the first buffer is replaced
        ("hp.wait", 48),
        ("hp.recv", 48 + 32),
        ("func.call", 48 + 32 + 48),  # inside: a product and a sum, then three gradients
        ("hp.wait", 48 + 32),
        ("func.call", 16 + 32 + 32 + 48),
        ("hp.accumulate", 16 + 32 + 32),
        ("hp.all_reduce", 16 + 32 + 16),
        ("hp.wait", 16 + 32 + 16),  # until here the operand is held too
        ("torch.aten.div.Scalar", 16 + 32 + 16),
        ("torch.aten.div.Scalar", 16 + 32 + 16),
        ("torch.vtensor.literal", 48),
        ("hp.broadcast", 52),
        ("hp.wait", 52),
        ("func.return", 52),
    ]
    assert (memory.coordinate, memory.kind) == (0, "train")
    assert (memory.peak_bytes, memory.peak_op) == (128, 10)


def test_microbatches_alive() -> None:
    """1f1b: stage k of p holds p - k; to evaluate, one at a time."""
    found = {name: memory.microbatches for name, memory in memories(PROGRAM).items()}
    assert found == {"rank0": 2, "rank1": 1, "evaluate0": 1, "evaluate1": 1}


def test_sizes_that_change_count_as_the_example() -> None:
    """With an example of 3 rows in place of 2, everything with rows is that much larger."""
    size = '      %n: !torch.int {hp.role = "size", hp.name = "n", hp.example = 3 : i64},\n'
    text = PROGRAM
    for old, new in (
        ("!torch.vtensor<[2,4],f32>", "!torch.vtensor<[?,4],f32>"),
        ("!torch.vtensor<[4,4],f32>", "!torch.vtensor<[?,4],f32>"),
        ('{mesh = @mesh, axis = "pp"', '{header, mesh = @mesh, axis = "pp"'),
        ("func.func @stage0_backward(\n", "func.func @stage0_backward(\n" + size),
        ("func.func @rank0(\n", "func.func @rank0(\n" + size),
        ("@stage0_backward(%x", "@stage0_backward(%n, %x"),
        (": (!x, !x) -> (!w, !w)", ": (!torch.int, !x, !x) -> (!w, !w)"),
    ):
        text = text.replace(old, new)
    before, after = memories(PROGRAM)["rank0"], memories(text)["rank0"]
    assert before.alive[3] == 64
    assert after.alive[3] == 96
    assert after.alive[4] == 48 + 16


def test_a_module_of_no_ranks_is_refused() -> None:
    with pytest.raises(IRError, match="has stages, expected a mesh"):
        live_bytes(parse_module("module {}").operation)
