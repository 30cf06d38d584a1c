"""Which collectives ought to share a bucket, before anybody asks whether they can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...errors import PassError, nearest
from ..pipeline_text import split_list
from ..sharding.units import ROOT, ancestors, matches
from .collectives import Collective

MODULE, SIZE = "module", "size"


@dataclass(frozen=True)
class Proposal:
    """Collectives that are alike and ought to share a bucket of this name, in the order in which they start."""

    name: str
    members: tuple[Collective, ...]


@dataclass(frozen=True)
class Groups:
    """Explicit groups: the patterns of each."""

    patterns: tuple[tuple[str, ...], ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Groups:
        """Read groups as the option spells them: ``[layers.0,layers.1]`` or a single pattern.

        Raises:
            PassError: a group or a pattern is empty.
        """
        groups = []
        for text in texts:
            in_brackets = text.startswith("[") and text.endswith("]")
            patterns = split_list(text[1:-1]) if in_brackets else (text,)
            if not patterns or not all(pattern.strip() for pattern in patterns):
                raise PassError(f"option 'by' has a group without a pattern: '{text}'")
            groups.append(tuple(pattern.strip() for pattern in patterns))
        return cls(tuple(groups))

    def check(self, parameters: Sequence[Sequence[str]]) -> None:
        """Refuse groups that do not fit the parameters, each given by its names.

        Raises:
            PassError: a pattern matches nothing, or two groups claim a parameter.
        """
        candidates: dict[str, None] = {}
        for names in parameters:
            for name in names:
                candidates.update(dict.fromkeys(ancestors(name)))
        for number, patterns in enumerate(self.patterns):
            for pattern in patterns:
                if not any(matches(pattern, name) for name in candidates):
                    hint = nearest(pattern, [*candidates, MODULE, SIZE])
                    raise PassError(
                        f"by: pattern '{pattern}' of group {number + 1} matches no module and no parameter{hint}"
                    )
        for names in parameters:
            claims = self._claims(names)
            if len(claims) > 1:
                (first, pattern), (second, other) = claims[:2]
                raise PassError(
                    f"by: parameter '{names[0]}' is claimed by group {first + 1} ('{pattern}') "
                    f"and by group {second + 1} ('{other}')"
                )

    def of(self, names: Sequence[str]) -> int | None:
        """Return the group of a parameter, or None."""
        claims = self._claims(names)
        return claims[0][0] if claims else None

    def _claims(self, names: Sequence[str]) -> list[tuple[int, str]]:
        above = [module for name in names for module in ancestors(name)]
        claims = []
        for number, patterns in enumerate(self.patterns):
            pattern = next((p for p in patterns if any(matches(p, module) for module in above)), None)
            if pattern is not None:
                claims.append((number, pattern))
        return claims


def by_module(collectives: Iterable[Collective]) -> list[Proposal]:
    """Propose one bucket per FSDP unit."""
    return _proposals((each, each.unit if each.unit != ROOT else "root") for each in collectives)


def by_groups(collectives: Iterable[Collective], groups: Groups) -> list[Proposal]:
    """Propose one bucket per explicit group; what none claims is in none."""
    claimed = ((each, groups.of(each.parameters)) for each in collectives)
    return _proposals((each, f"group {number + 1}") for each, number in claimed if number is not None)


def by_size(collectives: Iterable[Collective], cap_bytes: float) -> list[Proposal]:
    """Fill buckets in the order in which collectives start, up to a number of bytes each, padding included."""
    filled: dict[
        tuple[object, ...], tuple[str, float]
    ] = {}  # likeness to the name and bytes of the bucket being filled
    counts: dict[tuple[str, str], int] = {}
    named = []
    for each in collectives:
        name, size = filled.get(each.likeness, ("", cap_bytes))
        size += each.bytes + each.padding
        if not name or size > cap_bytes:
            of = (each.kind, each.phase)
            counts[of] = counts.get(of, 0) + 1
            name, size = f"size {counts[of]}", each.bytes + each.padding
        filled[each.likeness] = (name, size)
        named.append((each, name))
    return _proposals(named)


def _proposals(named: Iterable[tuple[Collective, str]]) -> list[Proposal]:
    members: dict[tuple[object, ...], list[Collective]] = {}
    names: dict[tuple[object, ...], str] = {}
    for each, name in named:
        key = (*each.likeness, name)
        members.setdefault(key, []).append(each)
        names[key] = name
    return [Proposal(names[key], tuple(group)) for key, group in members.items()]
