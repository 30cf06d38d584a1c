"""Operators in the simulator: failing ones, several results, nested operands, names."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fsdp_by_hand import PAIR, SCALAR
from program_builder import FunctionBuilder, on_ranks, program_of

from hpir.errors import RuntimeFault
from hpir.mesh import Mesh
from hpir.runtime.operators import dtype_name, materialize, resolve, torch_dtype
from hpir.runtime.program import Function, Named, Op, Program, Ref, TensorType
from hpir.runtime.simulate import simulate


def failing(*ops: Op) -> Program:
    f = FunctionBuilder("main", PAIR)
    f.argument("x", (2, 3))
    f.argument("y", (4, 5))
    f.ops.extend(ops)
    return program_of(f.build(), mesh=PAIR)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (
            Op("aten.mm.default", (Ref(0), Ref(1)), {}, (2,), (SCALAR,), "layers.0.attn.wq", "forward", "model.py:7"),
            "rank 0: main: op 0 'aten.mm.default' in module 'layers.0.attn.wq' at model.py:7: mat1 and mat2 shapes "
            "cannot be multiplied (2x3 and 4x5); operands: float32[2, 3], float32[4, 5]",
        ),
        (
            Op("aten.select.int", (Ref(0), 7, 0), {}, (2,), (SCALAR,)),
            "rank 0: main: op 0 'aten.select.int': Dimension out of range (expected to be in range of [-2, 1], "
            "but got 7); operands: float32[2, 3], 7, 0",
        ),
        (
            Op("aten.cat.default", ((Ref(0), Ref(1)), 0), {}, (2,), (SCALAR,)),
            "; operands: [float32[2, 3], float32[4, 5]], 0",
        ),
        (
            Op("aten.add.Tensor", (Ref(0),), {}, (2,), (SCALAR,)),
            "missing value for argument 'other'",
        ),
        (
            Op("aten.mm.defaults", (Ref(0), Ref(1)), {}, (2,), (SCALAR,)),
            "main: op 0 'aten.mm.defaults': torch .* has no operator 'aten.mm.defaults', did you mean 'default'?",
        ),
        (
            Op("aten.matmull.default", (Ref(0), Ref(1)), {}, (2,), (SCALAR,)),
            "has no operator 'aten.matmull.default', did you mean 'matmul' or ",
        ),
        (
            Op("aten.ones.default", ((2,),), {"dtype": Named("dtype", "float31")}, (2,), (SCALAR,)),
            "has no dtype 'float31', did you mean 'float32'",
        ),
        (
            Op("aten.ones.default", ((2,),), {"layout": Named("layout", "stripey")}, (2,), (SCALAR,)),
            "has no layout 'stripey'",
        ),
        (
            Op("aten.topk.default", (Ref(0), 1), {}, (2,), (SCALAR,)),
            "main: op 0 'aten.topk.default': gives 2 results, expected 1",
        ),
        (
            Op("aten.mm.default", (Ref(0), Ref(1)), {}, (2, 3), (SCALAR, SCALAR)),
            "main: op 0 'aten.mm.default': gives 1 result, expected 2",
        ),
        (
            Op("hp.all_gather", (Ref(0),), {"axes": ("pd",), "dims": (0,)}, (2,), (None,)),
            "main: op 0 'hp.all_gather': mesh has no axis 'pd', did you mean 'dp'?",
        ),
        (
            Op("hp.all_gather", (Ref(0),), {"axes": ("dp",), "dims": (0, 1)}, (2,), (None,)),
            "main: op 0 'hp.all_gather': expected dims to be one dim for each of 1 operands, got: (0, 1)",
        ),
        (
            Op("hp.all_gather", (Ref(0),), {"dims": (0,)}, (2,), (None,)),
            "main: op 0 'hp.all_gather': expected axes to be mesh axes, each once, got: None",
        ),
        (
            Op("hp.all_reduce", (), {"axes": ("dp",), "reduce": "sum"}, (2,), (None,)),
            "main: op 0 'hp.all_reduce': expected at least one operand",
        ),
        (
            Op("hp.all_reduce", (3,), {"axes": ("dp",), "reduce": "sum"}, (2,), (None,)),
            "main: op 0 'hp.all_reduce': expected tensors, got: int",
        ),
        (
            Op("hp.send", (Ref(0),), {"axis": "dp", "peer": 2}),
            "main: op 0 'hp.send': expected peer < 2, got: 2",
        ),
        (
            Op("hp.recv", (), {"axis": "dp", "peer": 1, "types": ()}, (2,), (None,)),
            "main: op 0 'hp.recv': expected types to have a pair per tensor, got: ()",
        ),
        (
            Op("hp.recv", (), {"axis": "dp", "peer": 1, "types": (("float31", (2,)),)}, (2,), (None,)),
            "main: op 0 'hp.recv': torch .* has no dtype 'float31'",
        ),
        (
            Op("hp.uniform", ((2,),), {"stream": 0}, (2,), (SCALAR,)),
            "main: op 0 'hp.uniform': expected dtype to be a dtype, got: None",
        ),
        (
            Op("hp.accumulate", (Ref(0),), {}, (2,), (SCALAR,)),
            "main: op 0 'hp.accumulate': expected N accumulators, N values and N results, got: 1 operands, 1 results",
        ),
        (
            Op("hp.wait", (1,), {}, (2,), (SCALAR,)),
            "main: op 0 'hp.wait': expected one future to wait for",
        ),
    ],
    ids=lambda value: value.target if isinstance(value, Op) else "",
)
def test_failing_ops(op: Op, message: str) -> None:
    with pytest.raises(RuntimeFault) as caught:
        simulate(failing(op), {}, {"x": torch.zeros(2, 3), "y": torch.zeros(4, 5)})
    if ".*" in message:
        before, after = message.split(".*")
        assert before in str(caught.value)
        assert after in str(caught.value)
    else:
        assert message in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_failing_op_in_a_callee_on_the_second_rank() -> None:
    inner = FunctionBuilder("inner", PAIR)
    x = inner.argument("x", (1,), "int64")
    table = inner.literal((1.0, 2.0), TensorType((2,), "float32"))
    inner.result(inner.aten("index_select.default", table, 0, x, type_=TensorType((1,), "float32")))
    callee = inner.build()
    main = FunctionBuilder("main", PAIR)
    y = main.argument("y", (2,), "int64", sharding=(("dp",),), batch_dim=0)
    main.result(main.call(callee, y)[0])
    with pytest.raises(
        RuntimeFault, match=r"^rank 1: inner: op 1 'aten.index_select.default': .*; operands: float32\[2\]"
    ):
        simulate(program_of(callee, main.build(), mesh=PAIR), {}, {"y": torch.tensor([1, 5])})


def test_values_that_are_not_defined() -> None:
    program = failing()
    functions = {
        "main": replace(program.functions["main"], ops=(Op("aten.neg.default", (Ref(9),), {}, (2,), (SCALAR,)),))
    }
    with pytest.raises(RuntimeFault, match=r"main: op 0 'aten.neg.default': value 9 is used before it is defined"):
        simulate(replace(program, functions=functions), {}, {"x": torch.zeros(2, 3), "y": torch.zeros(4, 5)})


def test_resolve() -> None:
    assert resolve("aten.mm.default") is torch.ops.aten.mm.default
    assert resolve("prims.convert_element_type.default") is torch.ops.prims.convert_element_type.default
    assert resolve("_c10d_functional.wait_tensor.default") is torch.ops._c10d_functional.wait_tensor.default
    for target, message in (
        ("aten.mm", "malformed operator 'aten.mm', expected namespace.name.overload"),
        (
            "nolib.scale.default",
            "has no operator 'nolib.scale.default': namespace 'nolib' is empty; import the package",
        ),
    ):
        with pytest.raises(RuntimeFault, match=message):
            resolve(target)


def test_materialize() -> None:
    device = torch.device("meta")
    names = (
        Named("dtype", "bfloat16"),
        Named("layout", "strided"),
        Named("memory_format", "channels_last"),
        Named("device", ""),
        Named("device", "cpu"),
    )
    arg = (Ref(3), (names, 2.5), None, "sum", True)
    objects = [torch.bfloat16, torch.strided, torch.channels_last, device, torch.device("cpu")]
    assert materialize(arg, lambda index: index * 10, device) == [30, [objects, 2.5], None, "sum", True]


def test_names_of_dtypes() -> None:
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.uint16, torch.float8_e4m3fn):
        assert torch_dtype(dtype_name(dtype)) is dtype


def test_functions_that_call_each_other() -> None:
    call = Op("call", (), {"function": "main"})
    main = Function("main", (), (call,), ())
    program = replace(failing(), functions={"main": main})
    with pytest.raises(RuntimeFault, match="functions call each other in a circle: main -> main"):
        simulate(program, {}, {})


def test_several_results_and_lists_of_tensors() -> None:
    x = torch.arange(12.0).reshape(4, 3)
    two = TensorType((2, 3), "float32")

    def body(f: FunctionBuilder, x: Ref) -> list[Ref]:
        a, b = f.emit("aten.split.Tensor", x, 2, types=[two, two])
        (one,) = f.emit("aten.split.Tensor", a, 2, types=[two])
        (both,) = f.emit("aten.split.Tensor", x, 2, types=[None])
        joined = f.aten("cat.default", both, type_=TensorType((4, 3), "float32"))
        column = TensorType((4, 1), "float32")
        values, _ = f.emit("aten.topk.default", x, 1, types=[column, TensorType((4, 1), "int64")])
        return [b, one, joined, values]

    ((b, one, joined, values),) = on_ranks(Mesh.of({"all": 1}), [[x]], body)
    assert torch.equal(b, x[2:])
    assert torch.equal(one, x[:2])
    assert torch.equal(joined, x)
    assert torch.equal(values, x[:, 2:])


def test_nested_operands_and_keywords() -> None:
    x, index = torch.arange(12.0).reshape(4, 3), torch.tensor([2, 0])

    def body(f: FunctionBuilder, x: Ref, index: Ref) -> list[Ref]:
        taken = f.aten("index.Tensor", x, (None, index), type_=TensorType((4, 2), "float32"))
        total = f.aten(
            "sum.dim_IntList", x, (1,), True, type_=TensorType((4, 1), "float64"), dtype=Named("dtype", "float64")
        )
        scaled = f.aten("add.Tensor", x, x, alpha=2)
        weighted = f.aten("bincount.default", index, weights=index, type_=TensorType((None,), "float64"))
        return [taken, total, scaled, weighted]

    ((taken, total, scaled, weighted),) = on_ranks(Mesh.of({"all": 1}), [[x], [index]], body)
    assert torch.equal(taken, x[:, index])
    assert torch.equal(total, x.sum(1, keepdim=True, dtype=torch.float64))
    assert torch.equal(scaled, 3 * x)
    assert weighted.tolist() == [0.0, 0.0, 2.0]
