"""Plans: how a step is parallelised, as a TOML file or a dict, checked before anything is compiled.

Importing this module loads neither torch nor MLIR.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic_core import ErrorDetails

from .errors import PlanError, nearest
from .mesh import Mesh
from .sizes import MOST_MIB
from .toml_file import read_toml

_AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _as_tuple(value: object) -> object:
    # Everything is checked strictly, but TOML and JSON have lists only.
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
"""A list of axes, patterns or parameter names."""

Groups = Annotated[tuple[str | Names, ...], BeforeValidator(_as_tuple)]
"""A list whose items are names or lists of names."""

FloatDtype = Literal["float64", "float32", "float16", "bfloat16"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataPlan(_Section):
    """How the batch is split."""

    axes: Names | None = Field(default=None, description="a list of mesh axes")
    microbatches: int = Field(default=1, ge=1, description="an integer, at least 1")
    seed: int = Field(default=0, ge=0, description="an integer, at least 0")


class FsdpPlan(_Section):
    """How parameters are split over data axes."""

    axes: Names | None = Field(default=None, description="a list of mesh axes")
    replicate_axes: Names = Field(default=(), description="a list of mesh axes")
    units: Names = Field(default=(), description="a list of module patterns")
    ignore: Names = Field(default=(), description="a list of parameter patterns")
    reshard_after_forward: bool = Field(default=True, description="true or false")
    param_dtype: FloatDtype | None = Field(default=None, description="a floating dtype such as 'bfloat16'")
    reduce_dtype: FloatDtype | None = Field(default=None, description="a floating dtype such as 'float32'")


class BucketsPlan(_Section):
    """Which collectives are fused."""

    by: Literal["module", "size"] | Groups = Field(
        default="module",
        description="'module', 'size' or a list of module patterns per bucket",
        union_mode="left_to_right",
    )
    cap_mb: float = Field(
        default=64, gt=0, le=MOST_MIB, allow_inf_nan=False, description="a number of MiB above 0, at most 1e9"
    )
    layout: Literal["flat", "packed"] = Field(default="flat", description="'flat' or 'packed'")


class OverlapPlan(_Section):
    """How far ahead collectives start."""

    prefetch: int = Field(default=1, ge=0, description="an integer, at least 0")
    memory_limit_mb: float = Field(
        default=0, ge=0, le=MOST_MIB, allow_inf_nan=False, description="a number of MiB, at most 1e9, or 0 for no limit"
    )
    costs: str = Field(default="", pattern=r"\S", description="a path of a TOML file")


class PipelinePlan(_Section):
    """How layers are split into stages, and in which order these run."""

    axis: str = Field(default="pp", description="a mesh axis")
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"] = Field(
        default="1f1b", description="a schedule such as '1f1b'"
    )
    stages: Literal["auto"] | Groups = Field(
        default="auto", description="'auto' or a list of modules per stage", union_mode="left_to_right"
    )


class TensorPlan(_Section):
    """How a parameter is split over tensor axes."""

    param: str = Field(description="a parameter pattern")
    sharding: Annotated[tuple[Names, ...], BeforeValidator(_as_tuple)] = Field(
        description="a list of mesh axes per dim"
    )


class Plan(BaseModel):
    """How a step is parallelised: the mesh, what is split over which of its axes, and in which order things run.

    The keys are those of the TOML file, described in the guide to plans. Unknown keys and axes are refused with the
    nearest valid name. A plan is immutable.

    Args:
        mesh: axis name to size, outermost first; none for one rank.
        data: how the batch is split.
        fsdp: how parameters are split; without it, plain data parallel over the data axes.
        buckets: which collectives are fused.
        overlap: how far ahead collectives start.
        pipeline: how layers are split into stages.
        tensor: parameters split over tensor axes.

    Raises:
        PlanError: a key, a name or a value is wrong; the text is ``plan: fsdp.axes: ...``.

    Example:
        >>> Plan.model_validate({"mesh": {"dp": 4}, "fsdp": {"axes": ["dp"], "units": ["layers.*"]}}).pipeline()
        'hp-set-mesh{axes=dp:4},hp-simplify,hp-recompute,hp-fsdp{axes=dp units=layers.*},hp-simplify,hp-verify-level'
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    mesh: dict[str, int] = Field(default_factory=dict, description="a table of axis sizes")
    data: DataPlan = Field(default=DataPlan(), description="a table")
    fsdp: FsdpPlan | None = Field(default=None, description="a table")
    buckets: BucketsPlan | None = Field(default=None, description="a table")
    overlap: OverlapPlan | None = Field(default=None, description="a table")
    # `pipeline` is the method; the key is the file's.
    pipelining: PipelinePlan | None = Field(default=None, alias="pipeline", description="a table")
    tensor: Annotated[tuple[TensorPlan, ...], BeforeValidator(_as_tuple)] = Field(
        default=(), description="a list of tables"
    )

    _source: str = PrivateAttr("plan")

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise _plan_error("plan", _problems(error)) from None
        problems = list(self._contradictions())
        if problems:
            raise _plan_error("plan", problems)

    @classmethod
    def model_validate(cls, obj: Any, **settings: Any) -> Plan:
        """Make a plan of the dict that a TOML file would give.

        Raises:
            PlanError: a key, a name or a value is wrong.
        """
        if isinstance(obj, cls):
            return obj
        if not isinstance(obj, Mapping):
            raise PlanError(f"plan: expected a table, got: {_shown(obj)}")
        return cls(**{str(key): value for key, value in obj.items()})

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a TOML file.

        Raises:
            PlanError: it cannot be read, is no TOML, or what it says is wrong; the text begins with the path.
        """
        data = read_toml(path, "plan")
        try:
            plan = cls.model_validate(data)
        except PlanError as error:
            raise PlanError(re.sub("^plan: ", lambda _: f"{path}: ", str(error), flags=re.MULTILINE)) from None
        plan._source = str(path)
        return plan

    @property
    def data_axes(self) -> tuple[str, ...]:
        """Mesh axes that split the batch: ``data.axes``, or else those of ``[fsdp]`` in mesh order."""
        if self.data.axes is not None:
            return self.data.axes
        named = () if self.fsdp is None else (*(self.fsdp.axes or ()), *self.fsdp.replicate_axes)
        return tuple(axis for axis in self.mesh if axis in named)

    @property
    def fsdp_axes(self) -> tuple[str, ...]:
        """Mesh axes that split parameters: ``fsdp.axes``, or else the data axes that do not replicate them."""
        if self.fsdp is None:
            return ()
        if self.fsdp.axes is not None:
            return self.fsdp.axes
        return tuple(axis for axis in self.data_axes if axis not in self.fsdp.replicate_axes)

    @property
    def replicate_axes(self) -> tuple[str, ...]:
        """Data axes whose ranks all hold the same parameters, or the same pieces of them."""
        return tuple(axis for axis in self.data_axes if axis not in self.fsdp_axes)

    def device_mesh(self) -> Mesh | None:
        """Return the mesh, or None for a plan of one rank."""
        return Mesh.of(self.mesh) if self.mesh else None

    def pipeline(self) -> str:
        """Return the textual pass pipeline that carries the plan out, from level "joint" on.

        Raises:
            PlanError: the plan asks for what this version has no pass for.
        """
        asked = {
            "tensor": bool(self.tensor),
            "pipeline": self.pipelining is not None,
        }
        missing = [(key, "this version has no pass for it") for key, is_asked in asked.items() if is_asked]
        if missing:
            raise _plan_error(self._source, missing)
        steps = ["hp-simplify", "hp-recompute"]
        if self.mesh:
            steps.insert(0, f"hp-set-mesh{{axes={','.join(f'{axis}:{size}' for axis, size in self.mesh.items())}}}")
        if self.data_axes:
            steps += [self._fsdp_pass(), "hp-simplify"]
            if self.buckets is not None:
                steps.append(self._bucket_pass(self.buckets))
                steps.append(f"hp-expand-buckets{{layout={self.buckets.layout}}}")
            if self.overlap is not None:
                # Behind the expansion, which puts padding between members: a limit of memory counts what is gathered.
                steps.append(self._overlap_pass(self.overlap))
        return ",".join([*steps, "hp-verify-level"])

    def _fsdp_pass(self) -> str:
        fsdp = self.fsdp or FsdpPlan()
        options = [f"axes={','.join(self.fsdp_axes)}"]
        lists = (("replicate-axes", self.replicate_axes), ("units", fsdp.units), ("ignore", fsdp.ignore))
        options += [f"{name}={_quoted_list(values)}" for name, values in lists if values]
        if not fsdp.reshard_after_forward:
            options.append("reshard-after-forward=false")
        if fsdp.param_dtype is not None:
            options.append(f"param-dtype={fsdp.param_dtype}")
        if fsdp.reduce_dtype is not None:
            options.append(f"reduce-dtype={fsdp.reduce_dtype}")
        return f"hp-fsdp{{{' '.join(options)}}}"

    def _bucket_pass(self, buckets: BucketsPlan) -> str:
        if buckets.by == "size":
            options = f"by=size cap-mb={buckets.cap_mb:.12g}"
        elif buckets.by == "module":
            options = "by=module"
        else:
            groups = [(group,) if isinstance(group, str) else group for group in buckets.by]
            options = f"by={','.join(f'[{_quoted_list(group)}]' for group in groups)}"
        return f"hp-bucket-collectives{{{options}}}"

    def _overlap_pass(self, overlap: OverlapPlan) -> str:
        options = []
        if overlap.prefetch != 1:
            options.append(f"prefetch={overlap.prefetch}")
        if overlap.memory_limit_mb:
            options.append(f"memory-limit-mb={overlap.memory_limit_mb:.12g}")
        if overlap.costs:
            # A file that a plan file names lies beside it.
            options.append(f"costs={_quoted(str(Path(self._source).parent / overlap.costs))}")
        return "hp-overlap-collectives" + (f"{{{' '.join(options)}}}" if options else "")

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield (key, message) for what the sections say of each other that cannot be."""
        for axis, size in self.mesh.items():
            if not _AXIS_NAME.fullmatch(axis):
                yield "mesh", f"expected axis names of letters, digits and underscores, got: '{axis}'"
            if size < 1:
                yield f"mesh.{axis}", f"expected a size of at least 1, got: {size}"
        yield from self._check_axes("data.axes", self.data.axes or ())
        if self.fsdp is not None:
            yield from self._check_fsdp(self.fsdp)
        if self.buckets is not None and not isinstance(self.buckets.by, str):
            yield from _check_groups(self.buckets.by)
        if self.pipelining is not None:
            yield from self._check_axes("pipeline.axis", (self.pipelining.axis,))
            if self.pipelining.axis in self.data_axes:
                yield "pipeline.axis", f"axis '{self.pipelining.axis}' is a data axis already"
        if self.overlap is not None and '"' in self.overlap.costs and "'" in self.overlap.costs:
            yield "overlap.costs", f"a path cannot hold both kinds of quotes, got: {self.overlap.costs}"
        for index, tensor in enumerate(self.tensor):
            key = f"tensor[{index}].sharding"
            yield from self._check_axes(key, [axis for dim in tensor.sharding for axis in dim])

    def _check_fsdp(self, fsdp: FsdpPlan) -> Iterator[tuple[str, str]]:
        yield from self._check_axes("fsdp.axes", fsdp.axes or ())
        yield from self._check_axes("fsdp.replicate_axes", fsdp.replicate_axes)
        if fsdp.axes is None and self.data.axes is None:
            yield "fsdp.axes", "missing, expected a list of mesh axes ([] for plain data parallel)"
        for axis in fsdp.replicate_axes:
            if axis in (fsdp.axes or ()):
                yield "fsdp.replicate_axes", f"axis '{axis}' is in fsdp.axes already"
        for key, axes in (("fsdp.axes", fsdp.axes or ()), ("fsdp.replicate_axes", fsdp.replicate_axes)):
            for axis in axes:
                if axis in self.mesh and axis not in self.data_axes:
                    yield key, f"axis '{axis}' is not in data.axes ({', '.join(self.data_axes) or 'none'})"
        for key, patterns in (("fsdp.units", fsdp.units), ("fsdp.ignore", fsdp.ignore)):
            yield from _check_patterns(key, patterns)
        for key in ("param_dtype", "reduce_dtype"):
            if getattr(fsdp, key) is not None and not self.data_axes:
                yield f"fsdp.{key}", "needs a data axis; for one rank, name a mesh axis of size 1 in fsdp.axes"

    def _check_axes(self, key: str, axes: Sequence[str]) -> Iterator[tuple[str, str]]:
        for axis in dict.fromkeys(axes):
            if axis not in self.mesh:
                hint = nearest(axis, self.mesh) or f" (axes: {', '.join(self.mesh) or 'none'})"
                yield key, f"the mesh has no axis '{axis}'{hint}"
            elif axes.count(axis) > 1:
                yield key, f"axis '{axis}' is named twice"


def _check_groups(groups: Sequence[str | Sequence[str]]) -> Iterator[tuple[str, str]]:
    if not groups:
        yield "buckets.by", "expected 'module', 'size' or at least one group of module patterns, got: []"
    for group in groups:
        if not group and not isinstance(group, str):
            yield "buckets.by", "expected groups of module patterns, got an empty one"
        yield from _check_patterns("buckets.by", [group] if isinstance(group, str) else group)


def _check_patterns(key: str, patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
    for pattern in patterns:
        if not pattern.strip():
            yield key, "expected patterns of module or parameter names, got an empty one"
        elif '"' in pattern and "'" in pattern:
            yield key, f"a pattern cannot hold both kinds of quotes, got: {pattern}"


def _plan_error(source: str, problems: Sequence[tuple[str, str]]) -> PlanError:
    return PlanError("\n".join(f"{source}: {key}: {message}" for key, message in problems))


def _shown(value: object) -> str:
    """Spell a value as TOML would, as far as that is short."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _quoted(value: str) -> str:
    from .ir_passes.pipeline_text import quote

    return quote(value)


def _quoted_list(values: Sequence[str]) -> str:
    from .ir_passes.pipeline_text import quote_list  # imports MLIR, which a plan as such does without

    return quote_list(values)


_SECTIONS: dict[str, type[_Section]] = {
    "data": DataPlan,
    "fsdp": FsdpPlan,
    "buckets": BucketsPlan,
    "overlap": OverlapPlan,
    "pipeline": PipelinePlan,
    "tensor": TensorPlan,
}


def _problems(error: ValidationError) -> list[tuple[str, str]]:
    """Say in our words what pydantic found, once per key (it reports a union once per arm)."""
    problems: dict[str, tuple[str, str]] = {}
    for details in error.errors(include_url=False):
        key, message = _problem(details)
        problems.setdefault(key.partition("[")[0] if not key.startswith("tensor") else key, (key, message))
    return list(problems.values())


def _problem(details: ErrorDetails) -> tuple[str, str]:
    section, *rest = details["loc"]
    key = str(section)
    if rest and isinstance(rest[0], int):
        key += f"[{rest.pop(0)}]"
    name = str(rest.pop(0)) if rest else ""
    key += f".{name}" if name else ""
    key += "".join(f"[{part}]" for part in rest if isinstance(part, int))  # the others are names of a union's arms
    model = _SECTIONS.get(str(section))
    if details["type"] == "extra_forbidden":
        valid = ["mesh", *_SECTIONS] if model is None else list(model.model_fields)
        return key, "unknown key" + (nearest(name or key, valid) or f" (keys: {', '.join(valid)})")
    if not name:
        expected = "a list of tables" if section == "tensor" and key == section else "a table"
    elif model is None:
        expected = "an integer"  # the size of a mesh axis
    else:
        expected = model.model_fields[name].description or ""
        if any(isinstance(part, int) for part in rest) and expected.startswith("a list"):
            expected = "text"
    if details["type"] == "missing":
        return key, f"missing, expected {expected}"
    value = details["input"]
    choices = re.findall("'([^']*)'", str(details.get("ctx", {}).get("expected", "")))
    hint = nearest(value, choices) if isinstance(value, str) else ""
    return key, f"expected {expected}, got: {_shown(value)}{hint}"
