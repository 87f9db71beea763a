"""The series of a group of nodes: filled, scaled and cut into windows, with what models need beside them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cnfgnn.config.settings import Missing, ModelConfig
from cnfgnn.data.batch import Batch
from cnfgnn.data.inputs import INPUT_SCALES, NO_INPUTS, InputCounts
from cnfgnn.data.prepared_inputs import PreparedInputs
from cnfgnn.data.series import DAY_S, Scaler, Series, input_rows
from cnfgnn.data.windows import SPLITS, Split, Windows
from cnfgnn.errors import DataError
from cnfgnn.forecasters.linear import (
    FOLDS,
    YEAR_HARMONICS,
    Forecasters,
    Forms,
    Normal,
    Sample,
    calendar_inputs,
    unsquashed,
)

# Windows x nodes in one forward pass without gradients: bounds memory. A GPU needs many to be busy.
SEQUENCES_AT_ONCE = {"cpu": 1 << 15, "cuda": 1 << 18}
WINDOWS_AT_ONCE, NODES_AT_ONCE = 512, 1 << 8  # in fitting linear forecasters
# Days of training windows from which on linear forecasters use the time of day. With fewer, no time comes
# twice: what looks like a pattern of the day is the course of one day, and misleads about the next hours.
FEWEST_DAYS = 2.0
FEWEST_YEARS = 2.0  # the same for the time of the year
YEAR_DAYS = 365.2425
USUAL = "usual_"  # in checkpoints, the names of profiles and of the weights of lags begin with it
PROFILES, LAGS, HALF_LIVES, FLOORS = (USUAL + name for name in ("weeks", "lags", "half_lives", "floors"))
LINEAR = "linear_"  # the names of linear forecasters in checkpoints begin with it
OWN, INFORMED = "own", "informed"

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

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
    rows = np.arange(len(series.time_of_day)) if windows.ahead else input_rows(windows)
    return PreparedInputs(series.others, rows, series.nodes, windows.history, dtype, device)


def age_input(ages: Ints, history: int) -> Tensor:
    """What a model gets to know of the age of readings, in steps: 0 if they are new, toward 1 with age."""
    age = torch.from_numpy(ages)
    return (age / (age + history)).sqrt()


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

        self.nodes, self.scaler, self.masked = series.nodes, scaler, treatment == "masked"
        self.history, self.horizon, self.length = windows.history, windows.horizon, windows.length
        self._dtype, self._device = dtype, device
        self._set_inputs(series.filled(treatment))
        # The unmasked metric takes zeros as the truth, whatever the inputs of the model are.
        self.targets = self._scaled(series.filled("as-truth")).nan_to_num() if self.masked else self.inputs
        self.observed = torch.tensor(~series.missing, device=device)
        self.counted = torch.tensor(~series.absent("as-truth"), device=device)
        self._complete = bool(self.counted.all())
        self._steps = torch.arange(self.length, device=device)
        self.clock = torch.tensor(series.time_of_day, dtype=dtype, device=device)
        moments = np.stack([series.calendar.slot, series.weekday], axis=1)
        self.moments = torch.tensor(moments, device=device)  # (T 2)
        year = torch.tensor(series.seconds / (YEAR_DAYS * DAY_S) % 1, dtype=dtype, device=device)
        step_days = series.calendar.step_days
        self._calendar_inputs = calendar_inputs(self.clock, self.moments[:, 1], year, step_days)  # (T k)
        self.gaps: Tensor | None = None  # (n T): 0 where a reading was observed, toward 1 the older the last
        if model.gaps:
            self.gaps = age_input(series.ages(treatment), self.history).to(device, dtype)
        self.calendar, self.ahead = series.calendar, windows.ahead
        self.weekly_profiles: Floats | None = None  # (n 7 SLOTS), in the readings' unit
        self.lags: Floats | None = None  # (n k): how much of earlier days and weeks comes back
        self.half_lives: Floats | None = None  # (n,): of anomalies, in steps
        self.floors: Floats | None = None  # (n,): the lowest forecast, in the readings' unit
        self.usual: Tensor | None = None  # (n T): the usual reading at every row, scaled
        if model.profile:
            self.weekly_profiles, at_rows = series.weekly_profiles(windows, treatment)
            self.lags, self.half_lives = series.persistence(windows, treatment, at_rows, scaler)
            self.floors = series.floors(windows, treatment)
            self._set_usual(series, at_rows)
        self.others = _prepared_inputs(series, windows, inputs, dtype, device)
        if self.others is not None and input_scales is not None:
            self.others.use(input_scales)
        self.starts = {split: torch.tensor(windows.starts[split], device=device) for split in SPLITS}
        self.heard: dict[Split, Tensor | None] = {}  # (n w): where a node has an observed input; None if all
        for split in SPLITS:
            heard = series.heard(windows.starts[split], windows, treatment)
            self.heard[split] = None if heard.all() else torch.tensor(heard, device=device)
        self._series = series
        self._prepare_linear(model)

    def _prepare_linear(self, model: ModelConfig) -> None:
        # Linear forecasters that use the node's own inputs, or also the means of levels at the end of h_G.
        self.linear: dict[str, Forecasters] = {}
        numbers = self.starts["train"].new_zeros
        self._shares: Tensor | None = None  # (n f 1 + folds): of each form of the node's forecaster
        self._fold_of = numbers(0)  # of each training window
        self._knows_days = self._knows_years = (
            False  # whether forecasters use the time of day, and of the year
        )
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
            lags = state[LAGS].cpu().numpy()
            assert self.lags is not None
            assert self.half_lives is not None
            self.lags = np.where(np.isnan(lags), self.lags, lags)
            assert self.floors is not None
            half_lives, floors = (state[name].cpu().numpy() for name in (HALF_LIVES, FLOORS))
            self.half_lives = np.where(np.isnan(half_lives), self.half_lives, half_lives)
            self.floors = np.where(np.isnan(floors), self.floors, floors)
            self._set_usual(self._series, self.calendar.look_up(self.weekly_profiles))
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
        usual = {LAGS: self.lags, HALF_LIVES: self.half_lives, FLOORS: self.floors}
        state |= {name: torch.from_numpy(found) for name, found in usual.items() if found is not None}
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

    def _set_usual(self, series: Series, profile: Floats) -> None:
        """The profile is that at every row (n T), in the readings' unit."""
        assert self.lags is not None
        assert self.half_lives is not None
        assert self.weekly_profiles is not None
        treatment: Missing = "masked" if self.masked else "as-truth"
        usual = series.usual(profile, self.lags, self.horizon, treatment)
        self.usual = self._scaled(usual)
        self._set_inputs(series.filled_with_usual(treatment, profile, self.weekly_profiles, self.half_lives))

    def _set_inputs(self, filled: Floats) -> None:
        """The inputs, in the readings' unit; NaN before a node's first reading."""
        # Before a node's first reading the value is the mean, which is 0 after scaling.
        self.inputs = self._scaled(filled).nan_to_num()
        self.unknown = torch.tensor(np.isnan(filled).all(axis=1), device=self._device)  # (n,)

    def _scaled(self, values: Floats) -> Tensor:
        scaled = (values - self.scaler.mean) / self.scaler.std
        return torch.tensor(scaled, dtype=self._dtype, device=self._device)

    def batch(self, split: Split, windows: Tensor | slice, h_G: Tensor | None = None) -> Batch:
        """Some windows of a split. The linear forecast among the inputs uses the means in the embeddings h_G
        (n b e) of these windows."""
        return self.with_linear_forecast(self._at(self.starts[split][windows]), split, windows, h_G)

    def with_linear_forecast(
        self,
        batch: Batch,
        split: Split,
        windows: Tensor | slice,
        h_G: Tensor | None = None,
        cross_fitted: bool = True,
    ) -> Batch:
        """These windows of a split with the linear forecasts of their readings, if the model uses them. Those
        of training windows are cross-fitted, unless told otherwise."""
        if not self.linear:
            return batch
        fold = self._fold_of[windows] if split == "train" and cross_fitted else None
        kind = OWN if h_G is None or INFORMED not in self.linear else INFORMED
        means = None if h_G is None or kind == OWN else h_G.detach()[..., -self._told :]
        inputs = self._linear_inputs(batch, self.starts[split][windows], means)
        return replace(batch, linear_change=self.linear[kind].change(inputs, fold))

    def _at(self, starts: Tensor) -> Batch:
        """The windows that start at these rows, without linear forecasts."""
        cut = self._cutter(starts)
        inputs, clock = cut(self.inputs), cut(self.clock[None])[0]
        past, until_now = inputs[:, :, : self.history], clock[:, : self.history]
        x = torch.stack(torch.broadcast_tensors(past, until_now), dim=-1)
        weight = None
        if self.masked or not self._complete:
            known = self.observed if self.masked else self.counted
            weight = cut(known)[:, :, self.history :].to(x.dtype)
        y = cut(self.targets)[:, :, self.history :]
        moment = self.moments[starts + (self.history - 1)]
        gaps = None if self.gaps is None else cut(self.gaps)[:, :, : self.history]
        usual_change = None
        if self.usual is not None:
            usual = cut(self.usual)[:, :, self.history - 1 :]
            usual_change = torch.nan_to_num(usual - x[:, :, -1, :1])  # nothing is usual: predict no change
        others = None if self.others is None else self.others.batch(starts[:, None] + self._steps)
        clock = clock[:, self.history :]
        return Batch(x, y, clock, weight, moment, gaps, usual_change, others=others)

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
        of_readings = (
            "inputs",
            "unknown",
            "targets",
            "observed",
            "clock",
            "moments",
            "_calendar_inputs",
            "counted",
            "_complete",
            "gaps",
            "_series",
        )
        for name in (*of_readings, "starts", "heard"):
            setattr(other, name, getattr(newer, name))
        if self.weekly_profiles is not None:
            other._set_usual(series, series.calendar.look_up(self.weekly_profiles))
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
        part.unknown = self.unknown[start:stop]
        part.floors = None if self.floors is None else self.floors[start:stop]
        part.observed, part.counted = self.observed[start:stop], self.counted[start:stop]
        part.gaps, part.usual = rows(self.gaps), rows(self.usual)
        part._shares = rows(self._shares)
        part.others = None if self.others is None else self.others.of_nodes(nodes)
        part.heard = {split: rows(heard) for split, heard in self.heard.items()}
        part.linear = {kind: forecasters.of_nodes(nodes) for kind, forecasters in self.linear.items()}
        part._means = rows(self._means)
        return part

    def at_least_floor(self, y_hat: Tensor) -> Tensor:
        """Forecasts (n b t) that are nowhere lower than the node's readings can be."""
        if self.floors is None:
            return y_hat
        floors = self._scaled(self.floors).to(y_hat.dtype)
        return y_hat.maximum(floors.view(-1, 1, 1))

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
        """Fit each node's linear forecaster, some at a time: one with gaps needs 5 MiB meanwhile."""
        parts, shares = [], []
        for start in range(0, self.nodes, NODES_AT_ONCE):
            nodes = slice(start, min(start + NODES_AT_ONCE, self.nodes))
            part = self.of_nodes(nodes)
            parts.append(part._fitted_together(None if means is None else means[nodes]))
            assert part._shares is not None
            shares.append(part._shares)
            self._fold_of = part._fold_of
        self._shares = torch.cat(shares)
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
        self._knows_days = self._days(starts) >= FEWEST_DAYS
        self._knows_years = self._days(starts) >= FEWEST_YEARS * YEAR_DAYS

        def samples(fold: int, around: bool) -> Iterator[Sample]:
            in_fold = self._fold_of == fold
            chosen = number[in_fold]
            if around and len(chosen):
                first, last = starts[chosen[0]], starts[chosen[-1]]
                span = self.history + self.length  # with the readings before a window
                near = (starts > first - span) & (starts < last + span)
                chosen = number[near & ~in_fold]
            return self._samples(starts, chosen, means)

        forms = self._forms(next(samples(0, False)).inputs.shape[-1], starts)
        dtype = self.inputs.dtype
        # Validation windows decide how much of each form to take, once: their means of levels are not known.
        fitted, self._shares = Forecasters.fitted(
            FOLDS, samples, dtype, forms, forms.after.gaps, self._shares
        )
        return fitted

    def with_gaps(self, *of_windows: Tensor) -> Tensor:
        """(n,): which nodes have some, but not all targets of a window that starts at these rows."""
        before = torch.nn.functional.pad((self.observed if self.masked else self.counted).cumsum(1), (1, 0))
        found = torch.zeros(self.nodes, dtype=torch.bool, device=before.device)
        for starts in of_windows:
            targets = before[:, starts + self.length] - before[:, starts + self.history]
            found |= ((targets > 0) & (targets < self.horizon)).any(dim=1)
        return found

    def _forms(self, inputs: int, trained_on: Tensor) -> Forms:
        """The forms that forecasters with so many inputs may take."""
        starts = self.starts["validation"]
        number = torch.arange(len(starts), device=starts.device)
        after = Normal.of(self._samples(starts, number, None), self.with_gaps(trained_on, starts))
        daily = self.calendar.step_days >= 1
        return Forms(inputs, self.history, self._level_place, self._usual_places(), daily, self.length, after)

    def _samples(self, starts: Tensor, windows: Tensor, means: Tensor | None) -> Iterator[Sample]:
        yield self._sample(starts, windows[:0], means)
        # The same chunks for any group: see `linear._products`.
        for chunk in windows.split(WINDOWS_AT_ONCE):
            yield self._sample(starts, chunk, means)

    def _sample(self, starts: Tensor, windows: Tensor, means: Tensor | None) -> Sample:
        batch = self._at(starts[windows])
        told = None if means is None else means[:, windows].to(batch.x.dtype)
        inputs, change = self._linear_inputs(batch, starts[windows], told), batch.y - batch.x[:, :, -1, :1]
        constant = self._level_place + 1
        usual = constant + self._calendar_inputs.shape[1]
        if not self._knows_days:  # times would only count up: see `FEWEST_DAYS`
            inputs[..., constant + 1 : usual] = 0
        if not self._knows_years:
            inputs[..., usual - 2 * YEAR_HARMONICS : usual] = 0
        return Sample(inputs, change, batch.observed)

    def _days(self, starts: Tensor) -> float:
        """From the first of these windows to the end of the last one."""
        steps = int(starts[-1] - starts[0]) + self.length if len(starts) else 0
        return steps * self.calendar.step_days

    def _linear_inputs(self, batch: Batch, starts: Tensor, means: Tensor | None = None) -> Tensor:
        """(n b p): the readings of the window and as many before it, all but the last one relative to it, the
        calendar, the usual readings of the last step and ahead, further inputs, and the means of levels."""
        readings = batch.x[..., 0]
        last = readings[..., -1:]
        rows = (starts[:, None] + self._steps[: self.history] - self.history).clamp(min=0)
        earlier = self.inputs.index_select(1, rows.flatten()).view(self.nodes, *rows.shape)
        calendar = self._calendar_inputs[starts + (self.history - 1)]
        parts = [earlier - last, readings[..., :-1] - last, last, calendar.expand(len(last), -1, -1)]
        if batch.usual_change is not None:
            parts.append(batch.usual_change)
        if batch.others is not None:
            parts.append(batch.others)
        if means is not None:
            parts.append(unsquashed(means) - last)
        return torch.cat(parts, dim=-1)

    @property
    def _level_place(self) -> int:
        """Where the last reading is among the inputs of `_linear_inputs`."""
        return 2 * self.history - 1

    def _usual_places(self) -> range | None:
        """Where the usual readings ahead are among the inputs of `_linear_inputs`; that of the last step is
        before them."""
        if self.usual is None:
            return None
        first = self._level_place + 1 + self._calendar_inputs.shape[1] + 1
        return range(first, first + self.horizon)

    def errors(self, y_hat: Tensor, split: Split, windows: Tensor | slice) -> Tensor:
        """(n t 8) float64: the sums named in `SUMS` over some windows, in the readings' unit."""
        return torch.stack([term.sum(1) for term in self.terms(y_hat, split, windows)], dim=-1)

    def terms(self, y_hat: Tensor, split: Split, windows: Tensor | slice) -> list[Tensor]:
        """The terms of each sum in `SUMS`: (n b t) float64, zero where a target does not count."""
        cut = self._cutter(self.starts[split][windows])
        counted = cut(self.counted)[:, :, self.history :].double()
        truth, known = self.truth(split, windows)
        error, observed = self.unscaled(y_hat) - truth, known.double()
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
        cut = self._cutter(self.starts[split][windows])
        targets, observed = (cut(rows)[:, :, self.history :] for rows in (self.targets, self.observed))
        return self.unscaled(targets), observed

    def unscaled(self, values: Tensor) -> Tensor:
        """Convert to the readings' unit, as float64."""
        return values.double() * self.scaler.std + self.scaler.mean

    def heard_in(self, split: Split, windows: Tensor | slice) -> Tensor | None:
        """(n b): the nodes that have an observed input in some windows of a split; None if all have."""
        heard = self.heard[split]
        return None if heard is None else heard[:, windows]

    def _cutter(self, starts: Tensor) -> Callable[[Tensor], Tensor]:
        """(n T) -> (n b t): cuts out the windows that start at these rows."""
        if not starts.is_cuda and _in_a_row(starts):  # as they are outside training: ten times as fast
            rows = slice(int(starts[0]), int(starts[-1]) + self.length)
            return lambda series: series[:, rows].unfold(1, self.length, 1).contiguous()
        # By flat indices: on a CPU, selecting from overlapping windows takes a hundred times as long.
        steps = starts[:, None] + self._steps
        flat = steps.flatten()
        return lambda series: series.index_select(1, flat).view(len(series), *steps.shape)


def _in_a_row(starts: Tensor) -> bool:
    """Whether each window begins one row after the one before."""
    return len(starts) > 0 and bool((starts[1:] - starts[:-1] == 1).all())
