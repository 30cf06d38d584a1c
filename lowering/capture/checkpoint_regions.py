"""Regions of `torch.utils.checkpoint`: what the user asked to compute again in the backward instead of keeping it.

Torch gives a joint graph without recomputed operators; of the regions only tags are left on the forward's nodes. They
become numbers here, one per call of `checkpoint`, so that a pass can take region by region. A selective checkpoint
(`context_fn`) tags only what its policy says to recompute; of nested regions the outermost counts.

What eager torch keeps of a region is what an operator outside of it saves for its own backward. The graph does not say
for whom a value is saved; the numbers that torch gives to an operator and to its backward do.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

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
    """Put the number of its region, from 0 in the order of the program, on every node to recompute, in place.

    What of its results an operator outside of the region saves for the backward is listed under ``hp.saved``.
    """
    numbers: dict[object, int] = {}
    regions: dict[object, object] = {}
    for node in graph.nodes:
        if node.meta.get("partitioner_tag") == "is_backward":
            _note_saved(node, regions)
            continue
        if node.op == "call_function" and "seq_nr" in node.meta:
            # A selective checkpoint keeps some of its operators' results; their backward is the region's all the same.
            regions[node.meta["seq_nr"]] = node.meta.get("ac_graph_id")
        if node.meta.get("recompute") in _RECOMPUTED:
            node.meta["hp.recompute"] = numbers.setdefault(node.meta.get("ac_graph_id"), len(numbers))


def _note_saved(node: Node, regions: Mapping[object, object]) -> None:
    """Note on what a node of the backward takes that it is saved, where it is by another region or by none.

    Args:
        node: of the backward.
        regions: the region of an operator by the number torch gave it; None outside of regions.
    """
    number = node.meta.get("seq_nr")
    if number not in regions:
        return
    for value in node.all_input_nodes:
        maker: Any = value
        result: Any = 0
        if value.target is operator.getitem:
            maker, result = value.args
        if "hp.recompute" in maker.meta and maker.meta.get("ac_graph_id") != regions[number]:
            maker.meta["hp.saved"] = sorted({*maker.meta.get("hp.saved", ()), result})
