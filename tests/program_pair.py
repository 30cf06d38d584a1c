"""Two ranks with a function each, for tests of ranks that disagree."""

from __future__ import annotations

from collections.abc import Callable

from program_builder import FunctionBuilder, by_position, with_location

from hpir.mesh import Mesh
from hpir.runtime.program import Program, Ref, TensorType


def pair_program(first: Callable[[FunctionBuilder], object], second: Callable[[FunctionBuilder], object]) -> Program:
    """Two ranks with a function each, every op with a source line."""
    functions = []
    for name, body in (("first", first), ("second", second)):
        f = FunctionBuilder(name, Mesh.of({"pp": 2}))
        f.literal(((1.0, 2.0),), TensorType((1, 2), "float32"))
        body(f)
        function = f.build()
        for number in range(len(function.ops)):
            function = with_location(function, number, f"{name}.py:{number}", "layers.0")
        functions.append(function)
    return by_position(functions, Mesh.of({"pp": 2}), "pp")


X = Ref(0)
