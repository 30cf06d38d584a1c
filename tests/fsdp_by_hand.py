"""One linear layer under FSDP as a Program written by hand, with its state and batch."""

from __future__ import annotations

import torch
from program_builder import FunctionBuilder, program_of
from torch import Tensor

from hpir.mesh import Mesh, padded_shard_size, shard_spans
from hpir.runtime.program import Program, TensorType

PAIR = Mesh.of({"dp": 2})
SCALAR = TensorType((), "float32")
ROWS = 5


def fsdp_step(mesh: Mesh, *, axes: tuple[str, ...], replicate: tuple[str, ...] = (), batch: int = 12) -> Program:
    """One linear layer under FSDP, written out: loss = mean((x @ weight + bias)^2), the weight's 5 rows split."""
    f = FunctionBuilder("step", mesh)
    data = (*replicate, *axes)
    weight = f.param("weight", (ROWS, 3), sharding=(axes, ()), aliases=["head.weight"])
    bias = f.param("bias", (3,))
    seen = f.argument("seen", (), "int64", role="buffer")
    x = f.argument("x", (batch, ROWS), sharding=(data, ()), batch_dim=0)
    gathered = f.wait(f.all_gather(weight, axes=axes, dims=[0]))
    # Where the rows are among the padded ones of all shards, and which row (or zeros) each padded one is.
    padded = padded_shard_size(ROWS, mesh.sizes(axes))
    spans = shard_spans(ROWS, mesh.sizes(axes))
    places = tuple(shard * padded + row for shard, (_, rows) in enumerate(spans) for row in range(rows))
    sources = tuple(begin + row if row < rows else ROWS for begin, rows in spans for row in range(padded))
    places_ref = f.literal(places, TensorType((len(places),), "int64"))
    full = f.aten("index_select.default", gathered, 0, places_ref, type_=TensorType((ROWS, 3), "float32"))
    rows = f.types[x.index].shape[0]
    output = TensorType((rows, 3), "float32")
    y = f.aten("addmm.default", bias, x, full, type_=output)
    loss = f.aten("mean.default", f.aten("mul.Tensor", y, y), type_=SCALAR)
    loss = f.wait(f.all_reduce(loss, axes=data, reduce="avg"))
    grad_y = f.aten("div.Scalar", f.aten("mul.Scalar", y, 2), (rows or 0) * 3)
    grad_bias = f.aten("sum.dim_IntList", grad_y, (0,), type_=TensorType((3,), "float32"))
    turned = f.aten("t.default", x, type_=TensorType((ROWS, rows), "float32"))
    grad = f.aten("mm.default", turned, grad_y, type_=TensorType((ROWS, 3), "float32"))
    grad = f.aten("constant_pad_nd.default", grad, (0, 0, 0, 1), type_=TensorType((ROWS + 1, 3), "float32"))
    sources_ref = f.literal(sources, TensorType((len(sources),), "int64"))
    grad = f.aten("index_select.default", grad, 0, sources_ref, type_=f.types[gathered.index])
    grad = f.wait(f.reduce_scatter(grad, axes=axes, dims=[0], reduce="avg"))
    grad_bias = f.wait(f.all_reduce(grad_bias, axes=axes, reduce="avg"))
    if replicate:
        grad, grad_bias = f.wait_all(f.all_reduce(grad, grad_bias, axes=replicate, reduce="avg"))
    f.result(loss, "loss")
    f.result(grad, "grad", "weight", full_shape=(ROWS, 3), sharding=(axes, ()), aliases=["head.weight"])
    f.result(grad_bias, "grad", "bias")
    f.result(f.aten("add.Scalar", seen, 1), "buffer", "seen")
    forward = FunctionBuilder("forward", mesh)
    forward.arguments, forward.types = list(f.arguments), dict(f.types)
    norm = forward.aten("mean.default", x, type_=SCALAR)
    forward.result(forward.wait(forward.all_reduce(norm, axes=data, reduce="avg")), "loss")
    double = forward.aten("mul.Scalar", x, 2)
    forward.result(double, "output", "double", full_shape=(batch, ROWS), sharding=(data, ()))
    forward.result(norm, "output", "rank_mean")
    tree = {"dict": {"double": "double", "more": {"tuple": ["rank_mean", None]}}}
    return program_of(
        f.build(), forward.build(), mesh=mesh, data_axes=data, train=["step"], evaluate=["forward"], output_tree=tree
    )


def state_and_batch(batch: int = 12) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    state = {
        "weight": torch.randn(ROWS, 3, generator=generator),
        "bias": torch.randn(3, generator=generator),
        "seen": torch.tensor(6),
    }
    return state, {"x": torch.randn(batch, ROWS, generator=generator)}
