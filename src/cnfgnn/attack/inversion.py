"""The strongest attack we know: invert a sensor's whole series of readings at once from its hidden states.

Each reading is in as many overlapping windows as a window has rows, and the server receives a hidden state of
each window. So there are many more equations than unknowns, and no training data are needed: the method of
Levenberg and Marquardt finds the series whose hidden states are those that were received. A window touches
neighbouring rows only, which makes the normal equations block-tridiagonal: a step takes time and memory in
proportion to the length of the series.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from cnfgnn.models.products import plain_operations

WINDOWS_AT_ONCE = {"cpu": 1 << 12, "cuda": 1 << 15}  # nodes x windows whose Jacobian is in memory at a time
FIRST_DAMPING, LEAST_DAMPING, MOST_DAMPING = 1e-2, 1e-9, 1e9
EASED, TIGHTENED = 0.3, 4.0  # what a step that helped, and one that did not, does to the damping
HARDLY, PATIENCE = 0.999, 10  # stop after so many steps in a row that leave more than this share of the cost
SPREAD = 3.0  # standard deviations that unknown numbers are expected to be from the mean
FURTHEST = 12.0  # standard deviations: no reading is sought further from the mean


@dataclass(frozen=True)
class Target:
    """What the server holds of n nodes, and the function whose inputs are sought.

    received  (n w s)  the numbers that were received about each window: its hidden state, for one
    starts    (w,)     the first row of each window
    encode             the same numbers (n b s) of some windows, given their unknown numbers (n b p)
    rows      (p,)     the row of each unknown number, counted from the start of its window
    kinds     (p,)     which series it belongs to: 0 the readings, 1 the profile that a model may use
    prior     (n,)     how much the square of an unknown number counts beside a squared residual; None for not
                       at all. It keeps numbers near the mean that hardly anything depends on.
    at_once            nodes x windows to encode at a time; None for as many as suit the device
    """

    received: Tensor
    starts: Tensor
    encode: Callable[[Tensor, slice], Tensor]
    rows: Tensor
    kinds: Tensor
    prior: Tensor | None = None
    at_once: int | None = None

    @property
    def span(self) -> int:
        """Rows that a window touches."""
        return int(self.rows.max()) + 1

    @property
    def series(self) -> int:
        """How many unknown numbers a row has."""
        return int(self.kinds.max()) + 1

    def places(self, windows: slice) -> Tensor:
        """(b p): where the unknown numbers of some windows are in a series (T k) that is flattened."""
        return (self.starts[windows, None] + self.rows) * self.series + self.kinds


@dataclass(frozen=True)
class Found:
    """The series (n T k) that was found, and each node's mean squared residual (n,)."""

    series: Tensor
    cost: Tensor

    def among(self, nodes: Tensor) -> Found:
        return Found(self.series[nodes], self.cost[nodes])

    def or_better(self, other: Found) -> Found:
        """For each node the one with the smaller residual."""
        better = other.cost < self.cost
        series = torch.where(better[:, None, None], other.series, self.series)
        return Found(series, torch.where(better, other.cost, self.cost))


def invert(
    target: Target, first: Tensor, iterations: int = 60, tick: Callable[[float], None] = lambda cost: None
) -> Found:
    """The series whose hidden states come nearest to those received, searched from `first` (n T k) on.

    It ends once no node gets nearer any more.
    """
    found, damping = first.clone(), torch.full_like(first[:, 0, 0], FIRST_DAMPING)
    system, cost = _normal_equations(target, found)
    idle = torch.zeros_like(damping)  # steps in a row that hardly helped
    for _ in range(iterations):
        tried = (found + system.solve(damping)).clamp(-FURTHEST, FURTHEST)
        better, costs = _normal_equations(target, tried)
        won = costs < cost
        idle = torch.where(won & (costs < HARDLY * cost), 0.0, idle + 1)
        found = torch.where(won[:, None, None], tried, found)
        system = system.where(won, better)
        cost = torch.where(won, costs, cost)
        damping = (damping * torch.where(won, EASED, TIGHTENED)).clamp(LEAST_DAMPING, MOST_DAMPING)
        tick(float(cost.mean()))
        if bool((idle >= PATIENCE).all()):
            break
    return Found(found, cost)


def counted(tick: Callable[[float], None], planned: int) -> Callable[..., None]:
    """Whenever it is called, as after each iteration of `invert`, `tick` is told the share that is done."""
    calls = count(1)
    return lambda *_: tick(min(1.0, next(calls) / planned))


@torch.no_grad()
def residuals(target: Target, series: Tensor) -> Tensor:
    """(n w s): how far what would be received of this series is from what was received."""
    parts = []
    for windows in _pieces(target, len(series)):
        unknown = series.flatten(1)[:, target.places(windows)]
        parts.append(target.received[:, windows] - target.encode(unknown, windows))
    return torch.cat(parts, dim=1)


def window_costs(target: Target, series: Tensor) -> Tensor:
    """(n w): the mean squared residual of each window."""
    return residuals(target, series).square().mean(dim=-1)


@dataclass(frozen=True)
class _System:
    """J'J and J'r of n nodes, with rows in blocks of which only neighbours are coupled.

    diagonal  (n k q q)  each block with itself
    below     (n k q q)  block i + 1 (rows) with block i (columns)
    right     (n k q)    minus the gradient
    shape                of the series: (n T k)
    """

    diagonal: Tensor
    below: Tensor
    right: Tensor
    shape: torch.Size

    def where(self, won: Tensor, other: _System) -> _System:
        pick = won[:, None, None, None]
        return _System(
            torch.where(pick, other.diagonal, self.diagonal),
            torch.where(pick, other.below, self.below),
            torch.where(won[:, None, None], other.right, self.right),
            self.shape,
        )

    def solve(self, damping: Tensor) -> Tensor:
        """The step (n T k) of Levenberg and Marquardt, by a Cholesky factorisation block by block.

        A node whose system is too near to singular for that takes no step, and gets more damping.
        """
        diagonal, right = self.diagonal.double(), self.right.double()
        below = self.below.double()
        scale = diagonal.diagonal(dim1=-2, dim2=-1)
        scale = scale + 1e-6 * scale.mean(dim=(1, 2), keepdim=True)
        diagonal = diagonal + torch.diag_embed(damping.double()[:, None, None] * scale + 1e-12)
        factors, couplings, forward = [], [], []
        previous, failed = None, torch.zeros_like(damping, dtype=torch.bool)
        for k in range(diagonal.shape[1]):
            block, value = diagonal[:, k], right[:, k, :, None]
            if previous is not None:
                coupling = torch.linalg.solve_triangular(factors[-1], below[:, k - 1].mT, upper=False).mT
                couplings.append(coupling)
                block = block - coupling @ coupling.mT
                value = value - coupling @ previous
            factor, problem = torch.linalg.cholesky_ex(block)
            failed = failed | (problem > 0) | factor.isnan().any(dim=2).any(dim=1)
            factors.append(torch.where(failed[:, None, None], torch.eye(len(factor[0])).to(factor), factor))
            previous = torch.linalg.solve_triangular(factors[-1], value, upper=False)
            forward.append(previous)
        steps = []
        after = None
        for k in reversed(range(len(factors))):
            value = forward[k]
            if after is not None:
                value = value - couplings[k].mT @ after
            after = torch.linalg.solve_triangular(factors[k].mT, value, upper=True)
            steps.append(after[..., 0])
        n, rows, series = self.shape
        whole = torch.stack(steps[::-1], dim=1).reshape(n, -1).masked_fill(failed[:, None], 0.0)
        return whole[:, : rows * series].reshape(n, rows, series).to(self.right.dtype)


def _normal_equations(target: Target, found: Tensor) -> tuple[_System, Tensor]:
    """The system at this series, and each node's mean squared residual (n,), with its prior."""
    n, rows, series = found.shape
    size = target.span * series  # of a block: a window touches two neighbouring ones at most
    blocks = -(-rows * series // size)
    diagonal = found.new_zeros(n, blocks * size * size)
    below = found.new_zeros(n, blocks * size * size)
    right = found.new_zeros(n, blocks * size)
    cost = found.new_zeros(n)
    for windows in _pieces(target, n):
        places = target.places(windows)
        unknown = found.flatten(1)[:, places]  # (n b p)
        h_c, jacobian = _jacobian(target, unknown, windows)  # (n b s), (n b s p)
        residual = target.received[:, windows].to(h_c.dtype) - h_c
        cost += residual.square().sum(dim=(1, 2))
        gram = jacobian.mT @ jacobian  # (n b p p)
        right.index_add_(1, places.flatten(), (jacobian.mT @ residual[..., None])[..., 0].flatten(1))
        block, inside = places // size, places % size
        index = block[:, :, None] * size * size + inside[:, :, None] * size + inside[:, None, :]  # (b p p)
        same = block[:, :, None] == block[:, None, :]
        under = block[:, :, None] == block[:, None, :] + 1
        gram = gram.flatten(1)
        for into, which, where in (
            (diagonal, same, index),
            (below, under, index - size * size),
        ):
            chosen = which.flatten().nonzero().flatten()
            into.index_add_(1, where.flatten()[chosen], gram[:, chosen])
    shape = (n, blocks, size, size)
    if target.prior is not None:
        diagonal.view(shape).diagonal(dim1=-2, dim2=-1).add_(target.prior[:, None, None])
        right[:, : rows * series] -= target.prior[:, None] * found.flatten(1)
        cost += target.prior * found.square().sum(dim=(1, 2))
    system = _System(diagonal.view(shape), below.view(shape), right.view(n, blocks, size), found.shape)
    return system, cost / target.received[0].numel()


def _jacobian(target: Target, unknown: Tensor, windows: slice) -> tuple[Tensor, Tensor]:
    """What the server would receive (n b s), and its derivative (n b s p) by the unknown numbers.

    In forward mode, because a window has fewer unknown numbers than numbers received. The derivatives by each
    of them go through the model side by side.
    """

    def along(direction: Tensor) -> tuple[Tensor, Tensor]:
        at, toward = (unknown,), (direction.expand_as(unknown),)
        encoded, derivative = torch.func.jvp(lambda x: target.encode(x, windows), at, toward)  # type: ignore[misc]
        return encoded, derivative

    directions = torch.eye(unknown.shape[-1], dtype=unknown.dtype, device=unknown.device)
    with plain_operations(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch warns of itself when it first does this
        side_by_side = torch.func.vmap(along, out_dims=(None, -1))  # type: ignore[arg-type]
        received, columns = side_by_side(directions)
    return received.detach(), columns.detach()


def _pieces(target: Target, n: int) -> Iterator[slice]:
    at_once = target.at_once or WINDOWS_AT_ONCE.get(target.received.device.type, WINDOWS_AT_ONCE["cuda"])
    width, count = max(1, at_once // n), len(target.starts)
    return (slice(start, min(start + width, count)) for start in range(0, count, width))
