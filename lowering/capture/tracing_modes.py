"""The modes of torch that a step is traced in, whatever they are around the capture."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator

import torch
from torch._dynamo import config as dynamo_config
from torch.fx import GraphModule, Node

from ...errors import CaptureError
from ...runtime.torch_compat import accelerator_type, without_onednn
from .source_places import last_user_place


@contextlib.contextmanager
def tracing_modes(source: str) -> Iterator[None]:
    """Trace with gradients on, with recurrent layers, and with operators that every device has.

    Recurrent layers are taken apart into operators; with oneDNN they would be one that only the CPU has.

    Raises:
        CaptureError: autocast is on, which says nothing of whether the backward is to run under it too.
    """
    if torch.is_inference_mode_enabled():
        raise CaptureError(
            f"{source}: torch.inference_mode() is on around the capture: it has no gradients, capture outside of it"
        )
    for kind in dict.fromkeys(("cpu", "cuda", accelerator_type() or "cpu")):
        if torch.is_autocast_enabled(kind):
            raise CaptureError(
                f"{source}: torch.autocast('{kind}') is on around the capture: put it into the step function, which "
                "has the casts compiled in"
            )
    with (
        _deep_calls(),
        torch.enable_grad(),
        dynamo_config.patch(allow_rnn=True),
        without_onednn(),
        warnings.catch_warnings(),
    ):
        # Said of a device that is not there, which `check_autocast` refuses.
        warnings.filterwarnings("ignore", message=".*Disabling autocast")
        yield


_CALL_DEPTH = 10_000


@contextlib.contextmanager
def _deep_calls() -> Iterator[None]:
    """Allow deep calls: dynamo needs several of its own for each of the user's."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _CALL_DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def check_autocast(captured: GraphModule, source: str) -> None:
    """Refuse autocast for a device that the traced tensors are not on: it would cast nothing.

    Args:
        captured: the graph as dynamo made it.
        source: where to say it that no line is known of.

    Raises:
        CaptureError: at the first line that it was to cast.
    """
    values = [node.meta.get("val") for node in captured.graph.find_nodes(op="placeholder")]
    kinds = list(dict.fromkeys(value.device.type for value in values if isinstance(value, torch.Tensor)))
    for module in captured.modules():
        if not isinstance(module, GraphModule):
            continue
        for node in module.graph.find_nodes(op="call_function", target=torch.amp.autocast_mode._enter_autocast):
            kind, _, enabled, _ = node.args
            if enabled and kinds and kind not in kinds:
                place = _first_place(node) or source
                raise CaptureError(
                    f"{place}: torch.autocast('{kind}') casts nothing of a step on '{kinds[0]}': name the device of "
                    "the tensors, such as torch.autocast(x.device.type, ...)"
                )


def _first_place(node: Node) -> str:
    """Return where in the user's code the first operator behind `node` is; autocast itself has no place."""
    while node.op != "output":
        place = last_user_place(node.meta.get("stack_trace") or "")
        if place:
            return place
        node = node.next
    return ""
