"""What each op does besides computing its results: one table for our dead-code and common-subexpression passes.

MLIR takes every torch op to have effects, so its passes leave dead and duplicate compute alone. Here an op's effect
follows from its name (for `torch.operator` the operator's), as torch's schemas and tags classify operators: a test
compares the table with them, operator by operator.

- Tensors are values in the IR, so an operator of `aten` or `prims` is pure unless a rule below says otherwise. That
  holds for `aten.item` and its like (a number read from a value), and for `aten.empty` (any contents will do).
- `hp.uniform` and `hp.normal` are pure: they are functions of their stream. torch's random operators are not: dropping
  or merging one changes what every later one draws. Attention that may drop out counts as random even where its
  probability is 0, which its name does not tell; the CPU's flash attention has no dropout.
- A backward operator that redraws from a saved seed is pure.
- Names ending in ``_``, ``out`` overloads and changes of lists mutate; ``__and__`` and its like do not. So do batch
  norms that update running statistics, some of which do not declare it in their schema.
- Assertions are opaque: they have no results and still must stay. So are calls, ops with regions, ops of other
  dialects and operators of other namespaces (custom ops): nothing is known of them.
"""

from __future__ import annotations

from enum import Enum
from functools import cache

from torch_mlir import ir

from ..dialect.hp import COMMUNICATION


class Effect(Enum):
    """What may be done with an op."""

    PURE = "pure"
    """Nothing but its results: removed when unused, merged with an equal one."""

    RANDOM = "random"
    """Draws from torch's generator: neither removed nor merged."""

    MUTATING = "mutating"
    """Changes an operand: neither removed nor merged, and nothing is known to be equal across it."""

    COMMUNICATION = "communication"
    """Talks to other ranks: what one rank leaves out all ranks must leave out."""

    OPAQUE = "opaque"
    """Unknown: neither removed nor merged."""

    TERMINATOR = "terminator"
    """Ends a block."""


def effect_of(op: ir.Operation) -> Effect:
    """Return what an op does besides computing its results; decided once per name."""
    name = op.name
    if name == "torch.operator":
        return _effect_of_operator(ir.StringAttr(op.attributes["name"]).value.removeprefix("torch."))
    return effect_of_name(name)


def may_mutate(op: ir.Operation) -> bool:
    """Return whether an op changes an operand, or is unknown and is given a mutable tensor."""
    effect = effect_of(op)
    if effect is Effect.OPAQUE:
        return any("!torch.tensor" in str(operand.type) for operand in op.operands)
    return effect is Effect.MUTATING


@cache
def effect_of_name(name: str) -> Effect:
    """Return the effect of ops of a name such as ``torch.aten.mm`` or ``hp.wait``."""
    if name in COMMUNICATION:
        return Effect.COMMUNICATION
    if name in _PURE:
        return Effect.PURE
    if name in _TERMINATORS:
        return Effect.TERMINATOR
    if name == "torch.overwrite.tensor.contents":
        return Effect.MUTATING
    if not name.startswith("torch."):
        return Effect.OPAQUE
    if name.startswith(("torch.constant.", "torch.vtensor.")):
        return Effect.PURE
    return _effect_of_operator(name.removeprefix("torch."))


@cache
def _effect_of_operator(name: str) -> Effect:
    """Return the effect of an operator by its full name without ``torch.``, such as ``aten.add_.Tensor``."""
    namespace, _, rest = name.partition(".")
    base, _, overload = rest.partition(".")
    if namespace == "prim":
        return Effect.PURE if base in _PURE_PRIM and not overload.startswith("yield") else Effect.OPAQUE
    if namespace not in ("aten", "prims"):
        return Effect.OPAQUE
    if base.startswith(_CHECKS):
        return Effect.OPAQUE
    if _mutates(name, base, overload):
        return Effect.MUTATING
    return Effect.RANDOM if base in _RANDOM else Effect.PURE


def _mutates(name: str, base: str, overload: str) -> bool:
    if base in _MUTATING or name in _MUTATING_NAMES:
        return True
    if overload == "out" or overload.startswith("out_") or overload.endswith("_out") or overload in _OUT_OVERLOADS:
        return True
    return base in _IN_PLACE_OPERATORS if base.endswith("__") else base.endswith("_")


_PURE = frozenset(
    {
        "hp.shard_slice",
        "hp.microbatch",
        "hp.accumulate",
        "hp.uniform",
        "hp.normal",
        "hp.pack",
        "hp.unpack",
        "torch.derefine",
        "torch.tensor_static_info_cast",
    }
)

_TERMINATORS = frozenset({"func.return", "torch.prim.If.yield", "torch.prim.Loop.condition"})

# The rest of `prim` prints, raises, reaches into objects or has regions.
_PURE_PRIM = frozenset(
    {
        "DictConstruct",
        "ListConstruct",
        "ListUnpack",
        "NumToTensor",
        "TupleConstruct",
        "TupleIndex",
        "TupleUnpack",
        "Uninitialized",
        "abs",
        "device",
        "dtype",
        "layout",
        "max",
        "min",
        "tolist",
        "unchecked_cast",
    }
)

_CHECKS = ("_assert", "_linalg_check_errors", "_functional_assert", "_functional_sym_constrain", "sym_constrain_range")

_IN_PLACE_OPERATORS = frozenset({"__iand__", "__ilshift__", "__ior__", "__irshift__", "__ixor__"})

_MUTATING = frozenset(
    {
        # lists and dictionaries
        "Delete",
        "_set_item",
        "append",
        "clear",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "reverse",
        "setdefault",
        "update",
        # generators and tensors as objects
        "manual_seed",
        "record_stream",
        "retain_grad",
        "seed",
        "set_data",
        # running statistics; the first six do not declare it
        "batch_norm",
        "_batch_norm_impl_index",
        "cudnn_batch_norm",
        "instance_norm",
        "miopen_batch_norm",
        "native_batch_norm",
        "_batch_norm_with_update",
        "_fused_moving_avg_obs_fq_helper",
        "fused_moving_avg_obs_fake_quant",
        # operands that are filled
        "_cummax_helper",
        "_cummin_helper",
        "_flash_attention_forward_no_dropout_inplace",
        "rrelu_with_noise",
    }
)

# Operators that mutate under this very name only; a list is sorted in place, a tensor is not.
_MUTATING_NAMES = frozenset(
    {
        "aten._native_batch_norm_legit",
        "aten.geqrf.a",
        "aten.sort.Tensor",
        "aten.sort.any",
        "aten.sort.bool",
        "aten.sort.float",
        "aten.sort.int",
        "aten.sort.str",
        "prims.copy_to",
        "prims.resize",
    }
)

# Operators with several results, and some old ones, name the overload that fills given tensors after the first of them.
_OUT_OVERLOADS = frozenset(
    {
        "L",
        "OutScalar_Other",
        "OutScalar_Self",
        "OutTensor",
        "Q",
        "U",
        "X",
        "dim_max",
        "dim_min",
        "dim_values",
        "eigenvalues",
        "eigvals",
        "grad_input",
        "inverse",
        "output",
        "result",
        "sign",
        "values",
        "values_stable",
    }
)

# Those that torch tags as drawing from its generator, less those that only redraw from a saved seed.
_RANDOM = frozenset(
    {
        "_cudnn_attention_forward",
        "_cudnn_init_dropout_state",
        "_cudnn_rnn",
        "_efficient_attention_forward",
        "_flash_attention_forward",
        "_fused_dropout",
        "_fused_sdp_choice",
        "_lstm_mps",
        "_nested_tensor_softmax_with_shape",
        "_sample_dirichlet",
        "_scaled_dot_product_attention_math",
        "_scaled_dot_product_attention_math_for_mps",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_fused_attention_overrideable",
        "_standard_gamma",
        "_triton_scaled_dot_attention",
        "alpha_dropout",
        "bernoulli",
        "binomial",
        "cauchy",
        "dropout",
        "exponential",
        "feature_alpha_dropout",
        "feature_dropout",
        "geometric",
        "gru",
        "inductor_rand_eager_offset",
        "inductor_rand_eager_offsets",
        "inductor_seed",
        "inductor_seeds",
        "log_normal",
        "lstm",
        "miopen_rnn",
        "multinomial",
        "native_dropout",
        "normal",
        "normal_functional",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random",
        "randperm",
        "rnn_relu",
        "rnn_tanh",
        "rrelu",
        "rrelu_with_noise_functional",
        "scaled_dot_product_attention",
        "uniform",
    }
)
