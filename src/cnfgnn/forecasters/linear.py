"""Linear forecasters: each sensor fits one to its own readings, in closed form, and keeps it.

A forecaster is a ridge regression from the last readings, the sensor's weekly profile at the forecast times
and the calendar to the change from the last reading. Its penalty is chosen by cross-validation over the
training windows. The network then only has to learn what such a simple forecast leaves over.

No single form suits every sensor. Readings that drift leave the levels that were there in training, so that
their level and their profile mislead, though the shape of the profile may still help; other readings have no
usual week at all. So each sensor fits the regression in several forms and takes a mean of them, and of the
last value, in which those with little error on its validation windows count most. It also uses the seasons
that it found besides the day and the week (`seasons.py`), if these help clearly in cross-validation.

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
MORE_SUFFIX = ".more"  # after the name of weights in checkpoints: the weights of more inputs
PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)  # of squared weights, on scaled readings
AS_GOOD = 1e-6  # relative difference of cross-validation errors that does not count
CLEARLY = 0.98  # times the error in cross-validation: with seasons, a forecaster must have less
# A form counts as much as its prior divided by its squared error on validation windows, to the power of
# EVIDENCE for each window that does not overlap with another. The prior is that of the usual form, of each
# other one, and of the last value.
EVIDENCE, USUAL, OTHER, LAST_VALUE = 1.5, 1.0, 0.5, 0.1
SMALLEST_ERROR = 1e-9  # relative to that of the last value; differences below are rounding
SHARES_OF_ONE = 1 << 20  # what the shares of forms are whole multiples of, so that rounding does not matter
LARGEST_LEVEL = 3.0  # standard deviations
LARGEST_SHARE = 0.95  # of the largest level that a mean of levels can tell apart from larger ones
HARMONICS = 4  # of the day
WEEKDAYS = 7


@dataclass(frozen=True)
class Sample:
    """b windows of n sensors, as the forecaster sees them: inputs (n b p), the change from the last reading
    to each target (n b t), which windows have all of their targets (n b), and more inputs (n b q) that only
    other forms of the forecaster use."""

    inputs: Tensor
    change: Tensor
    complete: Tensor
    more: Tensor | None = None


class Normal:
    """X'X (n p p), X'Y (n p t) and Y'Y (n) of each sensor, and the number of its windows (n), in float64: all
    that a fit needs."""

    def __init__(self, gram: Tensor, cross: Tensor, square: Tensor, count: Tensor) -> None:
        self.gram, self.cross, self.square, self.count = gram, cross, square, count

    @classmethod
    def of(cls, samples: Iterator[Sample]) -> Normal:
        """Sum over samples, of which there must be at least one."""
        total: Normal | None = None
        for sample in samples:
            complete = sample.complete[..., None].double()
            x, y = sample.inputs.double() * complete, sample.change.double() * complete
            square, count = y.square().sum(dim=(1, 2)), complete.sum(dim=(1, 2))
            one = cls(_products(x, x), _products(x, y), square, count)
            if sample.more is not None:
                one = one._with(x, sample.more.double() * complete, y)
            total = one if total is None else total + one
        assert total is not None
        return total

    def _with(self, x: Tensor, more: Tensor, y: Tensor) -> Normal:
        """With more inputs after the first ones, whose products stay as they are to the last bit."""
        beside = _products(x, more)
        first = torch.cat([self.gram, beside], dim=2)
        gram = torch.cat([first, torch.cat([beside.mT, _products(more, more)], dim=2)], dim=1)
        return Normal(gram, torch.cat([self.cross, _products(more, y)], dim=1), self.square, self.count)

    def __add__(self, other: Normal) -> Normal:
        square, count = self.square + other.square, self.count + other.count
        return Normal(self.gram + other.gram, self.cross + other.cross, square, count)

    def __sub__(self, other: Normal) -> Normal:
        square, count = self.square - other.square, self.count - other.count
        return Normal(self.gram - other.gram, self.cross - other.cross, square, count)

    def solved(self, penalty: Tensor | float) -> Tensor:
        """(n p t): the weights with this penalty on their squares, one for all or (n,)."""
        eye = torch.eye(self.gram.shape[-1], dtype=self.gram.dtype, device=self.gram.device)
        penalties = torch.as_tensor(penalty, dtype=self.gram.dtype, device=self.gram.device)
        weights, _ = torch.linalg.solve_ex(self.gram + penalties.view(-1, 1, 1) * eye, self.cross)
        # Readings of absurd size have no solution in float64. Without weights the last value is forecast.
        solvable = weights.isfinite().flatten(1).all(dim=1).view(-1, 1, 1)
        return torch.where(solvable, weights, 0.0)

    def squared_errors(self, weights: Tensor) -> Tensor:
        """(n,): the summed squared errors that these weights (n p t) have on the windows summed here."""
        explained = ((self.gram @ weights - 2 * self.cross) * weights).sum(dim=(1, 2))
        return self.square + explained


def _products(x: Tensor, y: Tensor) -> Tensor:
    """(n b p), (n b q) -> (n p q). On a CPU one by one: the result for a sensor must not depend, in its last
    bit, on which others are in its group."""
    if x.is_cuda:
        return x.mT @ y
    return torch.stack([of_x.T @ of_y for of_x, of_y in zip(x, y, strict=True)])


@dataclass(frozen=True)
class Form:
    """One form of a forecaster: the places of the inputs that it uses, and whether it takes the profile's
    changes since the last step instead of those from the last reading."""

    places: Tensor
    since_last_step: bool = False


@dataclass(frozen=True)
class Forms:
    """The forms that the forecasters of n sensors may take.

    inputs    number of the usual inputs; more inputs follow them: with a profile, first what it says of the
              last step, relative to the last reading; then the waves of seasons
    level     the place of the last reading, which tells the level of the readings
    profile   the places of the weekly profile's changes among the inputs; None if there is no profile
    daily     whether a step is a day or more: then the weekday says what a profile says
    waves     number of waves
    seasonal  (n,): which sensors have a season
    length    of a window, in steps
    after     the normal equations of windows that come after training
    """

    inputs: int
    level: int
    profile: range | None
    daily: bool
    waves: int
    seasonal: Tensor
    length: int
    after: Normal

    @property
    def places(self) -> int:
        """Number of all inputs."""
        return self.inputs + (self.profile is not None) + self.waves

    @property
    def without_seasons(self) -> list[Form]:
        """The usual form first. The others leave out the profile, the level, or both; without the level, the
        profile tells its changes since the last step."""
        every = torch.arange(self.inputs, device=self.seasonal.device)
        no_level = every != self.level
        if self.profile is None:
            return [Form(every), Form(every[no_level])]
        no_profile = (every < self.profile.start) | (every >= self.profile.stop)
        without_profile = [Form(every[no_profile]), Form(every[no_profile & no_level])]
        if self.daily:
            return without_profile
        return [Form(every), Form(every[no_level], since_last_step=True), *without_profile]

    def seasonal_form(self, form: Form) -> Form:
        """The same with the waves of seasons."""
        waves = torch.arange(self.places - self.waves, self.places, device=form.places.device)
        return Form(torch.cat([form.places, waves]), form.since_last_step)

    def normal(self, form: Form, every: Normal, nodes: Tensor) -> Normal:
        """The normal equations of some sensors in a form."""
        gram, cross = every.gram[nodes], every.cross[nodes]
        if form.since_last_step:
            assert self.profile is not None
            ahead, now = slice(self.profile.start, self.profile.stop), slice(self.inputs, self.inputs + 1)
            gram[:, ahead] -= gram[:, now]
            gram[:, :, ahead] -= gram[:, :, now]
            cross[:, ahead] -= cross[:, now]
        gram = gram.index_select(1, form.places).index_select(2, form.places)
        return Normal(gram, cross.index_select(1, form.places), every.square[nodes], every.count[nodes])

    def weights(self, form: Form, weights: Tensor) -> Tensor:
        """(n c ...) -> (n p ...): weights in a form as weights of all inputs."""
        every = weights.new_zeros(len(weights), self.places, *weights.shape[2:])
        every[:, form.places] = weights
        if form.since_last_step:
            assert self.profile is not None
            every[:, self.inputs] = -every[:, self.profile.start : self.profile.stop].sum(dim=1)
        return every

    def widened(self, form: Form, fit: _Fit) -> _Fit:
        """A fit in a form, with weights of all inputs."""
        return _Fit(self.weights(form, fit.weights), fit.errors)

    def shares(self, fits: Sequence[_Fit]) -> Tensor:
        """(n f 1 + folds): how much each sensor takes of its fits in all forms, by their errors after
        training; the rest is the last value. The weights of each fold have shares of their own.

        Windows that overlap tell almost the same: only one in `length` counts.
        """
        given = self.after.gram.shape[-1]  # no waves if nobody has a season
        of_last_value = self.after.square[:, None]
        errors = [
            torch.stack([self.after.squared_errors(w) for w in fit.weights[:, :given].unbind(2)], dim=1)
            for fit in fits
        ]
        errors.append(of_last_value.expand_as(errors[0]))
        smallest = (SMALLEST_ERROR * of_last_value).clamp(min=1e-30)[:, None]
        logs = torch.stack(errors, dim=1).nan_to_num(nan=torch.inf).maximum(smallest).log()
        windows = self.after.count.view(-1, 1, 1) / self.length
        evidence = torch.where(windows > 0, EVIDENCE * windows * logs, 0.0)
        prior = logs.new_tensor([USUAL, *[OTHER] * (len(fits) - 1), LAST_VALUE]).log()
        # Readings of absurd size have infinite errors.
        shares = (prior.view(1, -1, 1) - evidence.nan_to_num(posinf=1e300)).softmax(dim=1)
        # Rounded, so that they do not depend, in their last bit, on which other sensors are in the group.
        return (shares[:, :-1] * SHARES_OF_ONE).round() / SHARES_OF_ONE


@dataclass(frozen=True)
class Forecasters:
    """The weights of n sensors, fitted to all training windows: (n p t); and for the training windows of each
    fold, fitted to windows that share no reading with those of the fold: (n p f t). `more` has the weights of
    more inputs, if there are any."""

    weights: Tensor
    of_folds: Tensor
    more: Forecasters | None = None

    @classmethod
    def fitted(
        cls,
        folds: int,
        sample: Callable[[int, bool], Iterator[Sample]],
        dtype: torch.dtype,
        forms: Forms,
        shares: Tensor | None = None,
    ) -> tuple[Forecasters, Tensor]:
        """The forecasters, and how much of each form is in them, which `Forms.shares` decides if it is not
        given. `sample(fold, wide)` gives the windows of a fold; `wide` adds those that share readings with
        it."""
        parts = [Normal.of(sample(fold, False)) for fold in range(folds)]
        total = sum(parts[1:], start=parts[0])
        others = [total - Normal.of(sample(fold, True)) for fold in range(folds)]
        equations = _Equations(parts, others, total)
        fits = [equations.fit_in(forms, form) for form in forms.without_seasons]
        if shares is None:
            shares = forms.shares(fits)
        every = torch.zeros_like(fits[0].weights)  # (n p 1 + folds t)
        for share, fit in zip(shares.unbind(1), fits, strict=True):
            every += share[:, None, :, None] * fit.weights
        weights, of_folds = (part.to(dtype).contiguous() for part in (every[:, :, 0], every[:, :, 1:]))
        if forms.places == forms.inputs:
            return cls(weights, of_folds), shares
        first, last = slice(0, forms.inputs), slice(forms.inputs, None)
        more = cls(weights[:, last], of_folds[:, last])
        return cls(weights[:, first], of_folds[:, first], more), shares

    @classmethod
    def of(cls, state: Mapping[str, Tensor], name: str, like: Tensor) -> Self | None:
        """What `state` returned; None if there is nothing under this name."""
        if name not in state:
            return None
        more = cls.of(state, name + MORE_SUFFIX, like)
        return cls(state[name].to(like), state[name + FOLDS_SUFFIX].to(like), more)

    @classmethod
    def joined(cls, parts: Sequence[Forecasters]) -> Self:
        """Those of several groups of sensors, in order."""
        weights, of_folds = [part.weights for part in parts], [part.of_folds for part in parts]
        more = [part.more for part in parts if part.more is not None]
        return cls(torch.cat(weights), torch.cat(of_folds), cls.joined(more) if more else None)

    def state(self, name: str) -> dict[str, Tensor]:
        """For a checkpoint."""
        more = {} if self.more is None else self.more.state(name + MORE_SUFFIX)
        return {name: self.weights, name + FOLDS_SUFFIX: self.of_folds, **more}

    def of_nodes(self, nodes: slice) -> Forecasters:
        """Those of some of the sensors."""
        more = None if self.more is None else self.more.of_nodes(nodes)
        return Forecasters(self.weights[nodes], self.of_folds[nodes], more)

    @property
    def uses_more(self) -> bool:
        """Whether any of the sensors uses more inputs than the usual ones."""
        if self.more is None:
            return False
        return bool((self.more.weights != 0).any() | (self.more.of_folds != 0).any())

    def change(self, inputs: Tensor, fold: Tensor | None = None) -> Tensor:
        """(n b p) -> (n b t): the forecast change from the last reading. `fold` (b,) tells the folds of
        training windows."""
        if fold is None:
            return inputs @ self.weights
        n, p, f, t = self.of_folds.shape
        of_all = (inputs @ self.of_folds.reshape(n, p, f * t)).view(n, -1, f, t)
        index = fold.view(1, -1, 1, 1).expand(n, -1, 1, t)
        return of_all.gather(2, index)[:, :, 0]

    def further_change(self, more: Tensor | None, fold: Tensor | None = None) -> Tensor | float:
        """(n b q) -> (n b t): what more inputs add to the change, the first ones if not all are given."""
        if self.more is None or more is None:
            return 0.0
        given = more.shape[-1]
        part = Forecasters(self.more.weights[:, :given], self.more.of_folds[:, :given])
        return part.change(more, fold)

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
        if otherwise.more is None:
            return Forecasters(weights, of_folds, self.more)
        more = self.more or otherwise.more._for_nobody()
        more = Forecasters(
            torch.where(unknown.view(-1, 1, 1), otherwise.more.weights, more.weights),
            torch.where(unknown.view(-1, 1, 1, 1), otherwise.more.of_folds, more.of_folds),
        )
        return Forecasters(weights, of_folds, more)

    def _for_nobody(self) -> Forecasters:
        return Forecasters(torch.zeros_like(self.weights), torch.zeros_like(self.of_folds))


@dataclass(frozen=True)
class _Fit:
    """Weights (n p 1 + folds t) in float64: those fitted to all windows, then those of each fold; and their
    summed squared errors in cross-validation (n,)."""

    weights: Tensor
    errors: Tensor


@dataclass(frozen=True)
class _Equations:
    """The normal equations of each fold, of the windows that share no reading with it, and of all windows."""

    parts: Sequence[Normal]
    others: Sequence[Normal]
    total: Normal

    def mapped(self, change: Callable[[Normal], Normal]) -> _Equations:
        return _Equations(
            [change(x) for x in self.parts], [change(x) for x in self.others], change(self.total)
        )

    def fit(self) -> _Fit:
        """Fit to all windows, with the penalty whose weights, fitted to the other folds, are best in each."""
        errors = torch.stack(
            [
                torch.stack(
                    [
                        p.squared_errors(o.solved(penalty))
                        for p, o in zip(self.parts, self.others, strict=True)
                    ]
                )
                for penalty in PENALTIES
            ]
        ).sum(dim=1)  # (penalties n)
        errors = errors.nan_to_num(nan=torch.inf)
        # The largest of those that are as good as the best: with few windows there may be no difference.
        as_good = errors <= errors.amin(dim=0) * (1 + AS_GOOD)
        penalties = torch.tensor(PENALTIES, dtype=errors.dtype, device=errors.device)
        chosen = torch.where(as_good, penalties[:, None], 0.0).amax(dim=0)
        weights = torch.stack([normal.solved(chosen) for normal in (self.total, *self.others)], dim=2)
        return _Fit(weights, errors.amin(dim=0))

    def fit_in(self, forms: Forms, form: Form) -> _Fit:
        """Fit the forecasters in a form, with seasons where they help clearly; as weights of all inputs."""
        fit = self._fit_of(torch.arange(len(forms.seasonal), device=forms.seasonal.device), forms, form)
        seasonal = forms.seasonal.nonzero()[:, 0]
        if len(seasonal):
            other = self._fit_of(seasonal, forms, forms.seasonal_form(form))
            better = other.errors < CLEARLY * fit.errors[seasonal]
            fit.weights[seasonal[better]] = other.weights[better]
        return fit

    def _fit_of(self, nodes: Tensor, forms: Forms, form: Form) -> _Fit:
        return forms.widened(form, self.mapped(lambda normal: forms.normal(form, normal, nodes)).fit())


def squashed(levels: Tensor) -> Tensor:
    """What is sent of levels, so that a faulty sensor cannot dominate a mean."""
    return LARGEST_LEVEL * torch.tanh(levels / LARGEST_LEVEL)


def unsquashed(means: Tensor) -> Tensor:
    """Means of squashed levels on the scale of readings again. Compared with readings as they are, they would
    seem to lag behind as soon as all readings rise, or fall, beyond those of training."""
    share = (means / LARGEST_LEVEL).clamp(-LARGEST_SHARE, LARGEST_SHARE)
    return LARGEST_LEVEL * torch.atanh(share)


def calendar_inputs(time_of_day: Tensor, weekday: Tensor, step_days: float) -> Tensor:
    """(b k): a constant, and the time of day as sines and cosines; the weekday if a step is a day or more.

    time_of_day is (b,), from 0 to 1; weekday (b,), from 0 to 6.
    """
    parts = [torch.ones_like(time_of_day)[:, None]]
    if step_days < 1:
        harmonics = torch.arange(1, HARMONICS + 1, dtype=time_of_day.dtype, device=time_of_day.device)
        angles = 2 * torch.pi * time_of_day[:, None] * harmonics
        parts += [angles.sin(), angles.cos()]
    else:
        parts.append(torch.nn.functional.one_hot(weekday, WEEKDAYS).to(time_of_day))
    return torch.cat(parts, dim=-1)
