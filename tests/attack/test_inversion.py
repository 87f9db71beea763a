"""A series is found from the hidden states of its windows alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cnfgnn.attack.inversion import WINDOWS_AT_ONCE, Target, invert
from cnfgnn.data.batch import Batch
from cnfgnn.models.gru import NodeModel

NODES, ROWS, HISTORY = 2, 60, 6


def readings() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(NODES, ROWS, generator=generator, dtype=torch.float64)
    return torch.cumsum(0.3 * steps, dim=1).clamp(-3, 3)


def gru(sent: int) -> Target:
    model = NodeModel(hidden=12, embedding=0)
    theta = {name: w.double() for name, w in model.init(torch.Generator().manual_seed(1)).items()}
    starts = torch.arange(ROWS - HISTORY + 1)

    def encode(unknown: Tensor, some: slice) -> Tensor:
        clock = (starts[some, None] + torch.arange(HISTORY)).double() / ROWS
        x = torch.stack([unknown, clock.expand_as(unknown)], dim=-1)
        return model.encode(theta, Batch(x, x[..., 0], clock))[..., :sent]

    windows = readings()[:, starts[:, None] + torch.arange(HISTORY)]
    h_c = encode(windows, slice(0, len(starts))).detach()
    return Target(h_c, starts, encode, torch.arange(HISTORY), torch.zeros(HISTORY, dtype=torch.long))


def with_profile() -> Target:
    """A perceptron that is also told a second series, ahead of the window."""
    generator = torch.Generator().manual_seed(2)
    first = torch.randn(16, 2 * HISTORY, generator=generator, dtype=torch.float64) / 3
    starts = torch.arange(ROWS - 2 * HISTORY + 1)
    rows = torch.arange(2 * HISTORY)
    kinds = (rows >= HISTORY).long()

    def encode(unknown: Tensor, some: slice) -> Tensor:
        return torch.tanh(unknown @ first.T)

    series = torch.stack([readings(), readings().flip(1)], dim=-1)
    windows = series.flatten(1)[:, (starts[:, None] + rows) * 2 + kinds]
    return Target(encode(windows, slice(0, len(starts))), starts, encode, rows, kinds)


def test_a_gru_gives_the_readings_away() -> None:
    target = gru(sent=12)
    found = invert(target, torch.zeros(NODES, ROWS, 1, dtype=torch.float64), iterations=40).series
    assert (found[..., 0] - readings()).square().mean().sqrt() < 1e-3


def test_a_part_of_the_hidden_state_is_enough_because_windows_overlap() -> None:
    target = gru(sent=2)  # two numbers a window, of which each holds six readings
    found = invert(target, torch.zeros(NODES, ROWS, 1, dtype=torch.float64), iterations=80).series
    assert (found[..., 0] - readings()).square().mean().sqrt() < 0.1


def test_two_unknown_series_are_told_apart() -> None:
    target = with_profile()
    found = invert(target, torch.zeros(NODES, ROWS, 2, dtype=torch.float64), iterations=60).series
    inner = found[:, : ROWS - 2 * HISTORY, 0] - readings()[:, : ROWS - 2 * HISTORY]
    assert inner.square().mean().sqrt() < 1e-3


def test_windows_in_pieces_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    start = torch.zeros(NODES, ROWS, 1, dtype=torch.float64)
    whole = invert(gru(12), start, iterations=3).series
    monkeypatch.setitem(WINDOWS_AT_ONCE, "cpu", 21)
    pieces = invert(gru(12), start, iterations=3).series
    torch.testing.assert_close(whole, pieces, rtol=1e-9, atol=1e-12)


def test_progress_is_told_and_the_residual_never_grows() -> None:
    costs: list[float] = []
    invert(gru(12), torch.zeros(NODES, ROWS, 1, dtype=torch.float64), iterations=8, tick=costs.append)
    assert len(costs) == 8
    assert costs == sorted(costs, reverse=True)


def test_numbers_that_nothing_depends_on_stop_no_search() -> None:
    """The equations of one node are singular: it stays where it is, and the others are found."""
    target = gru(sent=12)

    def blind(unknown: Tensor, some: slice) -> Tensor:
        return target.encode(unknown, some) * torch.tensor([1.0, 0.0], dtype=torch.float64)[:, None, None]

    partly = Target(target.received, target.starts, blind, target.rows, target.kinds)
    found = invert(partly, torch.zeros(NODES, ROWS, 1, dtype=torch.float64), iterations=25).series[..., 0]
    assert (found[0] - readings()[0]).square().mean().sqrt() < 0.05
    assert found[1].abs().max() == 0
