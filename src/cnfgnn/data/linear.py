"""Linear forecasters: each sensor fits one to its own readings, in closed form, and keeps it.

A forecaster is a ridge regression from the last readings, the sensor's weekly profile at the forecast times
and the calendar to the change from the last reading. Its penalty is chosen by cross-validation over the
training windows. The network then only has to learn what such a simple forecast leaves over.

Not every sensor should use its profile like this. Readings that drift stay on one side of the profile, which
then misleads, though its shape may still help; other readings have no usual week at all. A sensor takes the
shape alone, or no profile, if its validation windows then have clearly less error. It also uses the seasons
that it found besides the day and the week (`seasons.py`), if these help clearly in cross-validation.

Forecasts of training windows are cross-fitted: the weights for a window come from windows that share no
reading with it. Otherwise the network would learn from errors that are smaller than those of new windows.
"""

from __future__ import annotations

import math
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
CLEARLY = 0.98  # times the error: another form of forecaster must have less
CERTAIN = 1.0  # standard errors by which it must have less after training
WITHOUT_PROFILE = 1  # the number of that form of forecaster
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
    """X'X (n p p) and X'Y (n p t) of each sensor, and Y'Y (n), in float64: all that a fit needs."""

    def __init__(self, gram: Tensor, cross: Tensor, square: Tensor) -> None:
        self.gram, self.cross, self.square = gram, cross, square

    @classmethod
    def of(cls, samples: Iterator[Sample]) -> Normal:
        """Sum over samples, of which there must be at least one."""
        total: Normal | None = None
        for sample in samples:
            complete = sample.complete[..., None].double()
            x, y = sample.inputs.double() * complete, sample.change.double() * complete
            one = cls(_products(x, x), _products(x, y), y.square().sum(dim=(1, 2)))
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
        return Normal(gram, torch.cat([self.cross, _products(more, y)], dim=1), self.square)

    def first(self, inputs: int) -> Normal:
        """Of the first inputs alone."""
        return Normal(self.gram[:, :inputs, :inputs], self.cross[:, :inputs], self.square)

    def __add__(self, other: Normal) -> Normal:
        return Normal(self.gram + other.gram, self.cross + other.cross, self.square + other.square)

    def __sub__(self, other: Normal) -> Normal:
        return Normal(self.gram - other.gram, self.cross - other.cross, self.square - other.square)

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

    inputs    number of inputs of the usual form; more inputs follow them: with a profile, first what it says
              of the last step, relative to the last reading; then the waves of seasons
    profile   the places of the weekly profile's changes among the inputs; None if there is no profile
    waves     number of waves
    seasonal  (n,): which sensors have a season
    chosen    (n,): the number of each sensor's form
    after     gives windows that come after training: they choose the form; None if it is chosen
    length    of a window, in steps
    """

    inputs: int
    profile: range | None
    waves: int
    seasonal: Tensor
    chosen: Tensor
    after: Callable[[], Iterator[Sample]] | None = None
    length: int = 1

    @property
    def places(self) -> int:
        """Number of all inputs."""
        return self.inputs + (self.profile is not None) + self.waves

    @property
    def without_seasons(self) -> list[Form]:
        """The usual form first."""
        every = torch.arange(self.inputs, device=self.seasonal.device)
        if self.profile is None:
            return [Form(every)]
        without_profile = every[(every < self.profile.start) | (every >= self.profile.stop)]
        return [Form(every), Form(without_profile), Form(every, since_last_step=True)]

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
        return Normal(gram, cross.index_select(1, form.places), every.square[nodes])

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
        weights, of_folds = self.weights(form, fit.weights), self.weights(form, fit.of_folds)
        return _Fit(weights, of_folds, fit.errors)

    def is_better(self, weights: Tensor, than: Tensor) -> Tensor:
        """(n,): whether weights of all inputs (n p t) have clearly less error after training than others, and
        so much less in each window that it is not chance. Windows that overlap tell almost the same: only one
        in `length` counts."""
        assert self.after is not None
        errors, others, gains, squares, count = weights.new_zeros(5, len(weights))
        for sample in self.after():
            inputs = sample.inputs if sample.more is None else torch.cat([sample.inputs, sample.more], dim=-1)
            given, complete = inputs.shape[-1], sample.complete.double()  # no waves if nobody has a season
            error, other = (
                (inputs.double() @ w[:, :given] - sample.change).square().sum(dim=-1) * complete
                for w in (weights, than)
            )
            errors, others, count = errors + error.sum(1), others + other.sum(1), count + complete.sum(1)
            gains, squares = gains + (other - error).sum(1), squares + (other - error).square().sum(1)
        spread = (squares - gains.square() / count.clamp(min=1)).clamp(min=0).sqrt()
        better: Tensor = (errors < CLEARLY * others) & (gains > CERTAIN * spread * math.sqrt(self.length))
        return better


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
        forms: Forms | None = None,
    ) -> Forecasters:
        """`sample(fold, wide)` gives the windows of a fold; `wide` adds those that share readings with it.
        They have more inputs if there are other forms."""
        parts = [Normal.of(sample(fold, False)) for fold in range(folds)]
        total = sum(parts[1:], start=parts[0])
        others = [total - Normal.of(sample(fold, True)) for fold in range(folds)]
        equations = _Equations(parts, others, total)
        if forms is None:
            best = equations.fit()
            return cls(best.weights.to(dtype), best.of_folds.to(dtype))
        best = _in_best_forms(equations, forms)
        first, inputs = slice(0, forms.inputs), slice(forms.inputs, None)
        more = cls(best.weights[:, inputs].to(dtype), best.of_folds[:, inputs].to(dtype))
        return cls(best.weights[:, first].to(dtype), best.of_folds[:, first].to(dtype), more)

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
    """Weights as in `Forecasters`, in float64, and their summed squared errors in cross-validation: (n,)."""

    weights: Tensor
    of_folds: Tensor
    errors: Tensor

    def take(self, nodes: Tensor, other: _Fit) -> None:
        """Take the fits of some sensors from another one, which has these alone."""
        self.weights[nodes], self.of_folds[nodes] = other.weights, other.of_folds
        self.errors[nodes] = other.errors

    def of_nodes(self, which: Tensor) -> _Fit:
        return _Fit(self.weights[which], self.of_folds[which], self.errors[which])


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
        of_folds = torch.stack([other.solved(chosen) for other in self.others], dim=2)
        return _Fit(self.total.solved(chosen), of_folds, errors.amin(dim=0))

    def fit_in(self, forms: Forms, form: Form, nodes: Tensor) -> _Fit:
        """Fit the forecasters of some sensors in a form; as weights of all inputs."""
        fit = self.mapped(lambda normal: forms.normal(form, normal, nodes)).fit()
        return forms.widened(form, fit)


def _in_best_forms(equations: _Equations, forms: Forms) -> _Fit:
    """Fit each sensor's forecaster in the form that suits its profile, with seasons if they help clearly."""
    usual = equations.mapped(lambda normal: normal.first(forms.inputs)).fit()
    best = forms.widened(forms.without_seasons[0], usual)
    everyone = torch.arange(len(best.weights), device=best.weights.device)
    for number, form in enumerate(forms.without_seasons):
        if number and forms.after is not None:
            _try(best, equations, forms, number)
        elif number:
            chosen = everyone[forms.chosen == number]
            best.take(chosen, equations.fit_in(forms, form, chosen))
    for number, form in enumerate(forms.without_seasons):
        nodes = everyone[forms.seasonal & (forms.chosen == number)]
        if len(nodes):
            fit = equations.fit_in(forms, forms.seasonal_form(form), nodes)
            better = fit.errors < CLEARLY * best.errors[nodes]
            best.take(nodes[better], fit.of_nodes(better))
    return best


def _try(best: _Fit, equations: _Equations, forms: Forms, number: int) -> None:
    """Choose another form for the sensors that have clearly less error after training with it."""
    everyone = torch.arange(len(best.weights), device=best.weights.device)
    fit = equations.fit_in(forms, forms.without_seasons[number], everyone)
    better = forms.is_better(fit.weights, best.weights)
    forms.chosen[better] = number
    best.take(everyone[better], fit.of_nodes(better))


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
