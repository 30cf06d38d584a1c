"""Programs of staged modules that run all stage functions one after the other, on every rank."""

from __future__ import annotations

from dataclasses import replace

from torch_mlir import ir

from hpir.dialect.attributes import find_mesh
from hpir.dialect.signature import step_functions
from hpir.lowering.step_function import assemble
from hpir.lowering.to_program import lower_function
from hpir.runtime.program import Argument, Function, Op, Program, Ref, Result

CROSSING = ("incoming", "outgoing", "saved")


def staged_program(module: ir.Operation, whole: Program) -> Program:
    """Make a Program that calls the functions of a staged module in their order, in place of the step they came from.

    Args:
        module: at level "staged".
        whole: the Program of the step before it was split: its arguments, results and microbatches are kept.
    """
    found = find_mesh(module)
    assert found is not None
    lowered = [lower_function(function, found[1]) for function in step_functions(module)]
    # The functions around the step have names of stage functions, too.
    stages = [replace(function, name=f"part_{function.name}") for function in lowered]
    step = _chain(stages, whole.functions["stage0_step"], whole.functions["stage0_forward"])
    functions, train, evaluate = assemble(step, whole.mesh, whole.data_axes, whole.microbatches)
    functions.update({function.name: function for function in stages})
    program = replace(whole, functions=functions, train=(train,), evaluate=(evaluate,), reference=None, text="")
    program.validate()
    return program


def _chain(stages: list[Function], step: Function, forward: Function) -> Function:
    """Call each function once; a value that crosses is found by its name, parts of one gradient are added."""
    numbers = {(argument.role, argument.name): index for index, argument in enumerate(step.arguments)}
    crossing: dict[str, int] = {}
    made: dict[tuple[str, str], tuple[int, Result]] = {}
    ops: list[Op] = []
    count = len(step.arguments)
    for stage in stages:
        operands = [Ref(_operand(argument, numbers, crossing)) for argument in stage.arguments]
        results = tuple(range(count, count + len(stage.results)))
        count += len(results)
        types = tuple(result.type for result in stage.results)
        ops.append(Op("call", tuple(operands), {"function": stage.name}, results, types))
        for number, result in zip(results, stage.results, strict=True):
            if result.role in CROSSING:
                assert result.name not in crossing, result.name
                crossing[result.name] = number
            elif result.role == "grad" and ("grad", result.name) in made:
                before = made["grad", result.name][0]
                ops.append(Op("aten.add.Tensor", (Ref(before), Ref(number)), {}, (count,), (result.type,)))
                made["grad", result.name] = (count, result)
                count += 1
            else:
                assert (result.role, result.name) not in made, result.name
                made[result.role, result.name] = (number, result)
    wanted = dict.fromkeys((result.role, result.name) for result in (*step.results, *forward.results))
    assert set(wanted) == set(made), set(wanted) ^ set(made)
    returned = tuple(replace(made[key][1], value=made[key][0]) for key in wanted)
    return Function("step", step.arguments, tuple(ops), returned)


def _operand(argument: Argument, numbers: dict[tuple[str, str], int], crossing: dict[str, int]) -> int:
    return crossing[argument.name] if argument.role in CROSSING else numbers[argument.role, argument.name]
