"""The readings of a group of nodes, filled, scaled and cut into windows; they never leave their owner."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cnfgnn.config.settings import Missing, ModelConfig
from cnfgnn.data.batch import Batch
from cnfgnn.data.inputs import INPUT_SCALES, NO_INPUTS, InputCounts, InputSeries, seconds_of
from cnfgnn.data.linear import FOLDS, Forecasters, Sample, calendar_inputs
from cnfgnn.data.prepared_inputs import PreparedInputs
from cnfgnn.data.readings import Readings
from cnfgnn.data.weekly_profile import Calendar, WeeklyProfiles
from cnfgnn.data.windows import SPLITS, Split, Windows, observed_windows
from cnfgnn.errors import DataError

# Windows x nodes in one forward pass without gradients: bounds memory. A GPU needs many to be busy.
SEQUENCES_AT_ONCE = {"cpu": 1 << 15, "cuda": 1 << 18}
WINDOWS_AT_ONCE, NODES_AT_ONCE = 512, 1 << 12  # in fitting linear forecasters
PROFILES = "usual_weeks"  # the name of weekly profiles in checkpoints
LINEAR = "linear_"  # the names of linear forecasters in checkpoints begin with it
OWN, INFORMED = "own", "informed"

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

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
"""The sums that errors are computed from: squared and absolute errors over all targets; the same over
observed targets (masked); relative errors over observed targets that are not zero; and the number of each."""


@dataclass(frozen=True)
class Scaler:
    """One mean and standard deviation for all nodes."""

    mean: float
    std: float

    @classmethod
    def of(cls, moments: Tensor) -> Scaler:
        """From each node's count, sum and sum of squares: (n 3)."""
        count, total, squares = moments.double().sum(0).tolist()
        if count == 0:
            return cls(0.0, 1.0)
        mean = total / count
        std = max(squares / count - mean * mean, 0.0) ** 0.5
        if std <= 1e-6 * max(1.0, abs(mean)):  # constant readings: avoid dividing by almost zero
            std = 1.0
        return cls(mean, std)


class TrainingRows(NamedTuple):
    """The rows (r,) that training windows take as input, their values (n r) with 0 for unknown ones, and
    which of them are known (n r)."""

    rows: Ints
    values: Floats
    known: Bools


class Series:
    """Raw readings of n nodes: values (n T) with NaN, missing (n T), time of day and weekday (T,); and their
    further inputs on the same time steps."""

    def __init__(
        self,
        values: npt.NDArray[np.floating],
        missing: Bools,
        time_of_day: Floats,
        weekday: Ints | None = None,
        others: Sequence[InputSeries] = (),
    ) -> None:
        self.others = tuple(others)
        self.values = np.asarray(values, dtype=np.float64)
        self.missing, self.time_of_day = missing, time_of_day
        self.weekday = np.zeros(len(time_of_day), dtype=np.int64) if weekday is None else weekday
        self.calendar = Calendar(time_of_day, self.weekday)

    @classmethod
    def of(cls, readings: Readings, rows: Ints | None = None) -> Series:
        """The series of some sensors, or of all if no rows are given."""
        kept = slice(None) if rows is None else rows
        missing = readings.missing[:, kept].T
        others = [one.at(seconds_of(readings), rows) for one in readings.others]
        return cls(readings.values[:, kept].T, missing, readings.time_of_day, readings.weekday, others)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.values)

    def absent(self, treatment: Missing) -> Bools:
        """(n T): which readings count as missing. With `as-truth`, as in the paper, a zero is a value."""
        return self.missing if treatment == "masked" else np.isnan(self.values)

    def available(self, starts: Ints, windows: Windows, treatment: Missing) -> Bools:
        """(n w): which windows a node can train on or be evaluated on."""
        return observed_windows(~self.absent(treatment), starts, windows)

    def training_rows(self, windows: Windows, treatment: Missing) -> TrainingRows:
        """The readings that training windows take as input; with `as-truth`, gaps are filled first."""
        rows = _input_rows(windows)
        values = self.values if treatment == "masked" else fill(self.values, self.absent(treatment))
        known = ~(self.missing if treatment == "masked" else np.isnan(values))[:, rows]
        return TrainingRows(rows, np.where(known, values[:, rows], 0.0), known)

    def weekly_profiles(self, windows: Windows, treatment: Missing) -> WeeklyProfiles:
        """Each node's weekly profile, from the inputs of training windows; to forecast the readings that come
        next, from all readings. Filled gaps do not count."""
        rows = np.arange(len(self.time_of_day)) if windows.ahead else _input_rows(windows)
        known = ~self.absent(treatment)[:, rows]
        days_ahead = windows.horizon * self.calendar.step_days
        return self.calendar.profiles(np.where(known, self.values[:, rows], 0.0), known, rows, days_ahead)

    def moments(self, windows: Windows, treatment: Missing) -> Floats:
        """(n 3): count, sum and sum of squares of the readings that training windows take as input."""
        _, values, known = self.training_rows(windows, treatment)
        return np.stack([known.sum(1), values.sum(1), np.square(values).sum(1)], axis=1).astype(np.float64)


def _input_rows(windows: Windows) -> Ints:
    """The rows that are an input of some training window, ascending."""
    return np.unique((windows.starts["train"][:, None] + np.arange(windows.history)).ravel())


def _prepared_inputs(
    series: Series, windows: Windows, inputs: InputCounts, dtype: torch.dtype, device: torch.device
) -> PreparedInputs | None:
    """The further inputs of a series; None if the model uses none."""
    if inputs == NO_INPUTS:
        return None
    if (found := InputCounts.of(series.others)) != inputs:
        problem = (
            f"there are {found.variables} variables and {found.covariates} covariates, and the model takes"
            f" {inputs.variables} and {inputs.covariates}"
        )
        raise DataError("further inputs", problem)
    rows = np.arange(len(series.time_of_day)) if windows.ahead else _input_rows(windows)
    return PreparedInputs(series.others, rows, series.nodes, windows.history, dtype, device)


class PreparedSeries:
    """A Series scaled and on its device, with its windows: ready to be cut into minibatches."""

    def __init__(
        self,
        series: Series,
        scaler: Scaler,
        treatment: Missing,
        windows: Windows,
        dtype: torch.dtype,
        device: torch.device,
        model: ModelConfig | None = None,
        inputs: InputCounts = NO_INPUTS,
        input_scales: Floats | None = None,
    ) -> None:
        """`model` says which inputs there are besides readings and time of day; without it there are none."""
        model = model or ModelConfig()

        def scaled(absent: Bools) -> Tensor:
            values = (fill(series.values, absent) - scaler.mean) / scaler.std
            # Before a node's first reading the value is the mean, which is 0 after scaling.
            return torch.tensor(np.nan_to_num(values), dtype=dtype, device=device)

        self.nodes, self.scaler, self.masked = series.nodes, scaler, treatment == "masked"
        self.history, self.horizon, self.length = windows.history, windows.horizon, windows.length
        self.inputs = scaled(series.absent(treatment))
        # The unmasked metric takes zeros as the truth, whatever the inputs of the model are.
        self.targets = scaled(series.absent("as-truth")) if self.masked else self.inputs
        self.observed = torch.tensor(~series.missing, device=device)
        self._steps = torch.arange(self.length, device=device)
        self.clock = torch.tensor(series.time_of_day, dtype=dtype, device=device)
        moments = np.stack([series.calendar.slot, series.weekday], axis=1)
        self.moments = torch.tensor(moments, device=device)  # (T 2)
        self.gaps = torch.tensor(series.absent(treatment), dtype=dtype, device=device) if model.gaps else None
        self.calendar, self.ahead = series.calendar, windows.ahead
        self.weekly_profiles: Floats | None = None  # (n 7 SLOTS), in the readings' unit
        self.profile: Tensor | None = None  # (n T): the profile at every row, scaled
        if model.profile:
            self.weekly_profiles, at_rows = series.weekly_profiles(windows, treatment)
            self._set_profile(at_rows)
        self.others = _prepared_inputs(series, windows, inputs, dtype, device)
        if self.others is not None and input_scales is not None:
            self.others.use(input_scales)
        self.starts = {split: torch.tensor(windows.starts[split], device=device) for split in SPLITS}
        self.available: dict[Split, Tensor | None] = {}  # (n w): the windows each node has; None if all
        for split in SPLITS:
            available = series.available(windows.starts[split], windows, treatment)
            self.available[split] = None if available.all() else torch.tensor(available, device=device)
        # Linear forecasters that use the node's own inputs, or also the means of levels at the end of h_G.
        self.linear: dict[str, Forecasters] = {}
        self._fold_of = torch.empty(0, dtype=torch.long, device=device)  # of each training window
        self._told = 2 * model.level_width
        self._means: Tensor | None = None  # (n w k) that forecasters have yet to be fitted with
        if model.linear:
            self.linear[OWN] = self._fitted()

    def use(self, state: Mapping[str, Tensor]) -> None:
        """Use what `state` returned when the model was trained: profiles, scales, forecasters. A node whose
        row is NaN, such as a new sensor, keeps those of the readings at hand."""
        if INPUT_SCALES in state and self.others is not None:
            self.others.use(state[INPUT_SCALES].cpu().numpy())
        if PROFILES in state:
            assert self.weekly_profiles is not None
            weekly_profiles = state[PROFILES].cpu().numpy()
            unknown = np.isnan(weekly_profiles).all(axis=(1, 2), keepdims=True)
            self.weekly_profiles = np.where(unknown, self.weekly_profiles, weekly_profiles)
            self._set_profile(self.calendar.look_up(self.weekly_profiles))
        for kind in (OWN, INFORMED):
            saved = Forecasters.of(state, LINEAR + kind, self.inputs)
            if saved is not None:
                self.linear[kind] = saved.completed(self.linear.get(kind, self.linear[OWN]))

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the readings: weekly profiles, linear forecasters and scales of further
        inputs, as far as the model uses them."""
        state = {}
        if self.weekly_profiles is not None:
            state[PROFILES] = torch.from_numpy(self.weekly_profiles)
        for kind, forecasters in self.linear.items():
            state |= forecasters.state(LINEAR + kind)
        if self.others is not None:
            state[INPUT_SCALES] = torch.from_numpy(self.others.scales)
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore the linear forecasters, and profiles and scales if the next readings are to be forecast. In
        training and evaluation these are computed from the readings, with the same result each time."""
        self._means = None
        self.use({name: x for name, x in state.items() if self.ahead or name.startswith(LINEAR)})

    def _set_profile(self, at_rows: Floats) -> None:
        """(n T), in the readings' unit."""
        scaled = (at_rows - self.scaler.mean) / self.scaler.std
        self.profile = torch.tensor(scaled, dtype=self.inputs.dtype, device=self.inputs.device)

    def batch(
        self, split: Split, windows: Tensor | slice, h_G: Tensor | None = None
    ) -> tuple[Batch, Tensor | None]:
        """Some windows of a split, and which of them each node has: (n b), None if all. The linear forecast
        among the inputs uses the means in the embeddings h_G (n b e) of these windows."""
        batch, available = self._at(self.starts[split][windows], self._available(split, windows))
        if not self.linear:
            return batch, available
        fold = self._fold_of[windows] if split == "train" else None
        if h_G is None or INFORMED not in self.linear:
            change = self.linear[OWN].change(self._linear_inputs(batch), fold)
        else:
            means = h_G.detach()[..., -self._told :]
            change = self.linear[INFORMED].change(self._linear_inputs(batch, means), fold)
        return replace(batch, linear_change=change), available

    def _at(self, starts: Tensor, available: Tensor | None) -> tuple[Batch, Tensor | None]:
        """The windows that start at these rows, without linear forecasts."""
        inputs, clock = self._cut(self.inputs, starts), self._cut(self.clock[None], starts)[0]
        x = torch.stack(torch.broadcast_tensors(inputs, clock), dim=-1)[:, :, : self.history]
        weight = None
        if self.masked:
            observed = self._cut(self.observed, starts)[:, :, self.history :]
            weight = (observed if available is None else observed & available[:, :, None]).to(x.dtype)
        elif available is not None:
            weight = available[:, :, None].expand(-1, -1, self.horizon).to(x.dtype)
        y = self._cut(self.targets, starts)[:, :, self.history :]
        moment = self.moments[starts + self.history - 1]
        gaps = None if self.gaps is None else self._cut(self.gaps, starts)[:, :, : self.history]
        profile_change = None
        if self.profile is not None:
            ahead = self._cut(self.profile, starts)[:, :, self.history :]
            profile_change = torch.nan_to_num(ahead - x[:, :, -1, :1])  # unknown profile: predict no change
        others = None if self.others is None else self.others.batch(starts[:, None] + self._steps)
        clock = clock[:, self.history :]
        return Batch(x, y, clock, weight, moment, gaps, profile_change, others=others), available

    def with_readings(self, series: Series, windows: Windows) -> PreparedSeries:
        """The same nodes with newer readings; the scale and what was computed from all readings stay."""
        treatment: Missing = "masked" if self.masked else "as-truth"
        kind, model = (self.inputs.dtype, self.inputs.device), ModelConfig(gaps=self.gaps is not None)
        inputs, scales = NO_INPUTS, None
        if self.others is not None:
            inputs, scales = self.others.counts, self.others.scales
        newer = PreparedSeries(series, self.scaler, treatment, windows, *kind, model, inputs, scales)
        other = copy.copy(self)
        other.others = newer.others
        for name in ("inputs", "targets", "observed", "clock", "moments", "gaps", "starts", "available"):
            setattr(other, name, getattr(newer, name))
        if self.weekly_profiles is not None:
            other._set_profile(series.calendar.look_up(self.weekly_profiles))
        return other

    def of_nodes(self, nodes: slice) -> PreparedSeries:
        """The same windows of some of the nodes: a view."""
        start, stop, _ = nodes.indices(self.nodes)
        if stop - start == self.nodes:
            return self

        def rows(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[start:stop]

        part = copy.copy(self)
        part.nodes = stop - start
        part.inputs, part.targets = self.inputs[start:stop], self.targets[start:stop]
        part.observed = self.observed[start:stop]
        part.gaps, part.profile = rows(self.gaps), rows(self.profile)
        part.others = None if self.others is None else self.others.of_nodes(nodes)
        part.available = {split: rows(available) for split, available in self.available.items()}
        part.linear = {kind: forecasters.of_nodes(nodes) for kind, forecasters in self.linear.items()}
        part._means = rows(self._means)
        return part

    def chunks(self, split: Split) -> Iterator[slice]:
        """All windows of a split, in chunks that fit into memory."""
        at_once = SEQUENCES_AT_ONCE.get(self.inputs.device.type, SEQUENCES_AT_ONCE["cpu"])
        width, count = max(1, at_once // self.nodes), len(self.starts[split])
        return (slice(start, min(start + width, count)) for start in range(0, count, width))

    # ---- linear forecasters -------------------------------------------------------------------------

    def inform(self, means: Tensor) -> None:
        """When next needed, fit forecasters that also use means of levels (n w k) of the training windows."""
        if self.linear and self._told:
            self._means = means

    def fit(self) -> None:
        """Fit what has yet to be fitted."""
        if self._means is not None:
            self.linear[INFORMED] = self._fitted(self._means)
            self._means = None

    def _fitted(self, means: Tensor | None = None) -> Forecasters:
        """Fit each node's linear forecaster, some nodes at a time: the equations of one take 200 KiB."""
        parts = []
        for start in range(0, self.nodes, NODES_AT_ONCE):
            nodes = slice(start, min(start + NODES_AT_ONCE, self.nodes))
            part = self.of_nodes(nodes)
            parts.append(part._fitted_together(None if means is None else means[nodes]))
            self._fold_of = part._fold_of
        return Forecasters.joined(parts)

    def _fitted_together(self, means: Tensor | None) -> Forecasters:
        """Fit each node's linear forecaster to its training windows; if only the readings that come next are
        to be forecast, to all windows before them."""
        starts = self.starts["train"]
        if self.ahead:
            count = int(self.starts["test"][-1]) - self.horizon + 1
            starts = torch.arange(max(0, count), device=self.inputs.device)
        number = torch.arange(len(starts), device=starts.device)
        self._fold_of = number * FOLDS // max(1, len(starts))

        def samples(fold: int, wide: bool) -> Iterator[Sample]:
            chosen = number[self._fold_of == fold]
            if wide and len(chosen):
                first, last = starts[chosen[0]], starts[chosen[-1]]
                chosen = number[(starts > first - self.length) & (starts < last + self.length)]
            yield self._sample(starts, chosen[:0], means)
            # The same chunks for any group: see `linear._products`.
            for chunk in chosen.split(WINDOWS_AT_ONCE):
                yield self._sample(starts, chunk, means)

        return Forecasters.fitted(FOLDS, samples, self.inputs.dtype)

    def _sample(self, starts: Tensor, windows: Tensor, means: Tensor | None) -> Sample:
        batch, _ = self._at(starts[windows], None)
        told = None if means is None else means[:, windows].to(batch.x.dtype)
        inputs, change = self._linear_inputs(batch, told), batch.y - batch.x[:, :, -1, :1]
        return Sample(inputs, change, batch.complete)

    def _linear_inputs(self, batch: Batch, means: Tensor | None = None) -> Tensor:
        """(n b p): the last readings, all but the last one relative to it, the calendar, the profile, further
        inputs, and the means of levels."""
        readings = batch.x[..., 0]
        last = readings[..., -1:]
        assert batch.moment is not None
        calendar = calendar_inputs(batch.x[0, :, -1, 1], batch.moment[:, 1], self.calendar.step_days)
        parts = [readings[..., :-1] - last, last, calendar.expand(len(last), -1, -1)]
        if batch.profile_change is not None:
            parts.append(batch.profile_change)
        if batch.others is not None:
            parts.append(batch.others)
        if means is not None:
            parts.append(means - last)
        return torch.cat(parts, dim=-1)

    def errors(self, y_hat: Tensor, split: Split, windows: Tensor | slice) -> Tensor:
        """(n t 8) float64: the sums named in `SUMS` over some windows, in the readings' unit."""
        return torch.stack([term.sum(1) for term in self.terms(y_hat, split, windows)], dim=-1)

    def terms(self, y_hat: Tensor, split: Split, windows: Tensor | slice) -> list[Tensor]:
        """The terms of each sum in `SUMS`: (n b t) float64, zero where a target does not count."""
        available = self._available(split, windows)
        truth, known = self.truth(split, windows)
        error = self.unscaled(y_hat) - truth
        counted, observed = torch.ones_like(truth), known.double()
        if available is not None:
            counted, observed = counted * available[:, :, None], observed * available[:, :, None]
        nonzero = observed * (truth.abs() > 1e-3)  # there is no percentage of zero
        share = error.abs() / torch.where(nonzero > 0, truth.abs(), 1.0)
        return [
            counted * error.square(),
            counted * error.abs(),
            counted,
            observed * error.square(),
            observed * error.abs(),
            observed,
            nonzero * share,
            nonzero,
        ]

    def truth(self, split: Split, windows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """(n b t) each: the targets of some windows in the readings' unit, and which were observed."""
        starts = self.starts[split][windows]
        targets, observed = (
            self._cut(rows, starts)[:, :, self.history :] for rows in (self.targets, self.observed)
        )
        return self.unscaled(targets), observed

    def unscaled(self, values: Tensor) -> Tensor:
        """Convert to the readings' unit, as float64."""
        return values.double() * self.scaler.std + self.scaler.mean

    def _available(self, split: Split, windows: Tensor | slice) -> Tensor | None:
        available = self.available[split]
        return None if available is None else available[:, windows]

    def _cut(self, rows: Tensor, starts: Tensor) -> Tensor:
        """(n T) -> (n b t)."""
        if not rows.is_cuda and _in_a_row(starts):  # as they are outside training: ten times as fast
            first = int(starts[0])
            part = rows[:, first : first + len(starts) - 1 + self.length]
            return part.unfold(1, self.length, 1).contiguous()
        # By flat indices: on a CPU, selecting from overlapping windows takes a hundred times as long.
        steps = starts[:, None] + self._steps
        return rows.index_select(1, steps.flatten()).view(len(rows), *steps.shape)


def _in_a_row(starts: Tensor) -> bool:
    """Whether each window begins one row after the one before."""
    return len(starts) > 0 and bool((starts[1:] - starts[:-1] == 1).all())


def fill(values: Floats, absent: Bools) -> Floats:
    """(n T) -> (n T): replace each absent value by the node's last one before it, or NaN if there is none."""
    last = np.maximum.accumulate(np.where(absent, -1, np.arange(values.shape[1])), axis=1)
    filled = np.take_along_axis(values, np.maximum(last, 0), axis=1)
    return np.where(last < 0, np.nan, filled)
