"""Invert the whole series of every node at once, from the hidden states of its overlapping windows.

No data are needed, and no other sensor. Unknown are the readings and, if the model uses one, the weekly
profile. Nodes whose search ends in a wrong place are noticed by what is left over (the residual), which the
attacker sees; they are searched again from where other nodes were found.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cnfgnn.attack.estimates import Estimate
from cnfgnn.attack.inversion import SPREAD, Target
from cnfgnn.attack.recording import Recording
from cnfgnn.attack.replica import Received, rounding
from cnfgnn.attack.restarts import search
from cnfgnn.data.windows import Split

WRONG = 25.0  # a window whose squared residual is so many times what rounding explains is not solved yet


def whole_series(
    recording: Recording,
    split: Split,
    rows: Tensor,
    device: torch.device,
    iterations: int,
    tick: Callable[[float], None],
) -> Estimate:
    """The readings whose hidden states are those that were received."""
    received = Received.of(recording, split, rows, device)
    target = series_target(received)
    length = int(target.starts.max()) + target.span
    start = torch.zeros(len(rows), length, target.series, device=device)  # the mean
    solved = torch.full((len(rows),), WRONG, device=device)
    found = search(lambda nodes: series_target(received.among(nodes)), start, solved, iterations, tick)
    replica, starts = received.replica, received.starts.cpu()
    readings = replica.of_windows(starts, found.series[..., 0])
    return Estimate("series", split, rows, starts, replica.history, readings)


def series_target(received: Received) -> Target:
    """The equations, with rows counted from the first one of any window."""
    replica, history = received.replica, received.replica.history
    rows, kinds = replica.layout(history)
    # In units of what rounding leaves open: a number that is sent more exactly counts more.
    scale = rounding(received.h_c, replica.settings.wire)[:, None]

    def encode(unknown: Tensor, some: slice) -> Tensor:
        profile = unknown[..., history:] if replica.uses_profile else None
        batch = replica.batch(received.starts[some], unknown[..., :history], profile)
        return replica.encode(received.theta, batch) / scale

    prior = scale.new_full((len(scale),), SPREAD**-2)
    return Target(received.h_c / scale, received.starts - received.starts.min(), encode, rows, kinds, prior)
