"""Plans: what they mean, the pipelines they ask for, and what is said of wrong ones."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpir.dialect.parsing import parse_module
from hpir.errors import PassError, PlanError
from hpir.ir_passes.pass_manager import expand_pipeline, run_passes
from hpir.ir_passes.pipeline_text import Place, parse_options, parse_pipeline, split_list
from hpir.mesh import Mesh
from hpir.plan import Plan

MIB_ABOVE_0 = "a number of MiB above 0, at most 1e9"
FULL = """
[mesh]
pp = 2
dp = 2
tp = 1
[data]
axes = ["dp"]
microbatches = 8
seed = 3
[fsdp]
axes = ["dp"]
replicate_axes = []
units = ["layers.*"]
ignore = []
reshard_after_forward = true
param_dtype = "bfloat16"
reduce_dtype = "float32"
[buckets]
by = "module"
cap_mb = 64
layout = "flat"
[overlap]
prefetch = 1
memory_limit_mb = 0
[pipeline]
axis = "pp"
schedule = "1f1b"
stages = "auto"
[[tensor]]
param = "layers.*.attn.wq.weight"
sharding = [["tp"], []]
"""

SIMPLE = {"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"]}}
PP2 = {"mesh": {"pp": 2}, "data": {"microbatches": 4}}


def test_every_section_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(FULL)
    plan = Plan.load(path)
    assert plan.mesh == {"pp": 2, "dp": 2, "tp": 1}
    assert (plan.data.microbatches, plan.data.seed) == (8, 3)
    assert plan.fsdp is not None
    assert (plan.fsdp.units, plan.fsdp.param_dtype, plan.fsdp.reduce_dtype) == (("layers.*",), "bfloat16", "float32")
    assert plan.buckets is not None
    assert (plan.buckets.by, plan.buckets.cap_mb, plan.buckets.layout) == ("module", 64, "flat")
    assert plan.overlap is not None
    assert (plan.overlap.prefetch, plan.overlap.memory_limit_mb) == (1, 0)
    assert plan.pipelining is not None
    assert (plan.pipelining.axis, plan.pipelining.schedule, plan.pipelining.stages) == ("pp", "1f1b", "auto")
    assert [(tensor.param, tensor.sharding) for tensor in plan.tensor] == [
        ("layers.*.attn.wq.weight", (("tp",), ())),
    ]
    assert plan.device_mesh() == Mesh(("pp", "dp", "tp"), (2, 2, 1))


def test_the_order_of_axes_is_the_meshs() -> None:
    assert list(Plan.model_validate({"mesh": {"z": 1, "a": 2, "m": 3}}).mesh) == ["z", "a", "m"]


def test_lists_of_groups() -> None:
    plan = Plan.model_validate(
        {"mesh": {"pp": 2}, "buckets": {"by": [["a", "b.*"], "c"]}, "pipeline": {"stages": [["a"], ["b", "c"]]}}
    )
    assert plan.buckets is not None
    assert plan.buckets.by == (("a", "b.*"), "c")
    assert plan.pipelining is not None
    assert plan.pipelining.stages == (("a",), ("b", "c"))


def test_a_plan_is_plain_data() -> None:
    plan = Plan.model_validate({**SIMPLE, "data": {"axes": ["dp"], "microbatches": 2}})
    assert Plan.model_validate(plan.model_dump(by_alias=True)) == plan
    assert Plan.model_validate(plan) is plan
    with pytest.raises(ValueError, match="frozen"):
        plan.mesh = {}


@pytest.mark.parametrize(
    ("plan", "data", "fsdp", "replicate"),
    [
        ({}, (), (), ()),
        ({"mesh": {"dp": 2}}, (), (), ()),
        ({"mesh": {"dp": 2}, "data": {"axes": ["dp"]}}, ("dp",), (), ("dp",)),
        (SIMPLE, ("dp",), ("dp",), ()),
        ({"mesh": {"dp": 2}, "data": {"axes": ["dp"]}, "fsdp": {"axes": []}}, ("dp",), (), ("dp",)),
        ({"mesh": {"dp": 2}, "data": {"axes": ["dp"]}, "fsdp": {}}, ("dp",), ("dp",), ()),
        # Left out, the data axes are those of [fsdp], in mesh order.
        (
            {"mesh": {"r": 2, "tp": 2, "dp": 2}, "fsdp": {"axes": ["dp"], "replicate_axes": ["r"]}},
            ("r", "dp"),
            ("dp",),
            ("r",),
        ),
        (
            {"mesh": {"r": 2, "dp": 2}, "fsdp": {"axes": [], "replicate_axes": ["dp", "r"]}},
            ("r", "dp"),
            (),
            ("r", "dp"),
        ),
        # Every data axis that does not split parameters replicates them.
        (
            {"mesh": {"r": 2, "dp": 2}, "data": {"axes": ["r", "dp"]}, "fsdp": {"axes": ["dp"]}},
            ("r", "dp"),
            ("dp",),
            ("r",),
        ),
        (
            {"mesh": {"r": 2, "dp": 2}, "data": {"axes": ["r", "dp"]}, "fsdp": {"replicate_axes": ["r"]}},
            ("r", "dp"),
            ("dp",),
            ("r",),
        ),
    ],
)
def test_axes(plan: dict[str, Any], data: tuple[str, ...], fsdp: tuple[str, ...], replicate: tuple[str, ...]) -> None:
    made = Plan.model_validate(plan)
    assert (made.data_axes, made.fsdp_axes, made.replicate_axes) == (data, fsdp, replicate)


@pytest.mark.parametrize(
    ("plan", "pipeline"),
    [
        ({}, "hp-simplify,hp-recompute,hp-verify-level"),
        ({"mesh": {"dp": 1}}, "hp-set-mesh{axes=dp:1},hp-simplify,hp-recompute,hp-verify-level"),
        (SIMPLE, "hp-set-mesh{axes=dp:2},hp-simplify,hp-recompute,hp-fsdp{axes=dp},hp-simplify,hp-verify-level"),
        (
            {"mesh": {"r": 2, "dp": 2}, "data": {"axes": ["r", "dp"]}},
            "hp-set-mesh{axes=r:2,dp:2},hp-simplify,hp-recompute,hp-fsdp{axes= replicate-axes=r,dp},hp-simplify,"
            "hp-verify-level",
        ),
        (
            {
                "mesh": {"r": 2, "dp": 2},
                "fsdp": {
                    "axes": ["dp"],
                    "replicate_axes": ["r"],
                    "units": ["layers.*", "odd name"],
                    "ignore": ["head"],
                    "reshard_after_forward": False,
                    "param_dtype": "bfloat16",
                    "reduce_dtype": "float32",
                },
            },
            "hp-set-mesh{axes=r:2,dp:2},hp-simplify,hp-recompute,"
            'hp-fsdp{axes=dp replicate-axes=r units=layers.*,"odd name" ignore=head reshard-after-forward=false '
            "param-dtype=bfloat16 reduce-dtype=float32},hp-simplify,hp-verify-level",
        ),
        ({"mesh": {"dp": 2}, "buckets": {}}, "hp-set-mesh{axes=dp:2},hp-simplify,hp-recompute,hp-verify-level"),
        (
            {**SIMPLE, "buckets": {}},
            "hp-set-mesh{axes=dp:2},hp-simplify,hp-recompute,hp-fsdp{axes=dp},hp-simplify,"
            "hp-bucket-collectives{by=module},"
            "hp-expand-buckets{layout=flat},hp-verify-level",
        ),
        (
            {**SIMPLE, "buckets": {"by": "size", "cap_mb": 2.5, "layout": "packed"}},
            "hp-set-mesh{axes=dp:2},hp-simplify,hp-recompute,hp-fsdp{axes=dp},hp-simplify,"
            "hp-bucket-collectives{by=size cap-mb=2.5},hp-expand-buckets{layout=packed},hp-verify-level",
        ),
        (
            {**SIMPLE, "buckets": {"by": [["layers.0", "odd name"], "head", ["it's"]]}},
            "hp-set-mesh{axes=dp:2},hp-simplify,hp-recompute,hp-fsdp{axes=dp},hp-simplify,"
            'hp-bucket-collectives{by=[layers.0,"odd name"],[head],[{"it\'s"}]},hp-expand-buckets{layout=flat},'
            "hp-verify-level",
        ),
        (
            {**SIMPLE, "overlap": {}},
            "hp-set-mesh{axes=dp:2},hp-simplify,hp-recompute,hp-fsdp{axes=dp},hp-simplify,"
            "hp-overlap-collectives,hp-verify-level",
        ),
        (
            {**SIMPLE, "overlap": {"prefetch": 2, "memory_limit_mb": 0.5, "costs": "my costs.toml"}},
            "hp-set-mesh{axes=dp:2},hp-simplify,hp-recompute,hp-fsdp{axes=dp},hp-simplify,"
            'hp-overlap-collectives{prefetch=2 memory-limit-mb=0.5 costs="my costs.toml"},hp-verify-level',
        ),
        # Nothing communicates: nothing overlaps.
        ({"overlap": {}}, "hp-simplify,hp-recompute,hp-verify-level"),
    ],
)
def test_pipelines(plan: dict[str, Any], pipeline: str) -> None:
    assert Plan.model_validate(plan).pipeline() == pipeline
    expand_pipeline(pipeline)  # every pass and option is known


def test_what_has_no_pass_is_refused() -> None:
    tensor = [{"param": "w", "sharding": [["tp"]]}]
    plan = Plan.model_validate({**SIMPLE, "mesh": {"tp": 2, "dp": 2}, "tensor": tensor})
    with pytest.raises(PlanError, match=r"^plan: tensor: this version has no pass for it$"):
        plan.pipeline()


@pytest.mark.parametrize(
    ("pipeline", "passes"),
    [
        ({}, "hp-assign-stages,hp-split-stages,hp-schedule-pipeline{schedule=1f1b microbatches=4}"),
        (
            {"schedule": "gpipe", "stages": [["embed", "layers.0"], "odd name"]},
            'hp-assign-stages{stages=[embed,layers.0],[{"odd name"}]},hp-split-stages,'
            "hp-schedule-pipeline{schedule=gpipe microbatches=4}",
        ),
        (
            {"schedule": "interleaved"},
            "hp-assign-stages{stages=4},hp-split-stages,hp-schedule-pipeline{schedule=interleaved microbatches=4}",
        ),
        (
            {"schedule": "interleaved", "stages_per_rank": 3},
            "hp-assign-stages{stages=6},hp-split-stages,hp-schedule-pipeline{schedule=interleaved microbatches=4}",
        ),
        (
            {"schedule": "zb-h1"},
            "hp-assign-stages,hp-split-stages{split-backward},hp-schedule-pipeline{schedule=zb-h1 microbatches=4}",
        ),
        (
            {"hoist_gathers": True, "sink_reductions": True},
            "hp-assign-stages,hp-split-stages,hp-schedule-pipeline{schedule=1f1b microbatches=4},hp-hoist-gathers,"
            "hp-sink-reductions",
        ),
        *(
            (
                {"schedule": schedule},
                "hp-assign-stages{stages=4},hp-split-stages{split-backward},"
                f"hp-schedule-pipeline{{schedule={schedule} microbatches=4}}",
            )
            for schedule in ("zb-v", "dualpipe-v")
        ),
    ],
)
def test_pipelines_of_stages(pipeline: dict[str, Any], passes: str) -> None:
    asked = Plan.model_validate({**PP2, "pipeline": pipeline}).pipeline()
    assert asked == f"hp-set-mesh{{axes=pp:2}},hp-simplify,hp-recompute,{passes},hp-verify-level"
    expand_pipeline(asked)


def test_collectives_are_fused_and_ordered_within_stage_functions() -> None:
    mesh = {"stage": 2, "dp": 2}
    plan = {**SIMPLE, "mesh": mesh, "buckets": {}, "overlap": {}, "pipeline": {"axis": "stage"}}
    assert Plan.model_validate(plan).pipeline() == (
        "hp-set-mesh{axes=stage:2,dp:2},hp-simplify,hp-recompute,hp-fsdp{axes=dp},hp-simplify,"
        "hp-assign-stages{axis=stage},hp-split-stages,hp-bucket-collectives{by=module},hp-expand-buckets{layout=flat},"
        "hp-overlap-collectives,hp-schedule-pipeline{schedule=1f1b microbatches=1},hp-verify-level"
    )


@pytest.mark.parametrize(("actions", "split"), [("B", ""), ("I W", "{split-backward}")])
def test_a_table_lies_beside_the_plan_that_names_it(tmp_path: Path, actions: str, split: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[mesh]\npp = 2\n[pipeline]\ntable = 'order.txt'\n")
    orders = [" ".join(f"{kind}{stage}.0" for kind in ("F", *actions.split())) for stage in range(2)]
    (tmp_path / "order.txt").write_text("\n".join(orders))
    asked = Plan.load(path).pipeline()
    table = f"hp-schedule-pipeline{{table={tmp_path / 'order.txt'} microbatches=1}}"
    assert f"hp-assign-stages,hp-split-stages{split},{table}," in asked
    (tmp_path / "order.txt").write_text(orders[0])
    with pytest.raises(PlanError) as caught:
        Plan.load(path).pipeline()
    assert str(caught.value).startswith(f"{path}: pipeline.table: {tmp_path / 'order.txt'}: ")


def test_how_a_schedule_splits_is_part_of_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[mesh]\npp = 2\n[pipeline]\nschedule = 'zb-v'\n")
    module = parse_module("module {}")
    run_passes(module, "hp-set-mesh{axes=pp:2}")
    with pytest.raises(PassError, match="expected one step function, got: 0"):
        run_passes(module, f"hp-assign-stages{{plan={path}}}")
    path.write_text("[mesh]\npp = 2\n")
    with pytest.raises(PassError, match=f"hp-assign-stages: {path}: the plan has no section 'pipeline'"):
        run_passes(module, f"hp-assign-stages{{plan={path}}}")


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ([], "plan: expected a table, got: []"),
        ({"mehs": {}}, "plan: mehs: unknown key, did you mean 'mesh'?"),
        ({"xyz": {}}, "plan: xyz: unknown key (keys: mesh, data, fsdp, buckets, overlap, pipeline, tensor)"),
        ({3: {}}, "plan: 3: unknown key (keys: mesh, data, fsdp, buckets, overlap, pipeline, tensor)"),
        ({"mesh": 2}, "plan: mesh: expected a table, got: 2"),
        ({"mesh": {"dp": "2"}}, "plan: mesh.dp: expected an integer, got: '2'"),
        ({"mesh": {"dp": True}}, "plan: mesh.dp: expected an integer, got: true"),
        ({"mesh": {"dp": 2.0}}, "plan: mesh.dp: expected an integer, got: 2.0"),
        ({"mesh": {"dp": 0}}, "plan: mesh.dp: expected a size of at least 1, got: 0"),
        ({"mesh": {"d p": 1}}, "plan: mesh: expected axis names of letters, digits and underscores, got: 'd p'"),
        ({"mesh": {"": 1}}, "plan: mesh: expected axis names of letters, digits and underscores, got: ''"),
        ({"data": {"axes": ["dp"]}}, "plan: data.axes: the mesh has no axis 'dp' (axes: none)"),
        (
            {"mesh": {"dp": 2}, "data": {"axes": ["dq"]}},
            "plan: data.axes: the mesh has no axis 'dq', did you mean 'dp'?",
        ),
        ({"mesh": {"dp": 2}, "data": {"axes": ["dp", "dp"]}}, "plan: data.axes: axis 'dp' is named twice"),
        ({"mesh": {"dp": 2}, "data": {"axes": "dp"}}, "plan: data.axes: expected a list of mesh axes, got: 'dp'"),
        ({"data": {"axes": [1]}}, "plan: data.axes[0]: expected text, got: 1"),
        ({"data": {"microbatches": 0}}, "plan: data.microbatches: expected an integer, at least 1, got: 0"),
        ({"data": {"seed": -1}}, "plan: data.seed: expected an integer, at least 0, got: -1"),
        ({"data": {"microbatch": 2}}, "plan: data.microbatch: unknown key, did you mean 'microbatches'?"),
        ({"fsdp": {"axs": []}}, "plan: fsdp.axs: unknown key, did you mean 'axes'?"),
        ({"fsdp": 1}, "plan: fsdp: expected a table, got: 1"),
        ({"fsdp": {}}, "plan: fsdp.axes: missing, expected a list of mesh axes ([] for plain data parallel)"),
        (
            {"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"], "replicate_axes": ["dp"]}},
            "plan: fsdp.replicate_axes: axis 'dp' is in fsdp.axes already",
        ),
        (
            {"mesh": {"dp": 2, "ep": 2}, "data": {"axes": ["dp"]}, "fsdp": {"axes": ["ep"]}},
            "plan: fsdp.axes: axis 'ep' is not in data.axes (dp)",
        ),
        (
            {**SIMPLE, "fsdp": {"axes": ["dp"], "param_dtype": "bfloat"}},
            "plan: fsdp.param_dtype: expected a floating dtype such as 'bfloat16', got: 'bfloat', "
            "did you mean 'bfloat16'",
        ),
        (
            {"fsdp": {"axes": [], "param_dtype": "bfloat16"}},
            "plan: fsdp.param_dtype: needs a data axis; for one rank, name a mesh axis of size 1 in fsdp.axes",
        ),
        (
            {**SIMPLE, "fsdp": {"axes": ["dp"], "reshard_after_forward": "no"}},
            "plan: fsdp.reshard_after_forward: expected true or false, got: 'no'",
        ),
        (
            {"buckets": {"by": "modules"}},
            "plan: buckets.by: expected 'module', 'size' or a list of module patterns per bucket, got: 'modules', "
            "did you mean 'module'?",
        ),
        *(
            ({"buckets": {"cap_mb": value}}, f"plan: buckets.cap_mb: expected {MIB_ABOVE_0}, got: {value}")
            for value in (0, -1, 1e10, 1e308, math.inf, math.nan)
        ),
        ({"overlap": {"prefetch": -1}}, "plan: overlap.prefetch: expected an integer, at least 0, got: -1"),
        *(
            (
                {"overlap": {"memory_limit_mb": value}},
                "plan: overlap.memory_limit_mb: expected a number of MiB, at most 1e9, or 0 for no limit, "
                f"got: {value}",
            )
            for value in (-1, 1e10, 1e308, math.inf, math.nan)
        ),
        ({"overlap": {"costs": ""}}, "plan: overlap.costs: expected a path of a TOML file, got: ''"),
        ({"overlap": {"costs": " "}}, "plan: overlap.costs: expected a path of a TOML file, got: ' '"),
        ({"overlap": {"costs": 1}}, "plan: overlap.costs: expected a path of a TOML file, got: 1"),
        (
            {"overlap": {"costs": "'\""}},
            "plan: overlap.costs: a path cannot hold both kinds of quotes, got: '\"",
        ),
        (
            {"mesh": {"pp": 2}, "pipeline": {"schedule": "gpip"}},
            "plan: pipeline.schedule: expected a schedule such as '1f1b', got: 'gpip', did you mean 'gpipe'?",
        ),
        ({"pipeline": {}}, "plan: pipeline.axis: the mesh has no axis 'pp' (axes: none)"),
        (
            {"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"]}, "pipeline": {"axis": "dp"}},
            "plan: pipeline.axis: axis 'dp' is a data axis already",
        ),
        (
            {**PP2, "pipeline": {"stages": [["a"], ["b"], ["c"]]}},
            "plan: pipeline.stages: schedule '1f1b' on 2 ranks needs 2 stages, one per rank, got 3",
        ),
        (
            {**PP2, "pipeline": {"schedule": "zb-v", "stages_per_rank": 3}},
            "plan: pipeline.stages_per_rank: schedule 'zb-v' on 2 ranks needs 4 stages, two per rank, got 6; 6 stages "
            "work with 'interleaved'",
        ),
        (
            {**PP2, "pipeline": {"hoist_gathers": True}, "overlap": {"memory_limit_mb": 64}},
            "plan: pipeline.hoist_gathers: keeps all gathered parameters of a stage at once, which "
            "overlap.memory_limit_mb cannot limit; leave out one of them",
        ),
        (
            {**PP2, "pipeline": {"schedule": "interleaved", "stages": ["a", "b"], "stages_per_rank": 2}},
            "plan: pipeline.stages_per_rank: 2 stages are listed for 2 ranks",
        ),
        (
            {**PP2, "pipeline": {"stages": [["a"], []]}},
            "plan: pipeline.stages: expected a list of modules per stage, got an empty one for stage 1",
        ),
        (
            {**PP2, "pipeline": {"stages": [["a", "b"], ["b"]]}},
            "plan: pipeline.stages: module 'b' is in two lists, those of stages 0 and 1",
        ),
        (
            {**PP2, "pipeline": {"stages": [["a"], [""]]}},
            "plan: pipeline.stages: expected patterns of module or parameter names, got an empty one",
        ),
        ({**PP2, "pipeline": {"table": "'\""}}, "plan: pipeline.table: a path cannot hold both kinds of quotes"),
        (
            {**PP2, "pipeline": {"table": ""}},
            "plan: pipeline.table: expected a path of a file with the actions of each",
        ),
        ({"tensor": {}}, "plan: tensor: expected a list of tables, got: {}"),
        ({"tensor": [{"param": "w"}]}, "plan: tensor[0].sharding: missing, expected a list of mesh axes per dim"),
        (
            {"mesh": {"tp": 2}, "tensor": [{"param": "w", "sharding": [["tp"], ["tp"]]}]},
            "plan: tensor[0].sharding: axis 'tp' is named twice",
        ),
        (
            {"tensor": [{"param": "w", "shard": []}]},
            "plan: tensor[0].sharding: missing, expected a list of mesh axes per",
        ),
    ],
)
def test_mistakes(plan: Any, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.model_validate(plan)
    assert str(caught.value).splitlines()[0].startswith(message)
    assert "pydantic" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_all_mistakes_are_told() -> None:
    with pytest.raises(PlanError) as caught:
        Plan(mesh={"dp": "two"}, data={"microbatches": 0})
    assert str(caught.value).splitlines() == [
        "plan: mesh.dp: expected an integer, got: 'two'",
        "plan: data.microbatches: expected an integer, at least 1, got: 0",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[mesh]\ndp = \n", "{path}:2:6: invalid value"),
        (b"[mesh", "{path}: expected ']' at the end of a table declaration at the end of the file"),
        (b"[mesh]\ndp = 1\ndp = 2\n", "{path}:3:7: cannot overwrite a value"),
        (b"\xff", "{path}: expected TOML, got bytes that are no UTF-8 text"),
        (
            b"[mesh]\ndp = 2\n[fsdp]\naxes = ['dq']\n",
            "{path}: fsdp.axes: the mesh has no axis 'dq', did you mean 'dp'?",
        ),
        (
            b"[mesh]\ndp = 0\n[data]\nseed = -1\n",
            "{path}: data.seed: expected an integer, at least 0, got: -1",
        ),
        (
            b"[mesh]\ndp = 0\npp = -1\n",
            "{path}: mesh.dp: expected a size of at least 1, got: 0\n"
            "{path}: mesh.pp: expected a size of at least 1, got: -1",
        ),
    ],
)
def test_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(content)
    with pytest.raises(PlanError) as caught:
        Plan.load(path)
    assert str(caught.value) == message.format(path=path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none.toml: cannot read plan: no such file or directory$"):
        Plan.load(tmp_path / "none.toml")
    with pytest.raises(PlanError, match=r": cannot read plan: is a directory$"):
        Plan.load(str(tmp_path))


def test_a_file_is_named_by_what_its_pipeline_lacks(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[mesh]\ntp = 2\n[[tensor]]\nparam = 'w'\nsharding = [['tp']]\n")
    with pytest.raises(PlanError) as caught:
        Plan.load(path).pipeline()
    assert str(caught.value) == f"{path}: tensor: this version has no pass for it"


def test_costs_lie_beside_the_plan_that_names_them(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[mesh]\ndp = 2\n[fsdp]\naxes = ['dp']\n[overlap]\ncosts = 'costs.toml'\n")
    assert f"hp-overlap-collectives{{costs={tmp_path / 'costs.toml'}}}" in Plan.load(path).pipeline()
    path.write_text("[mesh]\ndp = 2\n[fsdp]\naxes = ['dp']\n[overlap]\ncosts = '/etc/costs.toml'\n")
    assert "{costs=/etc/costs.toml}" in Plan.load(path).pipeline()


def test_hp_plan_from_python(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[mesh]\ndp = 2\n")
    expanded = expand_pipeline(f"cse,hp-plan{{file='{path}'}}")
    assert [step.name for step in expanded] == ["cse", "hp-set-mesh", "hp-simplify", "hp-recompute", "hp-verify-level"]
    module = parse_module("module {}")
    with pytest.raises(PlanError, match=r"none.toml: cannot read plan"):
        run_passes(module, f"hp-plan{{file={tmp_path / 'none.toml'}}}")
    assert "hp.mesh" not in str(module)


def test_a_plan_needs_neither_torch_nor_mlir() -> None:
    code = (
        "import sys; from hpir.plan import Plan; Plan.model_validate({'mesh': {'dp': 2}});"
        "assert not {'torch', 'torch_mlir'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("pattern", ("[a", "a b", "a,b", "{a}", 'a"', "it's", "a]", "("))
@pytest.mark.parametrize("others", ([], ["layers.*"], ["odd, too"]))
def test_patterns_reach_the_pass_as_they_are_written(pattern: str, others: list[str]) -> None:
    plan = Plan.model_validate({"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"], "units": [pattern, *others]}})
    options = next(item.options for item in parse_pipeline(plan.pipeline()) if item.name == "hp-fsdp")
    text = next(option.value for option in parse_options(options, Place("", 1)) if option.key == "units")
    assert text is not None
    assert split_list(text) == (pattern, *others)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("", "got an empty one"), ("  ", "got an empty one"), ("a'\"", "a pattern cannot hold both kinds of quotes")],
)
@pytest.mark.parametrize("key", ("units", "ignore"))
def test_patterns_that_are_none_are_refused(key: str, pattern: str, message: str) -> None:
    with pytest.raises(PlanError, match=f"plan: fsdp.{key}: .*{message}"):
        Plan.model_validate({"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"], key: [pattern]}})
