"""hp-fsdp: parameters split over data axes, gathered where they are used, their gradients reduced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ...dialect.diagnostics import error_at
from ...dialect.levels import require_level, require_mesh, set_level
from ...dialect.signature import Signature, body_of, read_signature, step_functions, write_signature
from ...dialect.types import FLOAT_DTYPES
from ...errors import PassError, nearest
from ...mesh import Mesh
from ..base import ModulePass
from ..build import Builder
from ..phases import Phases
from .gradient_reductions import GradientReductions
from .parameter_gathers import insert_gathers
from .parameter_plan import (
    DataAxes,
    ShardingRequest,
    check_communication,
    plan_gradients,
    plan_parameters,
    sharded_signature,
)
from .precision import LowPrecision


@dataclass(frozen=True)
class HpFsdp(ModulePass):
    """Split parameters over data axes; gather them where they are used and reduce their gradients.

    The function is one data rank's step on its own batch; the data axes are `axes` and `replicate-axes`. The scheme is
    ZeRO-3's (Rajbhandari et al., 2020) in the layout of PyTorch's FSDP2, with HSDP and plain data parallel as cases.

    1. A parameter that `ignore` does not match is split along dim 0 over `axes`, frozen and tied ones too: its argument
       becomes the rank's shard, minor to what a tensor axis splits (`[["tp", "dp"], []]`). Rows are dealt per axis,
       major to minor, ceil(rows / ranks) each; local types are padded to the largest shard. 0-d parameters and ignored
       ones stay whole, as all do with no `axes`: plain data parallel.
    2. `units` names the groups that are gathered together: the innermost module that a pattern matches is a parameter's
       unit, what none matches is the root unit. In each phase the gathers of a unit start right before the first use of
       any of its parameters; those of the root unit start right before each parameter's own.
    3. Each parameter gets one `hp.all_gather` and one `hp.wait` per phase that uses it, the wait right before the first
       use, with the padding cut off behind it. A parameter that nothing uses is split and not gathered.
    4. With `reshard-after-forward` the backward gathers anew (`hp.phase = "backward"`), and the views and casts of the
       parameter that the forward made and the backward needs are cloned there, so that no full parameter outlives the
       forward. Without, the forward's gather serves both phases.
    5. A gradient is padded as its parameter is and reduce-scattered over `axes`, then all-reduced over
       `replicate-axes`; a whole parameter's is all-reduced over the data axes. Exactly once over each, axes of size 1
       included: `avg` with a plain loss, `sum` where the function returns a weight, by which the runtime divides. A
       unit's reductions start together, right behind the op that makes its last gradient; their waits stand behind
       the last start of the unit that comes next (root parameters count as a unit each), the last waits before the
       return.
    6. `param-dtype`: the cast stands at the function's entry, on the shard. Operators of the matmul family compute in
       it: their other floating operands are cast to it, their floating results are cast back right after, so
       activations keep their types. A cast of the parameter to this dtype is the parameter itself. Other users get the
       rounded parameter in the dtype it is stored in. It holds for whole parameters too, except ignored ones.
    7. `reduce-dtype`: a gradient is cast to it before padding and reduction, and back to the parameter's dtype after.
    8. Inputs and outputs with a batch dim are split over the data axes along it, major to what else splits it; their
       types stay. Buffers and constants stay: each data rank's buffers follow its own data.

    Everything made carries `hp.module` and `hp.phase`; communication also `hp.unit` (empty for the root unit) and
    `hp.fqn`. With axes of size 1 the same ops are made.

    Requires: level "joint", or "spmd" after a tensor partition that leaves the data axes alone; a mesh.
    Leaves: level "spmd". Parameters and what the forward computes from them are kept bitwise without `param-dtype`;
        gradients are those of the mean (or sum) over the ranks, up to the order of additions.
    Does not handle: parameters of dynamic shape; a dim 0 whose rows a tensor axis does not divide; a function that
        it ran on before or that communicates over a data axis; complex parameters in `param-dtype` (they stay as
        stored). These are refused before anything is changed, the last excepted.

    Options:
        axes: mesh axes that split the parameters; empty (the default) for plain data parallel.
        replicate-axes: data axes that hold equal copies (HSDP); default none. One of the two must name an axis.
        units: module patterns such as ``layers.*``; default none: all parameters are in the root unit.
        ignore: module patterns of parameters to keep whole; default none.
        reshard-after-forward: gather anew in the backward instead of keeping full parameters (default true: memory is
            what FSDP is for).
        param-dtype: real floating dtype to gather and compute in; default as stored.
        reduce-dtype: real floating dtype to reduce gradients in; default the gradient's own.

    Example: ``hp-fsdp{axes=dp}`` on a mesh ``dp:2`` turns

    ```mlir
    func.func @joint(%w: !torch.vtensor<[4,8],f32> {hp.fqn = ["w"], hp.role = "param", hp.trainable}, ...)
      %t = torch.aten.t %w {hp.phase = "forward"} : ...
      ...
      %grad = torch.aten.mm %a, %b {hp.phase = "backward"} : ... -> !torch.vtensor<[4,8],f32>
      return ..., %grad
    ```

    into

    ```mlir
    func.func @joint(%w: !torch.vtensor<[2,8],f32> {..., hp.sharding = #hp.sharding<@mesh, [["dp"], []]>}, ...)
      %0 = "hp.all_gather"(%w) {axes = ["dp"], dims = array<i64: 0>, hp.phase = "forward", ...} : ...
      %full = "hp.wait"(%0) : ... -> !torch.vtensor<[4,8],f32>
      %t = torch.aten.t %full {hp.phase = "forward"} : ...
      ...
      %grad = torch.aten.mm %a, %b {hp.phase = "backward"} : ... -> !torch.vtensor<[4,8],f32>
      %1 = "hp.reduce_scatter"(%grad) {axes = ["dp"], dims = array<i64: 0>, reduce = "avg", ...} : ...
      %shard = "hp.wait"(%1) : ... -> !torch.vtensor<[2,8],f32>
      return ..., %shard
    ```
    """

    name: ClassVar[str] = "hp-fsdp"
    requires: ClassVar[tuple[str, ...]] = ("joint", "spmd")
    leaves: ClassVar[str] = "spmd"

    axes: tuple[str, ...] = ()
    replicate_axes: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    reshard_after_forward: bool = True
    param_dtype: str = ""
    reduce_dtype: str = ""

    def __post_init__(self) -> None:
        if not self.axes and not self.replicate_axes:
            raise PassError("expected at least one axis in 'axes' or 'replicate-axes'")
        named = (*self.axes, *self.replicate_axes)
        for axis in named:
            if named.count(axis) > 1:
                raise PassError(f"axis '{axis}' is named twice in 'axes' and 'replicate-axes'")
        for option, dtype in (("param-dtype", self.param_dtype), ("reduce-dtype", self.reduce_dtype)):
            if dtype and dtype not in FLOAT_DTYPES:
                valid = sorted(FLOAT_DTYPES)
                hint = nearest(dtype, valid) or f", expected one of {', '.join(valid)}"
                raise PassError(f"option '{option}' names no real floating dtype: '{dtype}'{hint}")

    def run(self, module: ir.Operation) -> None:  # noqa: D102
        require_level(module, self.name, self.requires)
        mesh_name, mesh = require_mesh(module, self.name)
        axes = self._data_axes(module, mesh)
        functions = list(step_functions(module))
        if len(functions) != 1:
            raise error_at(module, f"{self.name}: expected one step function, got: {len(functions)}", named=False)
        function = functions[0]
        signature = read_signature(function, mesh)
        self._check_weight(function, signature, axes, mesh)
        phases = Phases(function)
        check_communication(function, axes, self.name)
        request = ShardingRequest(axes, self.units, self.ignore, self.param_dtype, self.name)
        plans = plan_parameters(function, signature, mesh, request)
        gradients = plan_gradients(function, signature, plans, self.name)

        builder = Builder(function, mesh_name, mesh)
        reduce = "sum" if signature.results_with_role("weight") else "avg"
        GradientReductions(builder, phases, axes, reduce, self.reduce_dtype).insert(gradients)
        if self.param_dtype:
            values = LowPrecision(builder, phases, self.param_dtype).insert(plans)
        else:
            arguments = body_of(function).arguments
            values = {plan.info.index: arguments[plan.info.index] for plan in plans}
        insert_gathers(builder, plans, values, phases, axes.shard, self.reshard_after_forward)
        write_signature(function, sharded_signature(signature, plans, gradients, axes, mesh), mesh_name, mesh)
        set_level(module, self.leaves)

    def _check_weight(self, function: ir.Operation, signature: Signature, axes: DataAxes, mesh: Mesh) -> None:
        """Refuse a weighted loss of a batch that is not split: every rank's sum would count, of the same rows."""
        split = any(info.batch_dim is not None for info in signature.with_role("input"))
        if signature.results_with_role("weight") and not split and mesh.count(axes.all) > 1:
            raise error_at(
                function,
                f"{self.name}: the loss is weighted, but no input is split over the data axes: give one a batch dim",
                named=False,
            )

    def _data_axes(self, module: ir.Operation, mesh: Mesh) -> DataAxes:
        for axis in (*self.axes, *self.replicate_axes):
            if axis not in mesh.axis_names:
                hint = nearest(axis, mesh.axis_names)
                raise error_at(module, f"{self.name}: mesh {mesh} has no axis '{axis}'{hint}", named=False)
        return DataAxes(
            shard=mesh.in_mesh_order(self.axes),
            replicate=mesh.in_mesh_order(self.replicate_axes),
            all=mesh.in_mesh_order((*self.axes, *self.replicate_axes)),
        )
