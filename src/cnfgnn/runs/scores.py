"""Errors of forecasts, computed from sums that nodes may share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from cnfgnn.data.batch import Loss
from cnfgnn.data.prepared_series import SUMS
from cnfgnn.forecasters.intervals import INTERVAL_SUMS, REPORTED, Floats


@dataclass(frozen=True)
class Errors:
    """Errors in the readings' unit.

    rmse, mae                 unmasked, as in the paper: over all targets, missing ones included
    masked_rmse, masked_mae,  masked, as usual in traffic forecasting: over observed targets only;
    masked_mape               the MAPE is a share, not per cent

    Never compare errors of the two kinds with each other.
    """

    rmse: float
    mae: float
    masked_rmse: float
    masked_mae: float
    masked_mape: float

    @classmethod
    def of(cls, sums: Tensor) -> Errors:
        """From sums (..., 8), added up over all axes but the last; NaN where nothing was evaluated."""
        s = dict(zip(SUMS, sums.reshape(-1, len(SUMS)).sum(0).tolist(), strict=True))
        return cls(
            rmse=_ratio(s["square"], s["count"]) ** 0.5,
            mae=_ratio(s["absolute"], s["count"]),
            masked_rmse=_ratio(s["masked_square"], s["masked_count"]) ** 0.5,
            masked_mae=_ratio(s["masked_absolute"], s["masked_count"]),
            masked_mape=_ratio(s["share"], s["share_count"]),
        )

    @classmethod
    def read(cls, stored: Mapping[str, float | None]) -> Errors:
        """From JSON, where null stands for NaN."""
        errors = {name: float("nan") if value is None else value for name, value in stored.items()}
        return cls(**errors)


@dataclass(frozen=True)
class IntervalErrors:
    """How good intervals of one level are, over observed readings.

    coverage  the share of readings within their intervals
    width     the mean width, in the readings' unit
    score     the mean interval score (Winkler score): the width, plus a penalty for readings outside; lower
              is better
    """

    coverage: float
    width: float
    score: float

    @classmethod
    def of(cls, sums: Floats) -> IntervalErrors:
        """From sums (..., 4), added up over all axes but the last; NaN where nothing was evaluated."""
        count, *totals = sums.reshape(-1, len(INTERVAL_SUMS)).sum(0).tolist()
        return cls(*(_ratio(total, count) for total in totals))


@dataclass(frozen=True, eq=False)
class IntervalScores:
    """The intervals of n nodes at t steps ahead: (n t r 4), see `INTERVAL_SUMS`."""

    sums: Floats

    def overall(self, level: int) -> IntervalErrors:
        """Over all nodes and steps; the level is a number in `REPORTED`, in per cent."""
        return IntervalErrors.of(self._of(level))

    def per_horizon(self, level: int) -> list[IntervalErrors]:
        """At each step ahead."""
        return [IntervalErrors.of(step) for step in np.moveaxis(self._of(level), 1, 0)]

    def per_node(self, level: int) -> list[IntervalErrors]:
        """Of each node."""
        return [IntervalErrors.of(row) for row in self._of(level)]

    def _of(self, level: int) -> Floats:
        return self.sums[:, :, REPORTED.index(level)]


@dataclass(frozen=True, eq=False)
class Scores:
    """Summed errors of n nodes at t steps ahead, and every figure that follows from them.

    sums      (n t 8)    see `cnfgnn.data.prepared_series.SUMS`
    seen      (n,) bool  which nodes trained; None if all did
    told      (n t 8)    true errors of owners who tell them, zeros of the others; None if nobody was asked
    all_told             whether `sums` are true errors; otherwise they are errors against blurred copies
    intervals            how good intervals are; None if they were not evaluated or their owners are elsewhere
    """

    sums: Tensor
    seen: Tensor | None = None
    told: Tensor | None = None
    all_told: bool = True
    intervals: IntervalScores | None = None

    @property
    def overall(self) -> Errors:
        """Errors over all nodes and steps."""
        return Errors.of(self.sums)

    def at(self, step: int) -> Errors:
        """Errors `step` steps ahead, counted from 1; for traffic, 3, 6 and 12 are 15, 30 and 60 minutes."""
        return Errors.of(self.sums[:, step - 1])

    @property
    def per_horizon(self) -> list[Errors]:
        """Errors at each step ahead."""
        return [self.at(step + 1) for step in range(self.sums.shape[1])]

    @property
    def per_node(self) -> list[Errors]:
        """Errors of each node."""
        return [Errors.of(row) for row in self.sums]

    @property
    def seen_nodes(self) -> Errors:
        """Errors of the nodes that trained."""
        return self.overall if self.seen is None else Errors.of(self.sums[self.seen])

    @property
    def unseen_nodes(self) -> Errors | None:
        """Errors of the nodes that did not train; None if all did."""
        return None if self.seen is None else Errors.of(self.sums[~self.seen])

    def loss(self, masked: bool, kind: Loss = "square") -> float:
        """The mean error of the kind that was trained on, by which rounds are compared."""
        errors = self.overall
        if kind == "absolute":
            return errors.masked_mae if masked else errors.mae
        return (errors.masked_rmse if masked else errors.rmse) ** 2

    def per_sensor(self, masked: bool, kind: Loss = "square") -> Tensor:
        """(n 2): each node's part of the loss: its summed error, and the number of forecasts in it."""
        error = "absolute" if kind == "absolute" else "square"
        names = (f"masked_{error}", "masked_count") if masked else (error, "count")
        return self.sums.sum(1)[:, [SUMS.index(name) for name in names]]

    def summary(self) -> dict[str, Any]:
        """Overall errors and those 3, 6 and 12 steps ahead, as plain values."""
        steps = [step for step in (3, 6, 12) if step <= self.sums.shape[1]]
        summary: dict[str, Any] = {"overall": vars(self.overall)}
        if self.unseen_nodes is not None:
            summary |= {"seen": vars(self.seen_nodes), "unseen": vars(self.unseen_nodes)}
        if self.intervals is not None:
            summary["intervals"] = {str(level): vars(self.intervals.overall(level)) for level in REPORTED}
        return summary | {f"step {step}": vars(self.at(step)) for step in steps}


def scores_as_dict(scores: Scores, ids: Sequence[str]) -> dict[str, Any]:
    """Every figure as plain values: overall, per step ahead, per sensor, and of seen and unseen sensors."""
    unseen = scores.unseen_nodes
    return {
        "overall": vars(scores.overall),
        "per_step": [vars(errors) for errors in scores.per_horizon],
        "per_node": {sensor: vars(errors) for sensor, errors in zip(ids, scores.per_node, strict=True)},
        "seen": None if unseen is None else vars(scores.seen_nodes),
        "unseen": None if unseen is None else vars(unseen),
        "intervals": None if scores.intervals is None else intervals_as_dict(scores.intervals, ids),
    }


def intervals_as_dict(intervals: IntervalScores, ids: Sequence[str]) -> dict[str, Any]:
    """Every figure of each level, in per cent: overall, per step ahead and per sensor."""
    found = {}
    for level in REPORTED:
        per_node = zip(ids, intervals.per_node(level), strict=True)
        found[str(level)] = {
            "overall": vars(intervals.overall(level)),
            "per_step": [vars(errors) for errors in intervals.per_horizon(level)],
            "per_node": {sensor: vars(errors) for sensor, errors in per_node},
        }
    return found


def _ratio(total: float, count: float) -> float:
    return total / count if count else float("nan")
