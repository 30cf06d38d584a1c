"""Whether the live model still consists of the modules that a step was made for."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from ..errors import RuntimeFault


class LiveModules:
    """The modules on the way to a Program's parameters and buffers.

    A step goes to the module that holds a parameter directly. A module that was put in its place later would be the
    model's, and yet not what the step trains.

    Args:
        model: the live model.
        names: of the parameters and buffers; they exist.
    """

    def __init__(self, model: nn.Module, names: Iterable[str]):
        links: dict[str, tuple[dict[str, nn.Module | None], str, nn.Module]] = {}
        for name in names:
            module, path = model, ""
            for key in name.split(".")[:-1]:
                child = module._modules[key]
                assert child is not None
                path = f"{path}.{key}" if path else key
                links.setdefault(path, (module._modules, key, child))
                module = child
        self._links = [(children, key, child, path) for path, (children, key, child) in links.items()]

    def check(self) -> None:
        """Check that none was replaced; one lookup each, so that every step can.

        Raises:
            RuntimeFault: one was; the text names it.
        """
        for children, key, child, path in self._links:
            if children.get(key) is not child:
                raise RuntimeFault(
                    f"module '{path}' of the model was replaced after compile, the step still has the old one: change "
                    "values in place, or compile again"
                )
