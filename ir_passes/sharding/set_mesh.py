"""hp-set-mesh: name the ranks a module runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ...dialect.attributes import find_mesh, ints_attr, strings_attr
from ...dialect.diagnostics import error_at
from ...dialect.levels import level_of, require_level
from ...errors import PassError
from ...mesh import Mesh
from ..base import ModulePass


def mesh_of_spelling(axes: tuple[str, ...]) -> Mesh:
    """Return the mesh that ``("pp:2", "dp:2")`` spells, outermost axis first.

    Raises:
        HpirError: an axis is no ``name:size``, or the mesh would be malformed.
    """
    named = []
    for axis in axes:
        name, colon, size = axis.partition(":")
        if not colon or not name.strip() or not size.strip().isdecimal():
            raise PassError(f"option 'axes' expects name:size pairs such as pp:2,dp:2, got: '{axis}'")
        named.append((name.strip(), int(size)))
    return Mesh(tuple(name for name, _ in named), tuple(size for _, size in named))


@dataclass(frozen=True)
class HpSetMesh(ModulePass):
    """Name the ranks a module runs on, as a grid of named axes.

    1. A module without a mesh gets one `hp.mesh` at its top, named `@mesh` (`@mesh_0`, ... where that name is taken).
    2. A module that has this very mesh is left as it is.
    3. A module that has another mesh is refused: its ops and shardings speak of the one it has.

    Requires: level "joint" or "annotated"; with an equal mesh present, any.
    Leaves: the level it found. Numbers are kept bitwise: nothing is computed differently.
    Does not handle: changing or renaming a mesh.

    Options:
        axes: ``name:size`` per axis, outermost first; a rank's number is its row-major coordinate. Must be given.

    Example: ``hp-set-mesh{axes=pp:2,dp:4}`` adds

    ```mlir
    "hp.mesh"() {axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>, sym_name = "mesh"} : () -> ()
    ```
    """

    name: ClassVar[str] = "hp-set-mesh"
    requires: ClassVar[tuple[str, ...]] = ("joint", "annotated")

    axes: tuple[str, ...]

    def __post_init__(self) -> None:
        mesh_of_spelling(self.axes)

    def run(self, module: ir.Operation) -> None:  # noqa: D102
        mesh = mesh_of_spelling(self.axes)
        level_of(module)
        block = module.regions[0].blocks[0]
        present = find_mesh(module)
        if present is not None:
            if present[1] == mesh:
                return
            op = next(child.operation for child in block.operations if child.operation.name == "hp.mesh")
            raise error_at(op, f"the module has mesh @{present[0]} of {present[1]}, {self.name} got: {mesh}")
        require_level(module, self.name, self.requires)
        taken = {
            ir.StringAttr(child.operation.attributes["sym_name"]).value
            for child in block.operations
            if "sym_name" in child.operation.attributes
        }
        symbol = "mesh"
        number = 0
        while symbol in taken:
            symbol, number = f"mesh_{number}", number + 1
        with module.context:
            ir.Operation.create(
                "hp.mesh",
                attributes={
                    "sym_name": ir.StringAttr.get(symbol),
                    "axis_names": strings_attr(mesh.axis_names),
                    "axis_sizes": ints_attr(mesh.axis_sizes),
                },
                loc=module.location,
                ip=ir.InsertionPoint.at_block_begin(block),
            )
