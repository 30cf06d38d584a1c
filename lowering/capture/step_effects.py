"""What a step does besides computing tensors, as dynamo sees it while it traces.

Printing and logging are kept out of the graph, each call with a remark. What changes Python objects, or takes values
from outside that differ from call to call, would be stale in a compiled step and is refused.

What is hooked into here is private to torch; each hook calls what it replaces.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from traceback import FrameSummary
from typing import Any, Literal

import torch
from torch import nn
from torch._guards import TracingContext

from ...errors import CaptureError
from .assigned_state import is_recomputed
from .source_places import Place, is_library_file, is_user_file, place_in

LOGGER = logging.getLogger("hpir")
"""Where remarks of a capture go: warnings about the user's own code, information about libraries."""


def remark(place: Place | str, message: str, *, level: int = logging.WARNING) -> None:
    """Say something about a captured step that is no error."""
    LOGGER.log(level, "%s: remark: %s", place, message)


@dataclass(frozen=True)
class Effect:
    """Something a step does besides computing tensors.

    Attributes:
        kind: ``output`` prints or logs; ``state`` changes a Python object; ``random`` draws a Python random number;
            ``identity`` asks for an object's ``id()``.
        what: that is done, in words.
        place: in the user's code.
        advice: what to do instead; empty for `output`.
        module: of a change of the model's own state, the path of the module.
        attributes: and the attributes that are assigned; empty for its buffers.
    """

    kind: Literal["output", "state", "random", "identity"]
    what: str
    place: Place
    advice: str = ""
    module: str | None = None
    attributes: tuple[str, ...] = ()


@dataclass
class StepEffects:
    """The effects of one step, in the order met."""

    effects: dict[Effect, None] = field(default_factory=dict)

    def add(self, kind: Literal["output", "state", "random", "identity"], what: str, advice: str = "") -> None:
        """Add an effect at the line that dynamo is tracing; what Python and torch do for themselves is none."""
        stack = TracingContext.extract_stack()
        if kind == "identity" and not (stack and is_user_file(stack[-1].filename)):
            return
        self.effects[Effect(kind, what, place_in(stack), advice)] = None

    def drop_kept(self, model: nn.Module, lost: Collection[str]) -> None:
        """Forget the changes of the model's state that a compiled step keeps, and those that are none.

        Args:
            model: whose.
            lost: paths of the modules that have buffers it does not keep.
        """
        for effect in list(self.effects):
            if effect.module is None:
                continue
            if effect.attributes:
                kept = is_recomputed(model.get_submodule(effect.module), effect.attributes)
            else:
                kept = effect.module not in lost
            if kept:
                del self.effects[effect]

    def of_model(self) -> bool:
        """Return whether the model's own state is changed otherwise than in place."""
        return any(effect.module is not None for effect in self.effects)

    def check(self, source: str) -> None:
        """Refuse what a compiled step would do differently; make a remark of what it leaves out.

        Raises:
            CaptureError: at the first such line.
        """
        for effect in self.effects:
            if effect.kind == "output" or (effect.kind != "random" and _is_harmless(effect)):
                continue
            refusal = CaptureError(
                f"{effect.place.where or source}: {effect.what}: {effect.advice}{_called(effect.place)}"
            )
            refusal.may_settle = all(
                other.what.startswith(_OF_THE_MODEL) or _is_harmless(other)
                for other in self.effects
                if other.kind == "state"
            )
            raise refusal
        said: set[str] = set()
        for effect in self.effects:
            where = effect.place.where or source
            if effect.kind == "output" and where not in said:
                said.add(where)
                level = logging.WARNING if effect.place.is_own else logging.INFO
                remark(where, f"{effect.what} is kept out of the compiled step", level=level)


def _called(place: Place) -> str:
    return f" (called at {place.caller})" if place.caller else ""


def _is_harmless(effect: Effect) -> bool:
    """Return whether an effect is a library's own bookkeeping: of objects that are not the model's."""
    library = is_library_file(effect.place.where.rpartition(":")[0])
    return library and not (effect.kind == "state" and _OF_THE_MODEL in effect.what)


@contextlib.contextmanager
def watched(train_fn: Callable[..., Any]) -> Iterator[StepEffects]:
    """Have dynamo leave out printing and logging within the block, and say what other effects it sees.

    Args:
        train_fn: what is traced, for the names of the variables it changes.
    """
    heard = StepEffects()
    variables = getattr(getattr(train_fn, "__code__", None), "co_freevars", ())
    functions = importlib.import_module("torch._dynamo.variables.misc")
    user_defined = importlib.import_module("torch._dynamo.variables.user_defined")
    builtin = importlib.import_module("torch._dynamo.variables.builtin")
    side_effects = importlib.import_module("torch._dynamo.side_effects")

    def ignored(call: Any, self: Any, *args: Any) -> Any:
        module = getattr(self.value, "__module__", "builtins")
        name = getattr(self.value, "__name__", "a call")
        heard.add("output", f"{name}()" if module == "builtins" else f"{module.lstrip('_')}.{name}()")
        return call(self, *args)

    def logged(call: Any, self: Any, tx: Any, name: str, *args: Any) -> Any:
        if name == "isEnabledFor":
            return functions.variables.ConstantVariable.create(False)
        if name not in _LOGGER_QUERIES:
            heard.add("output", f"Logger.{name}()")
        return call(self, tx, name, *args)

    def drawn(call: Any, tx: Any, function: Any, *args: Any) -> Any:
        heard.add("random", "the step draws a Python random number", DRAW_WITH_TORCH)
        return call(tx, function, *args)

    def identified(call: Any, self: Any, *args: Any) -> Any:
        heard.add("identity", "id() differs from run to run", "it would be compiled in as it is now; leave it out")
        return call(self, *args)

    def updated(call: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        _add_changes(heard, self, variables)
        return call(self, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch._dynamo.config.patch(ignore_logging_functions=_output_functions()))
        for owner, name, hook in (
            (functions.IgnoredFunctionVariable, "call_function", ignored),
            (functions.LoggingLoggerVariable, "call_method", logged),
            (functions, "call_random_fn", drawn),
            (user_defined, "call_random_fn", drawn),
            (builtin.BuiltinVariable, "call_id", identified),
            (side_effects.SideEffects, "codegen_update_mutated", updated),
            (nn.Module, "zero_grad", _no_zero_grad),
        ):
            stack.enter_context(_hooked(owner, name, hook))
        # Dynamo keeps what it calls for a builtin, hooked or not.
        handlers = builtin.BuiltinVariable.call_function_handler_cache
        handlers.clear()
        stack.callback(handlers.clear)
        yield heard


def _no_zero_grad(*args: Any, **kwargs: Any) -> None:
    # Where parameters have no gradients yet, it would do nothing that dynamo could see.
    torch._dynamo.graph_break(msg=ZERO_GRAD)


ZERO_GRAD = "zero_grad"

DRAW_WITH_TORCH = "it would be compiled in as drawn now; draw with torch, such as torch.rand, or pass it as an input"

_LOGGER_QUERIES = ("getEffectiveLevel", "hasHandlers", "getChild", "isEnabledFor")


def _output_functions() -> set[Callable[..., Any]]:
    """Return what prints or logs and gives nothing back; libraries may have added methods to loggers."""
    names = ("debug", "info", "warning", "warn", "error", "critical", "exception", "log")
    functions: set[Callable[..., Any]] = {print, warnings.warn, *(getattr(logging, name) for name in names)}
    methods = (method for name, method in vars(logging.Logger).items() if not name.startswith("_"))
    return functions | {method for method in methods if callable(method)}


@contextlib.contextmanager
def _hooked(owner: Any, name: str, hook: Callable[..., Any]) -> Iterator[None]:
    """Replace a function of torch's by `hook`, which is given it as the first argument."""
    call = getattr(owner, name)

    def hooking(*args: Any, **kwargs: Any) -> Any:
        return hook(call, *args, **kwargs)

    setattr(owner, name, hooking)
    try:
        yield
    finally:
        setattr(owner, name, call)


def _add_changes(heard: StepEffects, side_effects: Any, variables: Sequence[str]) -> None:
    """Add the changes to Python objects that were there before the step.

    Args:
        heard: what they are added to.
        side_effects: dynamo's.
        variables: names of the step function's variables that are another function's.
    """
    base = importlib.import_module("torch._dynamo.variables.base")
    existing = (base.AttributeMutationExisting, base.ValueMutationExisting)
    for variable in side_effects._get_modified_vars():
        source = getattr(variable, "source", None)
        if source is None or not isinstance(variable.mutation_type, existing):
            continue
        name = source.name() if callable(source.name) else source.name
        attributes = list(side_effects.store_attr_mutations.get(variable, ()))
        what, advice = _change(name, attributes, variables)
        stacks: list[list[FrameSummary]] = side_effects.mutation_user_stacks.get(variable) or [[]]
        module = _module_of(name) if attributes or name.endswith(_BUFFERS) else None
        heard.effects[Effect("state", what, place_in(stacks[0]), advice, module, tuple(attributes))] = None


_MODEL = "L['self']._modules['model']"
_MODULE = re.compile(
    re.escape(_MODEL)
    + r"((?:(?:\._modules|\.__dict__\['_modules'\])\['[^'\[\]]+'\])*)(?:\._buffers|\._non_persistent_buffers_set)?"
)
_BUFFERS = ("._buffers", "._non_persistent_buffers_set")
_OF_THE_MODEL = "the forward assigns to "


def _module_of(name: str) -> str | None:
    """Return the path of the module of the model that dynamo's name is of, or whose buffers; None for all else."""
    found = _MODULE.fullmatch(name)
    if found is None:
        return None
    return ".".join(re.findall(r"\['([^']+)'\]", found[1].replace(".__dict__['_modules']", "")))


def _change(name: str, attributes: list[str], variables: Sequence[str]) -> tuple[str, str]:
    """Say what is changed, by dynamo's name of it, and what to do instead."""
    if name.startswith(_MODEL):
        return _model_change(name.removeprefix(_MODEL), attributes)
    if name.startswith("G["):
        labels = attributes or [label for pair in _GLOBAL.findall(name) for label in pair if label][-1:]
        what = f"global '{labels[0]}'" if labels else "a global"
    elif "_train_fn.__closure__[" in name:
        index = int(name.partition("_train_fn.__closure__[")[2].partition("]")[0])
        label = f" '{variables[index]}'" if index < len(variables) else ""
        what = f"the enclosing function's variable{label}"
    else:
        what = f"attribute '{attributes[0]}' of a Python object" if attributes else "a Python object"
    advice = "return the value beside the loss and keep it outside"
    return f"the step changes {what}, which a compiled step would not do", advice


_GLOBAL = re.compile(r"\.(\w+)|^G\['(\w+)'\]")


def _model_change(name: str, attributes: list[str]) -> tuple[str, str]:
    path = ".".join(re.findall(r"_modules'?\]?\['([^']+)'\]", name))
    owner = f"module '{path}'" if path else "the model"
    if attributes == ["training"]:
        what = f"the training flag of {owner} is changed, which a compiled step would not do"
        return what, "call train() or eval() before the step is made"
    advice = "keep state in a buffer and change it in place (copy_, add_)"
    if "_buffers" in name:
        what = "a buffer"
    else:
        labels = attributes or [part for part in re.findall(r"\.(\w+)", name) if not part.startswith("_")]
        what = f"attribute '{labels[0]}'" if labels else "an attribute"
        advice = f"return it beside the loss, or {advice}"
    return f"the forward assigns to {what} of {owner}, which a compiled step would not do", advice
