"""Errors of both kinds, from sums that are allowed to leave their node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cnfgnn.data.batch import Loss
from cnfgnn.data.series import SUMS


@dataclass(frozen=True)
class Errors:
    """Unmasked: the paper's, over everything. Masked: the field's, over what was observed. Never mix them."""

    rmse: float
    mae: float
    masked_rmse: float
    masked_mae: float
    masked_mape: float  # a share, not per cent

    @classmethod
    def of(cls, sums: Tensor) -> Errors:
        """From sums (..., 8), added up over everything but the last axis; NaN where there is nothing."""
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
        """From an event, where nothing stands for NaN."""
        return cls(**{name: float("nan") if value is None else value for name, value in stored.items()})


@dataclass(frozen=True, eq=False)
class Scores:
    """Summed errors of n nodes at t steps (n t 8) and every figure that follows from them."""

    sums: Tensor
    seen: Tensor | None = None  # (n,) bool: which nodes trained; None if all

    @property
    def overall(self) -> Errors:
        return Errors.of(self.sums)

    def at(self, step: int) -> Errors:
        """Errors `step` steps ahead, counted from 1: 3, 6 and 12 are 15, 30 and 60 minutes for traffic."""
        return Errors.of(self.sums[:, step - 1])

    @property
    def per_horizon(self) -> list[Errors]:
        return [self.at(step + 1) for step in range(self.sums.shape[1])]

    @property
    def per_node(self) -> list[Errors]:
        return [Errors.of(row) for row in self.sums]

    @property
    def seen_nodes(self) -> Errors:
        return self.overall if self.seen is None else Errors.of(self.sums[self.seen])

    @property
    def unseen_nodes(self) -> Errors | None:
        return None if self.seen is None else Errors.of(self.sums[~self.seen])

    def loss(self, masked: bool, kind: Loss = "square") -> float:
        """What rounds are compared by: the mean error of the kind that was trained on."""
        errors = self.overall
        if kind == "absolute":
            return errors.masked_mae if masked else errors.mae
        return (errors.masked_rmse if masked else errors.rmse) ** 2

    def per_sensor(self, masked: bool, kind: Loss = "square") -> Tensor:
        """(n 2): what the loss is made of: each node's summed error, and of how many forecasts it is."""
        error = "absolute" if kind == "absolute" else "square"
        names = (f"masked_{error}", "masked_count") if masked else (error, "count")
        return self.sums.sum(1)[:, [SUMS.index(name) for name in names]]

    @property
    def forecasts(self) -> int:
        """How many were judged, observed or not."""
        return int(self.sums[..., SUMS.index("count")].sum())

    def summary(self) -> dict[str, Any]:
        """Overall figures, and those at each quarter hour that traffic papers name, as plain numbers."""
        steps = [step for step in (3, 6, 12) if step <= self.sums.shape[1]]
        summary: dict[str, Any] = {"overall": vars(self.overall)}
        if self.unseen_nodes is not None:
            summary |= {"seen": vars(self.seen_nodes), "unseen": vars(self.unseen_nodes)}
        return summary | {f"step {step}": vars(self.at(step)) for step in steps}


def _ratio(total: float, count: float) -> float:
    return total / count if count else float("nan")
