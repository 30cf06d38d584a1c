"""Steps that cannot be compiled, one mistake each; the line at fault ends in ``# here``.

`forward` registers the forward of a model, `step` a step function; both are told what the error has to say.
"""

from __future__ import annotations

import copy
import io
import logging
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Function = Callable[..., Any]


@dataclass(frozen=True)
class Refusal:
    """A step that is refused, and what the message must contain beside the line."""

    function: Function
    is_forward: bool
    says: tuple[str, ...]

    def model(self) -> Net:
        """Build the model."""
        return Net(self.function if self.is_forward else None)

    @property
    def train(self) -> Function:
        """The step function."""
        return squared if self.is_forward else self.function


REFUSALS: dict[str, Refusal] = {}


def forward(*says: str) -> Callable[[Function], Function]:
    """Register the forward of a refused model."""
    return _register(True, says)


def step(*says: str) -> Callable[[Function], Function]:
    """Register a refused step function."""
    return _register(False, says)


def _register(is_forward: bool, says: tuple[str, ...]) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        REFUSALS[function.__name__] = Refusal(function, is_forward, says)
        return function

    return register


class Net(nn.Module):
    """A model whose forward is given."""

    def __init__(self, body: Function | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 4), 0.1))
        self.inner = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.scale: Tensor
        self.history: list[Tensor] = []
        self.calls = 0
        self._body = body

    def forward(self, x: Tensor) -> Any:
        """Run the given forward."""
        return self.inner(x @ self.weight) if self._body is None else self._body(self, x)


def squared(model: Net, x: Tensor, y: Tensor) -> Tensor:
    """The step function of models whose forward is at fault."""
    loss: Tensor = model(x).square().mean()
    return loss


# Values that are not known before the step runs


@forward("data-dependent branching", "torch.where or a mask")
def branch_on_a_sum(model: Net, x: Tensor) -> Any:
    y = model.inner(x)
    if y.sum() > 0:  # here
        y = y * 2
    return y


@forward("data-dependent branching", "torch.where")
def loop_until_small(model: Net, x: Tensor) -> Any:
    y = model.inner(x)
    while y.abs().max() > 1:  # here
        y = y / 2
    return y


@forward("data-dependent branching", "torch.where")
def choose_by_bool(model: Net, x: Tensor) -> Any:
    y = model.inner(x)
    return y if bool(x.any()) else -y  # here


@forward("data-dependent branching", "torch.where")
def raise_on_nan(model: Net, x: Tensor) -> Any:
    y = model.inner(x)
    if torch.isnan(y).any():  # here
        raise ValueError("not a number")
    return y


@forward("data-dependent branching", "pad to a fixed size and mask")
def branch_on_a_selected_size(model: Net, x: Tensor) -> Any:
    chosen = model.inner(x)[x[:, 0] > 0]
    if chosen.shape[0] > 3:  # here
        chosen = chosen * 2
    return chosen


@forward("a size or a count needs the values of a tensor", "pass it as a Python number")
def integer_of_a_tensor_as_size(model: Net, x: Tensor) -> Any:
    count = int(x.sum())  # here
    return model.inner(x) + torch.zeros(count, 4).sum()


@forward("a size or a count needs the values of a tensor", "pass it as a Python number")
def range_over_an_item(model: Net, x: Tensor) -> Any:
    y = model.inner(x)
    for number in range(int(x[0, 0].item())):  # here
        y = y + number
    return y


@forward("needs the values of a tensor", "torch.where or a mask")
def list_of_a_tensor(model: Net, x: Tensor) -> Any:
    values = x.tolist()  # here
    return model.inner(x) * values[0][0]


@step("'item()' needs the values of a tensor", "keep such values in tensors")
def number_as_output(model: Net, x: Tensor, y: Tensor) -> Any:
    loss = model(x).mean()
    return loss, {"loss": float(loss)}  # here


@step("'item()' needs the values of a tensor")
def number_as_loss(model: Net, x: Tensor, y: Tensor) -> Any:
    return model(x).mean().item()  # here


@step("'equal' needs the values of a tensor", "torch.where or a mask")
def compare_tensors(model: Net, x: Tensor, y: Tensor) -> Any:
    if x.equal(y):  # here
        return model(x).mean()
    return model(x).sum()


# Parameters, inputs and modes that a step changes


@forward("parameter 'weight' is changed in place", "compute a new tensor instead")
def decay_without_grad(model: Net, x: Tensor) -> Any:
    with torch.no_grad():
        model.weight.mul_(0.9)  # here
    return x @ model.weight


@forward("parameter 'weight' is changed in place", "compute a new tensor instead")
def clamp_weights(model: Net, x: Tensor) -> Any:
    with torch.no_grad():
        model.weight.clamp_(-1, 1)  # here
    return x @ model.weight


@forward("parameter 'weight' is changed in place", "compute a new tensor instead")
def write_a_row(model: Net, x: Tensor) -> Any:
    with torch.no_grad():
        model.weight[0] = 0  # here
    return x @ model.weight


@forward("a parameter is changed in place", "the optimiser's to change")
def decay_with_grad(model: Net, x: Tensor) -> Any:
    model.weight.mul_(0.9)  # here
    return x @ model.weight


@forward("a parameter is changed in place", "the optimiser's to change")
def change_a_view_of_a_parameter(model: Net, x: Tensor) -> Any:
    row = model.weight[0]
    row.add_(1)  # here
    return model.inner(x) + row


@forward("parameter 'weight' is changed in place", "compute a new tensor instead")
def change_data(model: Net, x: Tensor) -> Any:
    model.weight.data.copy_(model.weight.data / model.weight.norm())  # here
    return x @ model.weight


@forward("`.data` of a parameter", "compute a new tensor instead")
def assign_data(model: Net, x: Tensor) -> Any:
    model.weight.data = model.weight.data * 0.9  # here
    return x @ model.weight


@forward("nn.Parameter() is called within the step", "__init__")
def replace_a_parameter(model: Net, x: Tensor) -> Any:
    model.weight = nn.Parameter(model.weight * 0.9)  # here
    return x @ model.weight


@step("input 'x' is changed in place", "compute a new tensor instead")
def change_an_input(model: Net, x: Tensor, y: Tensor) -> Any:
    x.add_(1)  # here
    return model(x).mean()


@step("input 'y' is changed in place", "compute a new tensor instead")
def write_into_an_input(model: Net, x: Tensor, y: Tensor) -> Any:
    y[0] = 1  # here
    return (model(x) * y).mean()


@step("backward() is called within the step function", "return the loss")
def call_backward(model: Net, x: Tensor, y: Tensor) -> Any:
    loss = model(x).mean()
    loss.backward()  # here
    return loss


@step("backward() is called within the step function", "return the loss")
def call_the_engine(model: Net, x: Tensor, y: Tensor) -> Any:
    loss = model(x).mean()
    torch.autograd.backward(loss)  # here
    return loss


@step("zero_grad() is called within the step function", "after the optimiser's step")
def call_zero_grad(model: Net, x: Tensor, y: Tensor) -> Any:
    model.zero_grad()  # here
    return model(x).mean()


@step("the optimiser is called within the step function", "call it after the step")
def call_the_optimiser(model: Net, x: Tensor, y: Tensor) -> Any:
    loss = model(x).mean()
    OPTIMISER.step()  # here
    return loss


@step("the training flag of the model is changed", "call train() or eval() before the step is made")
def switch_to_evaluation(model: Net, x: Tensor, y: Tensor) -> Any:
    model.eval()  # here
    return model(x).mean()


@step("requires_grad is changed within the step", "freeze parameters before the step is made")
def freeze_within(model: Net, x: Tensor, y: Tensor) -> Any:
    model.weight.requires_grad_(False)  # here
    return model(x).mean()


@step("torch.autograd.grad is called within the step", "return the loss")
def gradient_penalty(model: Net, x: Tensor, y: Tensor) -> Any:
    loss = model(x).mean()
    (gradient,) = torch.autograd.grad(loss, [model.weight], create_graph=True)  # here
    return loss + gradient.square().sum()


@forward("the backward needs as it was", "y = y + 1 instead of y.add_(1)")
def change_what_the_backward_needs(model: Net, x: Tensor) -> Any:
    y = torch.exp(model.inner(x))
    z = y * y
    y.add_(1)  # here
    return z


# Python objects that a step changes

SEEN: list[Any] = []
COUNT = 0
TABLE = {"steps": 0}
TOTAL = torch.zeros(3)
NUMBERS = iter([1.0, 2.0])
OPTIMISER = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)


@step("the step changes global 'SEEN'", "return the value beside the loss")
def append_to_a_global(model: Net, x: Tensor, y: Tensor) -> Any:
    loss = model(x).mean()
    SEEN.append(loss.detach())  # here
    return loss


@step("the step changes global 'COUNT'", "keep it outside")
def count_in_a_global(model: Net, x: Tensor, y: Tensor) -> Any:
    global COUNT
    COUNT += 1  # here
    return model(x).mean()


@step("the step changes global 'TABLE'", "keep it outside")
def count_in_a_dict(model: Net, x: Tensor, y: Tensor) -> Any:
    TABLE["steps"] += 1  # here
    return model(x).mean()


@step("a tensor that is no buffer, parameter or input is changed in place", "make it a buffer")
def add_to_a_global_tensor(model: Net, x: Tensor, y: Tensor) -> Any:
    TOTAL[:2].add_(1)  # here
    return model(x).mean()


@step("takes the next value of an iterator", "pass it as an input")
def take_the_next_number(model: Net, x: Tensor, y: Tensor) -> Any:
    return model(x).mean() * next(NUMBERS)  # here


def _with_variables() -> None:
    losses: list[Tensor] = []
    count = 0

    @step("the enclosing function's variable 'losses'", "return the value beside the loss")
    def append_to_a_variable(model: Net, x: Tensor, y: Tensor) -> Any:
        loss = model(x).mean()
        losses.append(loss.detach())  # here
        return loss

    @step("the enclosing function's variable 'count'", "keep it outside")
    def count_in_a_variable(model: Net, x: Tensor, y: Tensor) -> Any:
        nonlocal count
        count += 1  # here
        return model(x).mean()


_with_variables()


@forward("assigns to attribute 'history' of the model", "return it beside the loss")
def append_to_an_attribute(model: Net, x: Tensor) -> Any:
    y = model.inner(x)
    model.history.append(y.detach().mean())  # here
    return y


@forward("assigns to attribute 'calls' of the model", "keep state in a buffer")
def count_in_an_attribute(model: Net, x: Tensor) -> Any:
    model.calls += 1  # here
    return model.inner(x)


@forward("assigns to a buffer of the model", "change it in place (copy_, add_)")
def replace_a_buffer_by_another_shape(model: Net, x: Tensor) -> Any:
    model.scale = torch.stack([model.scale, model.scale])  # here
    return model.inner(x) * model.scale.mean()


# Outputs


@step("output 'x' is input 'x' or a view of it", "return a copy, such as x.clone()")
def hand_out_an_input(model: Net, x: Tensor, y: Tensor) -> Any:  # here
    return model(x).mean(), {"x": x}


@step("output 'y' is input 'y' or a view of it", "return a copy, such as x.clone()")
def hand_out_an_expanded_input(model: Net, x: Tensor, y: Tensor) -> Any:
    return model(x).mean(), {"y": y[None].expand(3, -1, -1)}  # here


@step("output 'weight' is parameter 'weight' or a view of it", "return a copy")
def hand_out_a_transposed_parameter(model: Net, x: Tensor, y: Tensor) -> Any:
    return model(x).mean(), {"weight": model.weight.t()}  # here


@step("output '1' is buffer 'scale' or a view of it", "return a copy")
def hand_out_part_of_a_buffer(model: Net, x: Tensor, y: Tensor) -> Any:
    return model(x).mean(), (x + 1, model.scale[:2])  # here


# Losses


@step("the loss does not depend on any trainable parameter", "torch.no_grad")
def loss_without_grad(model: Net, x: Tensor, y: Tensor) -> Any:  # here
    with torch.no_grad():
        return model(x).mean()


@step("the loss does not depend on any trainable parameter", "detached")
def loss_that_is_detached(model: Net, x: Tensor, y: Tensor) -> Any:  # here
    return model(x).mean().detach()


@step("the loss does not depend on any trainable parameter", "torch.inference_mode")
def loss_in_inference_mode(model: Net, x: Tensor, y: Tensor) -> Any:  # here
    with torch.inference_mode():
        return model(x).mean()


@step("the loss does not depend on any trainable parameter")
def loss_of_the_batch_alone(model: Net, x: Tensor, y: Tensor) -> Any:  # here
    return F.mse_loss(x, y)


@step("returned a NoneType, expected the loss as a tensor")
def no_loss(model: Net, x: Tensor, y: Tensor) -> Any:  # here
    model(x).mean()


@step("returned a float, expected the loss as a tensor")
def constant_loss(model: Net, x: Tensor, y: Tensor) -> Any:  # here
    return 1.0


@step("expected the loss to be a floating tensor, got: torch.int64")
def integer_loss(model: Net, x: Tensor, y: Tensor) -> Any:  # here
    return model(x).argmax(-1).sum()


# What a graph cannot hold


@step("a graph break", "take it out")
def break_the_graph(model: Net, x: Tensor, y: Tensor) -> Any:
    z = model(x)
    torch._dynamo.graph_break()  # here
    return z.mean()


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _disabled(x: Tensor) -> Tensor:
    return x * 2


@step("calls '_disabled'", "take the decorator off")
def call_what_is_disabled(model: Net, x: Tensor, y: Tensor) -> Any:
    return _disabled(model(x)).mean()  # here


@forward("NumPy computes outside the graph", "use torch operators")
def leave_for_numpy(model: Net, x: Tensor) -> Any:
    array = np.tanh(x.numpy())  # here
    return model.inner(x) + torch.from_numpy(array)


@forward("'cond' has branches or loops", "torch.where")
def conditional_region(model: Net, x: Tensor) -> Any:
    y = model.inner(x)
    return torch.cond(y.sum() > 0, lambda v: v * 2, lambda v: v + 1, (y,))  # here


@forward("calls builtin `open`", "call it before the step")
def read_a_file(model: Net, x: Tensor) -> Any:
    with open(__file__) as file:  # noqa: PTH123  # here
        return model.inner(x) * len(file.read())


SINK = io.BytesIO()


@forward("cannot be part of a compiled step", "call it before or after the step")
def save_within(model: Net, x: Tensor) -> Any:
    y = model.inner(x)
    torch.save(y, SINK)  # here
    return y


@forward("breakpoint() is called within the step", "take it out")
def stop_in_the_debugger(model: Net, x: Tensor) -> Any:
    breakpoint()  # here
    return model.inner(x)


@step("cannot be part of a compiled step", "call it before the step")
def write_to_stdout(model: Net, x: Tensor, y: Tensor) -> Any:
    sys.stdout.write("side effect")  # here
    return model(x).mean()


@forward("copy.deepcopy() is called within the step", "in __init__")
def copy_a_module(model: Net, x: Tensor) -> Any:
    return copy.deepcopy(model.inner)(x)  # here


@forward("sparse tensors are not captured", "use a dense tensor")
def compute_sparsely(model: Net, x: Tensor) -> Any:
    return model.inner(x) + torch.sparse.mm(x.to_sparse(), model.weight)  # here


# Values that differ from call to call

GENERATOR = random.Random(0)
NUMPY_GENERATOR = np.random.default_rng(0)


@step("draws a Python random number", "draw with torch")
def draw_in_python(model: Net, x: Tensor, y: Tensor) -> Any:
    return model(x).mean() * random.random()  # here


@step("draws a Python random number", "draw with torch")
def draw_from_a_generator(model: Net, x: Tensor, y: Tensor) -> Any:
    return model(x).mean() * GENERATOR.uniform(0, 1)  # here


@step("draws a random number outside of torch", "draw with torch")
def draw_in_numpy(model: Net, x: Tensor, y: Tensor) -> Any:
    return model(x).mean() * float(np.random.rand())  # here


@step("draws a NumPy random number", "draw with torch")
def draw_from_a_numpy_generator(model: Net, x: Tensor, y: Tensor) -> Any:
    return model(x).mean() * float(NUMPY_GENERATOR.random())  # here


@step("reads the clock", "take it out")
def read_the_clock(model: Net, x: Tensor, y: Tensor) -> Any:
    start = time.perf_counter()  # here
    return model(x).mean() + start


@step("draws a random number outside of torch", "draw with torch")
def draw_from_the_system(model: Net, x: Tensor, y: Tensor) -> Any:
    return model(x).mean() * os.urandom(1)[0]  # here


@step("a random generator is made within the step", "data.seed")
def make_a_generator(model: Net, x: Tensor, y: Tensor) -> Any:
    generator = torch.Generator().manual_seed(0)  # here
    return (model(x) * torch.rand(4, generator=generator)).mean()


@step("seeds the random generator within the step", "data.seed")
def seed_within(model: Net, x: Tensor, y: Tensor) -> Any:
    torch.manual_seed(0)  # here
    return model(x).mean()


@step("id() differs from run to run", "leave it out")
def use_an_address(model: Net, x: Tensor, y: Tensor) -> Any:
    return model(x).mean() * (id(x) % 7)  # here


# What fails in eager torch too


@forward("'matmul' of [8, 4] and [5, 3]", "same reduction dim")
def multiply_wrong_shapes(model: Net, x: Tensor) -> Any:
    hidden = model.inner(x)
    return hidden @ torch.ones(5, 3)  # here


@forward("'linear' of [8, 8] and [4, 4]")
def call_a_module_with_a_wrong_shape(model: Net, x: Tensor) -> Any:
    return model.inner(torch.cat([x, x], -1))  # here


@forward("'view' of [8, 4]", "shape '[3, -1]' is invalid for input of size 32")
def view_as_a_wrong_shape(model: Net, x: Tensor) -> Any:
    return model.inner(x).view(3, -1)  # here


@step("'view' of [8, 4]")
def catch_an_operators_error(model: Net, x: Tensor, y: Tensor) -> Any:
    try:
        z = model(x.view(5, 5))  # here
    except RuntimeError:
        z = model(x)
    return z.mean()


@step("TypeError: forward(): too many positional arguments: got 3, expected 2")
def pass_too_many_arguments(model: Net, x: Tensor, y: Tensor) -> Any:
    return model(x, y).mean()  # here


@forward("AttributeError: 'Net' object has no attribute 'inmer'")
def misspell_an_attribute(model: Net, x: Tensor) -> Any:
    return cast(Any, model).inmer(x)  # here


@step("KeyError: 'b'")
def miss_a_key(model: Net, x: Tensor, y: Tensor) -> Any:
    return {"a": model(x)}["b"].mean()  # here


@step("ValueError: no such thing")
def raise_an_error(model: Net, x: Tensor, y: Tensor) -> Any:
    raise ValueError("no such thing")  # here


@forward("'addmm' of float32 and float64 tensors", "x.to(weight.dtype)")
def mix_dtypes(model: Net, x: Tensor) -> Any:
    return model.inner(x.double())  # here


@forward("a tensor on the meta device, which has no values", "build the model on a device")
def use_a_tensor_without_values(model: Net, x: Tensor) -> Any:
    return model.inner(x) + torch.ones(4, device="meta")  # here


@forward("functions call each other without end", "missing base case")
def recurse_without_end(model: Net, x: Tensor) -> Any:
    def deeper(depth: int) -> Tensor:
        return deeper(depth + 1)  # here

    return deeper(0)


# Not refused: what is left out, with a remark at each line that ends in ``# said``

LOGGER = logging.getLogger("a.users.model")


def talkative(model: Net, x: Tensor, y: Tensor) -> Tensor:
    z: Tensor = model.inner(x)
    print("z", z.mean(), z.shape)  # said
    for number in range(3):
        LOGGER.info("layer %d %s", number, z)  # said
    if LOGGER.isEnabledFor(logging.WARNING):
        LOGGER.warning("not reached: loggers say nothing in a compiled step")
    logging.info("root %s", z)  # said
    warnings.warn("careful", stacklevel=1)  # said
    print(f"loss {z.mean().item():.3f}")  # said
    assert torch.isfinite(z).all(), "not finite"  # said
    return z.square().mean()
