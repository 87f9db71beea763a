"""Searches that notice by themselves that they ended in a wrong place, and begin again from another one.

The residual tells: where windows are left whose hidden states are not those that were received, the series is
wrong. The attacker sees this without knowing a single reading.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cnfgnn.attack.inversion import Found, Target, counted, invert, window_costs

REPAIRS = 3  # times that unsolved windows are searched again
WORTHWHILE = 0.9  # unless no node keeps less than this share of its cost


def search(
    target_of: Callable[[Tensor], Target],
    start: Tensor,
    solved: Tensor,
    iterations: int,
    tick: Callable[[float], None] = lambda share: None,
) -> Found:
    """Search from a start (n T k); then search again where windows are unsolved: from there, and from what
    other nodes have there.

    target_of  the equations of some of the nodes
    solved     (n,): the largest mean squared residual of a window that is solved
    """
    target = target_of(torch.arange(len(solved), device=solved.device))
    step = counted(tick, iterations * (1 + REPAIRS))
    best = invert(target, start, iterations, step)
    for _ in range(REPAIRS):
        unsolved = window_costs(target, best.series) > solved[:, None]  # (n w)
        nodes = unsolved.any(dim=1).nonzero().flatten()
        if not len(nodes):
            break
        others = [other[nodes] for other in _other_starts(target, best.series, start, unsolved)]
        before = best.among(nodes)
        better = _searched_again(target_of(nodes), before, others, iterations, step)
        best = Found(
            best.series.index_copy(0, nodes, better.series), best.cost.index_copy(0, nodes, better.cost)
        )
        if bool((better.cost > WORTHWHILE * before.cost).all()):
            break
    tick(1.0)
    return best


def _other_starts(target: Target, found: Tensor, start: Tensor, unsolved: Tensor) -> list[Tensor]:
    """Series to begin with where windows are unsolved; elsewhere they are what was found."""
    wrong = found.new_zeros(found.shape[:2])
    rows = target.starts[:, None] + torch.arange(target.span, device=found.device)
    wrong.index_add_(1, rows.flatten(), unsolved.to(found.dtype).repeat_interleave(target.span, dim=1))
    wrong = (wrong > 0)[..., None]
    right = ~wrong
    count = right.sum(dim=0).clamp(min=1)
    neighbours = torch.where(right, found, 0).sum(dim=0) / count  # of the nodes that are solved there
    return [torch.where(wrong, other, found) for other in (start, neighbours.expand_as(found))]


def _searched_again(
    target: Target, best: Found, starts: list[Tensor], iterations: int, step: Callable[[float], None]
) -> Found:
    """The best of what was found before, what is found from each start, and a mixture of all: at each row the
    series whose windows there are solved best."""
    length = best.series.shape[1]
    mixed, costs = best.series, _near_rows(target, window_costs(target, best.series), length)
    for start in starts:
        other = invert(target, start, iterations, step)
        best = best.or_better(other)
        other_costs = _near_rows(target, window_costs(target, other.series), length)
        mixed = torch.where((other_costs < costs)[..., None], other.series, mixed)
        costs = torch.minimum(costs, other_costs)
    return best.or_better(invert(target, mixed, iterations, step))


def _near_rows(target: Target, costs: Tensor, length: int) -> Tensor:
    """(n T): the mean cost of the windows that touch a row."""
    rows = (target.starts[:, None] + torch.arange(target.span, device=costs.device)).flatten()
    total = costs.new_zeros(len(costs), length)
    total.index_add_(1, rows, costs.repeat_interleave(target.span, dim=1))
    count = costs.new_zeros(length).index_add_(0, rows, costs.new_ones(len(rows)))
    return total / count.clamp(min=1)
