"""Ranges and the watch learn from each step, and go on after a restart as if nothing had happened."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cnfgnn.data.readings import Readings
from cnfgnn.errors import RunError, StorageError
from cnfgnn.live.forecasting import tracking as module
from cnfgnn.live.forecasting.forecasts import QUALITIES, Forecast
from cnfgnn.live.forecasting.predictor import RunPredictor
from cnfgnn.live.forecasting.tracking import Tracking, adapted_intervals, open_tracking
from cnfgnn.live.forecasting.watch import LEVELS
from cnfgnn.live.intake.clock import Zone
from cnfgnn.live.intake.store import ReadingStore
from cnfgnn.live.options import FEED, LiveSettings
from cnfgnn.runs.forecast import forecast_run
from tests.live.small_service import KNOWN, SmallRun, serving

STEP = 300


def number_of(readings: Readings) -> int:
    return int(readings.times[-1].astype("datetime64[s]").astype(np.int64)) // STEP


@contextmanager
def opened(
    small: SmallRun, state: Path, rows: int = KNOWN, predictor: RunPredictor | None = None
) -> Iterator[tuple[RunPredictor, Tracking]]:
    """What a service opens when it starts with so many rows at hand."""
    data = small.until(KNOWN)
    predictor = predictor or RunPredictor(small.run, data)
    with closing(ReadingStore(state)) as store:
        made = open_tracking(
            predictor, lambda: adapted_intervals(predictor, data), small.until(rows).readings, store
        )
        with closing(made.journal):
            yield predictor, made


def taken(predictor: RunPredictor, tracking: Tracking, readings: Readings) -> dict[int, np.ndarray]:
    """Take a step as the service does."""
    ranges = tracking.step(number_of(readings), predictor.cleaned(readings), predictor.forecast(readings))
    tracking.write()
    tracking.tidy()
    return ranges


def test_live_ranges_are_those_of_the_command(small_run: SmallRun, tmp_path: Path) -> None:
    """From the first forecast on, while ranges adapt and sensors are silent; also in int8, although hidden
    states of windows that are forecast together would be rounded together."""
    assert small_run.run.config.training.wire == "int8"
    with opened(small_run, tmp_path) as (predictor, tracking):
        for rows in range(KNOWN, KNOWN + 21):
            until = small_run.until(rows)
            ranges = taken(predictor, tracking, until.readings)
            if rows not in (KNOWN + 4, KNOWN + 20):
                continue
            table = forecast_run(small_run.run, until, LEVELS)
            for level in LEVELS:
                for side, bound in zip(("low", "high"), ranges[level], strict=True):
                    names = [f"{sensor} {side} {level}" for sensor in until.readings.ids]
                    np.testing.assert_allclose(bound, table[names].to_numpy().T, rtol=1e-6)
            silent = until.readings.missing[-small_run.run.config.data.history :].all(axis=0)
            assert silent.any() == (rows == KNOWN + 4)
            assert np.isfinite(bound).all()


def test_a_restarted_watch_is_the_same_as_an_undisturbed_one(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is compared to the last bit, with states that are written now and then, and steps between."""
    monkeypatch.setattr(module, "STEPS_BETWEEN_STATES", 4)
    with opened(small_run, tmp_path / "undisturbed") as (predictor, undisturbed):
        for rows in range(KNOWN, KNOWN + 11):
            expected = taken(predictor, undisturbed, small_run.until(rows).readings)
            with opened(small_run, tmp_path / "restarted", rows, predictor) as (again, restarted):
                found = taken(again, restarted, small_run.until(rows).readings)
            for level in LEVELS:
                np.testing.assert_array_equal(found[level], expected[level])
            with opened(small_run, tmp_path / "restarted", rows, predictor) as (again, restarted):
                for name, array in undisturbed.state().items():
                    np.testing.assert_array_equal(restarted.state()[name], array, err_msg=name)
                # The forecast that was made before is made again, and nothing is learned twice.
                found = taken(again, restarted, small_run.until(rows).readings)
                for level in LEVELS:
                    np.testing.assert_array_equal(found[level], expected[level])


def test_readings_that_came_while_the_service_was_away_are_learned_from(
    small_run: SmallRun, tmp_path: Path
) -> None:
    with opened(small_run, tmp_path) as (predictor, tracking):
        taken(predictor, tracking, small_run.until(KNOWN).readings)
        before = tracking.watch.report(str).overall.count
    with opened(small_run, tmp_path, KNOWN + 5) as (predictor, tracking):
        taken(predictor, tracking, small_run.until(KNOWN + 5).readings)
        steps = predictor.horizon * (predictor.horizon - 1) / 2
        assert before == 0
        seen = small_run.data.readings.missing[KNOWN : KNOWN + 5]
        assert 0 < tracking.watch.report(str).overall.count <= (~seen).sum() < steps * 6
        assert tracking.intervals is not None
        assert tracking.intervals.row == tracking.watch.row == number_of(small_run.until(KNOWN + 5).readings)


def test_what_another_model_learned_is_not_used(small_run: SmallRun, tmp_path: Path) -> None:
    with opened(small_run, tmp_path) as (predictor, tracking):
        taken(predictor, tracking, small_run.until(KNOWN).readings)
        name = tracking.journal.of
    ids = (*small_run.data.readings.ids[:-1], "another")
    other = replace(
        small_run, data=replace(small_run.data, readings=replace(small_run.data.readings, ids=ids))
    )
    with opened(other, tmp_path) as (predictor, tracking):
        assert tracking.issued == -1
        assert tracking.journal.of != name


def test_a_full_disk_costs_neither_ranges_nor_what_was_learned(small_run: SmallRun, tmp_path: Path) -> None:
    with opened(small_run, tmp_path / "one") as (predictor, tracking):
        tracking.journal._database.execute("PRAGMA query_only = 1")
        readings = small_run.until(KNOWN + 1).readings
        ranges = tracking.step(number_of(readings), predictor.cleaned(readings), predictor.forecast(readings))
        assert set(ranges) == set(LEVELS)
        with pytest.raises(StorageError, match=r"live\.sqlite: cannot be written"):
            tracking.write()
        tracking.journal._database.execute("PRAGMA query_only = 0")
        taken(predictor, tracking, small_run.until(KNOWN + 2).readings)
        expected = tracking.state()
    with opened(small_run, tmp_path / "one", KNOWN + 2) as (_, tracking):
        for name, array in tracking.state().items():
            np.testing.assert_array_equal(array, expected[name])


def test_a_damaged_state_is_named(small_run: SmallRun, tmp_path: Path) -> None:
    with opened(small_run, tmp_path) as (_, tracking):
        tracking.journal._database.execute("UPDATE learned SET state = x'00'")
    with pytest.raises(RunError, match=r"live\.sqlite: is damaged"), opened(small_run, tmp_path):
        pass


# ---- how ranges go out ------------------------------------------------------------------------------------


def forecast_with_ranges() -> Forecast:
    values = np.array([[50.0, 51.0], [np.nan, 60.0]])
    low, high = values - 2.00004, values + 3.25
    low[1], high[1] = np.nan, np.nan
    ranges = {80: np.stack([low, high]), 95: np.stack([low - 1, high + 1])}
    quality, last = np.array([0, QUALITIES.index("fallback")]), np.array([600, -1])
    return Forecast(("a", 'b "c"'), Zone(utc=True), 300, 600, 601.0, 900.0, values, quality, last, ranges)


def test_ranges_are_in_json_csv_and_observations() -> None:
    made = forecast_with_ranges()
    found = json.loads(made.json(0))["sensors"]
    assert found["a"]["values"] == [50, 51]
    assert found["a"]["intervals"] == {
        "80": {"low": [48, 49], "high": [53.25, 54.25]},
        "95": {"low": [47, 48], "high": [54.25, 55.25]},
    }
    assert found['b "c"'] == {"quality": "fallback", "lastReading": None, "values": [None, 60]}
    assert json.loads(made.json(0, {"a"}))["sensors"] == {"a": found["a"]}
    lines = made.csv(made.made).decode().splitlines()
    assert lines[0].endswith("stale,low_80,high_80,low_95,high_95")
    assert lines[1].startswith("a,1970-01-01T00:15:00Z,50.0000,full,")
    assert lines[1].endswith(",no,48.0000,53.2500,47.0000,54.2500")
    assert lines[3].startswith('"b ""c""",1970-01-01T00:15:00Z,,fallback,,')
    assert lines[3].endswith(",no,,,,")
    observation = json.loads(dict(made.observations())["a"])
    assert observation["result"] == [50, 51]
    assert observation["parameters"]["intervals"] == found["a"]["intervals"]
    assert "intervals" not in json.loads(dict(made.observations())['b "c"'])["parameters"]


def test_the_service_gives_ranges_and_what_the_watch_has_seen(small_run: SmallRun, tmp_path: Path) -> None:
    settings = LiveSettings(data=small_run.folder, state=tmp_path, clock=FEED, deadline=250)
    with serving(small_run.run, settings) as (_, client):
        for row in range(KNOWN, KNOWN + 6):
            sent = small_run.full_row(row)
            assert client.post(sent).status == 200
            found = client.forecast_after(sent["time"])
        for told in found["sensors"].values():
            for level in LEVELS:
                low, high = (np.array(told["intervals"][str(level)][side]) for side in ("low", "high"))
                assert low.shape == high.shape == (len(told["values"]),)
                assert (low < high).all()
        csv = client.get("/forecasts?format=csv").body.decode().splitlines()
        assert csv[0].endswith("low_80,high_80,low_95,high_95")
        assert not csv[1].endswith(",")
        watched = client.get("/watch").json
        assert set(watched["sensors"]) == set(small_run.data.readings.ids)
        assert watched["overall"]["count"] > 0
        assert 0 <= watched["overall"]["coverage"]["80"] <= watched["overall"]["coverage"]["95"] <= 1
        exposed = client.get("/metrics").body.decode()
        found = re.findall(r'^cnfgnn_live_coverage{level="80"} (\S+)', exposed, re.MULTILINE)
        assert float(found[0]) == pytest.approx(watched["overall"]["coverage"]["80"], abs=1e-4)


def test_a_silent_sensor_is_an_event_a_log_line_and_in_the_health(
    small_run: SmallRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = LiveSettings(data=small_run.folder, state=tmp_path, clock=FEED, deadline=100, speed=3000)
    with serving(small_run.run, settings) as (_, client):
        connection = http.client.HTTPConnection(client.host, timeout=240)
        connection.request("GET", "/events", headers=client.headers)
        stream = connection.getresponse()
        for row in range(KNOWN, KNOWN + 8):
            sent = small_run.full_row(row)
            del sent["values"]["s1"]
            client.post(sent)
            client.forecast_after(sent["time"])
        line = b""
        while not (line.startswith(b"data: ") and b'"sensor": "s1"' in line):
            kind, line = line, stream.readline()
            assert line
        assert kind == b"event: alarms\n"
        [alarm] = [told for told in json.loads(line[6:])["alarms"] if told["sensor"] == "s1"]
        assert alarm["kind"] == "silent"
        assert alarm["since"] == small_run.row(KNOWN - 1)["time"]
        assert alarm["text"] == f"silent since {alarm['since']}: no reading that can be used"
        assert client.get("/watch").json["sensors"]["s1"]["alarms"] == [alarm["text"]]
        assert client.get("/health").json["alarms"] >= 1
        sent = small_run.full_row(KNOWN + 8)
        client.post(sent)
        client.forecast_after(sent["time"])
        assert client.get("/watch").json["sensors"]["s1"]["alarms"] == []
        connection.close()
    assert f"alarm: s1: {alarm['text']}" in caplog.text
    assert "over: s1: silent" in caplog.text
