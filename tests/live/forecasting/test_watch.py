"""Numbers of the last day are right; faults that are planted are named, and what is in order is not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest
from prometheus_client import generate_latest

from cnfgnn.data.synthetic.city import city
from cnfgnn.live.forecasting.metrics import MOST_ALARMS, Metrics
from cnfgnn.live.forecasting.watch import LEVELS, Numbers, Report, Step, Watch

STEP, HORIZON, HISTORY = 900, 3, 12
DAY = 96
FIRST = 7 * DAY  # rows that the watch begins with
Floats = np.ndarray


@cache
def readings_of_city() -> Floats:
    """(rows, n): eleven days of a small city, with its own drop-outs."""
    readings = city(12, 11, seed=2, step_minutes=15).readings
    return np.where(readings.missing, np.nan, readings.values).astype(np.float64)


class LastValue:
    """Forecasts of the last value, with ranges that hold most of them: errors are what the watch judges."""

    def __init__(self, values: Floats) -> None:
        self.values, n = values, values.shape[1]
        self.watch = Watch([f"s{k}" for k in range(n)], HORIZON, STEP, HISTORY, has_ranges=True)
        self.watch.begin(range(FIRST), values[:FIRST])
        self.last, self.last_row = np.full(n, np.nan), np.full(n, -1)
        for row in range(FIRST):
            self._see(row)

    def _see(self, row: int) -> None:
        there = np.isfinite(self.values[row])
        self.last = np.where(there, self.values[row], self.last)
        self.last_row = np.where(there, row, self.last_row)

    def play(self, rows: Iterable[int]) -> list[Report]:
        """A report after each row."""
        found = []
        for row in rows:
            self._see(row)
            made = np.repeat(self.last[:, None], HORIZON, axis=1)
            step = Step(row, self.values[row], self.last, self.last_row, made)
            self.watch.observe(step)
            self.watch.issue(
                step, {k: np.stack([made - r, made + r]) for k, r in zip(LEVELS, (6.0, 15.0), strict=True)}
            )
            found.append(self.watch.report(str))
        return found


def alarms(reports: Iterable[Report]) -> set[tuple[str | None, str]]:
    return {(alarm.sensor, alarm.kind) for report in reports for alarm in report.alarms}


# ---- numbers ----------------------------------------------------------------------------------------------


def test_numbers_are_those_of_the_last_day() -> None:
    """Compared with the same computed from all forecasts at once."""
    values = readings_of_city()
    reports = LastValue(values).play(range(FIRST, FIRST + DAY + 50))
    report, rows = reports[-1], range(FIRST + 50, FIRST + DAY + 50)
    for column in (0, 5):
        last = values[:, column].copy()
        for row in range(1, len(last)):
            if math.isnan(last[row]):
                last[row] = last[row - 1]
        errors = np.array([values[r, column] - last[r - h] for r in rows for h in range(1, HORIZON + 1)])
        errors = errors[np.isfinite(errors)]
        numbers = report.sensors[f"s{column}"]
        assert numbers.count == len(errors)
        assert numbers.rmse == pytest.approx(np.sqrt(np.mean(errors**2)))
        assert numbers.skill == pytest.approx(0)  # it is the last value
        assert numbers.coverage[80] == pytest.approx(np.mean(np.abs(errors) <= 6))
        assert numbers.coverage[95] == pytest.approx(np.mean(np.abs(errors) <= 15))
    assert reports[0].overall.count == 0
    assert reports[0].overall.rmse is None
    assert report.overall.count == sum(numbers.count for numbers in report.sensors.values())


def test_skill_says_how_much_better_than_the_last_value_a_forecast_is() -> None:
    watch = Watch(["a"], 1, STEP, HISTORY, has_ranges=False)
    truth = np.arange(60.0)[:, None]
    for row in range(60):
        step = Step(row, truth[row], truth[row], np.array([row]), truth[row][:, None] + 0.75)
        watch.observe(step)
        watch.issue(step, {})
    numbers = watch.report(str).overall  # off by 0.25, the last value by 1
    assert (numbers.count, numbers.rmse, numbers.skill) == (59, 0.25, 0.75)
    assert numbers.coverage == {80: None, 95: None}  # the run has no ranges


# ---- alarms -----------------------------------------------------------------------------------------------


def with_faults(values: Floats) -> Floats:
    """Three sensors with a fault each; the other nine are as they were."""
    faulty, days = values.copy(), np.arange(len(values) - FIRST) / DAY
    faulty[FIRST + 50 : FIRST + 90, 1] = np.nan
    faulty[FIRST + 50 : FIRST + 90, 3] = 51.5
    faulty[FIRST:, 5] -= 25 * np.minimum(1, days)
    return faulty


FAULTS = {"s1": "silent", "s3": "frozen", "s5": "drift"}


def test_readings_that_are_in_order_raise_no_false_alarm() -> None:
    """Four days of the city: only sensors that really sent nothing for so long are named, and all of them."""
    values = readings_of_city().copy()
    values[FIRST + 200 : FIRST + 215, 2] = np.nan
    named = alarms(LastValue(values).play(range(FIRST, len(values))))
    gone = [
        column
        for column in range(values.shape[1])
        if any(np.isnan(values[r - HISTORY + 1 : r + 1, column]).all() for r in range(FIRST, len(values)))
    ]
    assert 2 in gone
    assert named == {(f"s{column}", "silent") for column in gone}


def test_planted_faults_are_named_soon_and_nothing_else_is() -> None:
    reports = LastValue(with_faults(readings_of_city())).play(range(FIRST, len(readings_of_city())))
    named = {(sensor, kind) for sensor, kind in alarms(reports) if kind != "silent" or sensor in FAULTS}
    assert named == set(FAULTS.items())
    told: dict[str | None, list[tuple[int, str]]] = {}
    for number, report in enumerate(reports):
        for alarm in report.alarms:
            told.setdefault(alarm.sensor, []).append((number, alarm.text))
    assert told["s1"][0][0] == 50 + HISTORY - 1
    assert told["s1"][-1][0] == told["s3"][-1][0] == 89  # they end with the fault
    assert told["s3"][0] == (61, f"frozen since {(FIRST + 50) * STEP}: it has sent 51.5 12 times in a row")
    assert told["s5"][0][0] <= 3 * DAY
    assert "below what it usually reads at these hours, and the others do not" in told["s5"][0][1]


def test_when_no_sensor_sends_anything_there_is_one_alarm() -> None:
    values = readings_of_city().copy()
    values[FIRST + 5 :] = np.nan
    report = LastValue(values).play(range(FIRST, FIRST + 30))[-1]
    assert [(alarm.sensor, alarm.kind, alarm.since) for alarm in report.alarms] == [
        (None, "silent", (FIRST + 4) * STEP)
    ]


def test_forecasts_that_are_worse_than_the_last_value_are_an_alarm() -> None:
    values = readings_of_city()
    played = LastValue(values)
    played.play(range(FIRST, FIRST + DAY))
    assert played.watch.report(str).alarms == ()
    issue = played.watch.issue
    played.watch.issue = lambda step, ranges: issue(  # type: ignore[method-assign]
        step._replace(forecasts=step.forecasts + 40), {k: r + 40 for k, r in ranges.items()}
    )
    reports = played.play(range(FIRST + DAY, FIRST + 2 * DAY))
    kinds = {kind for sensor, kind in alarms(reports) if sensor is None}
    assert kinds == {"skill", "coverage"}


def test_a_sensor_that_often_repeats_itself_is_not_frozen() -> None:
    """Such as a counter that stands at zero all night: twice as long as ever is the limit."""
    values = readings_of_city().copy()
    for day in range(11):
        values[day * DAY : day * DAY + 24, 4] = 0.0
    assert ("s4", "frozen") not in alarms(LastValue(values).play(range(FIRST, len(values))))
    values[FIRST : FIRST + 60, 4] = 0.0
    assert ("s4", "frozen") in alarms(LastValue(values).play(range(FIRST, FIRST + 60)))


def test_memory_does_not_grow_and_a_state_gives_the_same_reports() -> None:
    values = with_faults(readings_of_city())
    one = LastValue(values)
    one.play(range(FIRST, FIRST + 150))
    size = sum(array.nbytes for array in one.watch.state().values())
    other = LastValue(values)
    other.watch.load({name: array.copy() for name, array in one.watch.state().items()})
    other.last, other.last_row = one.last, one.last_row
    rows = range(FIRST + 150, FIRST + 3 * DAY)
    for found, expected in zip(other.play(rows), one.play(rows), strict=True):
        assert found.json(str) == expected.json(str)
    assert sum(array.nbytes for array in one.watch.state().values()) == size


def test_without_a_week_of_readings_the_watch_learns_what_is_usual_as_it_goes() -> None:
    values = readings_of_city().copy()
    watch = Watch([f"s{k}" for k in range(values.shape[1])], HORIZON, STEP, HISTORY, has_ranges=False)
    watch.begin(range(DAY), values[:DAY])
    for row in range(DAY, FIRST + 1):
        assert not watch.drift.is_ready
        nothing = np.full((values.shape[1], HORIZON), np.nan)
        watch.observe(Step(row, values[row], values[row], np.full(values.shape[1], row), nothing))
    assert watch.drift.is_ready
    assert np.isfinite(watch.drift.limit).all()


# ---- metrics ----------------------------------------------------------------------------------------------


def test_metrics_name_a_bounded_number_of_sensors() -> None:
    n = MOST_ALARMS + 20
    watch = Watch([f"s{k}" for k in range(n)], 1, STEP, HISTORY, has_ranges=False)
    watch.begin([0], np.ones((1, n)))
    for row in range(1, 20):
        readings = np.where(np.arange(n) == 0, float(row), np.nan)
        nothing = np.full((n, 1), np.nan)
        watch.observe(Step(row, readings, readings, np.where(np.arange(n) == 0, row, 0), nothing))
    metrics = Metrics(lambda: 0.0, lambda: False)
    metrics.watched(watch.report(str))
    text = generate_latest(metrics.registry).decode()
    assert text.count("cnfgnn_live_alarm{") == MOST_ALARMS
    assert f'cnfgnn_live_alarms{{kind="silent"}} {n - 1}.0' in text
    assert "cnfgnn_live_rmse NaN" in text


def test_a_quiet_night_alone_does_not_raise_the_alarm_about_skill() -> None:
    """Forecasts are worse than the last value for 9 hours, and then better, as in the city's nights."""
    watch = Watch(["a"], horizon=1, step=STEP, silent_after=HISTORY, has_ranges=False)
    night, sounded = 3 * DAY // 8, []
    for row in range(1, 2 * DAY):
        quiet = row % DAY < night
        reading = (row % 2) * (1.0 if quiet else 10.0)  # the last value is off by 1 or by 10
        off = 2.0 if quiet else 5.0
        coming = ((row + 1) % 2) * (1.0 if (row + 1) % DAY < night else 10.0)
        step = Step(row, *(np.array([x]) for x in (reading, reading, row)), np.array([[coming + off]]))
        watch.observe(step)
        watch.issue(step, {})
        sounded += watch.report(str).alarms
    assert sounded == []


def test_forecasts_that_stay_worse_than_the_last_value_raise_the_alarm_within_a_day() -> None:
    """Also of sensors that send every other reading only."""
    watch = Watch(["a", "b"], horizon=1, step=STEP, silent_after=HISTORY, has_ranges=False)
    began = 0
    for row in range(1, DAY):
        readings = np.array([row % 3 if row % 2 else np.nan, row % 3], dtype=np.float64)
        step = Step(row, readings, np.nan_to_num(readings), np.full(2, row), np.full((2, 1), 9.0))
        watch.observe(step)
        watch.issue(step, {})
        if not began and alarms([watch.report(str)]) == {(None, "skill")}:
            began = row
    assert DAY * 3 // 4 <= began < DAY * 3 // 4 + 4


@pytest.mark.parametrize(
    ("rmse", "of_last", "skill"),
    [
        (1.0, 2.0, 0.5),
        (2.0, 2.0, 0.0),
        (4.0, 2.0, -0.5),
        (2.5, 0.0101, -0.996),
        (2.5, 0.0, None),
        (0.0, 1.0, 1.0),
    ],
)
def test_skill_has_a_lower_bound(rmse: float, of_last: float, skill: float | None) -> None:
    """A sensor that hardly changes makes the last value almost perfect."""
    numbers = Numbers.of(np.array([100, 100 * rmse**2, 100 * of_last**2, 80, 95]), has_ranges=True)
    assert numbers.skill == (None if skill is None else pytest.approx(skill, abs=1e-4))
