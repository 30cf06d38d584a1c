"""Textual pass pipelines as data: ``hp-set-mesh{axes=dp:2},func.func(cse),canonicalize``.

The grammar is MLIR's: a pipeline is a comma-separated list; an item is a pass, with options in braces, or an op name
with a nested pipeline in parentheses. Options are ``key=value`` or a bare ``key``, separated by blanks; a value may be
quoted or stand in brackets, so that it can hold blanks and commas.

Every error says where: ``pipeline:1:13: error: ...``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dialect.diagnostics import Diagnostic, IRError

_CLOSERS = {"{": "}", "[": "]", "(": ")", '"': '"', "'": "'"}
_QUOTES = "\"'"


@dataclass(frozen=True)
class Place:
    """A column of a pipeline's text, for messages; `source` says what the text is."""

    source: str
    column: int

    def shifted(self, columns: int) -> Place:
        """Return the place so many columns further right."""
        return Place(self.source, self.column + columns)

    def error(self, message: str) -> IRError:
        """Build the error ``source:1:column: error: message``."""
        return IRError([Diagnostic("error", f"{self.source}:1:{self.column}", message)])


@dataclass(frozen=True)
class PipelineItem:
    """A pass with the text of its options, or (with `nested`) an op name and the pipeline to run on such ops.

    `options_place` is where the options' text begins.
    """

    name: str
    place: Place
    options: str = ""
    options_place: Place | None = None
    nested: tuple[PipelineItem, ...] | None = None

    def __str__(self) -> str:
        if self.nested is not None:
            return f"{self.name}({','.join(map(str, self.nested))})"
        return f"{self.name}{{{self.options}}}" if self.options.strip() else self.name


@dataclass(frozen=True)
class OptionText:
    """One option as written; `value` is None for a bare key."""

    key: str
    value: str | None
    place: Place


class _Reader:
    """A cursor over text that knows quotes and brackets."""

    def __init__(self, text: str, place: Place):
        self.text = text
        self.position = 0
        self._start = place

    @property
    def place(self) -> Place:
        return self._start.shifted(self.position)

    @property
    def next(self) -> str:
        return self.text[self.position] if self.position < len(self.text) else ""

    @property
    def shown(self) -> str:
        return f"'{self.next}'" if self.next else "the end"

    def skip_blanks(self) -> None:
        while self.next.isspace():
            self.position += 1

    def take_word(self, stops: str) -> str:
        """Take text up to a blank or one of `stops`."""
        begin = self.position
        while self.next and not self.next.isspace() and self.next not in stops:
            self.position += 1
        return self.text[begin : self.position]

    def take_value(self, stops: str = "") -> str:
        """Take text up to a blank (or, where given, one of `stops`), neither being in quotes or brackets."""
        begin = self.position
        while self.next and not (self.next in stops if stops else self.next.isspace()):
            if self.next in _CLOSERS:
                self.take_group()
            else:
                self.position += 1
        return self.text[begin : self.position]

    def take_group(self) -> str:
        """Take a quoted or bracketed group and return what is inside."""
        # A stack, not recursion: the depth is the user's.
        begin, place = self.position, self.place
        closers = [_CLOSERS[self.next]]
        while closers:
            self.position += 1
            if not self.next:
                raise place.error(f"'{self.text[begin]}' is never closed")
            if self.next == closers[-1]:
                closers.pop()
            elif closers[-1] not in _QUOTES and self.next in _CLOSERS:
                closers.append(_CLOSERS[self.next])
        self.position += 1
        return self.text[begin + 1 : self.position - 1]


def parse_pipeline(text: str, *, source: str = "pipeline") -> tuple[PipelineItem, ...]:
    """Parse a textual pipeline; an outer ``builtin.module(...)`` is unwrapped.

    Args:
        text: what stands in ``--pass-pipeline='...'``.
        source: what messages call the text.

    Raises:
        IRError: it is not a pipeline; the text of the error has the column.
    """
    flat: list[PipelineItem] = []
    for item in _parse_items(_Reader(text, Place(source, 1))):
        flat.extend(item.nested if item.name == "builtin.module" and item.nested is not None else [item])
    return tuple(flat)


def parse_flag(text: str) -> PipelineItem:
    """Parse one command-line flag: ``--hp-fsdp``, ``--hp-fsdp=axes=dp`` or ``--hp-fsdp{axes=dp}``.

    Raises:
        IRError: braces are not closed, or something follows them.
    """
    body = text.lstrip("-")
    reader = _Reader(body, Place("", 0))
    name = reader.take_word("={(,")
    dashes = len(text) - len(body)
    source = text[: dashes + len(name)]
    place = Place(source, dashes + 1)
    if reader.next == "=":
        options, options_place = body[len(name) + 1 :], place.shifted(len(name) + 1)
        # Braces around everything are how `--pass={a=1}` is often written; they are no part of the options.
        if options.startswith("{") and options.endswith("}"):
            options, options_place = options[1:-1], options_place.shifted(1)
        return PipelineItem(name, place, options, options_place)
    items = _parse_items(_Reader(body, place))
    if len(items) != 1 or items[0].nested is not None:
        raise place.error("expected one pass per flag; a pipeline goes into --pass-pipeline")
    return items[0]


def _parse_items(reader: _Reader) -> tuple[PipelineItem, ...]:
    outer: list[tuple[str, Place, list[PipelineItem]]] = []  # open op names with what stood before them
    items: list[PipelineItem] = []
    reader.skip_blanks()
    item_due = bool(reader.next)
    while True:
        reader.skip_blanks()
        place = reader.place
        if item_due:
            name = reader.take_word(",(){}")
            reader.skip_blanks()
            if name and reader.next == "(":
                reader.position += 1
                outer.append((name, place, items))
                items = []
                continue
            if name:
                items.append(_take_pass(reader, name, place))
            elif not (reader.next == ")" and outer and not items):
                raise place.error(f"expected a pass name, got: {reader.shown}")
            item_due = False
        elif reader.next == ")" and outer:
            reader.position += 1
            anchor, anchor_place, before = outer.pop()
            items = [*before, PipelineItem(anchor, anchor_place, nested=tuple(items))]
        elif reader.next == ",":
            reader.position += 1
            item_due = True
        elif reader.next:
            raise place.error(f"expected ',' or the end of the pipeline, got: {reader.shown}")
        elif outer:
            raise outer[-1][1].error(f"the '(' after '{outer[-1][0]}' is never closed")
        else:
            return tuple(items)


def _take_pass(reader: _Reader, name: str, place: Place) -> PipelineItem:
    if reader.next != "{":
        return PipelineItem(name, place)
    options_place = reader.place.shifted(1)
    return PipelineItem(name, place, reader.take_group(), options_place)


def parse_options(text: str, place: Place) -> tuple[OptionText, ...]:
    """Split the text of a pass's options into keys and values, quotes and brackets kept.

    Raises:
        IRError: a key is missing or a bracket is not closed.
    """
    reader = _Reader(text, place)
    options = []
    reader.skip_blanks()
    while reader.next:
        where = reader.place
        key = reader.take_word("=")
        if not key:
            raise where.error(f"expected an option's name, got: {reader.shown}")
        value = None
        if reader.next == "=":
            reader.position += 1
            value = reader.take_value()
        options.append(OptionText(key, value, where))
        reader.skip_blanks()
    return tuple(options)


def unquote(text: str) -> str:
    """Return what is inside the quotes or braces that enclose all of `text`, or `text` itself."""
    text = text.strip()
    if text[:1] in ("{", '"', "'") and text:
        reader = _Reader(text, Place("", 1))
        inside = reader.take_group()
        if not reader.next:
            return inside
    return text


def split_list(text: str) -> tuple[str, ...]:
    """Split ``a,"b,c"`` or ``{a,b}`` at its commas, blanks and quotes removed; empty text is an empty list."""
    reader = _Reader(unquote(text), Place("", 1))
    values = []
    while reader.next:
        values.append(unquote(reader.take_value(stops=",")))
        reader.position += 1
    return tuple(values)


def quote(value: str) -> str:
    """Spell a value so that `parse_options` gives it back as one."""
    if value and not any(character.isspace() or character in "{}()[]\"'," for character in value):
        return value
    return f"'{value}'" if '"' in value else f'"{value}"'


def quote_list(values: Sequence[str]) -> str:
    """Spell a list of values so that `split_list` gives them back."""
    spelled = [quote(value) for value in values]
    if len(spelled) == 1 and spelled[0] != values[0]:
        # Quotes around a whole list are no part of it, so these need something around them.
        return f"{{{spelled[0]}}}"
    return ",".join(spelled)
