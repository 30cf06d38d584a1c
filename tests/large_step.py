"""Joint steps of any length as IR text, for checks of how a pass's time grows."""

from __future__ import annotations

_ACT, _ACT_T = "!torch.vtensor<[2,4],f32>", "!torch.vtensor<[4,2],f32>"
_WEIGHT, _BIAS, _SCALAR = "!torch.vtensor<[4,4],f32>", "!torch.vtensor<[4],f32>", "!torch.vtensor<[],f32>"


def large_step(layers: int, pointwise: int) -> str:
    """Return a module at level "joint": linear layers, each followed by `pointwise` times tanh, and their backward.

    It has ``layers * (2 * pointwise + 7)`` ops and a few.
    """
    arguments, results, returned = [], [f'{_SCALAR} {{hp.role = "loss"}}'], ["%loss"]
    for n in range(layers):
        for name, type_ in (("w", _WEIGHT), ("b", _BIAS)):
            fqn = f'hp.fqn = ["layers.{n}.{name}"]'
            arguments.append(f'%{name}{n}: {type_} {{{fqn}, hp.role = "param", hp.trainable}}')
            results.append(f'{type_} {{{fqn}, hp.role = "grad"}}')
            returned.append(f"%d{name}{n}")
    arguments.append(f'%x: {_ACT} {{hp.role = "input", hp.name = "x", hp.batch_dim = 0 : i64}}')
    ops = [
        "%none = torch.constant.none",
        "%false = torch.constant.bool false",
        "%int0 = torch.constant.int 0",
        "%int1 = torch.constant.int 1",
        "%dims = torch.prim.ListConstruct %int0 : (!torch.int) -> !torch.list<int>",
    ]
    inputs, value = [], "%x"
    for n in range(layers):
        marks = f'{{hp.module = "layers.{n}", hp.phase = "forward"}}'
        inputs.append(value)
        ops.append(f"%t{n} = torch.aten.t %w{n} {marks} : {_WEIGHT} -> {_WEIGHT}")
        ops.append(
            f"%h{n} = torch.aten.addmm %b{n}, {value}, %t{n}, %int1, %int1 {marks} : "
            f"{_BIAS}, {_ACT}, {_WEIGHT}, !torch.int, !torch.int -> {_ACT}"
        )
        value = f"%h{n}"
        for k in range(pointwise):
            ops.append(f"%p{n}_{k} = torch.aten.tanh {value} {marks} : {_ACT} -> {_ACT}")
            value = f"%p{n}_{k}"
    ops.append(f'%loss = torch.aten.sum {value}, %none {{hp.phase = "forward"}} : {_ACT}, !torch.none -> {_SCALAR}')
    gradient = value
    for n in reversed(range(layers)):
        marks = f'{{hp.module = "layers.{n}", hp.phase = "backward"}}'
        for k in reversed(range(pointwise)):
            ops.append(f"%g{n}_{k} = torch.aten.tanh_backward {gradient}, %p{n}_{k} {marks} : {_ACT}, {_ACT} -> {_ACT}")
            gradient = f"%g{n}_{k}"
        ops += [
            f"%u{n} = torch.aten.t %t{n} {marks} : {_WEIGHT} -> {_WEIGHT}",
            f"%gt{n} = torch.aten.t {gradient} {marks} : {_ACT} -> {_ACT_T}",
            f"%dw{n} = torch.aten.mm %gt{n}, {inputs[n]} {marks} : {_ACT_T}, {_ACT} -> {_WEIGHT}",
            f"%db{n} = torch.aten.sum.dim_IntList {gradient}, %dims, %false, %none {marks} : "
            f"{_ACT}, !torch.list<int>, !torch.bool, !torch.none -> {_BIAS}",
            f"%gx{n} = torch.aten.mm {gradient}, %u{n} {marks} : {_ACT}, {_WEIGHT} -> {_ACT}",
        ]
        gradient = f"%gx{n}"
    types = ", ".join([_SCALAR, *[_WEIGHT, _BIAS] * layers])
    return "\n".join(
        [
            'module attributes {hp.level = "joint"} {',
            f"func.func @joint({', '.join(arguments)}) -> ({', '.join(results)}) {{",
            *ops,
            f"return {', '.join(returned)} : {types}",
            "}",
            "}",
        ]
    )
