"""`Step`: a Program running on this process's rank, around the live model."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import RuntimeFault
from . import torch_compat
from .acknowledgements import acknowledgements
from .agreement import Agreement, Fault, can_go_on, keep_company
from .build import OPERATOR_ERRORS, Executable
from .collectives import RankOps
from .device import (
    RankMesh,
    init_process_group,
    numbered,
    rank_device,
    required_channels,
    required_groups,
    required_messages,
)
from .entry import Entry
from .gathered_bytes import GatheredBytes, watched
from .gradients import clip_gradients, least_norm_dtype
from .initialize import InitFunction
from .operators import describe
from .output_exchange import OutputExchange
from .profile import Recorder
from .program import Function, Program, Result
from .random import RandomContext
from .state import ModelState
from .trees import build_outputs

STEPS = "hpir.steps"
"""Name of the number of training steps run in a step's state: random streams go on from it."""


class Step:
    """A compiled training step on this rank. Make it on every rank; it replaces the model's parameters in place.

    Args:
        program: what to run; the same on every rank.
        model: the live model the Program was compiled from. With a process group its parameters become DTensors on the
            Program's mesh; parameters on the meta device are initialised shard by shard.
        constants: the Program's tensor constants by name.
        backend: "eager" runs the generated torch code, "inductor" compiles it.
        allow: custom-op namespaces that the Program may call.
        init: called with each module that owns parameters on the meta device, in place of its own
            ``reset_parameters``.
        device: to run on; by default what the process group's backend is for, or else where the model is.
        recorder: notes when what runs in each training step. All ranks have one, or none.

    Attributes:
        program: the Program.
        model: the model.
        steps: number of training steps run, which random streams depend on; `state_dict` holds it.

    Raises:
        RuntimeFault: the mesh does not fit the process group, the Program or the model differs between ranks, or the
            model is not the Program's.
    """

    def __init__(
        self,
        program: Program,
        model: nn.Module,
        *,
        constants: Mapping[str, Tensor] | None = None,
        backend: str = "eager",
        allow: Iterable[str] = (),
        init: InitFunction | None = None,
        device: torch.device | None = None,
        recorder: Recorder | None = None,
    ):
        program.validate(allow=allow)
        if program.mesh.size > 1:
            init_process_group(device.type if device is not None else None)
        device = numbered(device) if device is not None else _device_for(model)
        compare_digests(program, device)
        self.program = program
        self.model = model
        self._steps = torch.zeros((), dtype=torch.int64)
        self._ranks = RankMesh(
            program.mesh, device, groups=required_groups(program), channels=required_channels(program)
        )
        if self._ranks.backend != "gloo" and self._ranks.distributed:
            self._ranks.open_channels(required_messages(program))
        rank = self._ranks.rank
        train, evaluate = program.entry(rank, "train"), program.entry(rank, "evaluate")
        self._ops = RankOps(self._ranks)
        names = dict.fromkeys((train.name, evaluate.name))
        self._executable = Executable(program, names, self._ops, backend, recorder)
        self._recorder = recorder
        self._state = ModelState(program, (train, evaluate), model, self._ranks, constants=constants, init=init)
        self._data_coordinate = program.mesh.position(rank, program.data_axes)
        self._least_norm = least_norm_dtype(program)
        self._outputs = OutputExchange(program, self._ranks)
        self._agreement = Agreement(program, self._ranks)
        self._train = self._entry(train, "train")
        self._evaluate = self._entry(evaluate, "evaluate")

    @property
    def steps(self) -> int:
        """Number of training steps run."""
        return int(self._steps)

    @steps.setter
    def steps(self, steps: int) -> None:
        self._steps.fill_(steps)

    def _entry(self, function: Function, kind: str) -> Entry:
        position = self._ranks.coordinate.get(self.program.pipeline_axis or "", 0)
        owned = self._executable.aliases[function.name].owned
        return Entry(self.program, function, self._state, owned, acknowledgements(self.program, kind, position))

    def __call__(self, *unnamed: NoReturn, **batch: Any) -> Tensor:
        """Run forward and backward on one batch; gradients are added to ``.grad`` of the parameters.

        Args:
            unnamed: nothing: inputs have names.
            batch: this data rank's whole batch, as compiled for, on the step's device or in host memory, from where it
                is copied without waiting.

        Returns:
            The loss over all ranks, a plain tensor of shape [].

        Raises:
            TypeError: an input is given without its name.
            RuntimeFault: the batch is not what was compiled for, or an operator fails; the text names rank, function
                and op. The step can be called again.
        """
        _refuse_unnamed(unnamed, "step")
        with self._quiet():
            results = self._run(self._train, batch, self._recorder)
            gradients, buffers = [], {}
            for result, value, owned in results:
                if result.role == "grad":
                    gradients.append((result.name, value, owned))
                elif result.role == "buffer":
                    buffers[result.name] = value if owned else value.clone()
            self._state.add_gradients(gradients)
            self._state.set_buffers(buffers)
        self.steps += 1
        return _loss(results)

    def evaluate(self, *unnamed: NoReturn, **batch: Any) -> tuple[Tensor, Any]:
        """Run forward only; nothing is changed.

        A model compiled in training mode is evaluated in training mode: its dropout masks are those of the next
        training step on the same rows.

        Args:
            unnamed: nothing: inputs have names.
            batch: this data rank's whole batch, as compiled for, on the step's device or in host memory, from where it
                is copied without waiting.

        Returns:
            The loss over all ranks, and what else the step function returned, over the global batch (None for nothing).

        Raises:
            TypeError, RuntimeFault: as for a call.
        """
        _refuse_unnamed(unnamed, "step.evaluate")
        with self._quiet():
            results = self._run(self._evaluate, batch)
            outputs = self._outputs.share(
                {name: value for result, value, _ in results if result.role == "output" for name in result.names}
            )
        return _loss(results), build_outputs(self.program.output_tree, outputs)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the model's parameters, each once: DTensors where there is a process group.

        With a pipeline, those of this rank's stages: plain ones where the pipeline axis is the mesh's only one.
        """
        return (parameter for _, parameter in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that `parameters` does, with the whole model's names."""
        foreign = self._state.foreign.names
        return ((name, parameter) for name, parameter in self.model.named_parameters() if name not in foreign)

    def state_dict(self) -> dict[str, Any]:
        """Return parameters and persistent buffers by the whole model's names, and the number of steps run.

        They share memory with the model and the step, so that `torch.distributed.checkpoint.load` restores them in
        place. The number is under the name `STEPS`; ``model.state_dict()`` is the same without it.

        With a pipeline it is what this rank's stages have; ``model.state_dict()`` has all names, those of other stages
        with tensors on the meta device.
        """
        return {**self._state.foreign.drop_from(self.model.state_dict()), STEPS: self._steps}

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Copy parameters and buffers from `state` into the model, and the number of steps run, where it is there.

        With a pipeline, each rank takes what its stages have; the rest may be there too.

        Args:
            state: by the whole model's names; DTensors, or plain tensors of the whole shape, the same on every rank.
                That of a plain model has no number of steps, and leaves it as it is.
            strict: names that are missing or unknown are errors.

        Raises:
            RuntimeFault: they are, or a value has another shape.
        """
        values = dict(state)
        steps = values.pop(STEPS, None)
        if steps is not None and not (isinstance(steps, int) or (isinstance(steps, Tensor) and steps.numel() == 1)):
            raise RuntimeFault(f"'{STEPS}': expected a number, got: {describe(steps)}")
        self._state.load(values, strict=strict)
        if steps is not None:
            self.steps = int(steps)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Tensor:
        """Scale gradients so that the norm of the whole model's, over all ranks, is at most `max_norm`.

        Args:
            max_norm: the largest norm left as it is.
            norm_type: p of the p-norm; ``inf`` for the largest magnitude.
            error_if_nonfinite: refuse a norm that is infinite or not a number.

        Returns:
            The norm before, a plain tensor that is equal on all ranks.

        Raises:
            RuntimeFault: the norm is refused.
        """
        with self._quiet():
            return clip_gradients(
                list(self._state.parameters.values()),
                self._ranks,
                max_norm,
                norm_type,
                error_if_nonfinite=error_if_nonfinite,
                counted=self._state.counted,
                least=self._least_norm,
            )

    @property
    def code(self) -> str:
        """The Python code this rank runs; `hpir.runtime.python_text.to_python` writes it for people."""
        return self._executable.text

    def watch_gathers(self) -> AbstractContextManager[GatheredBytes]:
        """Return a context that counts the memory of what this rank gathers, such as full parameters.

        With the eager backend; it costs nothing outside the context.

        Example:
            >>> with step.watch_gathers() as gathered:  # doctest: +SKIP
            ...     loss = step(**batch)
            >>> gathered.peak  # doctest: +SKIP
            1572864
        """
        return watched(self._ops)

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Switch off what would change what the recorded operators do: gradient recording and autocast."""
        with torch.no_grad(), contextlib.ExitStack() as stack:
            for kind in {"cpu", self._ranks.device.type}:
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def _run(
        self, entry: Entry, batch: Mapping[str, Any], recorder: Recorder | None = None
    ) -> Sequence[tuple[Result, Tensor, bool]]:
        values: Sequence[Tensor] = ()
        fault: Fault | None = None
        arguments: list[Any] = []
        try:
            arguments = entry.read(entry.inputs(batch, self._ranks.device, self._ranks.rank))
        except RuntimeFault as error:
            if not self._agreement.active:
                raise
            fault = Fault(str(error), [])
        self._ops.random = RandomContext(
            self.program.seed, self.steps, 0, self._data_coordinate, self.program.microbatches
        )
        self._ops.messages.begin(entry.acknowledgements)
        if recorder is not None:
            recorder.start()
        if fault is None:
            values, fault = self._execute(entry.function.name, arguments)
        if fault is not None:
            self._give_up(entry.function.name, fault)
        if self._agreement.active:
            self._agreement.settle(fault)
        if recorder is not None:
            recorder.stop()
        return list(zip(entry.function.results, values, entry.owned, strict=True))

    def _execute(self, name: str, arguments: list[Any]) -> tuple[Sequence[Tensor], Fault | None]:
        """Run an entry; what is still on its way when it fails is left so."""
        values: Sequence[Tensor] | None = None
        fault: Fault | None = None
        try:
            values = self._executable.run(name, arguments)
            self._ops.drain()
        except RuntimeFault as error:
            fault = self._fault(name, error)
        except OPERATOR_ERRORS as error:
            fault = self._fault(name, error)
            # The frames hold the values of the step; the message does not need them.
            traceback.clear_frames(error.__traceback__)
        finally:
            if values is None and fault is None:
                # Interrupted by the user: no waiting.
                self._ops.forget()
        return values or (), fault

    def _fault(self, name: str, error: Exception) -> Fault:
        stack = self._executable.stack(error.__traceback__)
        place = self._executable.place(stack) or name
        text = f"rank {self._ranks.rank}: {place}: {str(error) or type(error).__name__}"
        return Fault(text, stack if can_go_on(self._executable.functions, stack) else None)

    def _give_up(self, name: str, fault: Fault) -> None:
        """Clean up after a failure.

        Raises:
            RuntimeFault: the fault's, at once where the other ranks cannot be told of it.
        """
        told = self._agreement.active and fault.stack is not None
        try:
            if told and fault.stack is not None:
                keep_company(self._executable.functions, name, fault.stack, self._ops)
        except (RuntimeError, RuntimeFault):
            told = False
        connected = self._ops.abandon()
        if not (told and connected):
            raise RuntimeFault(fault.text)


def _refuse_unnamed(unnamed: Sequence[object], called: str) -> None:
    if unnamed:
        given = ", ".join(type(value).__name__ for value in unnamed)
        raise TypeError(f"{called} takes its inputs by name, as in {called}(**batch), got: {given} without a name")


def _loss(results: Iterable[tuple[Result, Tensor, bool]]) -> Tensor:
    return next(value for result, value, _ in results if result.role == "loss")


def _device_for(model: nn.Module) -> torch.device:
    if dist.is_available() and dist.is_initialized():
        return rank_device("cpu" if dist.get_backend() == "gloo" else None)
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta:
            return tensor.device
    return rank_device()


def compare_digests(program: Program, device: torch.device) -> None:
    """Check that all ranks have the same Program.

    Raises:
        RuntimeFault: they do not; the text names ranks.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    own = torch.tensor(list(bytes.fromhex(program.digest)), dtype=torch.uint8, device=device)
    digests = [bytes(row).hex() for row in torch_compat.gather_rows(own).cpu().tolist()]
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise RuntimeFault(
            f"ranks have different Programs: rank 0 has {digests[0][:12]}, "
            + ", ".join(f"rank {rank} has {digests[rank][:12]}" for rank in others[:8])
        )
