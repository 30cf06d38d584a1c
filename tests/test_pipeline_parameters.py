"""Parameters that no module holds, or that ops of no module use, in pipelines: against the plain loop, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from models import Case, train_regression
from test_pipeline_acceptance import check, plan_for
from torch import Tensor, nn

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
