"""What a group of nodes measured: gaps filled, scaled, cut into windows; it never leaves its owner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cnfgnn.config.settings import Missing
from cnfgnn.data.batch import Batch
from cnfgnn.data.readings import Readings
from cnfgnn.data.weekly_profile import When
from cnfgnn.data.windows import SPLITS, Split, Windows, observed_windows
from cnfgnn.errors import ConfigError

SEQUENCES_AT_ONCE = 1 << 15  # windows x nodes in one forward pass without gradients: bounds memory


@dataclass(frozen=True)
class Scaler:
    """One mean and standard deviation for all nodes."""

    mean: float
    std: float

    @classmethod
    def of(cls, moments: Tensor) -> Scaler:
        """From each node's (count, sum, sum of squares): (n 3)."""
        count, total, squares = moments.double().sum(0).tolist()
        if count == 0:
            return cls(0.0, 1.0)
        mean = total / count
        std = max(squares / count - mean * mean, 0.0) ** 0.5
        return cls(
            mean, std if std > 1e-6 * max(1.0, abs(mean)) else 1.0
        )  # constant readings: do not blow up


class Series:
    """Raw readings of n nodes: values (n T) with NaN, missing (n T), time of day (T,)."""

    def __init__(
        self,
        values: npt.NDArray[np.floating],
        missing: npt.NDArray[np.bool_],
        time_of_day: npt.NDArray[np.float64],
        weekday: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.values = np.asarray(values, dtype=np.float64)
        self.missing, self.time_of_day = missing, time_of_day
        self.weekday = np.zeros(len(time_of_day), dtype=np.int64) if weekday is None else weekday
        self.when = When(time_of_day, self.weekday)

    @classmethod
    def of(cls, readings: Readings, rows: npt.NDArray[np.int64] | None = None) -> Series:
        """The series of some sensors (all, unless rows are given)."""
        kept = slice(None) if rows is None else rows
        missing = readings.missing[:, kept].T
        return cls(readings.values[:, kept].T, missing, readings.time_of_day, readings.weekday)

    @property
    def nodes(self) -> int:
        return len(self.values)

    def absent(self, treatment: Missing) -> npt.NDArray[np.bool_]:
        """(n T): what counts as missing. `as-truth`, the paper's, takes a zero for a value."""
        return self.missing if treatment == "masked" else np.isnan(self.values)

    def has(
        self, starts: npt.NDArray[np.int64], windows: Windows, treatment: Missing
    ) -> npt.NDArray[np.bool_]:
        """(n w): the windows a node can learn from or be judged on."""
        return observed_windows(~self.absent(treatment), starts, windows)

    def trained_on(
        self, windows: Windows, treatment: Missing
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """The rows (r,) that training windows take in, their values (n r) and which of them count (n r); the
        others are 0."""
        starts = windows.starts["train"]
        rows = np.unique((starts[:, None] + np.arange(windows.history)).ravel())
        values = self.values if treatment == "masked" else fill(self.values, self.absent(treatment))
        known = ~(self.missing if treatment == "masked" else np.isnan(values))[:, rows]
        return rows, np.where(known, values[:, rows], 0.0), known

    def usual(
        self, windows: Windows, treatment: Missing
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Each node's usual week, and what is usual at every row (see `usual.py`), from what training windows
        take in; where a run is asked for the readings ahead, from all there is."""
        if windows.horizon * self.when.step > 1 + 1e-9:
            raise ConfigError("model.profile", "a usual week is of no use to a horizon of more than a day")
        starts = windows.starts["train"]
        rows = np.unique((starts[:, None] + np.arange(windows.history)).ravel())
        if windows.ahead:
            rows = np.arange(len(self.time_of_day))
        known = ~self.absent(treatment)[:, rows]  # not what was filled in
        return self.when.usual(np.where(known, self.values[:, rows], 0.0), known, rows)

    def moments(self, windows: Windows, treatment: Missing) -> npt.NDArray[np.float64]:
        """(n 3): count, sum and sum of squares of the readings that training windows take in."""
        _, values, known = self.trained_on(windows, treatment)
        return np.stack([known.sum(1), values.sum(1), np.square(values).sum(1)], axis=1).astype(np.float64)


class Prepared:
    """A Series scaled and on its device, with its windows: ready to be cut into minibatches."""

    def __init__(
        self,
        series: Series,
        scaler: Scaler,
        treatment: Missing,
        windows: Windows,
        dtype: torch.dtype,
        device: torch.device,
        gaps: bool = False,
        profile: bool = False,
    ) -> None:
        def scaled(absent: npt.NDArray[np.bool_]) -> Tensor:
            values = (fill(series.values, absent) - scaler.mean) / scaler.std
            return torch.tensor(np.nan_to_num(values), dtype=dtype, device=device)  # at first: the mean

        self.nodes, self.scaler, self.masked = series.nodes, scaler, treatment == "masked"
        self.history, self.horizon, self.length = windows.history, windows.horizon, windows.length
        self.inputs = scaled(series.absent(treatment))
        # the unmasked metric takes a zero for the truth, whatever the model was fed
        self.targets = scaled(series.absent("as-truth")) if self.masked else self.inputs
        self.observed = torch.tensor(~series.missing, device=device)
        self._steps = torch.arange(self.length, device=device)
        self.clock = torch.tensor(series.time_of_day, dtype=dtype, device=device)
        moments = np.stack([series.when.slot, series.weekday], axis=1)
        self.moments = torch.tensor(moments, device=device)  # (T 2)
        self.gaps = torch.tensor(series.absent(treatment), dtype=dtype, device=device) if gaps else None
        self.when, self.ahead = series.when, windows.ahead
        self.usual_weeks: npt.NDArray[np.float64] | None = None
        self.usual: Tensor | None = None  # (n T): what each node usually reads then, scaled
        if profile:
            self.usual_weeks, at = series.usual(windows, treatment)
            self._expect(at)
        self.starts = {split: torch.tensor(windows.starts[split], device=device) for split in SPLITS}
        self.has: dict[Split, Tensor | None] = {}  # (n w): the windows each node has; None if all
        for split in SPLITS:
            has = series.has(windows.starts[split], windows, treatment)
            self.has[split] = None if has.all() else torch.tensor(has, device=device)

    def remember(self, usual_weeks: npt.NDArray[np.float64]) -> None:
        """Go by usual weeks (n 7 slots) that were counted when the model was trained. Who has none, as a new
        sensor, keeps what the readings at hand gave."""
        assert self.usual_weeks is not None
        unknown = np.isnan(usual_weeks).all(axis=(1, 2), keepdims=True)
        self.usual_weeks = np.where(unknown, self.usual_weeks, usual_weeks)
        self._expect(self.when.looked_up(self.usual_weeks))

    def state(self) -> dict[str, Tensor]:
        """What was learned of the readings without training, for a checkpoint."""
        return {} if self.usual_weeks is None else {"usual_weeks": torch.from_numpy(self.usual_weeks)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to it where readings ahead are asked for; else they are counted, each time the same."""
        if "usual_weeks" in state and self.ahead:
            self.remember(state["usual_weeks"].cpu().numpy())

    def _expect(self, usual: npt.NDArray[np.float64]) -> None:
        """Tell the model from now on what is usual at every row: (n T) in the readings' unit."""
        scaled = (usual - self.scaler.mean) / self.scaler.std
        self.usual = torch.tensor(scaled, dtype=self.inputs.dtype, device=self.inputs.device)

    def batch(self, split: Split, windows: Tensor | slice) -> tuple[Batch, Tensor | None]:
        """Some windows of a split, and which of them each node has: (n b), None if all."""
        starts, has = self.starts[split][windows], self._has(split, windows)
        inputs, clock = self._cut(self.inputs, starts), self._cut(self.clock[None], starts)[0]
        x = torch.stack(torch.broadcast_tensors(inputs, clock), dim=-1)[:, :, : self.history]
        weight = None
        if self.masked:
            observed = self._cut(self.observed, starts)[:, :, self.history :]
            weight = (observed if has is None else observed & has[:, :, None]).to(x.dtype)
        elif has is not None:
            weight = has[:, :, None].expand(-1, -1, self.horizon).to(x.dtype)
        y = self._cut(self.targets, starts)[:, :, self.history :]
        moment = self.moments[starts + self.history - 1]
        gaps = None if self.gaps is None else self._cut(self.gaps, starts)[:, :, : self.history]
        usual = None
        if self.usual is not None:  # who knows nothing expects no change
            ahead = self._cut(self.usual, starts)[:, :, self.history :]
            usual = torch.nan_to_num(ahead - x[:, :, -1, :1])
        return Batch(x, y, clock[:, self.history :], weight, moment, gaps, usual), has

    def chunks(self, split: Split) -> Iterator[slice]:
        """All windows of a split, a few at a time."""
        width, count = max(1, SEQUENCES_AT_ONCE // self.nodes), len(self.starts[split])
        return (slice(start, min(start + width, count)) for start in range(0, count, width))

    def errors(self, y_hat: Tensor, split: Split, windows: Tensor | slice) -> Tensor:
        """(n t 8) float64: sums over windows, in the readings' unit, see `SUMS`."""
        return torch.stack([term.sum(1) for term in self.terms(y_hat, split, windows)], dim=-1)

    def terms(self, y_hat: Tensor, split: Split, windows: Tensor | slice) -> list[Tensor]:
        """What each of `SUMS` adds up: (n b t) float64, zero where it does not count."""
        starts, has = self.starts[split][windows], self._has(split, windows)
        truth = self.unscaled(self._cut(self.targets, starts)[:, :, self.history :])
        error = self.unscaled(y_hat) - truth
        all_, seen = torch.ones_like(truth), self._cut(self.observed, starts)[:, :, self.history :].double()
        if has is not None:
            all_, seen = all_ * has[:, :, None], seen * has[:, :, None]
        nonzero = seen * (truth.abs() > 1e-3)  # a percentage of zero is no number
        share = error.abs() / torch.where(nonzero > 0, truth.abs(), 1.0)
        return [
            *(all_ * error.square(), all_ * error.abs(), all_),
            *(seen * error.square(), seen * error.abs(), seen),
            *(nonzero * share, nonzero),
        ]

    def unscaled(self, values: Tensor) -> Tensor:
        """In the readings' unit, as float64."""
        return values.double() * self.scaler.std + self.scaler.mean

    def _has(self, split: Split, windows: Tensor | slice) -> Tensor | None:
        has = self.has[split]
        return None if has is None else has[:, windows]

    def _cut(self, rows: Tensor, starts: Tensor) -> Tensor:
        """(n T) -> (n b t)."""
        # by flat indices: on a CPU selecting from overlapping windows takes a hundred times as long
        steps = starts[:, None] + self._steps
        return rows.index_select(1, steps.flatten()).view(len(rows), *steps.shape)


SUMS = (
    "square",
    "absolute",
    "count",
    "masked_square",
    "masked_absolute",
    "masked_count",
    "share",
    "share_count",
)


def fill(values: npt.NDArray[np.float64], absent: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """(n T) -> (n T): each absent value is the node's last one before it, NaN where there is none."""
    last = np.maximum.accumulate(np.where(absent, -1, np.arange(values.shape[1])), axis=1)
    filled = np.take_along_axis(values, np.maximum(last, 0), axis=1)
    return np.where(last < 0, np.nan, filled)
