"""Parameters that no module holds, or that ops of no module use, in pipelines: against the plain loop, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from models import BY_NAME, Block, Case, train_lm, train_regression
from test_pipeline_acceptance import check, plan_for
from torch import Tensor, nn
from torch.nn import functional as F

import hpir

USES: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda weight: weight[:3, :3].sum(0),
    "select": lambda weight: weight[2][:3],
    "narrow": lambda weight: weight.narrow(0, 1, 3)[:, :3].sum(0),
    "diagonal": lambda weight: weight.diagonal()[:3],
}


class Viewed(nn.Module):
    """A parameter of the root that is used through a view."""

    def __init__(self, use: str):
        super().__init__()
        self.up = nn.Linear(3, 3)
        self.down = nn.Linear(3, 1)
        self.weight = nn.Parameter(torch.randn(8, 4))
        self.use = USES[use]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.tanh(self.up(x) + self.use(self.weight)))
        return y


@pytest.mark.parametrize("use", USES)
def test_gradients_of_views_are_sunk(use: str) -> None:
    case = Case(
        use, lambda: Viewed(use), lambda rows: {"x": torch.randn(rows, 3), "y": torch.randn(rows, 1)}, train_regression
    )
    exported = hpir.export(case.model(torch.float64), train_regression, case.data(2, torch.float64))
    pipeline = {"stages": [["up"], ["down"]], "sink_reductions": True}
    check(case, exported, plan_for(case, {"pp": 2, "dp": 2}, 2, pipeline=pipeline))


class Early(nn.Module):
    """The root's forward uses the head's weight as its embedding, or a piece of it between two layers."""

    def __init__(self, between: bool, vocab: int = 10, dim: int = 8):
        super().__init__()
        if between:
            self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([Block(dim) for _ in range(4)])
        self.head = nn.Linear(dim, vocab, bias=False)
        self.between = between

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) if self.between else F.embedding(ids, self.head.weight)
        for number, layer in enumerate(self.layers):
            if self.between and number == 1:
                x = x + self.head.weight[0].sum()
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


LISTS = {
    2: [["layers.0", "layers.1"], ["layers.2", "layers.3", "head"]],
    4: [["embed", "layers.0"], ["layers.1"], ["layers.2"], ["layers.3", "head"]],
}


@pytest.mark.parametrize("declared", (False, True), ids=("auto", "lists"))
@pytest.mark.parametrize("between", (False, True), ids=("embedding", "between"))
def test_a_later_modules_parameter_is_used_early(between: bool, declared: bool) -> None:
    """Were that op to run where the parameter is declared, a stage would have no op left."""
    case = Case("early", lambda: Early(between), BY_NAME["tied"].batch, train_lm, units=("layers.*",))
    exported = hpir.export(case.model(torch.float64), train_lm, case.data(2))
    mesh = {"pp": 4} if between else {"pp": 2, "dp": 2}
    pipeline = {"stages": LISTS[mesh["pp"]] if declared else "auto"}
    check(case, exported, plan_for(case, mesh, 2, pipeline=pipeline))
