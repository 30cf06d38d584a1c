"""hp-bucket-collectives on captured steps: launches, bits, plans as data, refusals, time.

Where buckets go is in filecheck/bucketing/*.mlir; random functions are in test_bucketing_random.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_case import run_ranks
from exports import captured
from language_model import LanguageModel, next_token_loss
from large_step import large_step
from models import BY_NAME, CASES
from torch.distributed.tensor import DTensor
from torch_mlir import ir

import hpir
from hpir.dialect.attributes import read_strings
from hpir.dialect.context import make_context
from hpir.dialect.diagnostics import collect
from hpir.dialect.signature import body_of, step_functions
from hpir.ir_passes.bucketing.bucket_collectives import HpBucketCollectives
from hpir.ir_passes.bucketing.bucket_plan import BucketPlan, load_plans, plans_from_json, plans_to_json
from hpir.ir_passes.bucketing.collectives import KINDS, FunctionOps
from hpir.ir_passes.bucketing.order import Order
from hpir.ir_passes.bucketing.planner import plan_function
from hpir.ir_passes.bucketing.scopes import Groups, by_module
from hpir.lowering.to_program import to_program

STARTS = {f"hp.{kind}" for kind in KINDS}


def ops_of(module: ir.Operation) -> Iterator[ir.Operation]:
    (function,) = step_functions(module)
    for view in body_of(function).operations:
        yield view.operation


def sharded(name: str, mesh: str, options: str, dtype: torch.dtype = torch.float64) -> ir.Operation:
    case = BY_NAME[name]
    units = f" units={','.join(case.units)}" if case.units else ""
    ignore = f" ignore={','.join(case.ignore)}" if case.ignore else ""
    module = captured(name, 2, dtype).module.operation
    pipeline = f"hp-set-mesh{{axes={mesh}}},hp-simplify,hp-fsdp{{{options}{units}{ignore}}},hp-simplify"
    return hpir.run_passes(module, pipeline)


def plan_of(module: ir.Operation) -> BucketPlan:
    (function,) = step_functions(module)
    return plan_function(FunctionOps(function), by_module).plan


# Launches.


@pytest.mark.parametrize(("options", "per_unit"), [("", 3), (" reshard-after-forward=false", 2)])
def test_launches_per_unit_of_a_language_model(options: str, per_unit: int) -> None:
    torch.manual_seed(0)
    model = LanguageModel(vocab=32, dim=16, layers=8, heads=2, length=8)
    batch = {name: torch.randint(0, 32, (2, 8)) for name in ("ids", "labels")}
    module = hpir.export(model, next_token_loss, batch).module.operation
    hpir.run_passes(
        module, f"hp-set-mesh{{axes=dp:2}},hp-simplify,hp-fsdp{{axes=dp units=layers.*{options}}},hp-simplify"
    )
    before = sum(op.name in STARTS for op in ops_of(module))
    hpir.run_passes(module, "hp-bucket-collectives,hp-verify-level")
    launches = Counter(op.attributes["hp.unit"].value for op in ops_of(module) if op.name in STARTS)
    assert launches == {"": per_unit, **{f"layers.{number}": per_unit for number in range(8)}}
    assert before > 8 * sum(launches.values())


def test_remarks_say_what_was_fused_and_what_was_not() -> None:
    module = sharded("tied", "dp:3", "axes=dp")
    with collect() as remarks:
        hpir.run_passes(module, "hp-bucket-collectives")
    plan = plan_of(sharded("tied", "dp:3", "axes=dp"))
    texts = [str(remark) for remark in remarks]
    assert sum("is bucket 'layers.0'" in text for text in texts) == 3
    summary = f"launches: {plan.launches} before, {plan.launches_after} after; buckets: {len(plan.buckets)}, of "
    assert sum(f"{summary}{plan.bytes} bytes and {plan.padding} bytes of padding" in text for text in texts) == 1
    assert plan.padding > 0
    assert plan.launches_after == sum(op.name in STARTS for op in ops_of(module))


# Numbers: the simulator reduces each tensor by itself, so all-reduces are compared bit by bit as well.

MESHES = {
    "dp2": ("dp:2", "axes=dp", 2),
    "dp2_keep": ("dp:2", "axes=dp reshard-after-forward=false", 2),
    "dp3": ("dp:3", "axes=dp", 3),
    "dp4": ("dp:4", "axes=dp reduce-dtype=float32", 4),
    "hsdp2x2": ("rep:2,dp:2", "axes=dp replicate-axes=rep", 4),
    "ddp2": ("dp:2", "replicate-axes=dp", 2),
}


def scopes(name: str) -> list[str]:
    names = [info for plan in plan_of(sharded(name, "dp:2", "axes=dp")).buckets for info in plan.members]
    first = names[0].parameters[0] if names else next(iter(captured(name, 2).state))
    rest = sorted({member.parameters[0] for member in names} - {first})
    groups = f"by=[{first},{rest[-1]}]" if rest else f"by=[{first}]"
    return ["by=module", "by=size cap-mb=0.0005", "by=size", groups]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_a_step_keeps_its_bits(name: str, mesh: str) -> None:
    axes, options, ranks = MESHES[mesh]
    case, state = BY_NAME[name], captured(name, 2).state
    batch = case.data(2 * ranks, torch.float64)
    module = sharded(name, axes, options)
    expected = hpir.simulate(to_program(module.clone()), state, batch, check_types=True)
    for scope in scopes(name):
        fused = hpir.run_passes(module.clone(), f"hp-bucket-collectives{{{scope}}},hp-verify-level,hp-simplify")
        result = hpir.simulate(to_program(fused), state, batch, check_types=True)
        assert torch.equal(expected.loss, result.loss), scope
        assert set(expected.grads) == set(result.grads)
        for key, gradient in expected.grads.items():
            assert torch.equal(gradient, result.grads[key]), (scope, key)
        for key, buffer in expected.buffers.items():
            assert torch.equal(buffer, result.buffers[key]), (scope, key)


def train(rank: int, names: list[str], axes: list[str], by: Any) -> dict[str, Any]:
    """Run a step of each model with and without buckets on this rank; return losses and gradients of both."""
    found: dict[str, Any] = {}
    for name in names:
        case = BY_NAME[name]
        batch = {key: leaf.chunk(2)[rank] for key, leaf in case.data(4, torch.float32).items()}
        for buckets in (None, {"by": by, "cap_mb": 0.0005}):
            model = case.model(torch.float32)
            plan: dict[str, Any] = {
                "mesh": {"dp": 2},
                "data": {"axes": ["dp"]},
                "fsdp": {"axes": axes, "units": list(case.units), "ignore": list(case.ignore)},
            }
            if buckets is not None:
                plan["buckets"] = buckets
            step = hpir.compile(model, case.train, batch, plan=plan, batch_dims=case.batch_dims)
            loss = step(**batch)
            grads = {
                key: parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
                for key, parameter in model.named_parameters()
                if parameter.grad is not None
            }
            launches = sum(op.target in STARTS for each in step.program.functions.values() for op in each.ops)
            found.setdefault(name, []).append((loss.clone(), grads, launches))
    return found


@pytest.mark.one_in(5)
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("axes", "by"), [(["dp"], "module"), (["dp"], "size"), ([], "module")], ids=str)
def test_a_step_on_two_processes_keeps_its_bits(axes: list[str], by: Any) -> None:
    names = ["tied", "uneven", "rotary", "adapters", "convnet"]
    for results in run_ranks(train, 2, names, axes, by, timeout=200):
        for name in names:
            (loss, grads, launches), (fused_loss, fused_grads, fused_launches) = results[name]
            assert fused_launches < launches, name
            assert torch.equal(loss, fused_loss), name
            assert grads.keys() == fused_grads.keys()
            for key, gradient in grads.items():
                assert torch.equal(gradient, fused_grads[key]), (name, key)


# Plans as data.


def test_a_plan_survives_json() -> None:
    plan = plan_of(sharded("rotary", "dp:2", "axes=dp"))
    assert plan.buckets
    assert plans_from_json(plans_to_json([plan])) == (plan,)
    assert json.loads(plans_to_json([plan, plan]))["functions"][0]["function"] == "joint"


def test_a_plan_is_the_same_for_the_same_function_only() -> None:
    plans = [plan_of(sharded("uneven", "dp:2", "axes=dp")) for _ in range(2)]
    assert plans[0] == plans[1]
    others = [
        plan_of(sharded("uneven", "dp:3", "axes=dp")),
        plan_of(sharded("uneven", "dp:2", "axes=dp", torch.float32)),
        plan_of(hpir.run_passes(sharded("uneven", "dp:2", "axes=dp"), "hp-bucket-collectives")),
    ]
    assert len({plan.fingerprint for plan in [plans[0], *others]}) == 4


STORED = [
    ("", "expected a bucket plan in JSON: expecting value"),
    ("[]", "expected a bucket plan, which has a 'schema_version'"),
    ('{"schema_version": 9}', "expected a bucket plan of schema version 1, got: 9"),
    ('{"schema_version": true}', "expected a bucket plan of schema version 1, got: True"),
    (r'{"schema_version": 1, "functions": ["\ud800"]}', r"expected a bucket plan, got half a character: '\\ud800'"),
    ('{"schema_version": 1}', "key 'functions' is missing"),
    ('{"schema_version": 1, "functions": [], "x": 1}', "unknown key 'x'"),
    ('{"schema_version": 1, "functions": {}}', "functions: expected a list, got: {}"),
    ('{"schema_version": 1, "functions": [1]}', r"functions\[0\]: expected an object, got: 1"),
    (
        '{"schema_version": 1, "functions": [{"functon": ""}]}',
        r"functions\[0\]: unknown key 'functon', did you mean 'function'\?",
    ),
]


@pytest.mark.parametrize(("text", "message"), STORED)
def test_what_is_no_plan_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(hpir.PassError, match=f"plan.json: {message}"):
        load_plans(path)
    path.write_bytes(b"\xff")
    with pytest.raises(hpir.PassError, match="expected a bucket plan, got bytes that are no UTF-8 text"):
        load_plans(path)
    with pytest.raises(hpir.PassError, match="cannot read bucket plan: no such file or directory"):
        load_plans(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("name", "", r"functions\[0\].buckets\[0\].name: expected a text, got: \"\""),
        ("axes", [], r"functions\[0\].buckets\[0\].axes: expected names, got: \[\]"),
        ("axes", [1], r"functions\[0\].buckets\[0\].axes: expected names, got: \[1\]"),
        ("members", [], r"functions\[0\].buckets\[0\]: expected at least two members, got: 0"),
        ("collective", -1, r"members\[0\].collective: expected an integer, at least 0, got: -1"),
        ("bytes", True, r"members\[0\].bytes: expected an integer, at least 0, got: true"),
        ("functions", 2, "functions: '@joint' has two plans"),
    ],
)
def test_what_is_wrong_in_a_plan_is_named(key: str, value: Any, message: str) -> None:
    data = json.loads(plans_to_json([plan_of(sharded("uneven", "dp:2", "axes=dp"))]))
    bucket = data["functions"][0]["buckets"][0]
    if key == "functions":
        data["functions"] *= value
    else:
        (bucket if key in bucket else bucket["members"][0])[key] = value
    with pytest.raises(hpir.PassError, match=message):
        plans_from_json(json.dumps(data))


CHAIN = """module attributes {hp.level = "spmd"} {
  "hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, sym_name = "mesh"} : () -> ()
  func.func @joint(%a: !torch.vtensor<[2],f32>, %b: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {
    %0 = "hp.all_reduce"(%a) {axes = ["dp"], mesh = @mesh, reduce = "sum", hp.fqn = ["a"]}
        : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %1 = "hp.all_reduce"(%b) {axes = ["dp"], mesh = @mesh, reduce = "sum", hp.fqn = ["b"]}
        : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %2 = "hp.wait"(%0) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    %3 = torch.aten.sin %2 : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
    %4 = "hp.all_reduce"(%3) {axes = ["dp"], mesh = @mesh, reduce = "sum", hp.fqn = ["c"]}
        : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[2],f32>]>
    %5 = "hp.wait"(%1) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    %6 = "hp.wait"(%4) : (!hp.future<[!torch.vtensor<[2],f32>]>) -> !torch.vtensor<[2],f32>
    return %6 : !torch.vtensor<[2],f32>
  }
}
"""


def test_a_plan_that_has_no_place_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with make_context():
        module = ir.Module.parse(CHAIN)
    data = json.loads(plans_to_json([plan_of(module.operation)]))
    path = tmp_path / "plan.json"
    members = data["functions"][0]["buckets"][0]["members"]
    assert [member["parameters"] for member in members] == [["a"], ["b"]]
    members[1] |= {"collective": 2, "parameters": ["c"]}
    path.write_text(json.dumps(data))
    before = str(module)
    with pytest.raises(hpir.PassError) as caught:
        hpir.run_passes(module, f"hp-bucket-collectives{{plan={path}}}")
    assert "'hp.all_reduce' op cannot join bucket 'root': a result is used before the last input is there" in str(
        caught.value
    )
    assert str(caught.value).count("note: here") == 1
    assert str(module) == before
    # Moved to the other bucket, a member is where the file says.
    members[1] |= {"collective": 1, "parameters": ["b"]}
    members.reverse()
    path.write_text(json.dumps(data))
    hpir.run_passes(module, f"hp-bucket-collectives{{plan={path}}}")
    fused = [read_strings(op.attributes["hp.fqn"]) for op in ops_of(module.operation) if op.name == "hp.all_reduce"]
    assert fused == [("a", "b"), ("c",)]


@pytest.mark.parametrize(
    "options", ("by=[nothing]", "by=[up],[up.weight]", "plan=none.json", "by=layers,up", "by=[up,mid],[*]")
)
def test_a_refused_module_is_left_as_it_was(options: str) -> None:
    module = sharded("uneven", "dp:2", "axes=dp")
    before = str(module)
    with pytest.raises(hpir.PassError, match="hp-bucket-collectives"):
        hpir.run_passes(module, f"hp-bucket-collectives{{{options}}}")
    assert str(module) == before


def test_running_it_again_changes_nothing() -> None:
    module = hpir.run_passes(sharded("image_text", "dp:2", "axes=dp"), "hp-bucket-collectives")
    before = str(module)
    assert str(hpir.run_passes(module, "hp-bucket-collectives")) == before


@pytest.mark.parametrize(
    ("texts", "patterns"),
    [
        (("a",), (("a",),)),
        (("[a,b.*]", "c"), (("a", "b.*"), ("c",))),
        (('["odd name"]', "[ab]*.c"), (("odd name",), ("[ab]*.c",))),
    ],
)
def test_groups_are_read_as_they_are_spelled(texts: tuple[str, ...], patterns: tuple[tuple[str, ...], ...]) -> None:
    assert Groups.parse(texts).patterns == patterns


def test_a_tensor_of_many_types_is_more_than_one_op_takes() -> None:
    types = [f"!torch.vtensor<[{size}],f32>" for size in range(1, 300)]
    lines = []
    for number, type_ in enumerate(types):
        lines.append(
            f'%f{number} = "hp.all_reduce"(%a{number}) {{axes = ["dp"], mesh = @mesh, reduce = "sum", '
            f'hp.fqn = ["p{number}"]}} : ({type_}) -> !hp.future<[{type_}]>'
        )
    lines += [f'%w{n} = "hp.wait"(%f{n}) : (!hp.future<[{type_}]>) -> {type_}' for n, type_ in enumerate(types)]
    arguments = ", ".join(f"%a{number}: {type_}" for number, type_ in enumerate(types))
    text = CHAIN.partition("  func.func")[0] + "  func.func @joint(%s) {\n%s\n    return\n  }\n}\n"
    with make_context():
        module = ir.Module.parse(text % (arguments, "\n".join(lines)))
    with collect() as remarks:
        hpir.run_passes(module, "hp-bucket-collectives")
    assert [len(op.operands) for op in ops_of(module.operation) if op.name == "hp.all_reduce"] == [256, 43]
    assert any("the bucket has tensors of 256 types, the most that one op takes" in str(said) for said in remarks)


def test_many_members_of_few_types_are_put_side_by_side() -> None:
    types = [f"!torch.vtensor<[{2 + number % 2}],f32>" for number in range(600)]
    lines = [
        f'%f{number} = "hp.all_reduce"(%a{number}) {{axes = ["dp"], mesh = @mesh, reduce = "sum", '
        f'hp.fqn = ["p{number}"]}} : ({type_}) -> !hp.future<[{type_}]>'
        for number, type_ in enumerate(types)
    ]
    lines += [f'%w{n} = "hp.wait"(%f{n}) : (!hp.future<[{type_}]>) -> {type_}' for n, type_ in enumerate(types)]
    arguments = ", ".join(f"%a{number}: {type_}" for number, type_ in enumerate(types))
    text = CHAIN.partition("  func.func")[0] + "  func.func @joint(%s) {\n%s\n    return\n  }\n}\n"
    with make_context():
        module = ir.Module.parse(text % (arguments, "\n".join(lines)))
    hpir.run_passes(module, "hp-bucket-collectives")
    (bucket,) = [op for op in ops_of(module.operation) if op.name == "hp.all_reduce"]
    names = read_strings(bucket.attributes["hp.fqn"]) or ()
    assert names[:2] == ("p0", "p2") and names[-1] == "p599" and len(set(names)) == 600


# The order that plans are made in.


def test_numbers_can_be_moved_any_number_of_times() -> None:
    order = Order(6)
    expected = list(range(6))
    generator = torch.Generator().manual_seed(0)
    for step in range(3000):
        number, anchor, side = (int(torch.randint(0, size, (), generator=generator)) for size in (6, 6, 2))
        number, anchor = (number, anchor) if step % 3 else (step % 2, 5)  # over and over at one place
        if number == anchor:
            continue
        expected.remove(number)
        expected.insert(expected.index(anchor) + side, number)
        (order.move_after if side else order.move_before)(number, anchor)
        assert list(order) == expected
        assert sorted(expected, key=order.labels.__getitem__) == expected
        assert [order.previous(each) for each in expected] == [-1, *expected[:-1]]
    order.remove(expected[0])
    order.remove(expected[-1])
    assert list(order) == expected[1:-1]
    assert [number in order for number in expected] == [False, True, True, True, True, False]


# Time.


def seconds(layers: int) -> float:
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(large_step(layers, 22))
        hpir.run_passes(module, "hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp units=layers.*}")
        start = time.process_time()
        HpBucketCollectives().run(module.operation)
        return time.process_time() - start


def test_time_is_linear_in_ops() -> None:
    small = min(seconds(100) for _ in range(3))  # 5,000 ops
    assert seconds(1000) < 25 * small
