"""Staged modules run whole: all stage functions one after the other, on every rank; and checks of what crosses."""

from __future__ import annotations

from dataclasses import replace

from torch_mlir import ir

from hpir.dialect.attributes import find_mesh
from hpir.dialect.signature import Signature, function_name, read_signature, return_of, step_functions
from hpir.ir_passes.views import CASTS, VIEWS, operator_name
from hpir.lowering.step_function import assemble
from hpir.lowering.to_program import lower_function
from hpir.mesh import Mesh
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


def crossing_values(module: ir.Operation) -> dict[str, list[tuple[int, str, str, str]]]:
    """Return for each name of a value that crosses: stage, task and role of its ends, and the type, maker first."""
    ends: dict[str, list[tuple[int, str, str, str]]] = {}
    for function in step_functions(module):
        stage = ir.IntegerAttr(function.attributes["hp.stage"]).value
        task = ir.StringAttr(function.attributes["hp.task"]).value
        assert function_name(function) == f"stage{stage}_{task}"
        signature = read_signature(function, _mesh(module))
        for side in (signature.arguments, signature.results):
            for info in side:
                if info.role in CROSSING:
                    ends.setdefault(info.name, []).append((stage, task, info.role, str(info.type)))
    return ends


def check_crossings(module: ir.Operation) -> None:
    """Check that all that crosses has one maker, right roles, and goes forward in the forward, back in the backward."""
    for name, (maker, *takers) in crossing_values(module).items():
        stage, task, role, type_ = maker
        assert name.startswith(f"{task[0] if '_' not in task else task.split('_')[1][0]}{stage}.")
        assert role == ("outgoing" if any(taker[0] != stage for taker in takers) else "saved")
        assert takers, name
        for other, taken_by, taken_as, taken_type in takers:
            assert taken_as == ("saved" if other == stage else "incoming")
            assert taken_type == type_
            if task == "forward" and taken_by == "forward":
                assert other > stage
            elif task == "forward":
                assert other >= stage
            else:
                assert taken_by != "forward"
                assert other < stage or (other == stage and taken_by == "backward_weight")


def check_no_views(module: ir.Operation) -> None:
    """Check that no function takes a view of what it takes: made by one function, as far as that function knows."""
    taken: dict[str, set[str]] = {}
    for function in step_functions(module):
        for info in read_signature(function, _mesh(module)).arguments:
            if info.role in CROSSING:
                taken.setdefault(info.name, set()).add(function_name(function))
    for function in step_functions(module):
        signature = read_signature(function, _mesh(module))
        crossing = _returned(function, signature)
        for value, name in crossing.items():
            base = value
            while not isinstance(base.owner, ir.Block) and operator_name(base.owner) in (VIEWS | CASTS):
                base = base.owner.operands[0]
                if base in crossing:
                    assert not taken[name] & taken[crossing[base]], (name, crossing[base])


def _returned(function: ir.Operation, signature: Signature) -> dict[ir.Value, str]:
    operands = return_of(function).operands
    return {operands[info.index]: info.name for info in signature.results if info.role in CROSSING}


def _mesh(module: ir.Operation) -> Mesh | None:
    found = find_mesh(module)
    return found[1] if found else None
