"""How near a smoother of blurred copies comes to the readings, for any blur: computed by their owner.

It follows from the true readings, so show it to the owner alone and keep it nowhere.

The smoother is a good one: it estimates each reading by a weighted sum of the copies around it, of the same
sensor and of the mean of the owner's sensors, with the weights that are best for the true readings. No
attacker has these weights, but one who knows how such quantities behave comes near them. They are fitted to a
half of the time and judged on the other. The noise is independent of the readings, so only its covariance is
needed, and the same sums serve every blur. Where a copy as it is, or the sensor's mean, is nearer in one of
the halves, that counts: readings that are calm in one half and restless in the other would otherwise seem to
be hidden by more than their blur.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cnfgnn.attack.smoothing import REACH, RIDGE, bridged, neighbours

FEWEST = 500  # readings of a sensor, half of them in each half of the time: there are 50 weights to fit
MOST_SENSORS, MOST_STEPS = 200, 10_000  # of them and of the newest steps: seconds of work, and enough
BLURS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)  # times the error of a guess
MULTIPLES = (1, 2, 4, 8)  # of a given blur
LARGEST = 1e4  # times the error of a guess: a larger blur changes nothing
TOO_FEW = (
    "too few readings to say what a smoother would make of their copies: at least one sensor needs"
    f" {FEWEST // 2} in each half of the time"
)

ABOUT = (
    "The smoother weights the copies of 25 time steps; its weights are fitted to half of your readings and"
    " judged on the rest. It is no bound: whoever knows more, such as a neighbour's readings, comes nearer."
    " All of this was computed from your true readings, is shown to you alone and kept nowhere. The server is"
    " told the blur: choose a round number, before the first copy is made."
)


@dataclass(frozen=True)
class Smoothed:
    """The RMSE of a smoother of copies with this blur: of each sensor by itself, and of all sensors together
    where that is better."""

    blur: float
    alone: float
    together: float


@dataclass(frozen=True, eq=False)
class SmoothedCopies:
    """Sums over each half of the readings of n sensors, of which k copies are weighted for an estimate.

    features  (n 2 k k)  products of the readings that stand for the copies
    noise     (n 2 k k)  the same of noise with a standard deviation of 1
    wanted    (n 2 k)    their products with the reading to estimate
    squares   (n 2)      of the readings, measured from their sensor's mean
    counts    (n 2)
    """

    features: Tensor
    noise: Tensor
    wanted: Tensor
    squares: Tensor
    counts: Tensor

    @classmethod
    def of(
        cls, values: npt.NDArray[np.floating[Any]], missing: npt.NDArray[np.bool_]
    ) -> SmoothedCopies | None:
        """From readings (T n) at equal time steps; None if there are too few."""
        there = torch.from_numpy(~missing[-MOST_STEPS:].T)
        half = there.shape[1] // 2
        enough = torch.stack([there[:, :half].sum(1), there[:, half:].sum(1)]).amin(0) >= FEWEST // 2
        kept = enough.nonzero().flatten()
        if not len(kept):
            return None
        kept = kept[np.linspace(0, len(kept) - 1, min(len(kept), MOST_SENSORS)).round().astype(int)]
        there = there[kept]
        readings = torch.from_numpy(values[-MOST_STEPS:].T[kept.numpy()].astype(np.float64))
        known = torch.where(there, readings, 0.0)
        truth = torch.where(there, known - (known.sum(1) / there.sum(1))[:, None], 0.0)
        copies, noises = _with_mean(bridged(truth, there)), _noises(there)
        sums = []
        for node in range(len(kept)):
            features, *of_noise = (_around(series[node]) for series in (copies, *noises))
            for rows in (slice(None, half), slice(half, None)):
                used = there[node, rows]
                x, y = features[rows][used], truth[node, rows][used]
                z = torch.cat([one[rows][used] for one in of_noise])
                sums.append((x.mT @ x, z.mT @ z / len(of_noise), x.mT @ y, y @ y, used.sum()))
        return cls(*(torch.stack(parts).unflatten(0, (-1, 2)) for parts in zip(*sums, strict=True)))

    @property
    def guess(self) -> float:
        """The RMSE of somebody who has no copy and always guesses the sensor's mean."""
        return self._rmse(self.squares)

    def at(self, blur: float) -> Smoothed:
        """What a smoother makes of copies with this blur."""
        alone = self._error(blur, 2 * REACH + 1)
        return Smoothed(blur, alone, min(alone, self._error(blur, self.wanted.shape[-1])))

    def for_blurs(self, blur: float = 0.0) -> list[Smoothed]:
        """At this blur and larger ones; at blurs that suit the readings if it is 0."""
        blurs = [times * blur for times in MULTIPLES] if blur else [round_up(b * self.guess) for b in BLURS]
        return [self.at(one) for one in dict.fromkeys(blurs) if one]

    def blur_that_hides(self, error: float) -> float | None:
        """The least blur, rounded up to one digit, at which a smoother's RMSE is so large; None if none is
        enough. The server is told the blur, so it should not tell more of the readings than that."""
        high = error
        while self.at(high).together < error:
            high *= 2
            if high > LARGEST * self.guess:
                return None
        low = 0.0
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (low, middle) if self.at(middle).together >= error else (middle, high)
        return round_up(high)

    def hiding(self, error: float, unit: str = "") -> str:
        """Which blur makes a smoother's RMSE so large, as a sentence for the owner."""
        blur = self.blur_that_hides(error)
        wanted, guess = (f"{x:.3g} {unit}".rstrip() for x in (error, self.guess))
        if blur is None:
            return (
                f"No blur makes a smoother miss by {wanted}: guessing each sensor's mean misses by {guess}."
            )
        return f"To make a smoother miss by {wanted} or more, set a blur of {blur:g} {unit}".rstrip() + "."

    def _error(self, blur: float, first: int) -> float:
        """The RMSE of a smoother that uses the first of the copies."""
        copies = (self.features + blur**2 * self.noise)[..., :first, :first]
        ridge = RIDGE * copies.diagonal(dim1=-2, dim2=-1).mean(-1) + torch.finfo(copies.dtype).tiny
        wanted = self.wanted[..., :first, None]
        weights = torch.linalg.solve(copies + ridge[..., None, None] * torch.eye(first), wanted)
        weights = weights.flip(1)  # those of one half, for the other
        explained = 2 * weights.mT @ wanted - weights.mT @ copies @ weights
        # Where these weights do not suit, a copy by itself is nearer, or the mean is.
        missed = torch.minimum(self.squares - explained[..., 0, 0], blur**2 * self.counts)
        return self._rmse(torch.minimum(missed, self.squares))

    def _rmse(self, squares: Tensor) -> float:
        return math.sqrt(max(0.0, float(squares.sum() / self.counts.sum())))


def round_up(x: float) -> float:
    """The next number with one digit other than zero."""
    if x <= 0:
        return 0.0
    exponent = math.floor(math.log10(x))
    return float(f"{math.ceil(x / 10.0**exponent - 1e-9)}e{exponent}")


def _noises(there: Tensor) -> list[Tensor]:
    """Noise with a standard deviation of 1 where there are readings (n T), as `_with_mean` has it.
    It is drawn several times if there are few readings, so that its covariance is that of white noise."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(-(-MOST_STEPS // there.shape[1]), *there.shape, generator=generator)
    return [_with_mean(bridged(noise * there, there)) for noise in drawn.double()]


def _around(series: Tensor) -> Tensor:
    """(2 T) -> (T k): what is weighted to estimate each reading."""
    return neighbours(series).transpose(0, 1).flatten(1)


def _with_mean(series: Tensor) -> Tensor:
    """(n T) -> (n 2 T): each series, and the mean of all."""
    return torch.stack([series, series.mean(0).expand_as(series)], dim=1)
