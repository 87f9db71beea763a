"""What a sensor usually reads, and that a training window is not told its own future by it."""

from __future__ import annotations

import numpy as np
import pytest

from cnfgnn.data.series import Series
from cnfgnn.data.windows import Windows
from cnfgnn.forecasters.weekly_profile import SHRINKAGE_DAYS, SLOTS, SMOOTHING_SLOTS, Calendar

DAYS = 21


def calendar(days: int = DAYS) -> Calendar:
    return Calendar(np.tile(np.arange(SLOTS) / SLOTS, days), np.repeat(np.arange(days) % 7, SLOTS))


def readings(n: int = 2, seed: int = 0) -> np.ndarray:
    """Every day of the week has a level of its own, and each reading some noise."""
    levels = np.repeat(np.arange(DAYS) % 7, SLOTS) * 10.0
    return levels + np.random.default_rng(seed).normal(0, 1, (n, DAYS * SLOTS))


def test_it_is_the_mean_around_the_time_of_day_drawn_to_that_of_its_kind_of_day() -> None:
    values = readings()
    weeks, _ = calendar().profiles(values, np.ones_like(values, dtype=bool), np.arange(values.shape[1]))
    by_day = values.reshape(2, DAYS, SLOTS)
    wide = np.pad(by_day, [(0, 0), (0, 0), (SMOOTHING_SLOTS, SMOOTHING_SLOTS)], constant_values=np.nan)
    around = np.stack([wide[..., k : k + SLOTS] for k in range(2 * SMOOTHING_SLOTS + 1)])
    for weekday, kind in ((2, range(5)), (6, (5, 6))):
        own = around[:, :, [d for d in range(DAYS) if d % 7 == weekday]]
        common = around[:, :, [d for d in range(DAYS) if d % 7 in kind]]
        count, shrinkage = np.isfinite(own).sum((0, 2)), SHRINKAGE_DAYS * (2 * SMOOTHING_SLOTS + 1)
        expected = (np.nansum(own, (0, 2)) + shrinkage * np.nanmean(common, (0, 2))) / (count + shrinkage)
        np.testing.assert_allclose(weeks[:, weekday], expected)


def test_a_day_is_told_nothing_of_itself() -> None:
    values, rows = readings(), np.arange(DAYS * SLOTS)
    known = np.ones_like(values, dtype=bool)
    _, before = calendar().profiles(values, known, rows)
    changed = values.copy()
    changed[:, 5 * SLOTS : 6 * SLOTS] += 1000.0
    _, after = calendar().profiles(changed, known, rows)
    np.testing.assert_allclose(before[:, 5 * SLOTS : 6 * SLOTS], after[:, 5 * SLOTS : 6 * SLOTS])
    same_weekday = slice(12 * SLOTS, 13 * SLOTS)
    assert (after[:, same_weekday] > before[:, same_weekday] + 100).all()


def test_steps_of_a_week_are_different_days() -> None:
    """Otherwise each reading would leave out all of them, and training would know of no profile."""
    weeks = Calendar(np.full(60, 0.25), np.full(60, 2))
    assert weeks.day.tolist() == list(range(60))
    values = np.random.default_rng(0).normal(5, 1, (1, 60))
    profiles = weeks.profiles(values, np.ones((1, 60), dtype=bool), np.arange(60), days_ahead=1.0)
    without = (values.sum() - values[0]) / 59
    np.testing.assert_allclose(profiles.at_rows[0], without)


def test_a_window_across_midnight_is_told_nothing_of_itself() -> None:
    values, rows = readings(), np.arange(DAYS * SLOTS)
    known = np.ones_like(values, dtype=bool)
    window = slice(8 * SLOTS - 6, 8 * SLOTS + 6)  # half an hour to either side
    _, before = calendar().profiles(values, known, rows)
    for row in range(window.start, window.stop):
        changed = values.copy()
        changed[:, row] += 1000.0
        _, after = calendar().profiles(changed, known, rows)
        np.testing.assert_allclose(after[:, window], before[:, window])


def test_what_all_days_have_in_common_weighs_as_much_whatever_the_step() -> None:
    hours = Calendar(np.tile(np.arange(24) / 24, DAYS), np.repeat(np.arange(DAYS) % 7, 24))
    values = np.repeat(np.arange(DAYS) % 7, 24)[None] * 10.0
    weeks, _ = hours.profiles(values, np.ones_like(values, dtype=bool), np.arange(DAYS * 24))
    fine, _ = calendar().profiles(
        readings(1) * 0 + np.repeat(values, 12)[None],
        np.ones((1, DAYS * SLOTS), bool),
        np.arange(DAYS * SLOTS),
    )
    np.testing.assert_allclose(weeks[0, :, 144], fine[0, :, 144])


def test_what_was_filled_in_is_no_reading() -> None:
    values = readings(1)
    values[:, 7 * SLOTS + 100 : 10 * SLOTS] = np.nan
    clock, weekday = np.tile(np.arange(SLOTS) / SLOTS, DAYS), np.repeat(np.arange(DAYS) % 7, SLOTS)
    windows = Windows.of(values.shape[1], shares=(0.8, 0.1, 0.1))
    weeks = [
        Series(values, np.isnan(values), clock, weekday).weekly_profiles(windows, treatment)[0]
        for treatment in ("masked", "as-truth")
    ]
    np.testing.assert_allclose(*weeks)


@pytest.mark.parametrize("days", [1, 2, 8])
def test_no_target_of_a_window_is_in_the_profile_of_another_however_long_the_horizon(days: int) -> None:
    hours, weekday = np.tile(np.arange(24) / 24, DAYS), np.repeat(np.arange(DAYS) % 7, 24)
    values = np.random.default_rng(1).normal(size=(1, DAYS * 24))
    windows = Windows.of(values.shape[1], horizon=24 * days, shares=(0.8, 0.1, 0.1))
    series = Series(values, np.isnan(values), hours, weekday)
    before = series.weekly_profiles(windows, "masked").at_rows
    first = 7 * 24 + 5
    targets = slice(first, first + 24 * days)
    changed = values.copy()
    changed[:, targets] += 100
    after = Series(changed, np.isnan(values), hours, weekday).weekly_profiles(windows, "masked").at_rows
    np.testing.assert_allclose(after[:, targets], before[:, targets])
    assert not np.allclose(after, before, equal_nan=True)


def test_rows_that_do_not_train_are_told_what_those_that_do_gave_and_are_looked_up_alike() -> None:
    values, rows = readings(), np.arange(14 * SLOTS)
    weeks, at = calendar().profiles(values[:, rows], np.ones((2, len(rows)), dtype=bool), rows)
    later = slice(14 * SLOTS, None)
    np.testing.assert_allclose(at[:, later], calendar().look_up(weeks)[:, later])


def test_what_was_never_read_is_unknown_and_what_is_missing_does_not_count() -> None:
    values, known = readings(), np.ones((2, DAYS * SLOTS), dtype=bool)
    known[0] = False
    values[1, ::3], known[1, ::3] = 1e6, False
    weeks, at = calendar().profiles(values, known, np.arange(DAYS * SLOTS))
    assert np.isnan(weeks[0]).all()
    assert np.isnan(at[0]).all()
    assert np.isfinite(at[1]).all()
    assert at[1].max() < 100


def test_data_without_training_windows_tell_nothing_of_their_test_windows() -> None:
    values = readings(1)
    clock, weekday = np.tile(np.arange(SLOTS) / SLOTS, DAYS), np.repeat(np.arange(DAYS) % 7, SLOTS)
    windows = Windows.of(values.shape[1])
    kept = {
        split: np.full(windows.count(split), split != "train") for split in ("train", "validation", "test")
    }
    weeks, at = Series(values, np.isnan(values), clock, weekday).weekly_profiles(windows.only(kept), "masked")
    assert np.isnan(weeks).all()
    assert np.isnan(at).all()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_series_counts_what_trains_or_all_there_is(ahead: bool) -> None:
    values = readings(1)
    clock, weekday = np.tile(np.arange(SLOTS) / SLOTS, DAYS), np.repeat(np.arange(DAYS) % 7, SLOTS)
    series = Series(values, np.zeros_like(values, dtype=bool), clock, weekday)
    rows = values.shape[1]
    windows = Windows.next(rows - 12, 12, 12) if ahead else Windows.of(rows, shares=(0.5, 0.2, 0.3))
    weeks, _ = series.weekly_profiles(windows, "masked")
    counted = np.arange(rows if ahead else windows.starts["train"][-1] + 12)
    expected, _ = calendar().profiles(values[:, counted], np.ones((1, len(counted)), dtype=bool), counted)
    np.testing.assert_allclose(weeks, expected)
