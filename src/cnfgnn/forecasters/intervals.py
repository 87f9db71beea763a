"""Prediction intervals that follow the errors of a forecaster: conformal prediction that adapts.

The errors of the validation split say how far readings lie below and above their forecasts: for each node,
each step ahead and each level of the forecast. As readings arrive, every bound moves outward a little when a
reading lies beyond it, and inward otherwise, so that in the long run the agreed share of readings lies
beyond it, whatever the readings do (Gibbs and Candes, 2021; in this form Angelopoulos, Candes and
Tibshirani, 2023, the "P" of conformal PID control). docs/intervals.md says what holds and what does not.

Nothing in here reads files or sends anything. Arrays are numpy's, apart from the errors that bounds are
calibrated on: these are many, and stay on the device that computed them. There are n nodes, b windows, t
steps ahead, and l levels in the order of `LEVELS`. Bounds have a first axis of two: lower and upper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

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
        values, knots, sizes = (
            torch.from_numpy(np.ascontiguousarray(array))
            for array in (
                np.swapaxes(forecasts, 1, 2),
                np.moveaxis(self.knots, 0, -1),
                np.moveaxis(self.sizes, 1, -1),
            )
        )
        return np.swapaxes(_interpolated(values, knots, sizes).numpy(), 2, 3)


def _interpolated(values: Tensor, knots: Tensor, sizes: Tensor) -> Tensor:
    """(n t b), (n t c), (2 n t c) -> (2 n t b): the sizes of errors at these levels of the forecast."""
    above = torch.searchsorted(knots, values).clamp(1, knots.shape[-1] - 1)
    low, high = (knots.gather(-1, place) for place in (above - 1, above))
    share = ((values - low) / (high - low).clamp(min=1e-9)).clamp(0, 1)
    return torch.stack([torch.lerp(at.gather(-1, above - 1), at.gather(-1, above), share) for at in sizes])


class Errors(NamedTuple):
    """Forecasts of past windows and what became of them: (n b t) each; `known` says which targets count."""

    forecasts: Tensor
    errors: Tensor  # reading minus forecast
    known: Tensor

    @classmethod
    def of(cls, forecasts: Tensor, truth: Tensor, observed: Tensor) -> Errors:
        errors = truth - forecasts
        known = observed & errors.isfinite()
        return cls(forecasts, torch.where(known, errors, 0.0), known)


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
        if not past.known.any():
            return None
        forecasts, errors, known = (part.transpose(1, 2).contiguous() for part in past)  # (n t b)
        dependence = _dependence(stride, errors)
        knots, sizes, mean = _error_size(forecasts, errors, known, dependence)
        found = _interpolated(forecasts, knots, sizes)
        scaled = errors / torch.where(errors < 0, found[0], found[1])
        shares = np.stack([TAILS, 1 - TAILS])  # (2 l)
        own = _quantiles(scaled, known, shares.ravel()).cpu().numpy()  # (n t 2l)
        pooled = _quantiles(scaled[known], torch.ones_like(scaled[known], dtype=torch.bool), shares.ravel())
        independent = (known.sum(-1) * dependence).cpu().numpy()  # (n t)
        size = ErrorSize(*(np.moveaxis(part.cpu().numpy(), -1, -3).copy() for part in (knots, sizes)))
        usual = mean.sum(0).cpu().numpy()
        of_all = pooled.cpu().numpy().reshape(*shares.shape, 1, 1)
        return cls._from_quantiles(size, usual, np.moveaxis(own, -1, 0), of_all, independent, least)

    @classmethod
    def _from_quantiles(
        cls, size: ErrorSize, usual: Floats, own: Floats, pooled: Floats, independent: Floats, least: float
    ) -> Intervals:
        """From the quantiles of scaled errors of each node and step (2l n t), and of all together."""
        own = own.reshape(*pooled.shape[:2], *independent.shape)
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

    def without_rows(self) -> Intervals:
        """The same as if nothing had been forecast yet: whatever comes next is a new beginning."""
        of_rows = ("row", "pending", "made")
        return Intervals.of({name: tensor for name, tensor in self.state().items() if name not in of_rows})

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


_ARRAYS = ("reach", "spread", "usual", "growth", "seen")


def _dependence(stride: int, like: Tensor) -> Tensor:
    """(t,): the share of errors at each step ahead that count as independent."""
    steps = torch.arange(1, like.shape[1] + 1, dtype=like.dtype, device=like.device)
    return (stride / steps).clamp(max=1)


def _error_size(
    forecasts: Tensor, errors: Tensor, known: Tensor, dependence: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """How large errors are at each level of the forecast: knots (n t c), sizes there (2 n t c), and the mean
    over all levels (2 n t).

    At a level where a node has few errors, the estimate leans on the shape that all nodes share.
    """
    shares = np.concatenate([np.arange(KNOTS) + 0.5, np.arange(1, KNOTS)]) / KNOTS
    knots, edges = _filled(_quantiles(forecasts, known, shares)).tensor_split([KNOTS], dim=-1)
    count, *of_sides = _sums_by_level(
        forecasts, known, edges, [known.to(errors.dtype), (-errors).clamp(min=0), errors.clamp(min=0)]
    )
    below_and_above = torch.stack(of_sides)  # (2 n t c)
    overall = below_and_above.sum((1, 3)) / count.sum((0, 2)).clamp(min=1)  # (2 t)
    least = LEAST_SIZE * overall[:, None] + 1e-9
    own = below_and_above.sum(-1) / count.sum(-1).clamp(min=1)
    mean = torch.maximum(torch.where(count.sum(-1) > 0, own, overall[:, None]), least)  # (2 n t)
    shape = (below_and_above / mean[..., None]).sum((1, 2)) / count.sum((0, 1)).clamp(min=1)  # (2 c)
    expected = SHRINKAGE * shape.clamp(min=LEAST_SIZE)[:, None, None] * mean[..., None]
    weight = dependence[:, None]
    sizes = (below_and_above * weight + expected) / (count * weight + SHRINKAGE)
    sizes = torch.maximum(sizes, LEAST_SIZE * mean[..., None])
    return *_with_ends(knots, sizes, mean), mean


def _sums_by_level(forecasts: Tensor, known: Tensor, edges: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
    """The sums of (n t b) over the known forecasts up to the first edge (n t c-1), from there to the second,
    and so on: (n t c). In the order of forecasts they are differences of running sums."""
    ordered, order = torch.where(known, forecasts, torch.inf).sort(dim=-1, stable=True)
    until = torch.searchsorted(ordered, edges.contiguous(), right=True)
    ends = functional.pad(until, (1, 0)), functional.pad(until, (0, 1), value=ordered.shape[-1])
    found = []
    for part in parts:
        running = functional.pad(part.gather(-1, order).cumsum(-1), (1, 0))
        found.append(running.gather(-1, ends[1]) - running.gather(-1, ends[0]))
    return found


def _with_ends(knots: Tensor, sizes: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """(n t c), (2 n t c), (2 n t): one more knot at both ends. Forecasts beyond those that are known say
    nothing about errors, so that they count as no smaller than the mean."""
    margin = (knots[..., -1:] - knots[..., :1]) / KNOTS + 1e-9
    first, last = (torch.maximum(sizes[..., place], mean)[..., None] for place in (0, -1))
    knots = torch.cat([knots[..., :1] - margin, knots, knots[..., -1:] + margin], dim=-1)
    return knots, torch.cat([first, sizes, last], dim=-1)


def _quantiles(values: Tensor, known: Tensor, shares: Floats) -> Tensor:
    """(... b), (k,) -> (... k): quantiles of the known values; NaN where none is known."""
    ordered = _sorted(torch.where(known, values, torch.inf))
    last = known.sum(-1, keepdim=True) - 1
    place = torch.from_numpy(shares).to(values) * last.clamp(min=0)
    low = place.floor().long()
    high = torch.minimum(low + 1, last.clamp(min=0))
    below, above = ordered.gather(-1, low), ordered.gather(-1, high)
    return torch.where(last < 0, torch.nan, below + (place - low) * (above - below))


def _sorted(values: Tensor) -> Tensor:
    """Ascending along the last axis. On a processor, NumPy sorts several times as fast as PyTorch."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=-1))
    return values.sort(dim=-1).values


def _filled(knots: Tensor) -> Tensor:
    """(n t c): a node without any forecast takes the mean of the others."""
    unknown = knots.isnan()
    others = knots.nan_to_num().sum(0, keepdim=True) / (~unknown).sum(0, keepdim=True).clamp(min=1)
    return torch.where(unknown, others, knots)


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
    if isinstance(levels, str) or not isinstance(levels, Iterable):
        raise ConfigError(key, f"needs levels such as [80, 95], not {levels!r}")
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
