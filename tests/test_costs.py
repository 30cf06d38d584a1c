"""The cost model: files of rates, times of communication and of operators, and counts of operations."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hpir.costs import COLLECTIVE_KINDS, DEVICES, Costs, Link, traffic
from hpir.dialect.types import DTYPE_BYTES
from hpir.errors import PlanError
from hpir.operator_costs import is_free, item_bytes, moved_bytes, op_flops, plain_name
from hpir.runtime.operators import resolve, tensor_type
from hpir.runtime.program import TensorType

aten = torch.ops.aten

MEASURED = """
device = "cpu"
backend = "gloo"
[compute]
memory_bandwidth = 2e10
[compute.flops]
float32 = 4e10
[axes.dp]
latency = 1e-4
bandwidth = 1e9
[axes.dp.all_reduce]
latency = 3e-4
bandwidth = 5e8
[axes.replica]
latency = 5e-4
bandwidth = 2e9
"""


SECONDS = "a number of seconds from 0 to 3600"
BYTES = "a number of bytes per second from 1 to 1e21"


def load(tmp_path: Path, text: str) -> Costs:
    path = tmp_path / "costs.toml"
    path.write_text(text)
    return Costs.load(path)


def test_a_file_is_read_over_what_is_built_in(tmp_path: Path) -> None:
    costs = load(tmp_path, MEASURED)
    built_in = Costs.built_in("cpu")
    assert (costs.device, costs.backend) == ("cpu", "gloo")
    assert costs.compute.memory_bandwidth == 2e10
    assert costs.compute.op_overhead == built_in.compute.op_overhead
    assert costs.compute.flops == {**built_in.compute.flops, "float32": 4e10}
    assert costs.axes["dp"].link("all_reduce").latency == 3e-4
    assert costs.axis(["tp"], "all_gather").latency == built_in.links.latency


def test_a_saved_file_is_read_back(tmp_path: Path) -> None:
    costs = load(tmp_path, MEASURED + '["axes"."two words"]\nlatency = 1\nbandwidth = 1e20\n')
    costs.save(tmp_path / "saved.toml")
    assert Costs.load(tmp_path / "saved.toml") == costs


@pytest.mark.parametrize("device", DEVICES)
def test_built_in_rates(device: str) -> None:
    costs = Costs.built_in(device)
    assert costs.device == device
    assert costs.op_seconds(1e9, 0, "bfloat16") < 1
    assert Costs.built_in() == Costs.built_in("cuda")


def test_what_links_leave_out_is_that_of_the_table_around(tmp_path: Path) -> None:
    costs = load(
        tmp_path,
        """
        device = "cpu"
        [links]
        latency = 1
        [links.all_reduce]
        latency = 2
        [links.broadcast]
        bandwidth = 30
        [axes.dp.all_reduce]
        bandwidth = 40
        [axes.dp.p2p]
        latency = 5
        [axes.tp]
        latency = 6
        [axes.tp.broadcast]
        [axes.pp]
        """,
    )
    usual = Costs.built_in("cpu").links.bandwidth
    expected = {
        "dp": {"all_gather": (1, usual), "all_reduce": (2, 40), "broadcast": (1, 30), "p2p": (5, usual)},
        "tp": {"all_gather": (6, usual), "all_reduce": (6, usual), "broadcast": (6, 30), "p2p": (6, usual)},
        "pp": {"all_gather": (1, usual), "all_reduce": (2, usual), "broadcast": (1, 30), "p2p": (1, usual)},
    }
    expected["any other"] = expected["pp"]
    for axis, kinds in expected.items():
        for kind, (latency, bandwidth) in kinds.items():
            assert costs.axis([axis], kind) == Link(latency=latency, bandwidth=bandwidth), (axis, kind)
    costs.save(tmp_path / "saved.toml")
    assert Costs.load(tmp_path / "saved.toml") == costs


def test_collectives_send_what_ring_algorithms_do(tmp_path: Path) -> None:
    costs = load(tmp_path, MEASURED)
    assert costs.collective_seconds("all_gather", 4e6, 4, ["dp"]) == pytest.approx(1e-4 + 3e6 / 1e9)
    assert costs.collective_seconds("hp.reduce_scatter", 4e6, 4, ["dp"]) == pytest.approx(1e-4 + 3e6 / 1e9)
    assert costs.collective_seconds("all_reduce", 4e6, 4, ["dp"]) == pytest.approx(3e-4 + 6e6 / 5e8)
    assert costs.collective_seconds("broadcast", 4e6, 4, ["dp"]) == pytest.approx(1e-4 + 4e6 / 1e9)
    assert costs.p2p_seconds(1e6, "dp") == pytest.approx(1e-4 + 1e6 / 1e9)
    for kind in COLLECTIVE_KINDS:
        assert traffic(kind, 100, 1) == costs.collective_seconds(kind, 100, 1, ["dp"]) == 0


def test_over_several_axes_the_slowest_counts(tmp_path: Path) -> None:
    costs = load(tmp_path, MEASURED)
    link = costs.axis(["replica", "dp"], "all_gather")
    assert (link.latency, link.bandwidth) == (5e-4, 1e9)


def test_operators_take_the_longer_of_their_bounds(tmp_path: Path) -> None:
    costs = load(tmp_path, MEASURED)
    overhead = costs.compute.op_overhead
    small, big = TensorType((8, 8), "float32"), TensorType((1024, 1024), "float32")
    assert costs.estimate("aten.mm.default", [big, big], [big]) == pytest.approx(overhead + 2 * 1024**3 / 4e10)
    assert costs.estimate("torch.aten.add.Tensor", [big, big], [big]) == pytest.approx(overhead + 12 * 1024**2 / 2e10)
    assert costs.estimate("aten.mm.default", [small, small], [small]) < 2 * overhead
    assert costs.estimate("aten.t.default", [big], [big]) == costs.estimate("torch.constant.int", [], []) == 0


def test_a_dtype_without_a_rate_has_the_nearest_one(tmp_path: Path) -> None:
    costs = load(tmp_path, MEASURED)
    rates = costs.compute.flops
    assert costs.flop_rate("complex64") == costs.flop_rate("int32") == rates["float32"]
    assert costs.flop_rate("complex128") == costs.flop_rate("int64") == rates["float64"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[axes.dp]\nlatency = 1\nbandwith = 1", "axes.dp.bandwith: unknown key, did you mean 'bandwidth'?"),
        (
            "[compute.flops]\nfloat3 = 1e9",
            "compute.flops.float3: no dtype is named 'float3', did you mean 'float32' or 'float64' or 'float16'?",
        ),
        ("[compute.flops]\nq = 1e9", f"compute.flops.q: no dtype is named 'q' (dtypes: {', '.join(DTYPE_BYTES)})"),
        ("[axes.dp.p2p]\nlatncy = 1", "axes.dp.p2p.latncy: unknown key, did you mean 'latency'?"),
        ("[axes.dp]\np2p = 1", "axes.dp.p2p: expected a table, got: 1"),
        ("[axes]\ndp = 1", "axes.dp: expected a table, got: 1"),
        ("links = 1\n[axes.dp]", "links: expected a table, got: 1"),
        ("[links]\nall_reduce = 1\n[axes.dp.all_reduce]", "links.all_reduce: expected a table, got: 1"),
        ("device = 'tpu'", "device: no built-in rates for 'tpu', did you mean 'xpu' or 'npu' or 'cpu'?"),
        ("device = ''", "device: no built-in rates for '' (devices: cpu, cuda, npu, xpu)"),
        (f"[links]\nlatency = 1{'0' * 400}", f"links.latency: expected {SECONDS}, got: 1{'0' * 56}..."),
        ("axes = 3", "axes: expected a table of tables, one per mesh axis, got: 3"),
        ("device = 3", "device: expected a type of device such as 'cuda', got: 3"),
        ("[link]", "link: unknown key, did you mean 'links'?"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PlanError) as info:
        load(tmp_path, text)
    assert str(info.value) == f"{tmp_path / 'costs.toml'}: {message}"


@pytest.mark.parametrize(
    ("table", "key", "expected"),
    [
        ("compute", "memory_bandwidth", BYTES),
        ("compute", "op_overhead", SECONDS),
        ("compute.flops", "float32", "a number of operations per second from 1 to 1e21"),
        ("links", "latency", SECONDS),
        ("links", "bandwidth", BYTES),
        ("links.p2p", "bandwidth", BYTES),
        ("axes.dp", "latency", SECONDS),
        ("axes.dp", "bandwidth", BYTES),
        ("axes.dp.all_reduce", "latency", SECONDS),
        ("axes.dp.all_reduce", "bandwidth", BYTES),
    ],
)
def test_numbers_without_sense_are_refused(tmp_path: Path, table: str, key: str, expected: str) -> None:
    wrong = ["-1", "-1e-300", "inf", "-inf", "nan", "1e22", "1e308", "true", "'fast'"]
    if expected != SECONDS:
        wrong += ["0", "0.999", "1e-10", "1e-310", "5e-324"]
    for value in wrong:
        with pytest.raises(PlanError) as info:
            # Other tables inherit from this one: it is told once, where it stands.
            load(tmp_path, f"[{table}]\n{key} = {value}\n" + ("" if table == "axes.dp" else "[axes.dp]\n"))
        assert str(info.value).startswith(f"{tmp_path / 'costs.toml'}: {table}.{key}: expected {expected}, got: ")
        assert len(str(info.value).splitlines()) == 1
    for value in ("1", "1.0", "3600"):
        load(tmp_path, f"[{table}]\n{key} = {value}\n")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none\.toml: cannot read costs: no such file or directory"):
        Costs.load(tmp_path / "none.toml")
    with pytest.raises(PlanError, match=r"costs\.toml:1:\d+: "):
        load(tmp_path, "device = =\n")
    with pytest.raises(PlanError, match=r"costs\.toml: an integer has too many digits"):
        load(tmp_path, f"[links]\nlatency = {'1' * 5000}\n")


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


FLOP_CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("aten.mm.default", (_randn(8, 4), _randn(4, 2))),
    ("aten.bmm.default", (_randn(3, 8, 4), _randn(3, 4, 2))),
    ("aten.addmm.default", (_randn(2), _randn(8, 4), _randn(4, 2))),
    ("aten.baddbmm.default", (_randn(3, 8, 2), _randn(3, 8, 4), _randn(3, 4, 2))),
    (
        "aten.convolution.default",
        (_randn(2, 4, 8, 8), _randn(6, 2, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 2),
    ),
    (
        "aten.convolution_backward.default",
        (
            *(_randn(2, 6, 8, 8), _randn(2, 4, 8, 8), _randn(6, 4, 3, 3), [6]),
            *([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]),
        ),
    ),
    ("aten._scaled_dot_product_flash_attention_for_cpu.default", (_randn(2, 4, 16, 8), *[_randn(2, 4, 32, 8)] * 2)),
]


@pytest.mark.parametrize(("target", "arguments"), FLOP_CASES, ids=[target for target, _ in FLOP_CASES])
def test_operations_are_those_that_torch_counts(target: str, arguments: tuple[Any, ...]) -> None:
    with FlopCounterMode(display=False) as counter:
        made = resolve(target)(*arguments)
    results = [item for item in (made if isinstance(made, tuple) else (made,)) if isinstance(item, torch.Tensor)]
    given = [tuple(item.shape) for item in arguments if isinstance(item, torch.Tensor)]
    counted = op_flops(target, given, [tuple(item.shape) for item in results])
    assert counted > 0
    if "for_cpu" not in target:  # which torch counts by its other names only
        assert counted == counter.get_total_flops()
    else:
        assert counted == 2 * 2 * (2 * 4 * 16 * 8) * 32


@pytest.mark.parametrize(
    ("target", "operands", "results", "flops"),
    [
        ("torch.aten.mm", [(8, 4), (4, 2)], [(8, 2)], 128),
        ("aten.mm.default", [(None, 4), (4, 2)], [(None, 2)], 16),
        ("aten.add.Tensor", [(8, 1), (1, 8)], [(8, 8)], 64),
        ("aten.sum.default", [(8, 8)], [()], 64),
        ("aten.view.default", [(8, 8)], [(64,)], 0),
        ("torch.prim.ListConstruct", [(8, 8)], [], 0),
        ("hp.wait", [], [(8, 8)], 0),
        ("aten.mm.default", [], [], 0),
        (
            "aten._scaled_dot_product_flash_attention_backward.default",
            [(1, 2, 4, 8)] * 4,
            [(1, 2, 4, 8)],
            5 * 2 * 64 * 4,
        ),
    ],
)
def test_operations(
    target: str, operands: Sequence[tuple[int | None, ...]], results: Sequence[tuple[int | None, ...]], flops: int
) -> None:
    assert op_flops(target, operands, results) == flops


def test_bytes() -> None:
    value = TensorType((4, 2), "bfloat16")
    assert moved_bytes("aten.mul.Tensor", [value, value], [value]) == 48
    assert moved_bytes("aten.view.default", [value], [value]) == 0
    assert {dtype: item_bytes(dtype) for dtype in DTYPE_BYTES} == DTYPE_BYTES
    assert item_bytes("float8_e4m3fn") == 1


def test_views_share_memory_with_what_they_are_of() -> None:
    x = torch.randn(4, 4)
    arguments: dict[str, tuple[Any, ...]] = {
        "aten.expand.default": ([2, 4, 4],),
        "aten.permute.default": ([1, 0],),
        "aten.view.default": ([16],),
        "aten.select.int": (0, 1),
        "aten.slice.Tensor": (0, 1, 3),
        "aten.transpose.int": (0, 1),
        "aten.unsqueeze.default": (0,),
        "aten.t.default": (),
        "aten.detach.default": (),
    }
    for target, rest in arguments.items():
        assert is_free(target)
        assert resolve(target)(x, *rest).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert not is_free("aten.clone.default")
    assert plain_name("torch.aten.slice.Tensor") == plain_name("aten.slice.Tensor")
    assert tensor_type(x).shape == (4, 4)


def test_the_module_loads_neither_torch_nor_mlir() -> None:
    code = "import sys, hpir.costs; sys.exit(any(name.startswith('torch') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
