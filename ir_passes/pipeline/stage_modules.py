"""Which modules each stage declares: lists that somebody wrote, or that the automatic cut made."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...errors import PassError, nearest
from ..pipeline_text import split_list
from ..sharding.units import ancestors, matches


def parse_lists(texts: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Read the lists of modules of the stages as an option spells them: ``[embed,layers.0]`` or a single module.

    Raises:
        PassError: a list is empty.
    """
    lists = []
    for text in texts:
        in_brackets = text.startswith("[") and text.endswith("]")
        names = split_list(text[1:-1]) if in_brackets else (text,)
        if not names or not all(name.strip() for name in names):
            raise PassError(f"option 'stages' has a stage without a module: '{text}'")
        lists.append(tuple(name.strip() for name in names))
    return tuple(lists)


@dataclass(frozen=True)
class StageModules:
    """The modules that each stage declares; what is below a module is declared with it.

    Attributes:
        lists: names of modules (or of parameters) per stage.
        starts: where the model has fewer modules than stages: the number of the first op of the forward on each stage.
    """

    lists: tuple[tuple[str, ...], ...]
    starts: tuple[int, ...] = ()
    _stages: dict[str, int | None] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for stage, names in enumerate(self.lists):
            self._stages.update(dict.fromkeys(names, stage))

    @classmethod
    def of_patterns(cls, lists: Sequence[Sequence[str]], known: Iterable[str]) -> StageModules:
        """Resolve lists of module names and patterns.

        Args:
            lists: per stage.
            known: names of all modules and parameters.

        Raises:
            PassError: a name is no module's, or two stages declare a module.
        """
        names = dict.fromkeys(known)
        claimed: dict[str, tuple[int, str]] = {}
        resolved = []
        for stage, patterns in enumerate(lists):
            found: dict[str, None] = {}
            for pattern in patterns:
                matched = [pattern] if pattern in names else [name for name in names if matches(pattern, name)]
                if not matched:
                    raise PassError(f"stage {stage}: '{pattern}' is no module{nearest(pattern, names)}")
                found.update(dict.fromkeys(matched))
            for name in found:
                if name in claimed:
                    raise PassError(f"module '{name}' is in two lists, those of stages {claimed[name][0]} and {stage}")
                claimed[name] = (stage, name)
            resolved.append(tuple(found))
        return cls(tuple(resolved))

    def stage_of(self, name: str) -> int | None:
        """Return the stage of a module or parameter: that of the innermost declared module it is in, if any."""
        found = self._stages
        if name not in found:
            parent, dot, _ = name.rpartition(".")
            found[name] = self.stage_of(parent) if dot else None
        return found[name]

    def stage_of_op(self, number: int, module: str) -> int | None:
        """Return the stage that an op of the forward is to run on: by its number, or else by its module."""
        return bisect.bisect_right(self.starts, number) - 1 if self.starts else self.stage_of(module)


def module_names(modules: Iterable[str], states: Iterable[str]) -> list[str]:
    """Return the names of all modules and of all state, each once.

    Args:
        modules: what ops say they belong to.
        states: names of parameters, buffers and constants.
    """
    names: dict[str, None] = {}
    for name in (*modules, *states):
        if name:
            names.update(dict.fromkeys(reversed(ancestors(name))))
    return list(names)
