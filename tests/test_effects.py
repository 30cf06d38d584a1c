"""The effects table against what torch itself says of each of its operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch_mlir import ir

from hpir.dialect import hp
from hpir.dialect.context import make_context
from hpir.ir_passes.effects import Effect, effect_of, effect_of_name

# Update running statistics or the generator, or are changed by an underscore in their name, though their schema does
# not say so.
UNDECLARED = {
    "aten._batch_norm_impl_index",
    "aten._no_grad_embedding_renorm_",
    "aten.batch_norm",
    "aten.cudnn_batch_norm",
    "aten.instance_norm",
    "aten.manual_seed",
    "aten.miopen_batch_norm",
    "aten.native_batch_norm",
}
# A view, written as if it changed its operand.
DECLARED_BY_MISTAKE = {"prims.as_strided"}
# Redraw from a seed they are given, or refuse to drop out.
DO_NOT_DRAW = {
    "aten._cudnn_attention_backward",
    "aten._scaled_dot_product_cudnn_attention_backward",
    "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_flash_attention_for_cpu",
}


def operators() -> Iterator[tuple[str, bool, bool]]:
    """Yield each operator's name, whether its schema says that it mutates and whether it is tagged as random."""
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, base = schema.name.partition("::")
        if namespace not in ("aten", "prims"):
            continue
        name = f"{namespace}.{base}" + (f".{schema.overload_name}" if schema.overload_name else "")
        packet = getattr(getattr(torch.ops, namespace), base, None)
        overload = getattr(packet, schema.overload_name or "default", None)
        tags = getattr(overload, "tags", ())
        yield name, schema.is_mutable, torch.Tag.nondeterministic_seeded in tags


def effect(operator: str) -> Effect:
    """Return the effect of an operator as `torch.operator` names it."""
    with make_context(), ir.Location.unknown():
        attributes = {"name": ir.StringAttr.get(f"torch.{operator}")}
        return effect_of(ir.Operation.create("torch.operator", attributes=attributes))


def test_mutating_operators_are_those_whose_schema_says_so() -> None:
    seen = set()
    for name, mutable, _ in operators():
        seen.add(name)
        expected = (mutable or name in UNDECLARED) and name not in DECLARED_BY_MISTAKE
        assert (effect_of_name(f"torch.{name}") is Effect.MUTATING) == expected, name
    assert seen >= UNDECLARED | DECLARED_BY_MISTAKE
    assert len(seen) > 3000


def test_random_operators_are_those_that_torch_tags() -> None:
    found = set()
    for name, mutable, seeded in operators():
        if not mutable:
            is_random = effect_of_name(f"torch.{name}") is Effect.RANDOM
            assert is_random == (seeded and name not in DO_NOT_DRAW), name
            found |= {name} if is_random else set()
    assert {"aten.bernoulli", "aten.native_dropout", "aten.randn", "aten.normal_functional"} <= found


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("aten.silu_backward", Effect.PURE),
        ("aten.item", Effect.PURE),
        ("aten.__and__.Tensor", Effect.PURE),
        ("aten.__iand__.Tensor", Effect.MUTATING),
        ("aten._softmax", Effect.PURE),
        ("aten._softmax.out", Effect.MUTATING),
        ("aten.index_put_", Effect.MUTATING),
        ("aten._foreach_add_.List", Effect.MUTATING),
        ("aten._foreach_add.List", Effect.PURE),
        ("aten.sort", Effect.PURE),
        ("aten.sort.int", Effect.MUTATING),
        ("aten._native_batch_norm_legit_functional", Effect.PURE),
        ("aten._native_batch_norm_legit_no_training", Effect.PURE),
        ("aten._native_batch_norm_legit.no_stats", Effect.PURE),
        ("aten._native_batch_norm_legit", Effect.MUTATING),
        ("aten.native_dropout", Effect.RANDOM),
        ("aten.native_dropout_backward", Effect.PURE),
        ("aten._assert_async.msg", Effect.OPAQUE),
        ("aten.sym_constrain_range_for_size", Effect.OPAQUE),
        ("aten._functional_assert_async.msg", Effect.OPAQUE),
        ("prims.convert_element_type", Effect.PURE),
        ("transformers.grouped_mm_fallback", Effect.OPAQUE),
        ("_c10d_functional.all_reduce", Effect.OPAQUE),
    ],
)
def test_operators_by_name(operator: str, expected: Effect) -> None:
    assert effect(operator) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch.constant.int", Effect.PURE),
        ("torch.vtensor.literal", Effect.PURE),
        ("torch.tensor.literal", Effect.OPAQUE),
        ("torch.copy.to_vtensor", Effect.OPAQUE),
        ("torch.overwrite.tensor.contents", Effect.MUTATING),
        ("torch.prim.ListConstruct", Effect.PURE),
        ("torch.prim.NumToTensor.Scalar", Effect.PURE),
        ("torch.prim.If", Effect.OPAQUE),
        ("torch.prim.If.yield", Effect.TERMINATOR),
        ("torch.prim.Print", Effect.OPAQUE),
        ("torch.valsem.aten.bernoulli.float", Effect.OPAQUE),
        ("func.return", Effect.TERMINATOR),
        ("func.call", Effect.OPAQUE),
        ("arith.constant", Effect.OPAQUE),
        ("hp.mesh", Effect.OPAQUE),
        ("hp.wait", Effect.COMMUNICATION),
        ("hp.send", Effect.COMMUNICATION),
        ("hp.shard_slice", Effect.PURE),
    ],
)
def test_ops_by_name(name: str, expected: Effect) -> None:
    assert effect_of_name(name) is expected


def test_every_hp_op_but_the_mesh_is_pure_or_communicates() -> None:
    for cls in hp.Hp.operations:
        effect = effect_of_name(cls.OPERATION_NAME)
        if cls.OPERATION_NAME != "hp.mesh":
            assert effect in (Effect.PURE, Effect.COMMUNICATION), cls.OPERATION_NAME
        assert (effect is Effect.COMMUNICATION) == (cls.OPERATION_NAME in hp.COMMUNICATION)
