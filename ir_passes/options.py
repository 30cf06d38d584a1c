"""Options of passes: from a pipeline's text to a dataclass and back; its fields are the one description of them."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import cache

from ..errors import HpirError, nearest
from .base import AnyPass
from .pipeline_text import OptionText, PipelineItem, parse_options, quote, split_list, unquote

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_PLACEHOLDERS = {bool: "true|false", int: "integer", float: "number", str: "text", tuple: "list"}
_KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "text", tuple: "a comma-separated list"}


def option_name(field: Field[typing.Any]) -> str:
    """Return an option's spelling in a pipeline: the field's name with hyphens."""
    return field.name.replace("_", "-")


@cache
def option_types(cls: type[AnyPass]) -> dict[str, type]:
    """Return the kind of each field: bool, int, float, str or tuple; an optional field is of the kind it may hold."""
    hints = typing.get_type_hints(cls)
    kinds = {}
    for field in fields(cls):
        hint = hints[field.name]
        if typing.get_origin(hint) in (types.UnionType, typing.Union):
            hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
        kind = typing.get_origin(hint) or hint
        if kind not in _KINDS:
            raise TypeError(f"field '{field.name}' of {cls.__name__} has a type that no option can have: {hint}")
        kinds[field.name] = kind
    return kinds


def describe_options(cls: type[AnyPass]) -> list[str]:
    """Return each option as in a pipeline, such as ``axes=<list>``, with its default where it has one."""
    kinds = option_types(cls)
    described = []
    for field in fields(cls):
        default = default_text(field)
        is_switch = kinds[field.name] is bool and default == "false"
        text = option_name(field) + ("" if is_switch else f"=<{_PLACEHOLDERS[kinds[field.name]]}>")
        described.append(text + (f" (default: {default})" if default and not is_switch else ""))
    return described


def default_text(field: Field[typing.Any]) -> str:
    """Return a field's default as a pipeline spells it; empty for none, ``None`` and empty defaults."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return "" if default is MISSING or default is None else _spell(default)


def build_pass(cls: type[AnyPass], item: PipelineItem) -> AnyPass:
    """Make the pass that an item of a pipeline asks for.

    Raises:
        IRError: an option is unknown, given twice, missing or has a bad value; the text names pass and option.
    """
    place = item.options_place or item.place
    by_name = {option_name(field): field for field in fields(cls)}
    kinds = option_types(cls)
    values: dict[str, object] = {}
    for option in parse_options(item.options, place):
        field = by_name.get(option.key)
        if field is None:
            hint = nearest(option.key, by_name) or ("" if by_name else "; it has no options")
            raise option.place.error(f"unknown option '{option.key}' of {cls.name}{hint}")
        if field.name in values:
            raise option.place.error(f"option '{option.key}' of {cls.name} is given twice")
        values[field.name] = _convert(cls.name, option, kinds[field.name])
    for name, field in by_name.items():
        if field.default is MISSING and field.default_factory is MISSING and field.name not in values:
            raise item.place.error(f"{cls.name} needs option '{name}', {_KINDS[kinds[field.name]]}")
    make: Callable[..., AnyPass] = cls
    try:
        return make(**values)
    except HpirError as error:  # what a pass's __post_init__ says of values that have the right type
        raise place.error(f"{cls.name}: {error}") from error


def spell_pass(pass_: AnyPass) -> str:
    """Return a pass as a pipeline spells it, options that differ from their defaults included."""
    kinds = option_types(type(pass_))
    options = []
    for field in fields(pass_):
        value = getattr(pass_, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if value == default or value is None:
            continue
        name = option_name(field)
        options.append(name if value is True and kinds[field.name] is bool else f"{name}={_spell(value)}")
    return f"{pass_.name}{{{' '.join(options)}}}" if options else pass_.name


def _spell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(quote, value))
    return quote(value) if isinstance(value, str) and value else str(value)


def _convert(name: str, option: OptionText, kind: type) -> object:
    if option.value is None:
        if kind is bool:
            return True
        raise option.place.error(f"option '{option.key}' of {name} expects {_KINDS[kind]}, got no value")
    if kind is tuple:
        return split_list(option.value)
    text = unquote(option.value)
    if kind is str:
        if not text.strip():  # as a shell's variable that is not set leaves it
            raise option.place.error(f"option '{option.key}' of {name} expects {_KINDS[kind]}, got: '{text}'")
        return text
    try:
        if kind is bool:
            return _BOOLEANS[text.lower()]
        if kind is int:
            return int(text)
        number = float(text)
    except (KeyError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise option.place.error(f"option '{option.key}' of {name} expects {_KINDS[kind]}, got: '{text}'")
    return number
