"""What torch says of a step that it cannot trace, in words that fit an export, each with what to do instead."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable
from dataclasses import dataclass
from traceback import FrameSummary

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from .step_effects import DRAW_WITH_TORCH, ZERO_GRAD


@dataclass(frozen=True)
class _Rule:
    """What to say where `pattern` is found in torch's text; groups of the pattern may be named in both texts."""

    pattern: str
    what: str
    advice: str


_UNKNOWN = "which are not known before the step runs"
_VALUES = f"needs the values of a tensor, {_UNKNOWN}"
_PYTHON_NAMES = {"_local_scalar_dense": "item()"}
_IN_PLACE = "compute a new tensor instead: parameters are the optimiser's to change"

_RULES = (
    _Rule(
        r"Data-dependent branching|Could not guard on data-dependent expression Eq\(u\d+, 1\)",
        "data-dependent branching: `if`, `while`, `and` or `assert` on a tensor " + _VALUES,
        "compute both branches and choose with torch.where or a mask",
    ),
    _Rule(
        r"Could not extract specialized integer",
        "a size or a count " + _VALUES,
        "pass it as a Python number, or pad to a fixed size and mask",
    ),
    _Rule(
        r"Could not guard on data-dependent expression",
        "data-dependent branching: a branch on a number or a size " + _VALUES,
        "compute both branches and choose with torch.where, or pad to a fixed size and mask",
    ),
    _Rule(
        r"Tensor\.(tolist|item)\(\)|data is not allocated yet",
        "this " + _VALUES,
        "keep such values in tensors, with torch.where or a mask",
    ),
    _Rule(
        r"(?:a|a view of a) leaf Variable that requires grad",
        "a parameter is changed in place",
        _IN_PLACE,
    ),
    _Rule(
        r"torch\.nn\.Parameter\(\)` constructor",
        "nn.Parameter() is called within the step",
        "make parameters in the module's __init__",
    ),
    _Rule(
        r"Unsupported Tensor\.backward\(\) call|the function `backward`",
        "backward() is called within the step function",
        "return the loss: a compiled step computes the gradients itself",
    ),
    _Rule(
        r"torch\.autograd\.grad",
        "torch.autograd.grad is called within the step, and gradients of gradients are not captured by this version",
        "return the loss: a compiled step computes its gradients itself; penalise gradients of torch.func.grad",
    ),
    _Rule(
        r"Unsupported Tensor\.(requires_grad_)\(\) call|set(?:ting)? `?requires_grad`?",
        "requires_grad is changed within the step",
        "freeze parameters before the step is made",
    ),
    _Rule(
        rf"Message: {ZERO_GRAD}",
        "zero_grad() is called within the step function",
        "call it after the optimiser's step: gradients accumulate from call to call",
    ),
    _Rule(
        r"GradScaler\.(?:scale|unscale_|step|update)",
        "a GradScaler is used within the step, and its scale changes from step to step",
        "multiply the loss by an input, and give that scaler.scale(torch.ones(())) at every step",
    ),
    _Rule(r"graph_break\(\)", "the code asks for a graph break, which a step cannot have", "take it out"),
    _Rule(
        r"compiler\.disable\(\)`d function.*?function `<function ([\w.<>]+)",
        "calls '{0}', which torch.compiler.disable keeps out of graphs",
        "take the decorator off, or call it outside the step",
    ),
    _Rule(r"tqdm", "a progress bar is used within the step", "loop without it"),
    _Rule(r"(?:builtin|`)\s*`?(?:<unknown module>\.)?Random\.(\w+)", "draws a Python random number", DRAW_WITH_TORCH),
    _Rule(r"class `(?:Generator|RandomState)`", "draws a NumPy random number", DRAW_WITH_TORCH),
    _Rule(
        r"function `(manual_seed|seed)`",
        "seeds the random generator within the step",
        "seed before the step is made; a compiled step draws from the plan's data.seed",
    ),
    _Rule(r"builtin `time\.sleep", "sleeps within the step", "take it out"),
    _Rule(
        r"trace method `(now|utcnow|today)` of class `type`",
        "reads the clock ({0}())",
        "it would be compiled in as it is now; take it out",
    ),
    _Rule(r"urandom|getrandbits", "draws a random number outside of torch", DRAW_WITH_TORCH),
    _Rule(
        r"tp_iternext",
        "takes the next value of an iterator that was made outside of the step",
        "take it before the step and pass it as an input",
    ),
    _Rule(
        r"Data dependent operator\s.*?Operator `aten\.(\w+)",
        "'{0}' " + _VALUES,
        "keep such values in tensors, with torch.where or a mask",
    ),
    _Rule(
        r"opaque object.*torch\._C\.Generator",
        "a random generator is made within the step",
        "leave it out: random streams are seeded by the plan's data.seed",
    ),
    _Rule(
        r"inplace view on a graph input",
        "an input's shape is changed in place",
        "make a new tensor with view or reshape",
    ),
    _Rule(
        r"torch\.\* op returned non-Tensor",
        "calls a torch function that gives no tensor",
        "call it before the step",
    ),
    _Rule(
        r"function `(?:[gs]et_rng_state|fork_rng)`",
        "reads or sets the random generator's state within the step",
        "leave it out; a compiled step draws from the plan's data.seed",
    ),
    _Rule(
        r"UserDefinedObjectVariable\(Generator\)",
        "uses a torch.Generator",
        "leave it out; a compiled step draws from the plan's data.seed",
    ),
    _Rule(r"builtin `time\.(\w+)", "reads the clock (time.{0})", "it would be compiled in as it is now; take it out"),
    _Rule(
        r"builtin operator `breakpoint`",
        "breakpoint() is called within the step",
        "take it out, or run the step eagerly",
    ),
    _Rule(
        r"builtin operator `(\w+)`",
        "calls builtin `{0}`, which cannot be part of a compiled step",
        "call it before the step and pass what it gives",
    ),
    _Rule(
        r"trace method `(\w+)` of class `(\w+)`",
        "calls {1}.{0}(), which cannot be part of a compiled step",
        "call it before the step and pass what it gives",
    ),
    _Rule(
        r"trace the (?:Python )?builtin `([\w.<> ]+?)\.?`",
        "calls {0}(), a builtin or C extension that cannot be traced",
        "call it before the step, or make it a custom operator with torch.library",
    ),
    _Rule(
        r"the function `([\w.]+)`",
        "calls {0}(), which cannot be part of a compiled step",
        "call it before or after the step",
    ),
    _Rule(
        r"copy\.deepcopy",
        "copy.deepcopy() is called within the step",
        "copy modules in __init__, and tensors with clone()",
    ),
    _Rule(
        r"_ctc_loss",
        "the CTC loss has sizes that depend on its lengths' values",
        "compute it outside the step, or as a custom operator with torch.library",
    ),
    _Rule(r"sparse Tensor", "sparse tensors are not captured by this version", "use a dense tensor"),
    _Rule(
        r"\.numpy\(\) is not supported|does not know how to trace NumPy",
        "NumPy computes outside the graph",
        "use torch operators",
    ),
    _Rule(
        r"maximum recursion depth exceeded",
        "functions call each other without end, or modules are nested too deep",
        "look for a missing base case, or raise the limit with sys.setrecursionlimit",
    ),
    _Rule(
        r"is_dependent",
        "torch.distributions checks its arguments in a way that cannot be part of a compiled step",
        "pass validate_args=False",
    ),
    _Rule(
        # Parameters and buffers are traced with a device; this is a tensor in a plain attribute, a list or a global.
        r"found (?:at least )?two (?:different )?devices[^\n!]*\bmeta\b|on device meta is not|expected device meta",
        "a tensor on the meta device, which has no values and is no parameter or buffer, is used",
        "register it as a buffer, or build the model on a device",
    ),
    _Rule(
        r"same device[^\n]*?found (at least two devices[^\n!]*)",
        "tensors are on different devices: {0}",
        "move the batch, the model and tensors made within the step to one device",
    ),
)

# Advice about torch.compile's own switches, which have no say in an export, and what is said to torch's developers.
_NOT_ADVICE = re.compile(
    r"torch\.compile|torch\._dynamo|set_stance|fullgraph|file an issue|report an issue|dont_skip_tracing|Dynamo|TORCH_"
)

_FAKE_RUN = re.compile(
    r"call_(?:function|method|module) (?:<built-in (?:function|method) )?(\w+).*?\): got (\w+)\((['\"])(.*)\3,?\)\s*$",
    re.DOTALL,
)
_RAISED = re.compile(r"raised exception (\w+)\((.*)\)\s*$", re.MULTILINE)
_FUNCTION = re.compile(r"func='(\w+)'")
_SIZES = re.compile(r"FakeTensor\(.*?size=\(([\d, ]*)\)")
_RANDOM_CALL = re.compile(r"\b(?:np|numpy)\.random\.|(?<![\w.])random\.\w+\(")


def reason(error: BaseException, frames: Iterable[FrameSummary] = ()) -> str:
    """Return in one line what is wrong, with advice in parentheses.

    Args:
        error: what torch, or the user's code as torch ran it, raised.
        frames: its stack, outermost first.
    """
    text = str(error)
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        operator = str(error.func).partition(".")[2].partition(".")[0]
        operator = _PYTHON_NAMES.get(operator, operator)
        return f"'{operator}' {_VALUES} (keep such values in tensors, with torch.where or a mask)"
    stack = list(frames)
    for frame in reversed(stack):
        if "torch/optim/" in frame.filename.replace("\\", "/"):
            return "the optimiser is called within the step function (call it after the step)"
    if "data-dependent" in text and stack:
        line = stack[-1].line or linecache.getline(stack[-1].filename, stack[-1].lineno or 0)
        if _RANDOM_CALL.search(line):
            return f"draws a random number outside of torch ({DRAW_WITH_TORCH})"
    if text.startswith("failed to bind arguments") and isinstance(error.__cause__, TypeError):
        called = _FUNCTION.search(text)
        return f"TypeError: {called[1] if called else 'a function'}(): {_lowered(str(error.__cause__))}"
    ran = _FAKE_RUN.search(_line_after(text, "Explanation:"))
    if ran is not None:
        known = _known(ran[4])
        return known or f"'{ran[1]}'{_operands(text)}: {_unescaped(ran[4]).rstrip('.')}"
    raised = _RAISED.search(text)
    if raised is not None:
        return f"{raised[1]}: {raised[2] if raised[1] == 'KeyError' else _argument(raised[2])}"
    return (isinstance(error, (TorchDynamoException, RuntimeError)) and _known(text)) or _plain(error, text)


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _known(text: str) -> str:
    for rule in _RULES:
        found = re.search(rule.pattern, text, re.DOTALL)
        if found is not None:
            groups = found.groups(default="")
            return f"{rule.what.format(*groups)} ({rule.advice.format(*groups)})"
    return ""


def _plain(error: BaseException, text: str) -> str:
    """Return torch's headline, its explanation, and the first hint that is advice for an export."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    head = lines[0] if lines else type(error).__name__
    if lines and not isinstance(error, (TorchDynamoException, RuntimeError)):
        head = f"{type(error).__name__}: {head}"
    found = [line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:")]
    hints = [line.removeprefix("Hint:").strip() for line in lines if line.startswith("Hint:")]
    hints = [hint for hint in hints if not _NOT_ADVICE.search(hint)]
    if found and not _NOT_ADVICE.search(found[0]):
        head = f"{head}: {found[0]}"
    return f"{head} ({hints[0].rstrip('.')})" if hints else head


def _line_after(text: str, label: str) -> str:
    return next((line.partition(label)[2].strip() for line in text.splitlines() if label in line), "")


def _operands(text: str) -> str:
    """Return the shapes of an operator's tensors, as far as torch tells."""
    call = _line_after(text, "Explanation:").rpartition("): got ")[0]
    shapes = [f"[{sizes.rstrip(', ')}]" for sizes in _SIZES.findall(call)]
    return f" of {' and '.join(shapes)}" if shapes else ""


def _unescaped(text: str) -> str:
    return " ".join(text.replace("\\n", " ").replace("\\'", "'").split())


def _argument(text: str) -> str:
    """Return an exception's message, from how its arguments are written."""
    try:
        value = ast.literal_eval(f"({text},)")
    except (ValueError, SyntaxError):
        return text
    return _unescaped(str(value[0])) if len(value) == 1 else text


def unknown_dtype(what: str, dtype: torch.dtype) -> str:
    """Return the text for a value of a dtype that the IR cannot spell."""
    name = str(dtype).removeprefix("torch.")
    return f"{what} has dtype {name}, which the torch dialect has no type for: convert it before the step"
