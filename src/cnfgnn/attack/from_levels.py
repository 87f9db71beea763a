"""Compute the readings from levels alone: weighted averages of the last readings that nodes may send.

The weights of these averages are the same everywhere and known, and windows overlap. So no weights of any
model are needed, and each node is as open if it keeps its weights to itself as if they are averaged.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cnfgnn.attack.estimates import Estimate
from cnfgnn.attack.inversion import SPREAD, Target, counted, invert
from cnfgnn.attack.recording import Recording
from cnfgnn.attack.replica import DTYPE, Received, Replica, rounding
from cnfgnn.data.windows import Split
from cnfgnn.models.plus import levels

Tick = Callable[[float], None]


def from_levels(
    recording: Recording,
    split: Split,
    rows: Tensor,
    device: torch.device,
    iterations: int,
    tick: Tick,
) -> Estimate:
    """The readings of a split from the levels at the beginning of its hidden states."""
    received = Received.of(recording, split, rows, device)
    replica, width = received.replica, received.replica.settings.model.level_width
    readings = _solved(replica, received.h_c[..., :width], received.starts, iterations, tick)
    return Estimate("levels", split, rows, received.starts.cpu(), replica.history, readings)


def training_readings(
    recording: Recording, rows: Tensor, device: torch.device, iterations: int, tick: Tick = lambda share: None
) -> Tensor | None:
    """(n T): the readings of all training windows, from the levels that nodes send before the first round.

    NaN at rows of no window; None if these nodes have sent no levels.
    """
    if recording.levels is None or bool(recording.levels[rows].isnan().any()):
        return None
    replica = Replica(recording, rows, device)
    starts = replica.starts("train", torch.arange(recording.levels.shape[1]))
    return _solved(replica, recording.levels[rows].to(device, DTYPE), starts, iterations, tick)


def _solved(replica: Replica, received: Tensor, starts: Tensor, iterations: int, tick: Tick) -> Tensor:
    """(n T) in the readings' unit, given levels (n w k) of the windows that start at these rows (w,)."""
    offset = int(starts.min())
    scale = rounding(received, replica.settings.wire)[:, None]
    steps = torch.arange(replica.history, device=replica.device)

    def encode(unknown: Tensor, some: slice) -> Tensor:
        return levels(unknown) / scale

    prior = scale.new_full((len(scale),), SPREAD**-2)
    target = Target(received / scale, starts - offset, encode, steps, torch.zeros_like(steps), prior)
    length = int(starts.max()) - offset + replica.history
    found = invert(target, scale.new_zeros(len(scale), length, 1), iterations, counted(tick, iterations))
    tick(1.0)
    return replica.of_windows(starts, found.series[..., 0])
