"""Which collectives are to be fused, as data: made by the planner, kept in a file, applied by the rewrite."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_mlir import ir

from ...errors import PassError, nearest

SCHEMA_VERSION = 1
"""Of the file; raised when its keys change."""


@dataclass(frozen=True)
class Member:
    """One collective of a bucket.

    Attributes:
        collective: its number among the collectives of the function that may be fused, in their order.
        parameters: the names of its parameter, several where it is tied.
        bytes: what of the whole tensor is the parameter's, as it travels.
        padding: bytes that travel besides, on the rank that has most of them.
    """

    collective: int
    parameters: tuple[str, ...]
    bytes: int
    padding: int


@dataclass(frozen=True)
class Bucket:
    """Collectives that become one.

    Attributes:
        name: shown to people; unique among the buckets of its kind and phase.
        kind: "all_gather", "reduce_scatter" or "all_reduce".
        phase: "forward" or "backward".
        axes: mesh axes that they communicate over.
        members: two or more, in the order in which they started.
    """

    name: str
    kind: str
    phase: str
    axes: tuple[str, ...]
    members: tuple[Member, ...]

    @property
    def bytes(self) -> int:
        """Bytes of its members without padding."""
        return sum(member.bytes for member in self.members)

    @property
    def padding(self) -> int:
        """Bytes of padding of its members."""
        return sum(member.padding for member in self.members)


@dataclass(frozen=True)
class BucketPlan:
    """The buckets of one function.

    Attributes:
        function: its name, without the `@`.
        fingerprint: of the function that the plan is for; see `fingerprint_of`. Empty in one that is applied at once.
        launches: collectives that the function starts.
        buckets: in the order in which they are put in place.
    """

    function: str
    fingerprint: str
    launches: int
    buckets: tuple[Bucket, ...]

    @property
    def launches_after(self) -> int:
        """Collectives that the function starts once the plan is applied."""
        return self.launches - sum(len(bucket.members) - 1 for bucket in self.buckets)

    @property
    def bytes(self) -> int:
        """Bytes that travel in buckets, without padding."""
        return sum(bucket.bytes for bucket in self.buckets)

    @property
    def padding(self) -> int:
        """Bytes of padding that travel in buckets."""
        return sum(bucket.padding for bucket in self.buckets)


def fingerprint_of(function: ir.Operation, mesh: object) -> str:
    """Return what tells a function from any other, and from itself once it has changed.

    Source locations are no part of it: a comment more in the user's model changes nothing that a plan depends on.

    Args:
        function: a verified `func.func`.
        mesh: of its module.
    """
    text: bytes = function.get_asm(binary=True, assume_verified=True)
    return hashlib.sha256(f"{mesh}\n".encode() + text).hexdigest()


def plans_to_json(plans: Sequence[BucketPlan]) -> str:
    """Return the text of a plan file: JSON with a line per member, for people to read and change."""
    functions = ",\n".join(map(_plan_text, plans))
    return f'{{\n  "schema_version": {SCHEMA_VERSION},\n  "functions": [\n{functions}\n  ]\n}}\n'


def _plan_text(plan: BucketPlan) -> str:
    head = {"function": plan.function, "fingerprint": plan.fingerprint, "launches": plan.launches}
    lines = "".join(f"      {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    buckets = ",\n".join(map(_bucket_text, plan.buckets))
    return f'    {{\n{lines}      "buckets": [\n{buckets}\n      ]\n    }}'


def _bucket_text(bucket: Bucket) -> str:
    head = {"name": bucket.name, "kind": bucket.kind, "phase": bucket.phase, "axes": bucket.axes}
    members = ",\n".join(f"          {json.dumps(dataclasses.asdict(member))}" for member in bucket.members)
    return f'        {{{json.dumps(head)[1:-1]}, "members": [\n{members}\n        ]}}'


def load_plans(path: str | Path) -> tuple[BucketPlan, ...]:
    """Read a plan file.

    Raises:
        PassError: it cannot be read or is no bucket plan.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise PassError(f"{path}: cannot read bucket plan: {(error.strerror or 'unknown reason').lower()}") from None
    except UnicodeDecodeError:
        raise PassError(f"{path}: expected a bucket plan, got bytes that are no UTF-8 text") from None
    try:
        return plans_from_json(text)
    except PassError as error:
        raise PassError(f"{path}: {error}") from None


def plans_from_json(text: str) -> tuple[BucketPlan, ...]:
    """Read the text of a plan file.

    Raises:
        PassError: it is no bucket plan; the text says which key is wrong.
    """
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise PassError(f"expected a bucket plan in JSON: {str(error)[:1].lower()}{str(error)[1:]}") from None
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        # JSON can spell half a character, which no name in the IR can hold.
        raise PassError(f"expected a bucket plan, got half a character: {error.object[error.start]!a}") from None
    if not isinstance(data, Mapping) or "schema_version" not in data:
        raise PassError("expected a bucket plan, which has a 'schema_version'")
    if data["schema_version"] != SCHEMA_VERSION or isinstance(data["schema_version"], bool):
        raise PassError(f"expected a bucket plan of schema version {SCHEMA_VERSION}, got: {data['schema_version']}")
    _check_keys(data, ("schema_version", "functions"), "")
    plans = tuple(
        _Reader(f"functions[{at}]").plan(item) for at, item in enumerate(_list(data["functions"], "functions"))
    )
    names = [plan.function for plan in plans]
    for name in names:
        if names.count(name) > 1:
            raise PassError(f"functions: '@{name}' has two plans")
    return plans


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise PassError(f"{where}: expected a list, got: {json.dumps(value)[:60]}")
    return value


def _check_keys(value: object, keys: Sequence[str], where: str) -> None:
    prefix = f"{where}: " if where else ""
    if not isinstance(value, Mapping):
        raise PassError(f"{prefix}expected an object, got: {json.dumps(value)[:60]}")
    for key in value:
        if key not in keys:
            raise PassError(f"{prefix}unknown key '{key}'{nearest(str(key), keys)}")
    for key in keys:
        if key not in value:
            raise PassError(f"{prefix}key '{key}' is missing")


class _Reader:
    """Reads the dataclasses of a plan from JSON; `where` says what is read, for messages."""

    def __init__(self, where: str):
        self._where = where

    def plan(self, value: Any) -> BucketPlan:
        self._check(value, BucketPlan)
        buckets = tuple(
            _Reader(f"{self._where}.buckets[{at}]").bucket(item)
            for at, item in enumerate(_list(value["buckets"], f"{self._where}.buckets"))
        )
        return BucketPlan(
            self._text(value, "function"), self._text(value, "fingerprint"), self._count(value, "launches"), buckets
        )

    def bucket(self, value: Any) -> Bucket:
        self._check(value, Bucket)
        members = tuple(
            _Reader(f"{self._where}.members[{at}]").member(item)
            for at, item in enumerate(_list(value["members"], f"{self._where}.members"))
        )
        if len(members) < 2:
            raise PassError(f"{self._where}: expected at least two members, got: {len(members)}")
        return Bucket(
            self._text(value, "name"),
            self._text(value, "kind"),
            self._text(value, "phase"),
            self._texts(value, "axes"),
            members,
        )

    def member(self, value: Any) -> Member:
        self._check(value, Member)
        return Member(
            self._count(value, "collective"),
            self._texts(value, "parameters"),
            self._count(value, "bytes"),
            self._count(value, "padding"),
        )

    def _check(self, value: object, cls: type) -> None:
        _check_keys(value, [field.name for field in dataclasses.fields(cls)], self._where)

    def _text(self, value: Mapping[str, Any], key: str) -> str:
        text = value[key]
        if not isinstance(text, str) or not text:
            raise PassError(f"{self._where}.{key}: expected a text, got: {json.dumps(text)[:60]}")
        return text

    def _texts(self, value: Mapping[str, Any], key: str) -> tuple[str, ...]:
        texts = _list(value[key], f"{self._where}.{key}")
        if not texts or not all(isinstance(text, str) for text in texts):
            raise PassError(f"{self._where}.{key}: expected names, got: {json.dumps(texts)[:60]}")
        return tuple(texts)

    def _count(self, value: Mapping[str, Any], key: str) -> int:
        count = value[key]
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise PassError(f"{self._where}.{key}: expected an integer, at least 0, got: {json.dumps(count)[:60]}")
        return count
