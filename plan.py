"""Plans: how a step is parallelised, as a TOML file or a dict, checked before anything is compiled.

Importing this module loads neither torch nor MLIR.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from .errors import PlanError, nearest
from .mesh import Mesh
from .plan_passes import bucket_passes, fsdp_pass, overlap_pass, schedule_passes, schedule_problem, split_passes
from .plan_problems import plan_error, problems_of, shown
from .plan_sections import BucketsPlan, DataPlan, FsdpPlan, OverlapPlan, PipelinePlan, TensorPlan, as_tuple
from .toml_file import read_toml

_AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
    tensor: Annotated[tuple[TensorPlan, ...], BeforeValidator(as_tuple)] = Field(
        default=(), description="a list of tables"
    )

    _source: str = PrivateAttr("plan")

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise plan_error("plan", problems_of(error)) from None
        problems = list(self._contradictions())
        if problems:
            raise plan_error("plan", problems)

    @classmethod
    def model_validate(cls, obj: Any, **settings: Any) -> Plan:
        """Make a plan of the dict that a TOML file would give.

        Raises:
            PlanError: a key, a name or a value is wrong.
        """
        if isinstance(obj, cls):
            return obj
        if not isinstance(obj, Mapping):
            raise PlanError(f"plan: expected a table, got: {shown(obj)}")
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
        if self.tensor:
            raise plan_error(self._source, [("tensor", "this version has no pass for it")])
        folder = Path(self._source).parent  # where the files lie that a plan file names
        steps = ["hp-simplify", "hp-recompute"]
        if self.mesh:
            steps.insert(0, f"hp-set-mesh{{axes={','.join(f'{axis}:{size}' for axis, size in self.mesh.items())}}}")
        if self.data_axes:
            steps += [fsdp_pass(self.fsdp or FsdpPlan(), self.fsdp_axes, self.replicate_axes), "hp-simplify"]
        pipelining = self.pipelining
        if pipelining is not None:
            ranks = self.mesh[pipelining.axis]
            try:
                steps += split_passes(pipelining, ranks, self.data.microbatches, folder)
            except PlanError as error:
                raise PlanError(f"{self._source}: {error}") from None
        if self.data_axes and self.buckets is not None:
            steps += bucket_passes(self.buckets)
        if self.data_axes and self.overlap is not None:
            # Behind the expansion, which puts padding between members: a limit of memory counts what is gathered.
            steps.append(overlap_pass(self.overlap, folder))
        if pipelining is not None:
            steps += schedule_passes(pipelining, self.data.microbatches, folder)
        return ",".join([*steps, "hp-verify-level"])

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
            yield from self._check_pipeline(self.pipelining)
        if self.overlap is not None:
            yield from _check_path("overlap.costs", self.overlap.costs)
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

    def _check_pipeline(self, pipeline: PipelinePlan) -> Iterator[tuple[str, str]]:
        if pipeline.axis in self.data_axes:
            yield "pipeline.axis", f"axis '{pipeline.axis}' is a data axis already"
        yield from _check_path("pipeline.table", pipeline.table)
        if pipeline.hoist_gathers and self.overlap is not None and self.overlap.memory_limit_mb:
            yield (
                "pipeline.hoist_gathers",
                "keeps all gathered parameters of a stage at once, which overlap.memory_limit_mb cannot limit; "
                "leave out one of them",
            )
        ranks = self.mesh.get(pipeline.axis, 0)
        if not isinstance(pipeline.stages, str):
            yield from _check_stages(pipeline.stages)
            if pipeline.stages_per_rank not in (None, len(pipeline.stages) / max(ranks, 1)):
                yield "pipeline.stages_per_rank", f"{len(pipeline.stages)} stages are listed for {ranks} ranks"
        if ranks > 0 and (problem := schedule_problem(pipeline, ranks)):
            asked = "stages" if pipeline.stages != "auto" else "stages_per_rank"
            yield f"pipeline.{asked}", problem

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


def _check_stages(stages: Sequence[str | Sequence[str]]) -> Iterator[tuple[str, str]]:
    key = "pipeline.stages"
    seen: dict[str, int] = {}
    for stage, modules in enumerate(stages):
        names = [modules] if isinstance(modules, str) else modules
        if not names:
            yield key, f"expected a list of modules per stage, got an empty one for stage {stage}"
        yield from _check_patterns(key, names)
        for name in names:
            if name in seen:
                yield key, f"module '{name}' is in two lists, those of stages {seen[name]} and {stage}"
            seen[name] = stage


def _check_path(key: str, path: str) -> Iterator[tuple[str, str]]:
    if '"' in path and "'" in path:
        yield key, f"a path cannot hold both kinds of quotes, got: {path}"


def _check_patterns(key: str, patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
    for pattern in patterns:
        if not pattern.strip():
            yield key, "expected patterns of module or parameter names, got an empty one"
        elif '"' in pattern and "'" in pattern:
            yield key, f"a pattern cannot hold both kinds of quotes, got: {pattern}"
