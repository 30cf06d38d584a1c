"""Regions of `torch.utils.checkpoint`: what the user asked to compute again in the backward instead of keeping it.

Torch gives a joint graph without recomputed operators; of the regions only tags are left on the forward's nodes. They
become numbers here, one per call of `checkpoint`, so that a pass can take region by region. A selective checkpoint
(`context_fn`) tags only what its policy says to recompute; of nested regions the outermost counts.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ...errors import CaptureError
from .source_places import last_user_place
from .step_effects import remark

_RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def check_regions(captured: GraphModule, source: str) -> None:
    """Refuse reentrant checkpoints in the graph as dynamo made it.

    Where no input of a reentrant region needs a gradient, eager torch gives its parameters none, silently; a compiled
    step would.

    Raises:
        CaptureError: at the user's line.
    """
    for module in captured.modules():
        if not isinstance(module, GraphModule):
            continue
        for node in module.graph.find_nodes(
            op="call_function", target=torch.ops.higher_order.tag_activation_checkpoint
        ):
            if node.kwargs.get("use_reentrant") is not False:
                place = last_user_place(node.meta.get("stack_trace") or "") or source
                raise CaptureError(
                    f"{place}: a reentrant checkpoint gives no gradients where its inputs need none: "
                    "pass use_reentrant=False to torch.utils.checkpoint.checkpoint"
                )


def note_buffers(changed: Mapping[str, Node], source: str) -> None:
    """Make a remark of each buffer that a checkpointed region changes: eager torch changes it again when it recomputes.

    Args:
        changed: by name of the buffer, the node of its new value.
        source: where to say it that no line is known of.
    """
    for name, node in changed.items():
        if node.meta.get("recompute") in _RECOMPUTED:
            place = last_user_place(node.meta.get("stack_trace") or "") or source
            remark(place, f"buffer '{name}' is changed in a checkpointed region: once, where eager torch does it twice")


def number_regions(graph: Graph) -> None:
    """Put the number of its region, from 0 in the order of the program, on every node to recompute, in place."""
    numbers: dict[object, int] = {}
    for node in graph.nodes:
        if node.meta.get("recompute") in _RECOMPUTED and node.meta.get("partitioner_tag") != "is_backward":
            node.meta["hp.recompute"] = numbers.setdefault(node.meta.get("ac_graph_id"), len(numbers))
