"""hp-verify-level at level "program": a right program is silent, and broken anywhere it is refused at the op.

The program is tests/filecheck/verification/program.mlir, written out by hand: two stages, two data ranks and two
microbatches. Each case changes some of its lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import hpir
from hpir.dialect.diagnostics import IRError
from hpir.dialect.parsing import parse_module

PATH = Path(__file__).parent / "filecheck" / "verification" / "program.mlir"
PROGRAM = PATH.read_text()


@dataclass(frozen=True)
class Found:
    """A message and the line of the text that it is about."""

    message: str
    line: str


def function(name: str) -> tuple[int, int]:
    """Return where a function's text begins and ends."""
    begin = PROGRAM.index(f"func.func @{name}(")
    return begin, PROGRAM.index("\n  }\n", begin)


def changed(*changes: tuple[str, str, str]) -> str:
    """Return the program with changes (function, old text, new text), each old text being there once."""
    text = PROGRAM
    for name, old, new in changes:
        begin = text.index(f"func.func @{name}(")
        end = text.index("\n  }\n", begin)
        body = text[begin:end]
        assert body.count(old) == 1, f"{old!r} is {body.count(old)} times in @{name}"
        text = text[:begin] + body.replace(old, new) + text[end:]
    return text


def line_of(name: str, old: str) -> str:
    """Return the whole line of a function that some text begins."""
    begin, end = function(name)
    (line,) = [line for line in PROGRAM[begin:end].splitlines() if line.strip().startswith(old)]
    return line + "\n"


def refused(text: str) -> list[list[Found]]:
    """Verify a program, which is refused; return each error, with its notes behind it."""
    module = parse_module(text)
    with pytest.raises(IRError) as caught:
        hpir.run_passes(module, "hp-verify-level")
    lines = text.splitlines()
    errors = []
    for diagnostic in caught.value.diagnostics:
        told = []
        for said in (diagnostic, *diagnostic.notes):
            place = re.fullmatch(r"-:(\d+):\d+", said.place)
            assert place, str(said)
            told.append(Found(said.message, lines[int(place[1]) - 1].strip()))
        errors.append(told)
    return errors


def check(errors: Sequence[Sequence[Found]], *expected: tuple[str, str]) -> None:
    """Check that there is one error: its message and the start of its line, and those of its notes."""
    assert len(errors) == 1, errors
    assert [found.message for found in errors[0]] == [message for message, _ in expected]
    for found, (message, line) in zip(errors[0], expected, strict=True):
        assert found.line.startswith(line), f"{message}: at {found.line}"


SEND_B0 = line_of("rank1", '"hp.send"(%b0)')
SEND_B1 = line_of("rank1", '"hp.send"(%b1)')
RECV_B1 = line_of("rank0", "%b1f =")
LAST_CALLS = "%u1, %t1 = func.call"


def test_swapped_sends() -> None:
    """Of the same type, so that only the values tell."""
    text = changed(("rank1", "(%b0) {mesh", "(%swap) {mesh"), ("rank1", "(%b1) {mesh", "(%b0) {mesh"))
    text = (
        text.replace("(%swap) {mesh", "(%b0) {mesh")
        .replace(SEND_B0, "")
        .replace(SEND_B1.replace("%b1)", "%b0)"), SEND_B1 + SEND_B0)
    )
    errors = refused(text)
    assert len(errors) == 2
    check(
        errors[:1],
        (
            "'func.call' op @stage0_backward for microbatch 0: expected argument 1 to be 'b1.0' of microbatch 0, "
            "got: 'b1.0' of microbatch 1",
            "%u0, %t0 = func.call @stage0_backward",
        ),
        ("sent here by @rank1", '"hp.send"(%b1)'),
    )


def test_swapped_sends_of_other_types() -> None:
    """What follows on the channel is not looked at: one error for one mistake."""
    first, second = line_of("rank0", '"hp.send"(%h0)'), line_of("rank0", '"hp.send"(%h1)')
    wide = second.replace("%h1)", "%h1, %mean2)").replace("(!x)", "(!x, !w)")
    text = changed(
        ("rank0", first, ""),
        ("rank0", second, wide + first),
        ("rank1", line_of("rank1", "%h1f ="), line_of("rank1", "%h1f =").replace("[!x]", "[!x, !w]")),
        ("rank1", line_of("rank1", "%h1 ="), '    %h1, %m = "hp.wait"(%h1f) : (!hp.future<[!x, !w]>) -> (!x, !w)\n'),
    )
    check(
        refused(text),
        (
            "'hp.recv' op message 0 from @rank0 to @rank1: expected [!torch.vtensor<[2,4],f32>], "
            "got: [!torch.vtensor<[2,4],f32>, !torch.vtensor<[4],f32>]",
            "%h0f =",
        ),
        ("sent here by @rank0", '"hp.send"(%h1'),
    )


def test_a_missing_receive() -> None:
    text = changed(
        ("rank0", RECV_B1, ""), ("rank0", "(%b1f) : (!hp.future<[!x]>) -> !x", "(%b0f) : (!hp.future<[!x]>) -> !x")
    )
    check(
        refused(text),
        ("'hp.send' op message 1 from @rank1 to @rank0 is never received", '"hp.send"(%b1)'),
        ("@rank0 receives its last from @rank1 here", "%b0f ="),
    )


def test_a_missing_send() -> None:
    check(
        refused(changed(("rank1", SEND_B1, ""))),
        ("'hp.recv' op message 1 from @rank1 to @rank0 is never sent", "%b1f ="),
        ("@rank1 sends its last to @rank0 here", '"hp.send"(%b0)'),
    )


def test_no_sends_at_all() -> None:
    check(
        refused(changed(("rank1", SEND_B0, ""), ("rank1", SEND_B1, ""))),
        ("'hp.recv' op message 0 from @rank1 to @rank0 is never sent", "%b0f ="),
        ("@rank1 has nothing of this channel", "func.func @rank1"),
    )


def test_an_extra_send() -> None:
    check(
        refused(changed(("rank1", SEND_B1, SEND_B1 + SEND_B1.replace("%b1)", "%z1)")))),
        ("'hp.send' op message 2 from @rank1 to @rank0 is never received", '"hp.send"(%z1)'),
        ("@rank0 receives its last from @rank1 here", "%b1f ="),
    )


def test_a_message_of_another_type() -> None:
    text = changed(("rank1", SEND_B1, SEND_B1.replace("%b1)", "%d1)").replace("(!x)", "(!w)")))
    check(
        refused(text),
        (
            "'hp.recv' op message 1 from @rank1 to @rank0: expected [!torch.vtensor<[2,4],f32>], "
            "got: [!torch.vtensor<[4],f32>]",
            "%b1f =",
        ),
        ("sent here by @rank1", '"hp.send"(%d1)'),
    )


def test_a_header_at_one_end() -> None:
    check(
        refused(changed(("rank1", SEND_B1, SEND_B1.replace('mb 1"', 'mb 1", header')))),
        ("'hp.recv' op message 1 from @rank1 to @rank0: expected no header, got: one", "%b1f ="),
        ("sent here by @rank1", '"hp.send"(%b1)'),
    )
    check(
        refused(changed(("rank0", RECV_B1, RECV_B1.replace('mb 1"', 'mb 1", header')))),
        ("'hp.recv' op message 1 from @rank1 to @rank0: expected a header, got: none", "%b1f ="),
        ("sent here by @rank1", '"hp.send"(%b1)'),
    )


def test_messages_over_another_axis() -> None:
    text = changed(("rank1", SEND_B1, SEND_B1.replace('axis = "pp"', 'axis = "dp"')))
    errors = refused(text)
    assert len(errors) == 2
    check(errors[:1], ("'hp.send' op goes over axis 'dp', expected the pipeline axis 'pp'", '"hp.send"(%b1)'))


def test_messages_to_oneself() -> None:
    text = changed(("rank1", SEND_B1, SEND_B1.replace("peer = 0", "peer = 1") + SEND_B1))
    check(
        refused(text),
        ("'hp.send' op goes from @rank1 to itself: values that stay on a rank are passed directly", '"hp.send"(%b1)'),
    )


def test_a_circle_of_waits() -> None:
    """Rank 0 wants the first gradient before it has sent the first value."""
    send, receive, wait = line_of("rank0", '"hp.send"(%h0)'), line_of("rank0", "%b0f ="), line_of("rank0", "%b0 =")
    text = changed(("rank0", wait, ""), ("rank0", send + receive, receive + wait + send))
    check(
        refused(text),
        ("'hp.wait' op deadlock: @rank0 waits for @rank1, @rank1 waits for @rank0", "%b0 ="),
        ("@rank1 would come to what @rank0 waits for here", '"hp.send"(%b0)'),
        ("@rank1 waits here for @rank0", "%h0 ="),
        ("@rank0 would come to what @rank1 waits for here", '"hp.send"(%h0)'),
    )


def test_a_circle_through_a_collective() -> None:
    """Rank 1 wants the loss of all ranks before it has sent the last gradient."""
    text = changed(("rank1", SEND_B1, ""), ("rank1", "    return", SEND_B1 + "    return"))
    errors = refused(text)
    check(
        errors,
        ("'hp.wait' op deadlock: @rank0 waits for @rank1, @rank1 waits for @rank0", "%b1 ="),
        ("@rank1 would come to what @rank0 waits for here", '"hp.send"(%b1)'),
        ("@rank1 waits here for @rank0", "%o ="),
        ("@rank0 would come to what @rank1 waits for here", "%of ="),
    )


def test_collectives_in_another_order() -> None:
    begin, end = '    %of = "hp.all_reduce"', "    %um ="
    start = PROGRAM.index(begin, function("rank0")[0])
    owners = PROGRAM[start : PROGRAM.index(end, start)]
    text = changed(("rank0", owners, ""), ("rank0", line_of("rank0", "%tm ="), ""))
    body = line_of("rank0", "%tm =")
    begin_at = text.index("    return %loss, %um, %tm, %mean2")
    text = text[:begin_at] + owners + body + text[begin_at:]
    # Two groups of the same positions are one communicator: the broadcast takes the place of the sum.
    check(
        refused(text),
        (
            "'hp.all_reduce' op collective 0 of positions [0, 1] is 'hp.all_reduce' {axes = [\"pp\"], coordinates = "
            "array<i64: 0, 1>, reduce = \"sum\"} of [!torch.vtensor<[4],f32>] on @rank1, but 'hp.broadcast' "
            '{axes = ["pp"], root = 1 : i64} of [!torch.vtensor<[],f32>] on @rank0',
            "%of =",
        ),
        ("reached here by @rank0", "%lf ="),
    )


def test_a_collective_that_a_rank_does_not_reach() -> None:
    owners = line_of("rank0", "%of =") + line_of("rank0", "%o =")
    broadcast = line_of("rank0", "%lf =") + line_of("rank0", "%loss =")
    text = changed(("rank0", broadcast, ""), ("rank0", "return %loss", "return %zero"))
    check(
        refused(text),
        ("'hp.broadcast' op collective 1 of positions [0, 1] is never reached by @rank0", "%lf ="),
        ("@rank0 has its last here", "%of ="),
    )
    text = changed(
        ("rank0", broadcast, ""),
        ("rank0", "return %loss", "return %zero"),
        ("rank0", owners, ""),
        ("rank0", "%o, %int2", "%t, %int2"),
    )
    errors = refused(text)
    check(
        errors,
        ("'hp.all_reduce' op collective 0 of positions [0, 1] is never reached by @rank0", "%of ="),
        ("@rank0 has none", "func.func @rank0"),
    )


def test_a_collective_that_a_rank_has_no_part_in() -> None:
    text = changed(("rank0", "coordinates = array<i64: 0, 1>", "coordinates = array<i64: 1>"))
    errors = refused(text)
    assert errors[0][0].message == "'hp.all_reduce' op is of positions [1], @rank0 is not one of them"
    assert errors[0][0].line.startswith("%of =")


def test_a_backward_before_its_forward() -> None:
    """A stage whose backward needs nothing saved could run it first."""
    backward, forward = line_of("rank1", "%b0, %d0, %t0 ="), line_of("rank1", "%z0, %l0 =")
    text = changed(
        ("stage1_forward", '!x {hp.role = "saved", hp.name = "f1.0"}, ', ""),
        ("stage1_forward", "return %1, %loss : !x, !s", "return %loss : !s"),
        ("stage1_backward", ',\n      %z: !x {hp.role = "saved", hp.name = "f1.0"}', ""),
        ("stage1_backward", "%z, %y", "%h, %y"),
        ("rank1", backward, ""),
        ("rank1", forward, backward + forward),
    )
    text = re.sub(r"%z(\d), (%l\d = func.call @stage1_forward.*) -> \(!x, !s\)", r"\2 -> !s", text)
    text = re.sub(r", %z\d(\) {hp.microbatch = \d : i64} : \(!w, !x, !x), !x\)", r"\1)", text)
    check(
        refused(text),
        ("'func.call' op @stage1_backward for microbatch 0 is called before @stage1_forward", "%b0, %d0, %t0 ="),
        ("@stage1_forward is called here", "%l0 ="),
    )


def test_a_forward_called_twice() -> None:
    forward = line_of("rank1", "%z0, %l0 =")
    check(
        refused(changed(("rank1", forward, forward + forward.replace("%z0, %l0", "%z9, %l9")))),
        ("'func.call' op @stage1_forward for microbatch 0 is called twice", "%z9, %l9 ="),
        ("called first here", "%z0, %l0 ="),
    )


def test_a_missing_microbatch() -> None:
    text = changed(
        ("rank0", line_of("rank0", "%u1, %t1 ="), ""),
        ("rank0", "(%u0, %t0, %u1, %t1)", "(%u0, %t0, %u0, %t0)"),
    )
    errors = refused(text)
    assert errors[0][0].message == "'hp.accumulate' op adds gradient of 'up' of microbatch 0, stage 0, twice"
    check(
        errors[2:],
        ("'func.func' op @rank0 does not call @stage0_backward for microbatch 1", "func.func @rank0"),
    )


def test_a_call_on_another_rank() -> None:
    text = PROGRAM.replace("hp.placement = array<i64: 0, 1>", "hp.placement = array<i64: 1, 0>")
    errors = refused(text)
    check(
        errors[:1],
        (
            "'func.call' op @stage0_forward for microbatch 0 is called by @rank0, but hp.placement has its stage on "
            "@rank1",
            "%h0, %mean1 =",
        ),
    )
    assert len(errors) == 8


def test_a_call_of_no_microbatch() -> None:
    text = changed(
        ("rank1", "(%down, %tied, %y1, %h1) {hp.microbatch = 1", "(%down, %tied, %y1, %h1) {hp.microbatch = 2")
    )
    assert refused(text)[0][0].message == "'func.call' op expected hp.microbatch to be a number < 2"


def test_a_backward_to_evaluate() -> None:
    backward = line_of("rank1", "%b0, %d0, %t0 =")
    text = changed(("evaluate1", line_of("evaluate1", "%y1 ="), backward + line_of("evaluate1", "%y1 =")))
    check(refused(text), ("'func.call' op @stage1_backward is not called to evaluate", "%b0, %d0, %t0 ="))


def test_microbatches_mixed_up() -> None:
    """Inputs, saved values and state of the wrong microbatch, each at the call that takes it."""
    check(
        refused(changed(("rank1", "(%down, %y1, %h1, %z1)", "(%down, %y1, %h1, %z0)"))),
        (
            "'func.call' op @stage1_backward for microbatch 1: expected argument 3 to be 'f1.0' of microbatch 1, "
            "got: 'f1.0' of microbatch 0",
            "%b1, %d1, %t1 =",
        ),
        ("this is what it is given", "%z0, %l0 ="),
    )
    check(
        refused(changed(("rank1", "(%down, %tied, %y1, %h1)", "(%down, %tied, %y0, %h1)"))),
        (
            "'func.call' op @stage1_forward for microbatch 1: expected argument 2 to be 'y' of microbatch 1, "
            "got: 'y' of microbatch 0",
            "%z1, %l1 =",
        ),
        ("this is what it is given", "%y0 ="),
    )
    check(
        refused(changed(("rank1", "(%down, %tied, %y1, %h1)", "(%tied, %tied, %y1, %h1)"))),
        (
            "'func.call' op @stage1_forward for microbatch 1: expected argument 0 to be 'down', got: 'tied'",
            "%z1, %l1 =",
        ),
    )
    check(
        refused(changed(("rank1", "(%down, %tied, %y1, %h1)", "(%down, %tied, %y1, %b0)"))),
        (
            "'func.call' op @stage1_forward for microbatch 1: expected argument 3 to be 'f0.0' of microbatch 1, "
            "got: 'b1.0' of microbatch 0",
            "%z1, %l1 =",
        ),
        ("this is what it is given", "%b0, %d0, %t0 ="),
    )


def test_parts_of_another_number() -> None:
    text = changed(("rank1", line_of("rank1", "%y1 ="), line_of("rank1", "%y1 =").replace("count = 2", "count = 4")))
    with pytest.raises(IRError, match="expected the part to be"):  # the dialect sees that the sizes do not fit
        parse_module(text)
    whole = text.replace('%y1 = "hp.microbatch"(%y)', '%y1 = "hp.microbatch"(%y)')
    narrow = whole.replace(
        "count = 4 : i64, dim = 0 : i64} : (!batch) -> !x",
        "count = 4 : i64, dim = 0 : i64} : (!batch) -> !torch.vtensor<[1,4],f32>",
    )
    narrow = narrow.replace("(%down, %tied, %y1, %h1)", "(%down, %tied, %y0, %h1)", 1)
    narrow = narrow.replace("(%down, %y1, %h1, %z1)", "(%down, %y0, %h1, %z1)")
    assert refused(narrow)[0][0].message == "'hp.microbatch' op splits into 4 parts, expected hp.microbatches = 2"


def test_a_buffer_that_is_not_handed_on() -> None:
    check(
        refused(changed(("rank0", "(%up, %tied, %mean1, %x1)", "(%up, %tied, %mean, %x1)"))),
        (
            "'func.call' op @stage0_forward for microbatch 1: expected argument 2 to be 'mean' after 1 microbatches, "
            "got: 'mean' after 0 microbatches",
            "%h1, %mean2 =",
        ),
    )
    check(
        refused(changed(("rank0", "%tm, %mean2", "%tm, %mean1"))),
        (
            "'func.call' op result 3 of @rank0 ('mean'): expected 'mean' after 2 microbatches, got: 'mean' after 1 "
            "microbatches",
            "%h0, %mean1 =",
        ),
        ("returned here as result 3", "return %loss, %um"),
    )


def test_a_microbatch_left_out_of_a_sum() -> None:
    text = changed(
        (
            "rank0",
            '%u, %t = "hp.accumulate"(%u0, %t0, %u1, %t1) : (!w, !w, !w, !w) -> (!w, !w)',
            '%t = "hp.accumulate"(%t0, %t1) : (!w, !w) -> !w',
        ),
        ("rank0", "%u, %int2", "%u0, %int2"),
    )
    check(
        refused(text),
        (
            "'torch.aten.div.Scalar' op result 1 of @rank0 ('up'): the gradient of 'up' lacks microbatch 1 of stage 0",
            "%um =",
        ),
        ("returned here as result 1", "return %loss, %um"),
    )


def test_a_sum_of_different_gradients() -> None:
    check(
        refused(changed(("rank0", "(%u0, %t0, %u1, %t1)", "(%u0, %t0, %u1, %u1)"))),
        ("'hp.accumulate' op adds gradient of 'up' to gradient of 'tied'", "%u, %t ="),
    )


def test_owners_that_are_not_summed() -> None:
    for name, results in (("rank0", 2), ("rank1", 2)):
        text = changed((name, "%o, %int2", "%t, %int2"))
        other = 1 - int(name[-1])
        check(
            refused(text),
            (
                f"'torch.aten.div.Scalar' op result {results} of @{name} ('tied'): the gradient of 'tied' lacks the "
                f"part of stage {other}, which has one too",
                "%tm =",
            ),
            (f"returned here as result {results}", "return"),
        )


def test_owners_that_are_summed_twice() -> None:
    again = line_of("rank0", "%of =").replace("%of", "%pf").replace("(%t)", "(%o)")
    again += line_of("rank0", "%o =").replace("%o ", "%p ").replace("(%of)", "(%pf)")
    changes = [
        (name, line_of(name, "%tm ="), again + line_of(name, "%tm =").replace("%o", "%p"))
        for name in ("rank0", "rank1")
    ]
    errors = refused(changed(*changes))
    check(
        errors[:1],
        ("'hp.all_reduce' op adds gradient of 'tied' of microbatch 0, stage 0, twice", "%pf ="),
    )


def test_owners_of_different_parameters_summed() -> None:
    check(
        refused(changed(("rank0", '"hp.all_reduce"(%t)', '"hp.all_reduce"(%u)')))[:1],
        ("'hp.all_reduce' op adds gradient of 'tied' to gradient of 'up'", "%of ="),
    )


def test_the_mean_of_owners() -> None:
    text = PROGRAM.replace(
        'coordinates = array<i64: 0, 1>, reduce = "sum"', 'coordinates = array<i64: 0, 1>, reduce = "avg"'
    )
    check(
        refused(text),
        ("'hp.all_reduce' op takes the 'avg' of gradient of 'tied' over stages, expected 'sum'", "%of ="),
    )


def test_an_owner_that_returns_no_gradient() -> None:
    text = changed(
        ("rank0", "%um, %tm, %mean2 : !s, !w, !w, !w", "%um, %mean2 : !s, !w, !w"),
        ("rank0", '!w {hp.role = "grad", hp.fqn = ["tied", "again"]}, ', ""),
    )
    check(refused(text), ("'func.func' op @rank0 holds 'tied' but returns no gradient of it", "func.func @rank0"))


def test_division() -> None:
    """Once, by the number of microbatches, as the loss."""
    check(
        refused(changed(("rank0", "%um, %tm, %mean2", "%u, %tm, %mean2"))),
        (
            "'hp.accumulate' op result 1 of @rank0 ('up'): gradient of 'up' is not divided, expected it divided by "
            "hp.microbatches",
            "%u, %t =",
        ),
        ("returned here as result 1", "return"),
    )
    twice = line_of("rank0", "%um =")
    check(
        refused(changed(("rank0", twice, twice.replace("%um", "%v") + twice.replace("%u,", "%v,"))))[:1],
        ("'torch.aten.div.Scalar' op divides gradient of 'up' a second time", "%um ="),
    )
    check(
        refused(changed(("rank0", "%int2 = torch.constant.int 2", "%int2 = torch.constant.int 3")))[:1],
        (
            "'torch.aten.div.Scalar' op divides gradient of 'up' by 3, expected hp.microbatches = 2 or the weight",
            "%um =",
        ),
    )


def test_a_rank_without_the_loss() -> None:
    text = changed(("rank0", "return %loss", "return %zero"))
    check(
        refused(text),
        (
            "'torch.vtensor.literal' op result 0 of @rank0 ('loss'): expected the loss of the whole step, got: "
            "something else",
            "%zero =",
        ),
        ("returned here as result 0", "return"),
    )


def test_the_loss_from_the_wrong_root() -> None:
    errors = refused(PROGRAM.replace("root = 1", "root = 0"))
    assert [error[0].message.partition("op ")[2] for error in errors] == [
        f"result 0 of @rank{number} ('loss'): expected the loss of the whole step, got: something else"
        for number in (0, 1)
    ]


def test_a_loss_that_is_not_reduced() -> None:
    check(
        refused(changed(("rank1", '"hp.broadcast"(%r)', '"hp.broadcast"(%lm)'))),
        ("'hp.wait' op the loss is not reduced over axis 'dp'", "%loss ="),
        ("returned here as result 0", "return"),
    )


def test_gradients_reduced_in_the_stage_and_by_the_rank() -> None:
    again = """    %vf = "hp.all_reduce"(%u) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!w) -> !hp.future<[!w]>
    %v = "hp.wait"(%vf) : (!hp.future<[!w]>) -> !w
"""
    text = changed(("rank0", "    %um =", again + "    %um ="), ("rank0", "Scalar %u,", "Scalar %v,"))
    check(
        refused(text),
        ("'hp.all_reduce' op gradient of 'up' is reduced twice over axis 'dp'", "%vf ="),
        ("first reduced here", "%f1 ="),
    )


def test_a_gradient_that_nobody_reduces() -> None:
    text = changed(("stage0_backward", "return %g1, %g2", "return %1, %g2"))
    check(
        refused(text),
        ("'torch.aten.div.Scalar' op gradient of 'up' is not reduced over axis 'dp'", "%um ="),
        ("returned here as result 1", "return"),
    )


def test_a_gradient_reduced_by_the_rank_alone() -> None:
    """What hp-sink-reductions makes is as right."""
    again = """    %vf = "hp.all_reduce"(%u) {mesh = @mesh, axes = ["dp"], reduce = "avg"} : (!w) -> !hp.future<[!w]>
    %v = "hp.wait"(%vf) : (!hp.future<[!w]>) -> !w
"""
    text = changed(
        ("stage0_backward", "return %g1, %g2", "return %1, %g2"),
        ("rank0", "    %um =", again + "    %um ="),
        ("rank0", "Scalar %u,", "Scalar %v,"),
    )
    hpir.run_passes(parse_module(text), "hp-verify-level")


def test_functions_of_ranks() -> None:
    assert refused(PROGRAM.replace("func.func @evaluate1(", "func.func @evaluate2("))[0][0].message == (
        "'func.func' op @evaluate2: expected hp.kind = 'evaluate' and hp.coordinate = 2, got: 'evaluate', 1"
    )
    begin, end = function("evaluate1")
    assert refused(PROGRAM[:begin] + PROGRAM[end + 5 :])[0][0].message == (
        "position 1 of axis 'pp' has no function @evaluate1"
    )
    assert refused(PROGRAM.replace("func.func @evaluate1(", "func.func @other("))[0][0].message == (
        "'func.func' op @other is of no stage and no rank: expected @rank<i> or @evaluate<i>"
    )
    for old, new, message in (
        ('hp.schedule = "1f1b", ', "", "expected hp.schedule to be a string, got: nothing"),
        ("hp.microbatches = 2", "hp.microbatches = 0", "expected hp.microbatches >= 1, got: 0"),
        (
            "array<i64: 0, 1>}",
            "array<i64: 0, 2>}",
            "expected hp.placement to be a position < 2 on axis 'pp' for each of 2 stages, got: [0, 2]",
        ),
    ):
        assert refused(PROGRAM.replace(old, new, 1))[0][0].message == message


def test_more_ranks_than_positions() -> None:
    begin, end = function("evaluate1")
    third = (
        PROGRAM[begin : end + 5].replace("@evaluate1", "@evaluate2").replace("hp.coordinate = 1", "hp.coordinate = 2")
    )
    assert refused(f"{PROGRAM[: end + 5]}  {third}{PROGRAM[end + 5 :]}")[0][0].message == (
        "'func.func' op @evaluate2: axis 'pp' has 2 positions, got a function of 2"
    )


def test_a_call_of_no_stage_function() -> None:
    call = "    %q = func.call @evaluate1(%down, %tied, %y) : (!w, !w, !batch) -> !s\n"
    text = changed(("evaluate1", line_of("evaluate1", "%y1 ="), call + line_of("evaluate1", "%y1 =")))
    check(refused(text), ("'func.call' op calls @evaluate1, which is no stage function", "%q ="))


def test_a_new_buffer_that_is_not_returned() -> None:
    text = changed(
        ("rank0", "%um, %tm, %mean2 : !s, !w, !w, !w", "%um, %tm : !s, !w, !w"),
        ("rank0", ', !w {hp.role = "buffer", hp.fqn = ["mean"]})\n      attributes', ")\n      attributes"),
    )
    check(refused(text), ("'func.func' op @rank0 returns no new value of buffer 'mean'", "func.func @rank0"))


def test_a_gradient_that_is_returned_twice() -> None:
    gradient = '!w {hp.role = "grad", hp.fqn = ["up"]}'
    text = changed(
        ("rank0", "%um, %tm, %mean2 : !s, !w, !w, !w", "%um, %um, %tm, %mean2 : !s, !w, !w, !w, !w"),
        ("rank0", gradient, f"{gradient}, {gradient}"),
    )
    check(
        refused(text),
        ("'func.func' op result 2 of @rank0 ('up'): parameter 'up' has another gradient", "func.func @rank0"),
    )


def test_a_sum_of_divided_and_undivided_parts() -> None:
    accumulate = line_of("rank0", "%u, %t =")
    divide = "    %v0 = torch.aten.div.Scalar %u0, %int2 : !w, !torch.int -> !w\n"
    text = changed(("rank0", accumulate, divide + accumulate.replace("(%u0,", "(%v0,")))
    check(
        refused(text)[:1],
        (
            "'hp.accumulate' op adds parts of gradient of 'up' of which some were divided and some were not",
            "%u, %t =",
        ),
    )
