"""How near estimates come to the true readings. Nothing else in this package receives the true readings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from cnfgnn.attack.estimates import Estimate
from cnfgnn.data.windows import Split

NEAR = (1.0, 3.0)  # in the readings' unit


@dataclass(frozen=True)
class Closeness:
    """Errors over some readings, in their unit, and the shares of readings that are missed by less than 1 and
    3 units; NaN where there is no reading."""

    rmse: float
    mae: float
    within_1: float
    within_3: float
    readings: int

    @classmethod
    def of(cls, error: Tensor) -> Closeness:
        """Of errors, of which those that are NaN do not count."""
        error = error[~error.isnan()].abs()
        if not len(error):
            return cls(math.nan, math.nan, math.nan, math.nan, 0)
        within_1, within_3 = (float((error < limit).double().mean()) for limit in NEAR)
        rmse, mae = float(error.square().mean().sqrt()), float(error.mean())
        return cls(rmse, mae, within_1, within_3, len(error))


@dataclass(frozen=True)
class Line:
    """One line of the report.

    attack  its name, see `ATTACKS`; "guess" and "copy" for what it is compared with
    label   in words
    split   whose readings were estimated
    all     over all readings of all windows
    newest  over the newest reading of each window
    """

    attack: str
    label: str
    split: Split
    all: Closeness
    newest: Closeness


@dataclass(frozen=True)
class AttackReport:
    """What a curious server can compute of the readings of a run.

    blur       standard deviation of the noise on the copies, in the readings' unit
    sensors    the sensors that were attacked
    colluding  the sensor that helped the attacker with its own readings; None if there was none
    lines      what was found, and guesses to compare it with
    """

    run: str
    method: str
    split: Split
    blur: float
    sensors: Sequence[str]
    colluding: str | None
    lines: Sequence[Line]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def line(self, label: str) -> Line:
        """The line with this label."""
        return next(line for line in self.lines if line.label == label)


def judged(estimate: Estimate, label: str, truth: Tensor, attack: str | None = None) -> Line:
    """Compare an estimate with the true readings (N T) of all nodes, NaN where one is missing."""
    error = estimate.by_window() - truth[estimate.rows][:, estimate.inputs]  # (n w t)
    newest = Closeness.of(error[..., -1])
    return Line(attack or estimate.name, label, estimate.split, Closeness.of(error), newest)


def guesses(like: Estimate, means: Mapping[str, Tensor], truth: Tensor) -> list[Line]:
    """The errors of somebody who always guesses a mean: (n,) by label."""
    lines = []
    for label, mean in means.items():
        constant = mean.double()[:, None].expand(len(like.rows), truth.shape[1])
        lines.append(judged(like.with_readings("guess", constant), label, truth))
    return lines


def sensor_means(moments: Tensor, overall: float) -> Tensor:
    """(n,): each sensor's mean, from the count and the sum that the census tells the server."""
    count, total = moments[:, 0], moments[:, 1]
    return torch.where(count > 0, total / count.clamp(min=1), overall)
