"""Linear forecasters: each sensor fits one to its own readings, in closed form, and keeps it.

A forecaster is a ridge regression from the last readings, what the sensor usually reads at the forecast times
and the calendar to the change from the last reading. Its penalty is chosen by cross-validation over the
training windows. The network then only has to learn what such a simple forecast leaves over.

No single form suits every sensor. Readings that drift leave the levels that were there in training, so that
their level and their usual readings mislead, though the shape of a usual day may still help; other readings
have no usual week at all; tides need a longer past than traffic. So each sensor fits the regression in
several forms and takes a mean of them, and of the last value, in which those with little error on its
validation windows count most.

Forecasts of training windows are cross-fitted: the weights for a window come from windows that share no
reading with it. Otherwise the network would learn from errors that are smaller than those of new windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

FOLDS = 5
FOLDS_SUFFIX = ".folds"  # after the name of weights in checkpoints: the weights of each fold
PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)  # of squared weights, on scaled readings
AS_GOOD = 1e-6  # relative difference of cross-validation errors that does not count
# A form counts as much as its prior divided by its squared error on validation windows, to the power of
# EVIDENCE for each window that does not overlap with another. The prior is that of the first form, of each
# other one, and of the last value.
EVIDENCE, FIRST, OTHER, LAST_VALUE = 1.5, 1.0, 0.5, 0.1
SMALLEST_ERROR = 1e-9  # relative to that of the last value; differences below are rounding
SHARES_OF_ONE = 1 << 20  # what the shares of forms are whole multiples of, so that rounding does not matter
LARGEST_LEVEL = 3.0  # standard deviations
LARGEST_SHARE = 0.95  # of the largest level that a mean of levels can tell apart from larger ones
HARMONICS, YEAR_HARMONICS = 4, 2  # of the day and of the year
WEEKDAYS = 7


@dataclass(frozen=True)
class Sample:
    """b windows of n sensors, as the forecaster sees them: inputs (n b p), the change from the last reading
    to each target (n b t), and which targets were observed (n b t)."""

    inputs: Tensor
    change: Tensor
    observed: Tensor


class Normal:
    """X'X (r p p), X'Y (r p t) and Y'Y (r) of n sensors, and the number of their windows (r), in float64: all
    that a fit needs.

    A sensor that has all targets of a window or none has one row, for all steps ahead. A sensor with gaps
    has one for each step: different windows have a target there. In the row of a step, X'Y is zero for all
    others. `gaps` (n,) tells these sensors apart; their rows come last.
    """

    def __init__(self, gram: Tensor, cross: Tensor, square: Tensor, count: Tensor, gaps: Tensor) -> None:
        self.gram, self.cross, self.square, self.count, self.gaps = gram, cross, square, count, gaps

    @classmethod
    def of(cls, samples: Iterator[Sample], gaps: Tensor) -> Normal:
        """Sum over samples, of which there must be at least one."""
        total: Normal | None = None
        for sample in samples:
            x, y, observed = sample.inputs.double(), sample.change.double(), sample.observed.double()
            even = observed[~gaps][..., :1]
            parts = [_of_all_steps(x[~gaps] * even, y[~gaps] * even, even)]
            if gaps.any():
                parts.append(_of_each_step(x[gaps], y[gaps], observed[gaps]))
            gram, cross, square, count = (torch.cat(part) for part in zip(*parts, strict=True))
            one = cls(gram, cross, square, count, gaps)
            total = one if total is None else total + one
        assert total is not None
        return total

    def __add__(self, other: Normal) -> Normal:
        square, count = self.square + other.square, self.count + other.count
        return Normal(self.gram + other.gram, self.cross + other.cross, square, count, self.gaps)

    def __sub__(self, other: Normal) -> Normal:
        square, count = self.square - other.square, self.count - other.count
        return Normal(self.gram - other.gram, self.cross - other.cross, square, count, self.gaps)

    @property
    def windows(self) -> Tensor:
        """(n,): how many windows each sensor has; the mean over steps if these differ."""
        steps = torch.where(self.gaps, self.cross.shape[-1], 1)
        return self.by_sensor(self.count) / steps

    def solved(self, penalty: Tensor | float) -> Tensor:
        """(n p t): the weights with this penalty on their squares, one for all or (n,)."""
        penalties = torch.as_tensor(penalty, dtype=self.gram.dtype, device=self.gram.device)
        rows = self.by_row(penalties) if penalties.dim() else penalties.expand(len(self.gram))
        return self.by_sensor(self.solved_rows(rows[None])[0])

    def solved_rows(self, penalties: Tensor) -> Tensor:
        """(k r) -> (k r p t): the weights of each row with several penalties."""
        eye = torch.eye(self.gram.shape[-1], dtype=self.gram.dtype, device=self.gram.device)
        penalised = self.gram + penalties[..., None, None] * eye
        weights, _ = torch.linalg.solve_ex(penalised, self.cross.expand(len(penalties), -1, -1, -1))
        # Readings of absurd size have no solution in float64. Without weights the last value is forecast.
        solvable = weights.isfinite().flatten(2).all(dim=2)[..., None, None]
        return torch.where(solvable, weights, 0.0)

    def row_errors(self, weights: Tensor) -> Tensor:
        """(k r p t) -> (k r): the summed squared errors of each row."""
        return self.square + ((self.gram @ weights - 2 * self.cross) * weights).sum(dim=(2, 3))

    def squared_errors(self, weights: Tensor) -> Tensor:
        """(n,): the summed squared errors that these weights (n p t) have on the windows summed here."""
        return self.by_sensor(self.row_errors((self.by_row(weights) * self._steps())[None])[0])

    def by_row(self, x: Tensor) -> Tensor:
        """(n ...) -> (r ...): what belongs to a sensor, for each of its rows."""
        steps = self.cross.shape[-1]
        return torch.cat([x[~self.gaps], x[self.gaps].repeat_interleave(steps, dim=0)])

    def by_sensor(self, x: Tensor) -> Tensor:
        """(r ...) -> (n ...): sums over the rows of each sensor."""
        even, steps = int((~self.gaps).sum()), self.cross.shape[-1]
        summed = x.new_empty(len(self.gaps), *x.shape[1:])
        summed[~self.gaps] = x[:even]
        summed[self.gaps] = x[even:].unflatten(0, (-1, steps)).sum(dim=1) if even < len(x) else x[even:]
        return summed

    def _steps(self) -> Tensor:
        """(r 1 t): the steps ahead that each row is about."""
        steps = self.cross.shape[-1]
        every = self.cross.new_ones(int((~self.gaps).sum()), 1, steps)
        one = torch.eye(steps, dtype=self.cross.dtype, device=self.cross.device)[:, None]
        return torch.cat([every, one.repeat(int(self.gaps.sum()), 1, 1)])


def _of_all_steps(x: Tensor, y: Tensor, complete: Tensor) -> tuple[Tensor, ...]:
    """X'X, X'Y, Y'Y and the number of windows of sensors that have all targets of a window or none."""
    return _products(x, x), _products(x, y), y.square().sum(dim=(1, 2)), complete.sum(dim=(1, 2))


def _of_each_step(x: Tensor, y: Tensor, observed: Tensor) -> tuple[Tensor, ...]:
    """The same for each step ahead: (n b p), (n b t), (n b t) -> (nt p p), (nt p t), (nt), (nt)."""
    steps = y.shape[-1]
    y = y * observed
    gram = torch.stack(
        [_products(x, x * of_step[..., None]) for of_step in observed.unbind(-1)], dim=1
    )  # (n t p p)
    cross = _products(x, y)[:, None] * torch.eye(steps, dtype=y.dtype, device=y.device)[:, None]
    square, count = y.square().sum(dim=1), observed.sum(dim=1)
    return gram.flatten(0, 1), cross.flatten(0, 1), square.flatten(), count.flatten()


def _products(x: Tensor, y: Tensor) -> Tensor:
    """(n b p), (n b q) -> (n p q). On a CPU one by one: the result for a sensor must not depend, in its last
    bit, on which others are in its group."""
    if x.is_cuda or not len(x):
        return x.mT @ y
    return torch.stack([of_x.T @ of_y for of_x, of_y in zip(x, y, strict=True)])


@dataclass(frozen=True)
class Form:
    """One form of a forecaster: the places of the inputs that it uses, and whether it takes the changes of
    usual readings since the last step instead of those from the last reading."""

    places: Tensor
    since_last_step: bool = False


@dataclass(frozen=True)
class Forms:
    """The forms that the forecasters of n sensors may take.

    inputs   number of all inputs
    earlier  number of readings from before the window, which are the first inputs
    level    the place of the last reading, which tells the level of the readings
    usual    the places of the usual readings ahead, which that of the last step precedes; None if there are
             none. A form has either the former alone, or the former relative to the latter
    daily    whether a step is a day or more: then the weekday says what usual readings say
    length   of a window, in steps
    after    the normal equations of windows that come after training
    """

    inputs: int
    earlier: int
    level: int
    usual: range | None
    daily: bool
    length: int
    after: Normal

    @property
    def all(self) -> list[Form]:
        """The usual form first. The others leave out the usual readings, the level, or both. None of them
        uses earlier readings; then the first two come again, with earlier readings."""
        whole = self._whole
        recent = [Form(form.places[form.places >= self.earlier], form.since_last_step) for form in whole]
        return [*recent, *whole[:2]]

    @property
    def _whole(self) -> list[Form]:
        every = torch.arange(self.inputs, device=self.after.gram.device)
        no_level = every != self.level
        if self.usual is None:
            return [Form(every), Form(every[no_level])]
        now = self.usual.start - 1
        others = (every < now) | (every >= self.usual.stop)
        without = [Form(every[others]), Form(every[others & no_level])]
        if self.daily:
            return without
        return [Form(every[every != now]), Form(every[no_level & (every != now)], True), *without]

    def normal(self, form: Form, every: Normal) -> Normal:
        """The normal equations in a form."""
        gram, cross = every.gram, every.cross
        if form.since_last_step:
            gram, cross = gram.clone(), cross.clone()
            ahead, now = self._usual_slices()
            gram[:, ahead] -= gram[:, now]
            gram[:, :, ahead] -= gram[:, :, now]
            cross[:, ahead] -= cross[:, now]
        gram = gram.index_select(1, form.places).index_select(2, form.places)
        return Normal(gram, cross.index_select(1, form.places), every.square, every.count, every.gaps)

    def weights(self, form: Form, weights: Tensor) -> Tensor:
        """(n c ...) -> (n p ...): weights in a form as weights of all inputs."""
        every = weights.new_zeros(len(weights), self.inputs, *weights.shape[2:])
        every[:, form.places] = weights
        if form.since_last_step:
            ahead, now = self._usual_slices()
            every[:, now] = -every[:, ahead].sum(dim=1, keepdim=True)
        return every

    def _usual_slices(self) -> tuple[slice, slice]:
        assert self.usual is not None
        first = self.usual.start
        return slice(first, self.usual.stop), slice(first - 1, first)

    def shares(self, fits: Sequence[Tensor]) -> Tensor:
        """(n f 1 + folds): how much each sensor takes of its fits (n p 1 + folds t) in all forms, by their
        errors after training; the rest is the last value. The weights of each fold have shares of their own.

        Windows that overlap tell almost the same: only one in `length` counts.
        """
        of_last_value = self.after.by_sensor(self.after.square)[:, None]
        errors = [
            torch.stack([self.after.squared_errors(w) for w in weights.unbind(2)], dim=1) for weights in fits
        ]
        errors.append(of_last_value.expand_as(errors[0]))
        smallest = (SMALLEST_ERROR * of_last_value).clamp(min=1e-30)[:, None]
        logs = torch.stack(errors, dim=1).nan_to_num(nan=torch.inf).maximum(smallest).log()
        windows = self.after.windows.view(-1, 1, 1) / self.length
        evidence = torch.where(windows > 0, EVIDENCE * windows * logs, 0.0)
        prior = logs.new_tensor([FIRST, *[OTHER] * (len(fits) - 1), LAST_VALUE]).log()
        # Readings of absurd size have infinite errors.
        shares = (prior.view(1, -1, 1) - evidence.nan_to_num(posinf=1e300)).softmax(dim=1)
        # Rounded, so that they do not depend, in their last bit, on which other sensors are in the group.
        return (shares[:, :-1] * SHARES_OF_ONE).round() / SHARES_OF_ONE


@dataclass(frozen=True)
class Forecasters:
    """The weights of n sensors, fitted to all training windows: (n p t); and for the training windows of each
    fold, fitted to windows that share no reading with those of the fold: (n p f t)."""

    weights: Tensor
    of_folds: Tensor

    @classmethod
    def fitted(
        cls,
        folds: int,
        sample: Callable[[int, bool], Iterator[Sample]],
        dtype: torch.dtype,
        forms: Forms,
        gaps: Tensor,
        shares: Tensor | None = None,
    ) -> tuple[Forecasters, Tensor]:
        """The forecasters, and how much of each form is in them, which `Forms.shares` decides if it is not
        given. `sample(fold, False)` gives the windows of a fold, `sample(fold, True)` those around it that
        share readings with it. `gaps` (n,) tells the sensors that have only some targets of a window."""
        parts = [Normal.of(sample(fold, False), gaps) for fold in range(folds)]
        total = sum(parts[1:], start=parts[0])
        others = [total - part - Normal.of(sample(fold, True), gaps) for fold, part in enumerate(parts)]
        equations = _Equations(parts, others, total)
        fits = [forms.weights(form, equations.in_form(forms, form).fit()) for form in forms.all]
        if shares is None:
            shares = forms.shares(fits)
        every = torch.zeros_like(fits[0])  # (n p 1 + folds t)
        for share, weights in zip(shares.unbind(1), fits, strict=True):
            every += share[:, None, :, None] * weights
        return cls(every[:, :, 0].to(dtype).contiguous(), every[:, :, 1:].to(dtype).contiguous()), shares

    @classmethod
    def of(cls, state: Mapping[str, Tensor], name: str, like: Tensor) -> Self | None:
        """What `state` returned; None if there is nothing under this name."""
        if name not in state:
            return None
        return cls(state[name].to(like), state[name + FOLDS_SUFFIX].to(like))

    @classmethod
    def joined(cls, parts: Sequence[Forecasters]) -> Self:
        """Those of several groups of sensors, in order."""
        return cls(torch.cat([part.weights for part in parts]), torch.cat([part.of_folds for part in parts]))

    def state(self, name: str) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {name: self.weights, name + FOLDS_SUFFIX: self.of_folds}

    def of_nodes(self, nodes: slice) -> Forecasters:
        """Those of some of the sensors."""
        return Forecasters(self.weights[nodes], self.of_folds[nodes])

    def change(self, inputs: Tensor, fold: Tensor | None = None) -> Tensor:
        """(n b p) -> (n b t): the forecast change from the last reading. `fold` (b,) tells the folds of
        training windows."""
        if fold is None:
            return inputs @ self.weights
        n, p, f, t = self.of_folds.shape
        of_all = (inputs @ self.of_folds.reshape(n, p, f * t)).view(n, -1, f, t)
        index = fold.view(1, -1, 1, 1).expand(n, -1, 1, t)
        return of_all.gather(2, index)[:, :, 0]

    def completed(self, otherwise: Forecasters) -> Forecasters:
        """Take the rows that are NaN from other forecasters, which may have fewer inputs."""
        unknown = self.weights.isnan().flatten(1).any(dim=1)
        if not unknown.any():
            return self
        weights, of_folds = self.weights.clone(), self.of_folds.clone()
        inputs = otherwise.weights.shape[1]
        weights[unknown], of_folds[unknown] = 0, 0
        weights[unknown, :inputs] = otherwise.weights[unknown]
        of_folds[unknown, :inputs] = otherwise.of_folds[unknown]
        return Forecasters(weights, of_folds)


@dataclass(frozen=True)
class _Equations:
    """The normal equations of each fold, of the windows that share no reading with it, and of all windows."""

    parts: Sequence[Normal]
    others: Sequence[Normal]
    total: Normal

    def in_form(self, forms: Forms, form: Form) -> _Equations:
        parts, others = ([forms.normal(form, x) for x in every] for every in (self.parts, self.others))
        return _Equations(parts, others, forms.normal(form, self.total))

    def fit(self) -> Tensor:
        """(n p 1 + folds t) in float64: the weights fitted to all windows, then those of each fold, with the
        penalty whose weights, fitted to the other folds, are best in each."""
        gram = self.total.gram
        penalties = torch.tensor(PENALTIES, dtype=gram.dtype, device=gram.device)
        every = penalties[:, None].expand(-1, len(gram))
        of_rows = torch.zeros_like(every)  # (penalties r)
        for part, other in zip(self.parts, self.others, strict=True):
            of_rows = of_rows + part.row_errors(other.solved_rows(every))
        errors = self.total.by_sensor(of_rows.T).T.nan_to_num(nan=torch.inf)
        # The largest of those that are as good as the best: with few windows there may be no difference.
        as_good = errors <= errors.amin(dim=0) * (1 + AS_GOOD)
        chosen = torch.where(as_good, penalties[:, None], 0.0).amax(dim=0)
        return torch.stack([normal.solved(chosen) for normal in (self.total, *self.others)], dim=2)


def squashed(levels: Tensor) -> Tensor:
    """What is sent of levels, so that a faulty sensor cannot dominate a mean."""
    return LARGEST_LEVEL * torch.tanh(levels / LARGEST_LEVEL)


def unsquashed(means: Tensor) -> Tensor:
    """Means of squashed levels on the scale of readings again. Compared with readings as they are, they would
    seem to lag behind as soon as all readings rise, or fall, beyond those of training."""
    share = (means / LARGEST_LEVEL).clamp(-LARGEST_SHARE, LARGEST_SHARE)
    return LARGEST_LEVEL * torch.atanh(share)


def calendar_inputs(time_of_day: Tensor, weekday: Tensor, time_of_year: Tensor, step_days: float) -> Tensor:
    """(b k): a constant; the time of day as sines and cosines, or the weekday if a step is a day or more; and
    the time of the year as sines and cosines.

    time_of_day and time_of_year are (b,), from 0 to 1; weekday (b,), from 0 to 6.
    """
    weekdays = torch.nn.functional.one_hot(weekday, WEEKDAYS).to(time_of_day)
    of_day = _waves(time_of_day, HARMONICS) if step_days < 1 else weekdays
    ones = torch.ones_like(time_of_day)[:, None]
    return torch.cat([ones, of_day, _waves(time_of_year, YEAR_HARMONICS)], dim=-1)


def _waves(share: Tensor, harmonics: int) -> Tensor:
    """(b,) -> (b 2k): a share of a period as sines and cosines."""
    angles = 2 * torch.pi * share[:, None] * torch.arange(1, harmonics + 1).to(share)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
