"""The arguments of a rank's functions: state, inputs and sizes of all its stages, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...dialect.diagnostics import IRError, error_at
from ...dialect.signature import ValueInfo
from ..stage_function import FORWARD, StageFunction
from .staged import StagedModule

_ROLES = ("param", "buffer", "constant", "input", "size")

Key = tuple[str, str]
"""Role and first name of an argument."""


@dataclass(frozen=True)
class RankArguments:
    """Arguments of the functions of one rank.

    Attributes:
        infos: in order; inputs are those of a data rank's whole batch.
        places: position of each argument by role and name.
    """

    infos: tuple[ValueInfo, ...]
    places: Mapping[Key, int]


def rank_arguments(staged: StagedModule, stages: Sequence[int], microbatches: int) -> RankArguments:
    """Merge the arguments of the functions of one rank's stages.

    Raises:
        IRError: two functions say different things of one argument.
    """
    merged: dict[Key, tuple[ValueInfo, StageFunction]] = {}
    for function in staged.of_stages(stages):
        for info in function.signature.arguments:
            if info.role not in _ROLES or info.role == "size":
                continue
            key = (info.role, info.name)
            before = merged.get(key)
            merged[key] = (info if before is None else _merge(info, function, *before), function)
    sizes = {("size", info.name): info for info in staged.sizes}
    ordered = {
        key: _whole(info, microbatches) for role in _ROLES for key, (info, _) in merged.items() if key[0] == role
    } | sizes
    infos = tuple(replace(info, index=index) for index, info in enumerate(ordered.values()))
    return RankArguments(infos, {key: index for index, key in enumerate(ordered)})


def _merge(info: ValueInfo, function: StageFunction, other: ValueInfo, first: StageFunction) -> ValueInfo:
    placed = other if other.buffer else info
    if replace(other, index=0, buffer="", offset=0) != replace(info, index=0, buffer="", offset=0) or (
        info.buffer and (placed.buffer, placed.offset) != (info.buffer, info.offset)
    ):
        raise _differs(f"{info.role} '{info.name}'", function, first)
    return replace(info, buffer=placed.buffer, offset=placed.offset)


def _differs(what: str, function: StageFunction, first: StageFunction) -> IRError:
    notes = [(first.op, "where it is another")]
    return error_at(function.op, f"{what} of {function} is not what it is in {first}", notes=notes)


def _whole(info: ValueInfo, microbatches: int) -> ValueInfo:
    """Return an input with one data rank's whole batch instead of one microbatch."""
    if info.role != "input" or info.batch_dim is None:
        return info
    shape = scaled(info.type.shape, info.batch_dim, microbatches)
    return replace(
        info, type=info.type.with_shape(shape), full_shape=scaled(info.full_shape, info.batch_dim, microbatches)
    )


def scaled(shape: Sequence[int | None], dim: int, factor: int) -> tuple[int | None, ...]:
    """Return a shape with a dim `factor` times as large; a dynamic one stays."""
    return tuple(size * factor if index == dim and size is not None else size for index, size in enumerate(shape))


def check_buffers(staged: StagedModule) -> None:
    """Refuse a buffer that one stage changes and another one uses: there is no order in which all would see it right.

    Raises:
        IRError: at the function that changes it.
    """
    changing = {
        info.name: function
        for function in staged.functions.values()
        for info in function.signature.results_with_role("buffer")
    }
    for function in staged.functions.values():
        for info in function.signature.with_role("buffer"):
            changer = changing.get(info.name)
            if changer is not None and changer.stage != function.stage:
                raise error_at(
                    changer.op,
                    f"buffer '{info.name}' is changed by {changer} and used by {function}: put the modules that use it "
                    "on one stage",
                    notes=[(function.op, "used here")],
                )


@dataclass(frozen=True)
class Gradient:
    """The gradient of one parameter.

    Attributes:
        info: what it is, as a result.
        stages: that make a part of it, in order.
        owners: positions on the pipeline axis that hold the parameter, in order.
    """

    info: ValueInfo
    stages: tuple[int, ...]
    owners: tuple[int, ...]


def gradients_of(staged: StagedModule, arguments: Sequence[RankArguments]) -> list[Gradient]:
    """Return the gradients of all parameters, in the order of the ranks' arguments.

    Args:
        staged: the module.
        arguments: per position.

    Raises:
        IRError: the parts of a gradient differ in type, or their parameter is not there.
    """
    parts: dict[str, dict[int, tuple[ValueInfo, StageFunction]]] = {}
    for function in staged.functions.values():
        for info in function.signature.results_with_role("grad"):
            found = parts.setdefault(info.name, {})
            if function.task == FORWARD or function.stage in found:
                what = "a forward" if function.task == FORWARD else f"stage {function.stage} twice"
                raise error_at(function.op, f"gradient of '{info.name}' is returned by {what}")
            first, other = next(iter(found.values()), (info, function))
            if replace(first, index=0) != replace(info, index=0):
                raise _differs(f"gradient of '{info.name}'", function, other)
            found[function.stage] = (info, function)
    owners: dict[str, list[int]] = {}
    for position, own in enumerate(arguments):
        for info in own.infos:
            if info.role == "param":
                owners.setdefault(info.name, []).append(position)
    for name, found in parts.items():
        if name not in owners:
            _, function = next(iter(found.values()))
            raise error_at(function.op, f"gradient of '{name}' is of no parameter of any stage")
    return [
        Gradient(next(iter(parts[name].values()))[0], tuple(sorted(parts[name])), tuple(positions))
        for name, positions in owners.items()
        if name in parts
    ]
