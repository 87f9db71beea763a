"""Prediction intervals that follow the errors of a forecaster: conformal prediction that adapts.

The errors of the validation split say how far readings lie below and above their forecasts: for each node,
each step ahead and each level of the forecast. As readings arrive, every bound moves outward a little when a
reading lies beyond it, and inward otherwise, so that in the long run the agreed share of readings lies
beyond it, whatever the readings do (Gibbs and Candes, 2021; in this form Angelopoulos, Candes and
Tibshirani, 2023, the "P" of conformal PID control). docs/intervals.md says what holds and what does not.

Nothing in here reads files or sends anything. Arrays are numpy's; n nodes, b windows, t steps ahead, and l
levels in the order of `LEVELS`. Bounds have a first axis of two: lower and upper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cnfgnn.errors import ConfigError

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

LEVELS = (50, 80, 90, 95, 99)  # per cent of readings that should lie within the bounds
TAILS = np.array([(100 - level) / 200 for level in LEVELS])  # the share beyond either bound
OUTWARD = np.array([-1.0, 1.0])  # the direction of the lower and of the upper bound
KNOTS = 24  # levels of the forecast at which the size of errors is estimated
LEAST_SIZE = 0.2  # of the mean error: no bound comes closer, so that it can move when errors grow
SHRINKAGE = 20.0  # independent errors that the shape of all nodes weighs as much as
SHARING = 30.0  # independent errors after which a node and step relies on itself rather than on the others
SLOWEST = 0.01  # the least step of a bound after a reading, relative to the width of the 80 % interval
MEMORY = 300  # readings after which errors that have grown for good are noticed
FASTEST = 0.5  # the step of a bound that rests on one independent error


@dataclass(frozen=True, eq=False)
class ErrorSize:
    """The mean shortfall and excess of readings against forecasts, as functions of the forecast.

    knots  (c n t)    levels of the forecast, ascending along the first axis
    sizes  (2 c n t)  how far readings lie below and above forecasts there, on average; positive
    """

    knots: Floats
    sizes: Floats

    def at(self, forecasts: Floats) -> Floats:
        """(n b t) -> (2 n b t): linear between knots, constant beyond them."""
        values = torch.from_numpy(np.ascontiguousarray(np.swapaxes(forecasts, 1, 2)))  # (n t b)
        knots = torch.from_numpy(np.ascontiguousarray(np.moveaxis(self.knots, 0, -1)))  # (n t c)
        above = torch.searchsorted(knots, values).clamp(1, knots.shape[-1] - 1)
        low, high = (knots.gather(-1, place) for place in (above - 1, above))
        share = ((values - low) / (high - low).clamp(min=1e-9)).clamp(0, 1)
        found = []
        for of_side in self.sizes:
            sizes = torch.from_numpy(np.ascontiguousarray(np.moveaxis(of_side, 0, -1)))
            found.append(torch.lerp(sizes.gather(-1, above - 1), sizes.gather(-1, above), share))
        return np.swapaxes(torch.stack(found).numpy(), 2, 3)


class Errors(NamedTuple):
    """Forecasts of past windows and what became of them: (n b t) each; `known` says which targets count."""

    forecasts: Floats
    errors: Floats  # reading minus forecast
    known: Bools

    @classmethod
    def of(cls, forecasts: Floats, truth: Floats, observed: Bools) -> Errors:
        errors = truth - forecasts
        known = observed & np.isfinite(errors)
        return cls(forecasts, np.where(known, errors, 0.0), known)


class Intervals:
    """The bounds of n nodes at t steps ahead, as they are at one moment.

    `ranges` gives the bounds of a forecast, `issue` does so and remembers them, `observe` moves them when the
    readings of a row have arrived, and `follow` does both for many windows in a row. A row is a number of
    time steps since any moment that the caller keeps to.

    Inside, the step ahead is the first axis, and distances and bounds are counted outward: those of the lower
    bound have their sign reversed.
    """

    def __init__(
        self, size: ErrorSize, reach: Floats, spread: Floats, usual: Floats, seen: Floats, least: float
    ) -> None:
        self.size = size
        self.reach = reach  # (t 2 l n): from the forecast outward, in multiples of the size of errors
        self.spread = spread  # (t n): width of the first 80 % interval, in the same unit
        self.usual = usual  # (t n): the mean absolute error at calibration
        self.growth = np.ones_like(usual)  # (t n): recent absolute errors, in multiples of it
        self.seen = seen  # (t n): how many independent errors the reach rests on
        self.least = least  # no reading can be lower; -inf if unknown
        self.row: int | None = None  # the last row that was observed or forecast from
        # The bounds that were given for rows to come: (t t 2 l n), first by target row modulo t.
        self.pending = np.full((len(reach), *reach.shape), np.nan)
        self.made = np.full((len(reach), *usual.shape), np.nan)  # the forecasts themselves: (t t n)
        self._steps = np.arange(len(reach))

    # ---- calibration --------------------------------------------------------------------------------

    @classmethod
    def calibrate(cls, past: Errors, stride: int = 1, least: float = -np.inf) -> Intervals | None:
        """The bounds that follow from the errors of a split; None if there is no error at all.

        `stride` is the number of rows between the windows. The errors of overlapping windows depend on each
        other: of windows that begin in h consecutive rows, forecasts h steps ahead count as one.
        """
        n, _, t = past.errors.shape
        if not past.known.any():
            return None
        size, usual = _error_size(past, stride)
        scaled = _scaled(past.errors, size.at(past.forecasts))
        independent = past.known.sum(1) * np.minimum(1, stride / np.arange(1, t + 1))  # (n t)
        shares = np.stack([TAILS, 1 - TAILS])  # (2 l)
        own = _quantiles(scaled, past.known, shares.ravel()).reshape(*shares.shape, n, t)
        pooled = np.quantile(scaled[past.known], shares)[:, :, None, None]
        weight = independent / (independent + SHARING)
        quantiles = np.where(independent > 0, weight * own + (1 - weight) * pooled, pooled)
        reach = OUTWARD[:, None, None, None] * quantiles * _allowance(independent)
        of_80 = LEVELS.index(80)
        # A sensor that stood still has no spread of its own, and its bounds must be able to move.
        least_spread = max(0.5 * (pooled[1, of_80] - pooled[0, of_80]).item(), 1e-3)
        spread = np.maximum(reach[:, of_80].sum(0), least_spread)
        in_steps = np.ascontiguousarray(np.moveaxis(reach, -1, 0))
        return cls(size, in_steps, spread.T.copy(), usual.T.copy(), independent.T.copy(), least)

    # ---- use ----------------------------------------------------------------------------------------

    def ranges(self, forecasts: Floats) -> Floats:
        """(n t) -> (2 l n t): the bounds of a forecast that is made now."""
        sizes = self._outward_sizes(forecasts[:, None])[0]
        return self._as_bounds(self._outward_bounds(forecasts.T, sizes))

    def issue(self, row: int, forecasts: Floats) -> Floats:
        """(n t) -> (2 l n t): the bounds of a forecast that is made after this row, and remember them."""
        sizes = self._outward_sizes(forecasts[:, None])[0]
        return self._as_bounds(self._issue(row, forecasts.T, sizes))

    def observe(self, row: int, readings: Floats, observed: Bools) -> None:
        """Move the bounds: these are the readings of the row (n,), and which of them were observed (n,).

        Forecasts of this row were made one to t rows before. Each moves the bounds of its own step ahead; as
        long as it has seen few errors, those of all steps of its node together.
        """
        self._forget_between(row)
        pending = self.pending[row % len(self._steps)]  # (t 2 l n)
        known = observed & np.isfinite(pending[:, 0, 0])  # (t n)
        if known.any():
            missed = OUTWARD[:, None, None] * readings > pending
            outward = (missed - TAILS[:, None]) * known[:, None, None]
            together = outward.sum(0) / np.maximum(known.sum(0), 1)
            shared = SHARING / (SHARING + self.seen)
            self._notice(np.abs(readings - self.made[row % len(self._steps)]), known)
            pace = np.maximum(SLOWEST, FASTEST / np.maximum(self.seen, 1))
            rate = pace * self.spread * np.maximum(self.growth, 1)
            outward *= (rate * (1 - shared))[:, None, None]
            outward += (rate * shared)[:, None, None] * together
            self.reach += outward
            self.seen += known / (self._steps[:, None] + 1)
        pending[:] = np.nan
        self.row = row

    def _notice(self, errors: Floats, known: Bools) -> None:
        """Notice errors (t n) that outgrow what was usual: bounds then move in larger steps."""
        grown = np.where(known, errors / self.usual, self.growth)
        self.growth += (grown - self.growth) / MEMORY

    def follow(self, rows: Ints, forecasts: Floats, readings: Floats, observed: Bools) -> Floats:
        """(2 l n b t): the bounds of forecasts (n b t) that were made after these rows (b,), in time order.

        `readings` and `observed` (n T) hold every row, by its number. The bounds of a forecast depend on
        readings up to its row and on none after it.
        """
        sizes, made = self._outward_sizes(forecasts), np.ascontiguousarray(np.transpose(forecasts, (1, 2, 0)))
        found = np.empty((len(rows), *self.reach.shape))
        for b, row in enumerate(rows.tolist()):
            self.catch_up(row, readings, observed)
            found[b] = self._issue(row, made[b], sizes[b])
        return self._as_bounds(found)

    def catch_up(self, row: int, readings: Floats, observed: Bools, first: int = 0) -> None:
        """Observe all rows up to this one that forecasts were made for; column 0 of `readings` is row
        `first`."""
        if self.row is None:
            return
        for target in range(max(self.row + 1, first), min(row, self.row + len(self._steps)) + 1):
            self.observe(target, readings[:, target - first], observed[:, target - first])

    def _issue(self, row: int, forecasts: Floats, sizes: Floats) -> Floats:
        self._forget_between(row + 1)
        bounds, steps = self._outward_bounds(forecasts, sizes), self._steps
        slots = (row + 1 + steps) % len(steps)
        self.pending[slots, steps], self.made[slots, steps] = bounds, forecasts
        self.row = row
        return bounds

    def _outward_sizes(self, forecasts: Floats) -> Floats:
        """(n b t) -> (b t 2 2 1 n): the sizes of errors on the own side of each bound, and on the other."""
        sizes = np.transpose(self.size.at(forecasts), (2, 3, 0, 1))  # (b t 2 n)
        return np.stack([sizes, sizes[:, :, ::-1]], axis=3)[:, :, :, :, None].swapaxes(2, 3).copy()

    def _outward_bounds(self, forecasts: Floats, sizes: Floats) -> Floats:
        """(t n), (t 2 2 1 n) -> (t 2 l n). Wider levels contain narrower ones."""
        distance = self.reach * np.where(self.reach < 0, sizes[:, 1], sizes[:, 0])
        crossed = np.minimum(distance[:, 0, 0] + distance[:, 1, 0], 0) / 2  # the lower above the upper
        if crossed.any():
            distance -= crossed[:, None, None]
        np.maximum.accumulate(distance, axis=2, out=distance)
        distance += (OUTWARD[:, None] * forecasts[:, None])[:, :, None]
        return distance

    def _as_bounds(self, outward: Floats) -> Floats:
        """(... t 2 l n) -> (2 l n ... t), not below what a reading can be."""
        bounds = np.moveaxis(outward * OUTWARD[:, None, None], (-3, -2, -1), (0, 1, 2))
        possible: Floats = np.maximum(bounds, self.least)
        return possible

    def _forget_between(self, row: int) -> None:
        """Forget the bounds of rows that were skipped on the way to this one: their readings never came."""
        if self.row is not None and row > self.row + 1:
            t = len(self._steps)
            for skipped in range(max(self.row + 1, row - t), row):
                self.pending[skipped % t] = np.nan

    def renumber(self, by: int) -> None:
        """Count rows from another moment: add this to each."""
        if self.row is not None:
            self.row += by
            self.pending, self.made = (np.roll(array, by, axis=0) for array in (self.pending, self.made))

    # ---- keeping ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything, as named tensors."""
        kept: dict[str, Any] = {name: getattr(self, name) for name in _ARRAYS}
        kept |= {"knots": self.size.knots, "sizes": self.size.sizes, "least": np.array(self.least)}
        if self.row is not None:  # something has been forecast
            kept |= {"row": np.array(self.row), "pending": self.pending, "made": self.made}
        return {name: torch.from_numpy(np.array(array)) for name, array in kept.items()}

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Intervals:
        kept = {name: tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}
        size = ErrorSize(kept["knots"], kept["sizes"])
        least = float(kept["least"])
        made = cls(size, kept["reach"], kept["spread"], kept["usual"], kept["seen"], least)
        made.growth = kept["growth"]
        if "row" in kept:
            made.pending, made.made, made.row = kept["pending"], kept["made"], int(kept["row"])
        return made

    def select(self, nodes: Ints) -> Intervals:
        """The intervals of these nodes; -1 stands for a new one, which begins with the mean of all others."""
        known, new = np.maximum(nodes, 0), nodes < 0

        def chosen(array: Floats) -> Floats:  # (... n)
            return np.where(new, array.mean(axis=-1, keepdims=True), array[..., known])

        def of_size(array: Floats) -> Floats:  # (... n t)
            return np.swapaxes(chosen(np.swapaxes(array, -1, -2)), -1, -2)

        size = ErrorSize(of_size(self.size.knots), of_size(self.size.sizes))
        seen = np.where(new, 0.0, self.seen[:, known])
        spread, usual = chosen(self.spread), chosen(self.usual)
        made = Intervals(size, chosen(self.reach), spread, usual, seen, self.least)
        made.growth, made.row = chosen(self.growth), self.row
        made.pending = np.where(new, np.nan, self.pending[..., known])
        made.made = np.where(new, np.nan, self.made[..., known])
        return made

    @classmethod
    def joined(cls, parts: Sequence[Intervals]) -> Intervals:
        """The intervals of all nodes of several groups, which were calibrated together, one after another."""
        kept = [part.state() for part in parts]
        state = {}
        for name, tensor in kept[0].items():
            axis = {"knots": -2, "sizes": -2}.get(name, -1)  # of the nodes
            state[name] = torch.cat([one[name] for one in kept], axis) if tensor.dim() else tensor
        return cls.of(state)


_ARRAYS = ("reach", "spread", "usual", "growth", "seen")


class Calibration(NamedTuple):
    """What intervals are calibrated from: the errors of past windows, the number of rows between these, and
    the lowest reading before them (infinite if there is none)."""

    past: Errors
    stride: int
    lowest: float

    def intervals(self) -> Intervals | None:
        """The bounds that follow. What was never negative until then is taken to be unable to be."""
        never_negative = np.isfinite(self.lowest) and self.lowest >= 0
        return Intervals.calibrate(self.past, self.stride, 0.0 if never_negative else -np.inf)

    @classmethod
    def joined(cls, parts: Sequence[Calibration]) -> Calibration:
        """That of all nodes of several groups, one after another."""
        past = Errors(
            *(np.concatenate(arrays) for arrays in zip(*(part.past for part in parts), strict=True))
        )
        return cls(past, parts[0].stride, min(part.lowest for part in parts))


def _scaled(errors: Floats, sizes: Floats) -> Floats:
    """Errors in multiples of their usual size."""
    scaled: Floats = errors / np.where(errors < 0, sizes[0], sizes[1])
    return scaled


def _error_size(past: Errors, stride: int) -> tuple[ErrorSize, Floats]:
    """How large errors are at each level of the forecast, and at all levels (n t).

    At a level where a node has few errors, the estimate leans on the shape that all nodes share.
    """
    n, _, t = past.errors.shape
    knots = _filled(_quantiles(past.forecasts, past.known, (np.arange(KNOTS) + 0.5) / KNOTS))
    edges = _filled(_quantiles(past.forecasts, past.known, np.arange(1, KNOTS) / KNOTS))
    level = np.zeros(past.errors.shape, dtype=np.int64)
    for edge in edges:
        level += past.forecasts > edge[:, None]
    place = (level * n + np.arange(n)[:, None, None]) * t + np.arange(t)
    parts = [past.known, np.maximum(-past.errors, 0), np.maximum(past.errors, 0)]
    sums = [np.bincount(place.ravel(), part.ravel(), KNOTS * n * t).reshape(KNOTS, n, t) for part in parts]
    count, below_and_above = sums[0], np.stack(sums[1:])
    overall = below_and_above.sum((1, 2)) / np.maximum(count.sum((0, 1)), 1)  # (2 t)
    least = LEAST_SIZE * overall[:, None] + 1e-9
    mean = np.where(
        count.sum(0) > 0, below_and_above.sum(1) / np.maximum(count.sum(0), 1), overall[:, None]
    ).clip(min=least)  # (2 n t)
    shape = (below_and_above / mean[:, None]).sum((2, 3)) / np.maximum(count.sum((1, 2)), 1)  # (2 c)
    dependence = np.minimum(1, stride / np.arange(1, t + 1))
    expected = SHRINKAGE * shape.clip(min=LEAST_SIZE)[:, :, None, None] * mean[:, None]
    sizes = (below_and_above * dependence + expected) / (count * dependence + SHRINKAGE)
    sizes = np.maximum(sizes, LEAST_SIZE * mean[:, None])
    return ErrorSize(*_with_ends(knots, sizes, mean)), mean.sum(0)


def _with_ends(knots: Floats, sizes: Floats, mean: Floats) -> tuple[Floats, Floats]:
    """(c n t), (2 c n t), (2 n t): one more knot at both ends. Forecasts beyond those that are known say
    nothing about errors, so that they count as no smaller than the mean."""
    margin = (knots[-1] - knots[0]) / KNOTS + 1e-9
    ends = [np.maximum(sizes[:, place], mean) for place in (0, -1)]
    knots = np.concatenate([knots[:1] - margin, knots, knots[-1:] + margin])
    return knots, np.concatenate([ends[0][:, None], sizes, ends[1][:, None]], axis=1)


def _quantiles(values: Floats, known: Bools, shares: Floats) -> Floats:
    """(n b t), (k,) -> (k n t): quantiles of the known values; NaN where none is known."""
    ordered = np.sort(np.where(known, values, np.inf), axis=1)
    last = known.sum(1)[None] - 1  # (1 n t)
    place = shares[:, None, None] * np.maximum(last, 0)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(last, 0))
    below, above = (
        np.moveaxis(np.take_along_axis(ordered, np.moveaxis(rows, 0, 1), axis=1), 1, 0)
        for rows in (low, high)
    )
    with np.errstate(invalid="ignore"):
        found = below + (place - low) * (above - below)
    return np.where(last < 0, np.nan, found)


def _filled(knots: Floats) -> Floats:
    """(c n t): a node without any forecast takes the mean of the others."""
    unknown = np.isnan(knots)
    others = np.where(unknown, 0, knots).sum(1, keepdims=True) / np.maximum(
        (~unknown).sum(1, keepdims=True), 1
    )
    return np.where(unknown, others, knots)


def _allowance(independent: Floats) -> Floats:
    """(n t) -> (l n t): how much wider bounds must be because few independent errors are known.

    The ratio of a quantile of Student's t, by the first terms of its expansion in 1 / degrees of freedom, to
    that of a normal distribution, for a new error beside those that are known.
    """
    freedom = np.maximum(independent, 2.0)
    z = np.array([NormalDist().inv_cdf(1 - tail) for tail in TAILS])[:, None, None]
    ratio = 1 + (z**2 + 1) / (4 * freedom) + (5 * z**4 + 16 * z**2 + 3) / (96 * freedom**2)
    allowance: Floats = ratio * np.sqrt(1 + 1 / freedom)
    return allowance


def check_levels(levels: Sequence[int], key: str) -> tuple[int, ...]:
    """The levels, ascending; one that is not kept is refused under the name of the setting."""
    for level in levels:
        if level not in LEVELS:
            raise ConfigError(key, f"there are no intervals of {level} %", [str(known) for known in LEVELS])
    return tuple(sorted(set(levels)))


def bounds_of(bounds: Floats, level: int) -> Floats:
    """(2 l ...) -> (2 ...): the lower and the upper bound of one level."""
    return bounds[:, LEVELS.index(level)]


# ---- how good intervals are -----------------------------------------------------------------------------

REPORTED = (80, 95)  # levels in tables
INTERVAL_SUMS = ("count", "covered", "width", "score")
"""What is summed over forecasts to judge intervals: their number, how many contain the reading, their widths
and their interval scores."""


def interval_sums(bounds: Floats, truth: Floats, known: Bools) -> Floats:
    """(2 l n b t), (n b t) -> (n t r 4): the sums named in `INTERVAL_SUMS` for the levels in `REPORTED`.

    The interval score (Winkler, 1972; Gneiting and Raftery, 2007) is the width, plus 2 / (1 - level) times
    the distance by which a reading lies outside. Lower is better.
    """
    found = []
    for level in REPORTED:
        low, high = bounds_of(bounds, level)
        counted = known & np.isfinite(low)
        width = high - low
        outside = np.maximum(low - truth, 0) + np.maximum(truth - high, 0)
        score = width + outside * 200 / (100 - level)
        terms = (np.ones_like(width), outside == 0, width, score)
        found.append(np.stack([np.where(counted, term, 0.0).sum(1) for term in terms], axis=-1))
    return np.stack(found, axis=2)
