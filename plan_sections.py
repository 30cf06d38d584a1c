"""The sections of a plan as data: which keys each has and what their values may be.

Importing this module loads neither torch nor MLIR.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from .sizes import MOST_MIB


def as_tuple(value: object) -> object:
    """Return a list as a tuple, anything else as it is."""
    # Everything is checked strictly, but TOML and JSON have lists only.
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
"""A list of axes, patterns or parameter names."""

Groups = Annotated[tuple[str | Names, ...], BeforeValidator(as_tuple)]
"""A list whose items are names or lists of names."""

FloatDtype = Literal["float64", "float32", "float16", "bfloat16"]


class Section(BaseModel):
    """A table of a plan file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataPlan(Section):
    """How the batch is split."""

    axes: Names | None = Field(default=None, description="a list of mesh axes")
    microbatches: int = Field(default=1, ge=1, description="an integer, at least 1")
    seed: int = Field(default=0, ge=0, description="an integer, at least 0")


class FsdpPlan(Section):
    """How parameters are split over data axes."""

    axes: Names | None = Field(default=None, description="a list of mesh axes")
    replicate_axes: Names = Field(default=(), description="a list of mesh axes")
    units: Names = Field(default=(), description="a list of module patterns")
    ignore: Names = Field(default=(), description="a list of parameter patterns")
    reshard_after_forward: bool = Field(default=True, description="true or false")
    param_dtype: FloatDtype | None = Field(default=None, description="a floating dtype such as 'bfloat16'")
    reduce_dtype: FloatDtype | None = Field(default=None, description="a floating dtype such as 'float32'")


class BucketsPlan(Section):
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


class OverlapPlan(Section):
    """How far ahead collectives start."""

    prefetch: int = Field(default=1, ge=0, description="an integer, at least 0")
    memory_limit_mb: float = Field(
        default=0, ge=0, le=MOST_MIB, allow_inf_nan=False, description="a number of MiB, at most 1e9, or 0 for no limit"
    )
    costs: str = Field(default="", pattern=r"\S", description="a path of a TOML file")


class PipelinePlan(Section):
    """How layers are split into stages, and in which order these run."""

    axis: str = Field(default="pp", description="a mesh axis")
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"] = Field(
        default="1f1b", description="a schedule such as '1f1b'"
    )
    stages: Literal["auto"] | Groups = Field(
        default="auto", description="'auto' or a list of modules per stage", union_mode="left_to_right"
    )
    stages_per_rank: int | None = Field(default=None, ge=1, description="an integer, at least 1")
    table: str = Field(default="", pattern=r"\S", description="a path of a file with the actions of each rank")
    hoist_gathers: bool = Field(default=False, description="true or false")
    sink_reductions: bool = Field(default=False, description="true or false")


class TensorPlan(Section):
    """How a parameter is split over tensor axes."""

    param: str = Field(description="a parameter pattern")
    sharding: Annotated[tuple[Names, ...], BeforeValidator(as_tuple)] = Field(description="a list of mesh axes per dim")


SECTIONS: dict[str, type[Section]] = {
    "data": DataPlan,
    "fsdp": FsdpPlan,
    "buckets": BucketsPlan,
    "overlap": OverlapPlan,
    "pipeline": PipelinePlan,
    "tensor": TensorPlan,
}
"""Key of a section to what it is."""
