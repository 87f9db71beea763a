"""What a smoother makes of an owner's copies: known answers, and smoothers that were fitted to copies."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cnfgnn.attack.smoothed_copies import FEWEST, MOST_SENSORS, MOST_STEPS, SmoothedCopies, round_up
from cnfgnn.attack.smoothing import REACH


def white(rows: int, nodes: int, spread: float = 3.0, seed: int = 0) -> np.ndarray:
    """Readings (T n) that nothing tells about each other: there is nothing to smooth."""
    return np.random.default_rng(seed).normal(20, spread, (rows, nodes)).astype(np.float32)


def weather(rows: int = 1500, nodes: int = 8, seed: int = 1) -> np.ndarray:
    """Slow readings (T n) that sensors have in common, and a slow part of their own."""
    rng = np.random.default_rng(seed)
    shocks = rng.normal(size=(rows, nodes + 1))
    slow = np.zeros_like(shocks)
    for row in range(1, rows):
        slow[row] = 0.97 * slow[row - 1] + shocks[row]
    return (10 + 2 * slow[:, :1] + 0.5 * slow[:, 1:]).astype(np.float32)


def smoothed(values: np.ndarray, missing: np.ndarray | None = None) -> SmoothedCopies:
    found = SmoothedCopies.of(values, np.zeros(values.shape, dtype=np.bool_) if missing is None else missing)
    assert found is not None
    return found


def test_where_nothing_can_be_smoothed_the_best_estimate_weighs_copy_and_mean() -> None:
    found, spread = smoothed(white(8000, 4)), 3.0
    assert found.guess == pytest.approx(spread, rel=0.02)
    for blur in (0.1, 1.0, 3.0, 30.0):
        best = spread * blur / math.hypot(spread, blur)
        assert found.at(blur).alone == pytest.approx(best, rel=0.02)
        assert found.at(blur).together == pytest.approx(best, rel=0.02)


@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_it_is_as_near_as_a_smoother_that_is_fitted_to_drawn_copies(gaps: float) -> None:
    values, rng = weather(6000, 3), np.random.default_rng(5)
    missing = rng.random(values.shape) < gaps
    found = smoothed(values, missing)
    for blur in (1.0, 5.0):
        drawn = values + rng.normal(0, blur, values.shape)
        squares, count = 0.0, 0
        for column in range(values.shape[1]):
            errors = fitted_errors(values[:, column].astype(float), drawn[:, column], ~missing[:, column])
            squares, count = squares + float(errors @ errors), count + len(errors)
        assert found.at(blur).alone == pytest.approx(math.sqrt(squares / count), rel=0.03)


def fitted_errors(truth: np.ndarray, copy: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Of least squares over the copies around each reading, from either half of the time for the other."""
    rows, mean = np.arange(len(truth)), truth[there].mean()
    lines = np.interp(rows, rows[there], copy[there] - mean)
    around = np.stack([lines[(rows + shift).clip(0, rows[-1])] for shift in range(-REACH, REACH + 1)], axis=1)
    early = rows < len(rows) // 2
    errors = []
    for fit, judge in ((there & early, there & ~early), (there & ~early, there & early)):
        weights = np.linalg.lstsq(around[fit], truth[fit] - mean, rcond=None)[0]
        errors.append(around[judge] @ weights - (truth[judge] - mean))
    return np.concatenate(errors)


def test_slow_readings_and_sensors_that_read_alike_are_estimated_better_than_the_blur() -> None:
    found = smoothed(weather()).at(4.0)
    assert found.alone < 0.6 * 4.0
    assert found.together < 0.8 * found.alone


def test_weights_are_judged_on_readings_that_they_were_not_fitted_to() -> None:
    """Otherwise they would do better than is possible, most of all with few readings."""
    errors = [smoothed(white(FEWEST, 1, seed=seed)).at(3.0).alone for seed in range(20)]
    assert np.mean(errors) > 3.0 / math.sqrt(2)


def test_readings_are_not_hidden_by_more_than_their_blur_because_they_are_calm_for_half_of_the_time() -> None:
    """Whoever has a copy need not smooth it."""
    values = np.concatenate([weather(1500, 2), white(1500, 2, spread=20.0)])
    found = smoothed(values)
    for blur in (0.01, 1.0, 5.0):
        assert found.at(blur).alone <= blur
    assert found.at(1e4).together <= found.guess
    hidden = found.blur_that_hides(2.0)
    assert hidden is not None
    assert hidden >= 2


def test_a_value_that_means_missing_is_not_used() -> None:
    values = weather()
    missing = np.random.default_rng(2).random(values.shape) < 0.2
    codes, none = np.where(missing, 9999, values), np.where(missing, np.nan, values)
    assert smoothed(codes, missing).at(2.0) == smoothed(none, missing).at(2.0)
    assert smoothed(codes, missing).guess == pytest.approx(smoothed(values).guess, rel=0.05)


def test_too_few_readings_give_no_figure() -> None:
    values = weather(FEWEST)
    missing = np.zeros(values.shape, dtype=np.bool_)
    assert SmoothedCopies.of(values[1:], missing[1:]) is None
    missing[FEWEST // 2 :, 1:] = True  # of all sensors but one, nothing in the later half
    assert SmoothedCopies.of(values[:, 1:], missing[:, 1:]) is None
    assert smoothed(values, missing).at(1.0) == smoothed(values[:, :1], missing[:, :1]).at(1.0)


def test_a_sensor_that_never_changes_is_no_obstacle() -> None:
    found = smoothed(np.full((FEWEST, 2), 7.0, dtype=np.float32))
    assert found.guess == found.at(2.0).together == 0.0
    assert found.for_blurs() == []
    assert found.blur_that_hides(1.0) is None


def test_the_blur_that_hides_is_the_least_one_of_one_digit() -> None:
    found = smoothed(weather())
    for error in (0.5, 1.0, 2.0, 4.0):
        blur = found.blur_that_hides(error)
        assert blur is not None
        assert blur == float(f"{blur:.0e}")
        assert found.at(blur).together >= error > found.at(blur / 2.01).together
    assert found.hiding(1.0, "°C").startswith("To make a smoother miss by 1 °C or more, set a blur of ")


def test_no_blur_hides_more_than_a_guess_tells() -> None:
    found = smoothed(weather())
    assert found.blur_that_hides(1.1 * found.guess) is None
    assert found.hiding(99).startswith("No blur makes a smoother miss by 99: guessing each sensor's mean")


def test_some_blurs_are_shown() -> None:
    found = smoothed(weather())
    assert [row.blur for row in found.for_blurs(1.5)] == [1.5, 3.0, 6.0, 12.0]
    rows = found.for_blurs()
    assert [row.blur for row in rows] == sorted({row.blur for row in rows})
    assert 4 * rows[0].together < rows[-1].together < found.guess


def test_numbers_are_rounded_up_to_one_digit() -> None:
    assert [round_up(x) for x in (0.0, 0.21, 3.0, 9.4, 951.0, 2e-5)] == [0.0, 0.3, 3.0, 10.0, 1000.0, 2e-5]


def test_of_very_many_readings_some_are_enough() -> None:
    assert smoothed(white(FEWEST, MOST_SENSORS + 1)).counts.shape == (MOST_SENSORS, 2)
    assert int(smoothed(white(MOST_STEPS + 1, 1)).counts.sum()) == MOST_STEPS
