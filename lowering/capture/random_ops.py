"""Random operators at capture: each becomes one draw of a numbered stream, or an error at the user's line.

While a step is traced, the operators that draw from torch's generators are written as arithmetic on
``hpir_random::uniform`` and ``hpir_random::normal`` (see `random_decompositions`). In the finished graph each of these
gets a number, its stream, in graph order: drawing a stream again gives the same values, so the backward, a
recomputation and every plan see the same masks. They are imported as `hp.uniform` and `hp.normal`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...runtime.random import draw

_torch_library: Any = torch.library  # much of it is untyped
_library = _torch_library.Library("hpir_random", "DEF")
_SCHEMA = "(SymInt[] size, *, ScalarType dtype, Device device, int stream=0, int? rows=None) -> Tensor"

KINDS = ("uniform", "normal")


def _define(kind: str) -> Any:
    # Until it has its number, two draws differ; the tag keeps torch from merging them.
    _library.define(kind + _SCHEMA, tags=(torch.Tag.nondeterministic_seeded,))

    def sample(
        size: list[int], *, dtype: torch.dtype, device: torch.device, stream: int = 0, rows: int | None = None
    ) -> torch.Tensor:
        return draw(kind, size, dtype, torch.device(device), seed=0, step=0, stream=stream, microbatch=0, rows=rows)

    def fake(
        size: list[int], *, dtype: torch.dtype, device: torch.device, stream: int = 0, rows: int | None = None
    ) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    _library.impl(kind, sample, "CompositeExplicitAutograd")
    _torch_library.register_fake(f"hpir_random::{kind}", fake, lib=_library)
    return getattr(torch.ops.hpir_random, kind).default


uniform = _define("uniform")
normal = _define("normal")

TARGETS = {uniform: "hp.uniform", normal: "hp.normal"}
"""What the two operators are in the IR."""


def draw_attention_masks(graph_module: GraphModule) -> None:
    """Make attention with dropout compute its probabilities, in a graph as dynamo gives it, in place.

    Fused attention draws its mask inside, where no stream reaches it.
    """
    for module in graph_module.modules():  # checkpointed regions and custom functions are graphs within it
        if not isinstance(module, GraphModule):
            continue
        for node in module.graph.nodes:
            if node.target is torch._C._nn.scaled_dot_product_attention:
                rate = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
                if rate != 0.0:
                    node.target = _unfused_attention
        module.recompile()


def _unfused_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return torch._C._nn.scaled_dot_product_attention(*args, **kwargs)


def number_streams(graph: Graph, rows: int | None) -> None:
    """Give each draw of a joint graph its stream, and mark those whose first dim runs over the rows of the batch.

    Args:
        graph: the joint graph.
        rows: of the batch it was traced for; None without a batch dim or where it is not fixed.
    """
    stream = 0
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in TARGETS:
            continue
        sizes: Any = node.args[0]
        first = sizes[0] if sizes else None
        block = {"rows": rows} if rows and isinstance(first, int) and first and first % rows == 0 else {}
        node.kwargs = {**node.kwargs, "stream": stream, **block}
        stream += 1


def refusal(node: Node) -> str | None:
    """Return why a node that draws random numbers cannot be captured and what to do, None for any other node."""
    target = node.target
    if target in TARGETS or not isinstance(target, torch._ops.OpOverload):
        return None
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return None
    given: dict[str, Any] = {
        argument.name: value for argument, value in zip(target._schema.arguments, node.args, strict=False)
    }
    given.update(node.kwargs)
    for argument in target._schema.arguments:
        if argument.name in ("dropout_p", "p", "training", "train"):
            value = given.get(argument.name, argument.default_value)
            if value is False or (argument.name in ("dropout_p", "p") and value == 0):
                return None
    what = f"random operator '{target}'"
    if target.namespace != "aten":
        return f"{what} draws inside a custom operator, out of reach of the plan's seed: pass it what is drawn"
    if given.get("generator") is not None or "generator" in target._overloadname:
        return f"{what} is given a torch.Generator: leave it out, the plan's data.seed seeds every random operator"
    base = target._schema.name.removeprefix("aten::")
    value = node.meta.get("val")
    dtype = f" of dtype {value.dtype}" if isinstance(value, torch.Tensor) else ""
    return (
        f"{what}{dtype} {_ADVICE.get(base, 'cannot be made of uniform draws: draw it outside and pass it as an input')}"
    )


_WIDE = "has a range above 2^32, which a draw cannot cover evenly: give it a smaller one"
_REAL = "is not captured: draw real numbers and convert them"
_ADVICE = {
    **dict.fromkeys(("randint", "randint_like", "random"), _WIDE),
    **dict.fromkeys(("rand", "rand_like", "randn", "randn_like", "normal", "normal_functional", "uniform"), _REAL),
    "randperm": "has more than 2^24 elements, whose order a draw cannot settle: permute a smaller dim",
}
