"""The simulator: all ranks of a Program in one process, one after another, until each must wait for another.

It needs no process group and no second process, gives the same result every time, and turns what hangs on a cluster
into a message.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import RuntimeFault
from .entries import inputs_of, peers_of, unused_inputs
from .exchange import Exchange, Future
from .global_values import (
    STATE_ROLES,
    assemble,
    check_batch,
    check_state,
    local_piece,
    local_positions,
)
from .interpreter import CompiledProgram, Observer, RankInterpreter
from .operators import describe, dtype_name
from .precision import program_in_dtype
from .program import Argument, Function, Program, Result
from .random import RandomContext
from .sizes import SizeReader, check_data_ranks
from .trees import build_outputs


@dataclass(frozen=True)
class SimulationResult:
    """What one training step gives, as global tensors put together from the ranks.

    Attributes:
        loss: the loss, the same on every rank.
        grads: gradient by parameter name; a tied parameter's under each of its names.
        buffers: new value of each buffer the step changes, as the first data rank has it, by name.
        outputs: the extra outputs in the structure the step function returned them; None where there are none.
        per_rank: per rank, what its function returned, in the order of ``program.entry(rank).results``.
    """

    loss: Tensor
    grads: dict[str, Tensor]
    buffers: dict[str, Tensor]
    outputs: Any
    per_rank: tuple[tuple[Tensor, ...], ...]


def simulate(
    program: Program,
    state: Mapping[str, Tensor],
    batch: Mapping[str, Any],
    *,
    step: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    observe: Observer | None = None,
    check_types: bool = False,
    data_coordinate: int = 0,
) -> SimulationResult:
    """Run one training step of all ranks in this process.

    Args:
        program: what the ranks run.
        state: full tensors by name; one of a tied parameter's names is enough. Never modified.
        batch: the global batch: the inputs of all data ranks.
        step: number of the step, which the random streams depend on.
        device: where all ranks run.
        dtype: run the whole program in this floating dtype instead of its own; `torch.float64` for a reference.
        observe: called after each op with rank, function name, op and the bytes the rank then holds.
        check_types: compare every op's results with the types that the Program states.
        data_coordinate: of the first data rank, for the random streams: to run one data rank's share of a batch alone.

    Raises:
        RuntimeFault: state or batch do not fit the program; an op fails; ranks disagree about a collective, a message
            or a replicated result; or none can proceed.

    Example:
        >>> result = hpir.simulate(program, dict(model.state_dict()), {"ids": ids})
        >>> result.loss, result.grads["layers.0.up.weight"]
    """
    simulation = _Simulation(program, step, _device(device), dtype, check_types, data_coordinate)
    results = simulation.run("train", state, batch, observe)
    loss = results.loss()
    grads = results.collect("grad")
    buffers = results.collect("buffer")
    if not results.has("output") and _returns(program, "evaluate", "output"):
        outputs = simulation.run("evaluate", state, batch, None).outputs()
    else:
        outputs = results.outputs()
    return SimulationResult(loss, grads, buffers, outputs, tuple(map(tuple, results.values)))


def simulate_evaluate(
    program: Program,
    state: Mapping[str, Tensor],
    batch: Mapping[str, Any],
    *,
    step: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    observe: Observer | None = None,
    check_types: bool = False,
) -> tuple[Tensor, Any]:
    """Run one forward-only step of all ranks in this process; arguments and errors as of `simulate`.

    Returns:
        The loss and the extra outputs (None where there are none).
    """
    simulation = _Simulation(program, step, _device(device), dtype, check_types)
    results = simulation.run("evaluate", state, batch, observe)
    return results.loss(), results.outputs()


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise RuntimeFault(f"no device '{device}': {str(error).splitlines()[0]}") from None


def _returns(program: Program, kind: str, role: str) -> bool:
    names = program.train if kind == "train" else program.evaluate
    return any(result.role == role for name in names for result in program.functions[name].results)


@dataclass
class _Simulation:
    program: Program
    step: int
    device: torch.device
    dtype: torch.dtype | None
    check_types: bool
    data_coordinate: int = 0

    def __post_init__(self) -> None:
        if self.dtype is not None:
            if not self.dtype.is_floating_point:
                raise RuntimeFault(f"expected a floating dtype to run in, got: {dtype_name(self.dtype)}")
            self.program = program_in_dtype(self.program, dtype_name(self.dtype))
        self.compiled = CompiledProgram(self.program, self.device)

    def run(
        self, kind: str, state: Mapping[str, Tensor], batch: Mapping[str, Any], observe: Observer | None
    ) -> _Results:
        """Run the functions that the ranks enter for `kind`: "train" or "evaluate"."""
        program, mesh = self.program, self.program.mesh
        entries = [program.entry(rank, kind) for rank in range(mesh.size)]
        distinct = list({function.name: function for function in entries}.values())
        for function in distinct:
            self.compiled.function(function.name)
        floating = None if self.dtype is None else dtype_name(self.dtype)
        whole = {
            **check_batch(distinct, mesh, batch, floating, program.static_inputs, unused_inputs(program)),
            **check_state(distinct, mesh, state, floating),
        }
        exchange = Exchange(mesh, isolate=self.compiled.mutates)
        for function in distinct:
            check_data_ranks(program, function.arguments, whole)
        pieces = _Pieces(self, whole)
        ranks: list[RankInterpreter] = []
        running: list[Generator[Future, None, list[Any]]] = []
        for rank, function in enumerate(entries):
            data_coordinate = self.data_coordinate + mesh.position(rank, program.data_axes)
            interpreter = RankInterpreter(
                rank,
                self.compiled,
                exchange,
                RandomContext(program.seed, self.step, 0, data_coordinate, program.microbatches),
                observe=observe,
                check_types=self.check_types,
            )
            arguments = pieces.arguments(rank, function)
            ranks.append(interpreter)
            running.append(interpreter.run(self.compiled.function(function.name), arguments))
            del arguments
        del pieces, whole
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False), _default_dtype(self.dtype):
            values = _run_all(ranks, running, exchange)
        return _Results(program, entries, values)


class _Pieces:
    """The arguments of all ranks. Ranks with the same piece share it, unless the program changes tensors in place."""

    def __init__(self, simulation: _Simulation, whole: Mapping[str, Any]) -> None:
        self._simulation = simulation
        self._whole = whole
        self._made: dict[tuple[str, str, tuple[int, ...]], Tensor] = {}
        self._readers: dict[str, SizeReader] = {}

    def arguments(self, rank: int, function: Function) -> list[Any]:
        """Return the arguments of a rank's entry, sizes read from its inputs."""
        values = {a.name: self._of(rank, a) for a in function.arguments if a.role == "input"}
        sizes: dict[str, int] = {}
        if any(argument.role == "size" for argument in function.arguments):
            program = self._simulation.program
            reader = self._readers.get(function.name)
            if reader is None:
                reader = self._readers[function.name] = SizeReader(program, function)
            others = {
                name: self._of(rank, argument)
                for name, argument in inputs_of(peers_of(program, function)).items()
                if name in reader.measured and name not in values
            }
            try:
                sizes = reader.read({**self._whole, **values, **others})
            except RuntimeFault as fault:
                raise RuntimeFault(f"rank {rank}: {fault}") from None
        listed: list[Any] = []
        for argument in function.arguments:
            if argument.role == "size":
                listed.append(sizes[argument.name])
            else:
                listed.append(values[argument.name] if argument.role == "input" else self._of(rank, argument))
        return listed

    def _of(self, rank: int, argument: Argument) -> Any:
        value = self._whole[argument.name]
        mesh, device = self._simulation.program.mesh, self._simulation.device
        positions = local_positions(argument, mesh, rank)
        if self._simulation.compiled.mutates:
            return local_piece(value, argument, mesh, positions, device)
        key = ("state" if argument.role in STATE_ROLES else "batch", argument.name, positions)
        piece = self._made.get(key)
        if piece is None:
            piece = self._made[key] = local_piece(value, argument, mesh, positions, device)
        return piece


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Make results of integer tensors with Python floats come out in `dtype` too."""
    if dtype is None:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _run_all(
    ranks: Sequence[RankInterpreter], running: Sequence[Generator[Future, None, list[Any]]], exchange: Exchange
) -> list[list[Any]]:
    """Run every rank until it has returned, each as far as it can get, in an order that is always the same."""
    returned: dict[int, list[Any]] = {}
    ready = deque(range(len(ranks)))
    while ready:
        rank = ready.popleft()
        try:
            next(running[rank])
        except StopIteration as stop:
            returned[rank] = stop.value
        ready.extend(exchange.take_woken())
    if len(returned) < len(ranks):
        raise RuntimeFault(_deadlock(ranks, returned))
    exchange.check_drained()
    return [returned[rank] for rank in range(len(ranks))]


def _deadlock(ranks: Sequence[RankInterpreter], returned: Mapping[int, object]) -> str:
    lines = [f"deadlock: {len(ranks) - len(returned)} of {len(ranks)} ranks cannot proceed"]
    for interpreter in ranks:
        if interpreter.rank in returned:
            lines.append(f"  rank {interpreter.rank}: has finished")
        elif interpreter.blocked is not None:
            site, future = interpreter.blocked
            lines.append(f"  {site}: waits for {future.waits_for()}")
    return "\n".join(lines)


class _Results:
    """What all ranks returned, by role and name."""

    def __init__(self, program: Program, entries: Sequence[Function], values: list[list[Any]]) -> None:
        self.program = program
        self.values = values
        self._held: dict[str, dict[str, list[tuple[int, Result, Tensor]]]] = {}
        for rank, (function, returned) in enumerate(zip(entries, values, strict=True)):
            for result, value in zip(function.results, returned, strict=True):
                if not isinstance(value, Tensor):
                    raise RuntimeFault(
                        f"rank {rank}: {function.name}: result '{result.name}' is no tensor, got: {describe(value)}"
                    )
                self._held.setdefault(result.role, {}).setdefault(result.name, []).append((rank, result, value))

    def has(self, role: str) -> bool:
        return role in self._held

    def loss(self) -> Tensor:
        """Return the loss, which all ranks must have in common."""
        losses = self._held.get("loss")
        if not losses:
            raise RuntimeFault("the program returns no loss")
        return next(iter(self.collect("loss").values()))

    def collect(self, role: str) -> dict[str, Tensor]:
        """Return the global tensors of a role, under all their names."""
        mesh = self.program.mesh
        tensors: dict[str, Tensor] = {}
        for name, held in self._held.get(role, {}).items():
            if role == "buffer":
                # Each data rank follows its own loop; the first one's values are what a checkpoint takes.
                held = [item for item in held if mesh.position(item[0], self.program.data_axes) == 0]
            where = f"{_ROLE_NAMES.get(role, role)} '{name}'" if role != "loss" else "loss"
            tensor = assemble(where, held, mesh, compare=role != "output")
            for alias in held[0][1].names:
                tensors[alias] = tensor
        return tensors

    def outputs(self) -> Any:
        """Return the extra outputs in their structure."""
        return build_outputs(self.program.output_tree, self.collect("output"))


_ROLE_NAMES = {"grad": "gradient of"}
