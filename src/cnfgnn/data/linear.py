"""Linear forecasters: each sensor fits one to its own readings, in closed form, and keeps it.

A forecaster is a ridge regression from the last readings, the sensor's weekly profile at the forecast times
and the calendar to the change from the last reading. Its penalty is chosen by cross-validation over the
training windows. The network then only has to learn what such a simple forecast leaves over.

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
HARMONICS = 4  # of the day
WEEKDAYS = 7


@dataclass(frozen=True)
class Sample:
    """b windows of n sensors, as the forecaster sees them: inputs (n b p), the change from the last reading
    to each target (n b t), and which windows have all of their targets (n b)."""

    inputs: Tensor
    change: Tensor
    complete: Tensor


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
            total = one if total is None else total + one
        assert total is not None
        return total

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
class Forecasters:
    """The weights of n sensors, fitted to all training windows: (n p t); and for the training windows of each
    fold, fitted to windows that share no reading with those of the fold: (n p f t)."""

    weights: Tensor
    of_folds: Tensor

    @classmethod
    def fitted(cls, folds: int, sample: Callable[[int, bool], Iterator[Sample]], dtype: torch.dtype) -> Self:
        """`sample(fold, wide)` gives the windows of a fold; `wide` adds those that share readings with it."""
        parts = [Normal.of(sample(fold, False)) for fold in range(folds)]
        total = sum(parts[1:], start=parts[0])
        others = [total - Normal.of(sample(fold, True)) for fold in range(folds)]
        errors = torch.stack(
            [
                torch.stack([p.squared_errors(o.solved(penalty)) for p, o in zip(parts, others, strict=True)])
                for penalty in PENALTIES
            ]
        ).sum(dim=1)  # (penalties n)
        errors = errors.nan_to_num(nan=torch.inf)
        # The largest of those that are as good as the best: with few windows there may be no difference.
        as_good = errors <= errors.amin(dim=0) * (1 + AS_GOOD)
        penalties = torch.tensor(PENALTIES, dtype=errors.dtype, device=errors.device)
        chosen = torch.where(as_good, penalties[:, None], 0.0).amax(dim=0)
        of_folds = torch.stack([other.solved(chosen) for other in others], dim=2)
        return cls(total.solved(chosen).to(dtype), of_folds.to(dtype))

    @classmethod
    def of(cls, state: Mapping[str, Tensor], name: str, like: Tensor) -> Self | None:
        """What `state` returned; None if there is nothing under this name."""
        if name not in state:
            return None
        return cls(state[name].to(like), state[name + FOLDS_SUFFIX].to(like))

    @classmethod
    def joined(cls, parts: Sequence[Forecasters]) -> Self:
        """Those of several groups of sensors, in order."""
        weights, of_folds = [part.weights for part in parts], [part.of_folds for part in parts]
        return cls(torch.cat(weights), torch.cat(of_folds))

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
