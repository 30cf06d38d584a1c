"""Recurrent layers: taken apart into operators that every device has, as in eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture_check import assert_captured, regression
from models import train_regression
from torch import Tensor, nn

import hpir

BATCH = regression(4, 2, 3)


class Recurrent(nn.Module):
    """A recurrent layer of 3 steps and a head on its last output."""

    def __init__(self, layer: Callable[..., nn.RNNBase], **how: Any):
        super().__init__()
        self.layer = layer(4, 3, batch_first=True, **how)
        self.head = nn.Linear((how.get("proj_size") or 3) * (2 if how.get("bidirectional") else 1), 2)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.layer(x)
        y: Tensor = self.head(states[:, -1])
        return y


class Cell(nn.Module):
    """An LSTM cell in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        assert state is not None
        y: Tensor = self.head(state[0])
        return y


class Flattened(Recurrent):
    """Reaches the layer's weights through its list of them first."""

    def forward(self, x: Tensor) -> Tensor:
        self.layer.flatten_parameters()
        return super().forward(x)


@pytest.mark.parametrize(
    ("layer", "how"),
    (
        (nn.LSTM, {}),
        (nn.GRU, {"num_layers": 2}),
        (nn.RNN, {"nonlinearity": "relu"}),
        (nn.LSTM, {"bidirectional": True, "proj_size": 2}),
    ),
    ids=("lstm", "gru of two layers", "rnn", "lstm both ways with projection"),
)
def test_recurrent_layers(layer: Callable[..., nn.RNNBase], how: dict[str, Any]) -> None:
    assert_captured(lambda: Recurrent(layer, **how), train_regression, BATCH)


def test_cells_in_a_loop() -> None:
    assert_captured(Cell, train_regression, BATCH)


def test_weights_reached_through_a_list_are_trained() -> None:
    assert_captured(lambda: Flattened(nn.GRU), train_regression, BATCH)


def test_in_single_precision_no_operator_is_one_that_only_the_cpu_has() -> None:
    exported = assert_captured(lambda: Recurrent(nn.LSTM), train_regression, BATCH, dtype=torch.float32, tolerance=1e-4)
    assert "mkldnn" not in exported.text()


def test_dropout_between_layers_is_refused() -> None:
    model = Recurrent(nn.LSTM, num_layers=2, dropout=0.1)
    with pytest.raises(hpir.CaptureError, match=r"module 'layer' has dropout between its layers.*: set dropout to 0"):
        hpir.export(model, train_regression, BATCH)
    assert hpir.export(model.eval(), train_regression, BATCH).module is not None


def packed(model: Recurrent, x: Tensor, y: Tensor) -> Tensor:
    lengths = torch.full((x.shape[0],), 3)
    sequence = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)  # here
    states, _ = nn.utils.rnn.pad_packed_sequence(model.layer(sequence)[0], batch_first=True)
    return nn.functional.mse_loss(model.head(states[:, -1]), y)


def test_packed_sequences_are_refused_at_the_users_line() -> None:
    with pytest.raises(hpir.CaptureError, match=r"pack_padded_sequence") as error:
        hpir.export(Recurrent(nn.LSTM), packed, BATCH)
    assert str(error.value).startswith(f"{__file__}:{packed.__code__.co_firstlineno + 2}: ")
