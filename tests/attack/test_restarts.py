"""A search that ends in a wrong place is noticed by its residual and begins again elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from cnfgnn.attack.inversion import Target, window_costs
from cnfgnn.attack.restarts import search

ROWS, HISTORY = 40, 4


def truth() -> Tensor:
    """Two nodes whose readings lie above zero and are alike."""
    t = torch.arange(ROWS, dtype=torch.float64)
    return torch.stack([1.5 + torch.sin(t / 5), 1.6 + torch.sin(t / 5 + 0.1)])


def squares(nodes: Tensor) -> Target:
    """The server receives squares: from zero on, no direction seems better than another."""
    starts = torch.arange(ROWS - HISTORY + 1)

    def encode(unknown: Tensor, some: slice) -> Tensor:
        return torch.cat([unknown.square(), (unknown[..., 1:] * unknown[..., :-1])], dim=-1)

    windows = truth()[nodes][:, starts[:, None] + torch.arange(HISTORY)]
    received = encode(windows, slice(0, len(starts)))
    return Target(received, starts, encode, torch.arange(HISTORY), torch.zeros(HISTORY, dtype=torch.long))


def found_from(start: Tensor) -> Tensor:
    solved = torch.full((2,), 1e-6, dtype=torch.float64)
    return search(squares, start[..., None], solved, iterations=40).series[..., 0]


def test_a_start_from_which_nothing_seems_better_fails() -> None:
    assert (found_from(torch.zeros(2, ROWS, dtype=torch.float64)) - truth()).abs().max() > 1


def test_a_node_begins_again_where_its_neighbours_were_found() -> None:
    one_fails = torch.stack([torch.ones(ROWS), torch.zeros(ROWS)]).double()
    torch.testing.assert_close(found_from(one_fails), truth(), rtol=0, atol=1e-3)


def test_a_stretch_that_went_wrong_does_not_spoil_the_rest() -> None:
    """Of one node a stretch begins at zero; what was found elsewhere is kept."""
    start = torch.ones(2, ROWS, dtype=torch.float64)
    start[1, 15:25] = 0
    both = found_from(start)
    torch.testing.assert_close(both, truth(), rtol=0, atol=1e-3)
    every = torch.arange(2)
    assert window_costs(squares(every), both[..., None]).max() < 1e-6


def test_progress_reaches_the_end() -> None:
    shares: list[float] = []
    near = torch.ones(2, ROWS, 1, dtype=torch.float64)
    search(squares, near, torch.full((2,), 1e-6, dtype=torch.float64), 20, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1
