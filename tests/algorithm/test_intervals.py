"""Intervals contain the agreed share of readings, also when errors drift, and know nothing of the future."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cnfgnn.errors import ConfigError
from cnfgnn.forecasters.intervals import (
    KNOTS,
    LEVELS,
    MEMORY,
    REPORTED,
    SLOWEST,
    Bools,
    Errors,
    Floats,
    Intervals,
    bounds_of,
    check_levels,
    interval_sums,
)

T = 4  # steps ahead


def errors_of(forecasts: Floats, truth: Floats, observed: Bools) -> Errors:
    return Errors.of(*(torch.from_numpy(array) for array in (forecasts, truth, observed)))


class Case:
    """Forecasts of n random walks with jumps, t steps ahead at every row: the last reading, repeated."""

    def __init__(self, n: int = 3, rows: int = 900, seed: int = 0, drift: float = 1.0) -> None:
        rng = np.random.default_rng(seed)
        scale = np.where(np.arange(rows) < rows // 2, 1.0, drift) * (1 + np.arange(n)[:, None])
        steps = scale * (rng.gamma(1.5, 1.0, (n, rows)) - 1.5)  # skewed: excess is larger than shortfall
        self.readings = 100 + 0.2 * np.cumsum(steps, axis=1) + steps
        self.observed = rng.random((n, rows)) > 0.05
        self.rows = np.arange(10, rows - T)
        self.forecasts = np.repeat(self.readings[:, self.rows, None], T, axis=2)
        targets = self.rows[:, None] + 1 + np.arange(T)
        self.truth, self.known = self.readings[:, targets], self.observed[:, targets]

    def past(self, part: slice) -> Errors:
        return errors_of(self.forecasts[:, part], self.truth[:, part], self.known[:, part])

    def calibrated(self, windows: int = 300, stride: int = 1) -> Intervals:
        found = Intervals.calibrate(self.past(slice(0, windows, stride)), stride)
        assert found is not None
        return found

    def followed(self, intervals: Intervals, windows: slice) -> Floats:
        return intervals.follow(self.rows[windows], self.forecasts[:, windows], self.readings, self.observed)

    def coverage(self, bounds: Floats, windows: slice, level: int) -> Floats:
        """(n t)"""
        low, high = bounds_of(bounds, level)
        truth, known = self.truth[:, windows], self.known[:, windows]
        found: Floats = ((truth >= low) & (truth <= high) & known).sum(1) / known.sum(1)
        return found


@pytest.mark.parametrize("drift", [1.0, 2.0])
def test_every_node_and_step_is_covered_as_often_as_it_should_be_whatever_errors_do(drift: float) -> None:
    case = Case(rows=2600, drift=drift)
    later = slice(600, None)
    bounds = case.followed(case.calibrated(600), later)
    for level in LEVELS:
        assert case.coverage(bounds, later, level) == pytest.approx(level / 100, abs=0.05)
    if drift != 1:  # bounds that did not adapt would be wrong by far
        still = case.calibrated(600)
        fixed = np.stack([still.ranges(one) for one in np.moveaxis(case.forecasts[:, later], 1, 0)], axis=3)
        assert abs(case.coverage(fixed, later, 80).mean() - 0.8) > 0.05


def test_both_tails_are_covered_by_themselves() -> None:
    case = Case(rows=9000)
    later = slice(600, None)
    low, high = bounds_of(case.followed(case.calibrated(600), later), 80)
    truth, known = case.truth[:, later], case.known[:, later]
    assert ((truth < low) & known).sum((1, 2)) / known.sum((1, 2)) == pytest.approx(0.1, abs=0.01)
    assert ((truth > high) & known).sum((1, 2)) / known.sum((1, 2)) == pytest.approx(0.1, abs=0.01)


def test_one_reading_at_a_time_gives_the_same_bounds_as_all_at_once() -> None:
    case, later = Case(), slice(300, 500)
    at_once = case.followed(case.calibrated(), later)
    live = case.calibrated()
    for b, row in enumerate(case.rows[later].tolist()):
        if b:  # the reading that has arrived since the last forecast
            live.observe(row, case.readings[:, row], case.observed[:, row])
        forecasts = case.forecasts[:, 300 + b]
        before = live.ranges(forecasts)
        assert np.array_equal(live.issue(row, forecasts), before)
        assert np.array_equal(before, at_once[:, :, :, b])


def test_the_windows_may_come_in_pieces_and_the_state_may_be_kept_in_between() -> None:
    case = Case()
    whole = case.followed(case.calibrated(), slice(300, 420))
    intervals = case.calibrated()
    assert "pending" not in intervals.state()  # nothing to keep of them yet
    pieces = []
    for piece in (slice(300, 333), slice(333, 334), slice(334, 420)):
        intervals = Intervals.of(intervals.state())
        pieces.append(case.followed(intervals, piece))
    assert np.array_equal(np.concatenate(pieces, axis=3), whole)


def test_bounds_know_nothing_of_readings_after_their_forecast_was_made() -> None:
    case, windows = Case(), slice(300, 420)
    intervals = case.calibrated()
    expected = case.followed(intervals, windows)
    for b in (0, 1, 57, 118):
        other = Case()
        after = case.rows[300 + b] + 1
        other.readings[:, after:] = 1e6
        other.observed[:, after:] = True
        assert np.array_equal(
            other.followed(case.calibrated(), windows)[:, :, :, : b + 1], expected[..., : b + 1, :]
        )
    other.readings[:, case.rows[300 + 57]] = 1e6  # while the newest one that had come does matter
    changed = other.followed(case.calibrated(), windows)
    assert not np.array_equal(changed[:, :, :, 57, 0], expected[:, :, :, 57, 0])
    assert np.array_equal(changed[:, :, :, 56], expected[:, :, :, 56])


def test_a_forecast_some_steps_ahead_counts_when_its_reading_comes_and_not_before() -> None:
    case = Case(n=1)
    intervals = case.calibrated(500)
    intervals.seen[:] = 1e9  # no sharing between steps, and the slowest pace
    before = intervals.reach.copy()
    intervals.issue(1000, np.full((1, T), 100.0))
    everything = np.ones(1, dtype=bool)
    for step in range(T):
        intervals.observe(1001 + step, np.array([1e6]), everything)
        moved = intervals.reach - before
        assert (moved[: step + 1, 1] > 0).all()  # the reading lay above
        assert (moved[: step + 1, 0] < 0).all()
        assert moved[step + 1 :] == pytest.approx(0, abs=1e-6)
    tail = (100 - 80) / 200
    level = LEVELS.index(80)
    step = SLOWEST * intervals.spread[:, 0] * intervals.growth[:, 0]  # errors have grown beyond measure
    assert moved[:, 1, level, 0] == pytest.approx(step * (1 - tail))
    assert moved[:, 0, level, 0] == pytest.approx(-step * tail)
    assert intervals.growth[:, 0] == pytest.approx(1 + ((1e6 - 100) / intervals.usual[:, 0] - 1) / MEMORY)


def test_missing_readings_and_rows_that_are_skipped_move_nothing() -> None:
    case = Case()
    intervals = case.calibrated()
    before = intervals.reach.copy()
    intervals.issue(50, case.forecasts[:, 40])
    intervals.observe(51, np.full(3, np.nan), np.zeros(3, dtype=bool))
    assert np.array_equal(intervals.reach, before)
    intervals.observe(51 + T, np.full(3, 1e6), np.ones(3, dtype=bool))  # its slot was of row 51 once
    intervals.observe(54 + T, np.full(3, 1e6), np.ones(3, dtype=bool))
    assert np.array_equal(intervals.reach, before)


def test_catching_up_observes_all_that_was_forecast_and_no_more() -> None:
    case = Case()
    late, timely = case.calibrated(), case.calibrated()
    for intervals in (late, timely):
        intervals.issue(50, case.forecasts[:, 40])
    for row in range(51, 51 + T):
        timely.observe(row, case.readings[:, row], case.observed[:, row])
    late.catch_up(300, case.readings[:, 20:], case.observed[:, 20:], first=20)
    assert np.array_equal(late.reach, timely.reach)


def test_rows_may_be_counted_from_another_moment() -> None:
    case, shift = Case(), 12_345
    intervals = case.calibrated()
    case.followed(intervals, slice(300, 310))
    intervals.renumber(shift)
    moved = Intervals.of(intervals.state())
    moved.renumber(-shift)
    expected = case.calibrated()
    case.followed(expected, slice(300, 310))
    assert np.array_equal(case.followed(moved, slice(310, 340)), case.followed(expected, slice(310, 340)))


def test_wider_levels_contain_narrower_ones_and_lower_bounds_are_below_upper_ones() -> None:
    case = Case(rows=800, drift=0.1, seed=3)
    intervals = case.calibrated(100)
    intervals.reach[:, :, 1] -= 5 * intervals.spread[:, None]  # as wild readings could have left them
    bounds = case.followed(intervals, slice(100, None))
    assert (np.diff(bounds[0], axis=0) <= 0).all()
    assert (np.diff(bounds[1], axis=0) >= 0).all()
    assert (bounds[0] <= bounds[1]).all()


def test_intervals_are_wide_where_the_forecast_says_that_errors_are_large() -> None:
    rng = np.random.default_rng(5)
    forecasts = np.repeat(rng.uniform(0, 100, (2, 3000, 1)), T, axis=2)
    truth = forecasts + rng.normal(0, np.where(forecasts < 30, 10.0, 1.0))
    found = Intervals.calibrate(errors_of(forecasts, truth, np.ones(truth.shape, dtype=bool)), stride=T)
    assert found is not None
    low, high = bounds_of(found.ranges(np.full((2, T), 10.0)), 80)
    assert high - low == pytest.approx(25.6, rel=0.3)
    low, high = bounds_of(found.ranges(np.full((2, T), 80.0)), 80)
    assert high - low == pytest.approx(2.56, rel=0.3)


def test_bounds_are_asymmetric_where_errors_are() -> None:
    rng = np.random.default_rng(6)
    forecasts = rng.normal(50, 1, (2, 3000, T))
    truth = forecasts - rng.exponential(3.0, forecasts.shape)  # never above
    found = Intervals.calibrate(errors_of(forecasts, truth, np.ones(truth.shape, dtype=bool)), stride=T)
    assert found is not None
    low, high = bounds_of(found.ranges(np.full((2, T), 50.0)), 80)
    assert low == pytest.approx(50 - 3 * np.log(10), rel=0.03)
    assert high == pytest.approx(50 - 3 * np.log(1 / 0.9), abs=0.3)


def test_few_windows_lean_on_the_other_nodes_and_are_wider() -> None:
    case = Case(n=8, rows=3000)
    much, little = case.calibrated(2000), case.calibrated(24)
    relative = little.reach / much.reach
    assert np.median(relative[-1, :, LEVELS.index(95)]) > 1.05  # six independent errors at step 4
    alone = Intervals.calibrate(Errors(*(part[:1] for part in case.past(slice(0, 24)))))
    assert alone is not None
    off = [np.abs(np.log(one.reach[..., :1] / much.reach[..., :1])).mean() for one in (little, alone)]
    assert off[0] < off[1]


def test_a_node_without_errors_takes_the_mean_of_the_others() -> None:
    case = Case(n=4)
    case.known[1] = False
    intervals = case.calibrated()
    bounds = intervals.ranges(case.forecasts[:, 300])
    assert np.isfinite(bounds).all()
    known = np.array([0, 2, 3])
    widths = [float((high - low)[known].mean()) for low, high in [bounds_of(bounds, 80)]]
    low, high = bounds_of(bounds, 80)
    assert 0.3 * widths[0] < float((high - low)[1].mean()) < 3 * widths[0]
    case.known[:] = False
    assert Intervals.calibrate(case.past(slice(0, 100))) is None


def test_new_nodes_begin_with_the_mean_of_all_and_known_ones_keep_theirs() -> None:
    case = Case()
    intervals = case.calibrated()
    case.followed(intervals, slice(300, 320))
    chosen = intervals.select(np.array([2, -1, 0]))
    forecasts = case.forecasts[[2, 1, 0], 320]
    bounds, expected = chosen.ranges(forecasts), intervals.ranges(case.forecasts[:, 320])
    assert np.allclose(bounds[:, :, [0, 2]], expected[:, :, [2, 0]])
    assert np.isfinite(bounds).all()
    assert (chosen.seen[:, 1] == 0).all()
    row = int(case.rows[320])
    chosen.observe(row, case.readings[[2, 1, 0], row], np.ones(3, dtype=bool))
    assert np.array_equal(chosen.reach[..., 1], intervals.select(np.array([-1])).reach[..., 0])


def test_a_sensor_that_stood_still_gets_bounds_when_it_moves_again() -> None:
    case = Case(n=3, rows=3000)
    stood = case.rows < 900
    case.forecasts[1, stood], case.truth[1, stood] = 40.0, 40.0
    bounds = case.followed(case.calibrated(800), slice(900, 2900))
    last = slice(1900, 2900)  # by then it has long been noticed
    assert case.coverage(bounds[:, :, :, 1000:], last, 80)[1] == pytest.approx(0.8, abs=0.06)


def test_what_cannot_be_negative_has_no_negative_bound() -> None:
    case = Case()
    found = Intervals.calibrate(case.past(slice(0, 300)), least=0.0)
    assert found is not None
    assert found.ranges(np.zeros((3, T))).min() == 0
    assert case.calibrated().ranges(np.zeros((3, T))).min() < 0
    assert found.follow(case.rows[:3], np.zeros((3, 3, T)), case.readings, case.observed).min() == 0


def test_thinned_windows_count_as_what_they_tell() -> None:
    case = Case(rows=2500)
    every, fourth = case.calibrated(2000), case.calibrated(2000, stride=4)
    assert fourth.seen == pytest.approx(np.minimum(every.seen, 500 * 0.95), rel=0.05)
    assert np.median(fourth.reach / every.reach) == pytest.approx(1, abs=0.1)


def test_sums_are_those_of_the_interval_score() -> None:
    rng = np.random.default_rng(2)
    truth, known = rng.normal(0, 2, (2, 5, 3)), rng.random((2, 5, 3)) > 0.3
    middle, half = rng.normal(0, 1, (2, 5, 3)), np.array([0.5, 1.0, 1.5, 2.0, 3.0])[:, None, None, None]
    bounds = np.stack([middle - half, middle + half])
    bounds[:, :, 0, 0] = np.nan  # a node without a forecast
    sums = interval_sums(bounds, truth, known)
    for r, level in enumerate(REPORTED):
        low, high = bounds_of(bounds, level)
        for n in range(2):
            for t in range(3):
                expected = np.zeros(4)
                for b in range(5):
                    if not known[n, b, t] or np.isnan(low[n, b, t]):
                        continue
                    y, lower, upper = truth[n, b, t], low[n, b, t], high[n, b, t]
                    miss = max(lower - y, 0, y - upper)
                    width = upper - lower
                    expected += [1, lower <= y <= upper, width, width + miss * 2 / (1 - level / 100)]
                assert sums[n, t, r] == pytest.approx(expected)


def test_sizes_are_found_between_knots_and_beyond_them() -> None:
    case = Case(rows=2500)
    size = case.calibrated(2000).size
    assert len(size.knots) == KNOTS + 2  # and one at either end
    assert size.at(size.knots[3][:, None])[:, :, 0] == pytest.approx(size.sizes[:, 3])
    between = (size.knots[3] + size.knots[4]) / 2
    assert size.at(between[:, None])[:, :, 0] == pytest.approx((size.sizes[:, 3] + size.sizes[:, 4]) / 2)
    assert size.at(np.full((3, 1, T), 1e9))[:, :, 0] == pytest.approx(size.sizes[:, -1])
    assert size.at(np.full((3, 1, T), -1e9))[:, :, 0] == pytest.approx(size.sizes[:, 0])


def test_levels_that_are_not_kept_are_refused() -> None:
    assert check_levels([95, 80, 95], "--intervals") == (80, 95)
    with pytest.raises(ConfigError, match="no intervals of 85 %"):
        check_levels([80, 85], "--intervals")
