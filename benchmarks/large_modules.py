"""Large modules of real training steps as IR text, without torch: what the passes and tools are timed on.

`training_step` is the joint step of a residual network of normalised two-layer blocks, written out op by op as capture
writes it: every constant at its use, `hp.module` and `hp.phase` on every op, forward and backward. It computes what it
says (the tests run it against autograd). `arithmetic` is a module of MLIR's own dialects that other tools read too.
"""

from __future__ import annotations

from collections.abc import Sequence

ROWS, LENGTH, WIDTH, HIDDEN = 2, 8, 16, 32
"""Sizes of the batch, and widths, of `training_step`."""

EPSILON = 1e-5
"""What `training_step`'s norms add to the mean square."""

OPS_PER_BLOCK = 90
"""Operations that `training_step` writes per block, forward and backward."""


def training_step(blocks: int, pointwise: int = 0) -> str:
    """Return a module at level "joint" with three trainable parameters per block, `OPS_PER_BLOCK` ops each.

    Per block ``x + down(gelu(up(rms_norm(x))))``; the loss is the mean square difference to `target`.

    Args:
        blocks: number of blocks.
        pointwise: times that tanh follows the gelu: two ops each more per block, and no parameter.
    """
    writer = _StepWriter()
    x = writer.argument(_tensor(ROWS, LENGTH, WIDTH), 'hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"')
    target = writer.argument(
        _tensor(ROWS, LENGTH, WIDTH), 'hp.batch_dim = 0 : i64, hp.name = "target", hp.role = "input"'
    )
    saved = []
    for number in range(blocks):
        block = _Block(writer, f"blocks.{number}", pointwise)
        x = block.forward(x)
        saved.append(block)
    loss = writer.tensor("mse_loss", [x, target, writer.integer(1)], [])
    writer.result(loss, 'hp.role = "loss"')
    writer.phase = "backward"
    shape = [ROWS, LENGTH, WIDTH]
    difference = writer.tensor("sub.Tensor", [x, target, writer.integer(1)], shape)
    gradient = writer.tensor("mul.Scalar", [difference, writer.real(2 / (ROWS * LENGTH * WIDTH))], shape)
    for block in reversed(saved):
        gradient = block.backward(gradient)
    return writer.module()


def blocks_for(operations: int, pointwise: int = 0) -> int:
    """Return how many blocks make a `training_step` of about this many operations."""
    return max(1, round(operations / (OPS_PER_BLOCK + 2 * pointwise)))


def arithmetic(operations: int) -> str:
    """Return a function of `operations` ops of MLIR's arith dialect, a quarter of them duplicates."""
    lines = ["module {", "  func.func @chain(%arg0: i64, %arg1: i64) -> i64 {"]
    x, y = "%arg0", "%arg1"
    for number in range(operations // 4):
        a, b, c, d = (f"%{name}{number}" for name in "abcd")
        lines += [
            f"    {a} = arith.addi {x}, {y} : i64",
            f"    {b} = arith.addi {x}, {y} : i64",
            f"    {c} = arith.muli {a}, {y} : i64",
            f"    {d} = arith.subi {c}, {b} : i64",
        ]
        x, y = d, c
    lines += [f"    func.return {x} : i64", "  }", "}", ""]
    return "\n".join(lines)


def _tensor(*shape: int) -> str:
    return f"!torch.vtensor<[{','.join(map(str, shape))}],f32>"


class _Value:
    """An SSA value: its name and type."""

    __slots__ = ("name", "type")

    def __init__(self, name: str, type_: str):
        self.name = name
        self.type = type_


class _StepWriter:
    """Writes one step function; ops get the module and phase that are set."""

    def __init__(self) -> None:
        self.module_name = ""
        self.phase = "forward"
        self._arguments: list[str] = []
        self._results: list[tuple[_Value, str]] = []
        self._gradients: list[tuple[_Value, str]] = []
        self._lines: list[str] = []

    def argument(self, type_: str, attributes: str) -> _Value:
        value = _Value(f"%arg{len(self._arguments)}", type_)
        self._arguments.append(f"{value.name}: {type_} {{{attributes}}}")
        return value

    def parameter(self, name: str, *shape: int) -> _Value:
        return self.argument(_tensor(*shape), f'hp.fqn = ["{name}"], hp.role = "param", hp.trainable')

    def gradient(self, name: str, value: _Value) -> None:
        self._gradients.append((value, f'hp.fqn = ["{name}"], hp.role = "grad"'))

    def result(self, value: _Value, attributes: str) -> None:
        self._results.append((value, attributes))

    def _op(self, text: str, type_: str) -> _Value:
        value = _Value(f"%{len(self._lines)}", type_)
        self._lines.append(f"    {value.name} = {text}")
        return value

    def integer(self, number: int) -> _Value:
        return self._op(f"torch.constant.int {number}", "!torch.int")

    def real(self, number: float) -> _Value:
        return self._op(f"torch.constant.float {number:.17e}", "!torch.float")

    def boolean(self, flag: bool) -> _Value:
        return self._op(f"torch.constant.bool {str(flag).lower()}", "!torch.bool")

    def none(self) -> _Value:
        return self._op("torch.constant.none", "!torch.none")

    def text(self, text: str) -> _Value:
        return self._op(f'torch.constant.str "{text}"', "!torch.str")

    def integers(self, *numbers: int) -> _Value:
        items = [self.integer(number) for number in numbers]
        operands, types = ", ".join(item.name for item in items), ", ".join(item.type for item in items)
        return self._op(f"torch.prim.ListConstruct {operands} : ({types}) -> !torch.list<int>", "!torch.list<int>")

    def tensor(self, operator: str, operands: Sequence[_Value], shape: Sequence[int]) -> _Value:
        """Write an ATen op whose result has this shape."""
        module = f'hp.module = "{self.module_name}", ' if self.module_name else ""
        names, types = ", ".join(item.name for item in operands), ", ".join(item.type for item in operands)
        type_ = _tensor(*shape)
        return self._op(
            f'torch.aten.{operator} {names} {{{module}hp.phase = "{self.phase}"}} : {types} -> {type_}', type_
        )

    def module(self) -> str:
        results = [*self._results, *reversed(self._gradients)]
        signature = ", ".join(f"{value.type} {{{attributes}}}" for value, attributes in results)
        values, types = (", ".join(getattr(value, part) for value, _ in results) for part in ("name", "type"))
        return "\n".join(
            [
                'module attributes {hp.level = "joint"} {',
                f"  func.func @joint({', '.join(self._arguments)}) -> ({signature}) {{",
                *self._lines,
                f"    return {values} : {types}",
                "  }",
                "}",
                "",
            ]
        )


class _Linear:
    """``x @ weight.T`` over the last dim, as capture writes it."""

    def __init__(self, writer: _StepWriter, name: str, inputs: int, outputs: int):
        self._writer, self._name = writer, name
        self._inputs, self._outputs = inputs, outputs
        self._weight = writer.parameter(f"{name}.weight", outputs, inputs)

    def forward(self, x: _Value) -> _Value:
        w, inputs, outputs = self._writer, self._inputs, self._outputs
        w.module_name = self._name
        self._transposed = w.tensor("t", [self._weight], [inputs, outputs])
        self._rows = w.tensor("view", [x, w.integers(ROWS * LENGTH, inputs)], [ROWS * LENGTH, inputs])
        y = w.tensor("mm", [self._rows, self._transposed], [ROWS * LENGTH, outputs])
        return w.tensor("_unsafe_view", [y, w.integers(ROWS, LENGTH, outputs)], [ROWS, LENGTH, outputs])

    def backward(self, gradient: _Value) -> _Value:
        w, inputs, outputs = self._writer, self._inputs, self._outputs
        w.module_name = self._name
        rows = w.tensor("view", [gradient, w.integers(ROWS * LENGTH, outputs)], [ROWS * LENGTH, outputs])
        across = w.tensor("t", [rows], [outputs, ROWS * LENGTH])
        weight = w.tensor("mm", [across, self._rows], [outputs, inputs])
        w.gradient(f"{self._name}.weight", weight)
        back = w.tensor("t", [self._transposed], [outputs, inputs])
        x = w.tensor("mm", [rows, back], [ROWS * LENGTH, inputs])
        return w.tensor("view", [x, w.integers(ROWS, LENGTH, inputs)], [ROWS, LENGTH, inputs])


class _Norm:
    """Root-mean-square norm over the last dim, in primitives."""

    _FULL = (ROWS, LENGTH, WIDTH)
    _ONE = (ROWS, LENGTH, 1)

    def __init__(self, writer: _StepWriter, name: str):
        self._writer, self._name = writer, name
        self._weight = writer.parameter(f"{name}.weight", WIDTH)

    def _mean(self, x: _Value) -> _Value:
        w = self._writer
        return w.tensor("mean.dim", [x, w.integers(2), w.boolean(True), w.none()], self._ONE)

    def forward(self, x: _Value) -> _Value:
        w = self._writer
        w.module_name = self._name
        square = self._mean(w.tensor("pow.Tensor_Scalar", [x, w.integer(2)], self._FULL))
        shifted = w.tensor("add.Scalar", [square, w.real(EPSILON), w.integer(1)], self._ONE)
        self._scale = w.tensor("rsqrt", [shifted], self._ONE)
        self._normal = w.tensor("mul.Tensor", [x, self._scale], self._FULL)
        return w.tensor("mul.Tensor", [self._normal, self._weight], self._FULL)

    def backward(self, gradient: _Value) -> _Value:
        w = self._writer
        w.module_name = self._name
        product = w.tensor("mul.Tensor", [gradient, self._normal], self._FULL)
        summed = w.tensor("sum.dim_IntList", [product, w.integers(0, 1), w.boolean(True), w.none()], [1, 1, WIDTH])
        w.gradient(f"{self._name}.weight", w.tensor("view", [summed, w.integers(WIDTH)], [WIDTH]))
        normal = w.tensor("mul.Tensor", [gradient, self._weight], self._FULL)
        mean = self._mean(w.tensor("mul.Tensor", [normal, self._normal], self._FULL))
        along = w.tensor("mul.Tensor", [self._normal, mean], self._FULL)
        across = w.tensor("sub.Tensor", [normal, along, w.integer(1)], self._FULL)
        return w.tensor("mul.Tensor", [across, self._scale], self._FULL)


class _Block:
    """``x + down(gelu(up(norm(x))))``, with any number of tanh behind the gelu."""

    def __init__(self, writer: _StepWriter, name: str, pointwise: int):
        self._writer, self._name = writer, name
        self._pointwise = pointwise
        self._norm = _Norm(writer, f"{name}.norm")
        self._up = _Linear(writer, f"{name}.up", WIDTH, HIDDEN)
        self._down = _Linear(writer, f"{name}.down", HIDDEN, WIDTH)

    def forward(self, x: _Value) -> _Value:
        w = self._writer
        self._raised = self._up.forward(self._norm.forward(x))
        w.module_name = self._name
        active = w.tensor("gelu", [self._raised, w.text("none")], [ROWS, LENGTH, HIDDEN])
        self._bent: list[_Value] = []
        for _ in range(self._pointwise):
            active = w.tensor("tanh", [active], [ROWS, LENGTH, HIDDEN])
            self._bent.append(active)
        y = self._down.forward(active)
        w.module_name = self._name
        return w.tensor("add.Tensor", [x, y, w.integer(1)], [ROWS, LENGTH, WIDTH])

    def backward(self, gradient: _Value) -> _Value:
        w = self._writer
        active = self._down.backward(gradient)
        w.module_name = self._name
        for bent in reversed(self._bent):
            active = w.tensor("tanh_backward", [active, bent], [ROWS, LENGTH, HIDDEN])
        raised = w.tensor("gelu_backward", [active, self._raised, w.text("none")], [ROWS, LENGTH, HIDDEN])
        x = self._norm.backward(self._up.backward(raised))
        w.module_name = self._name
        return w.tensor("add.Tensor", [gradient, x, w.integer(1)], [ROWS, LENGTH, WIDTH])
