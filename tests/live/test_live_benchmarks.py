"""The benchmarks of the live service and of a live federation measure what they say, on small services."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.federation_live import Federation, Listener, latencies, resident
from benchmarks.live_place import Place
from benchmarks.watch import HOUR, planted, played

from cnfgnn.live.options import FEED, LiveSettings
from tests.conftest import HISTORY, network
from tests.live.small_service import KNOWN, SmallRun, serving
from tests.test_benchmarks import ran

STEP = 300


def test_planted_faults_are_what_they_are_called() -> None:
    hour, first, offset = HOUR // STEP, 24 * HOUR // STEP, 1.5
    data = network(8, first + 6 * 24 * hour, dropout=0.0)
    faulty, faults = planted(data.readings, first, STEP, offset)
    assert [fault.kind for fault in faults] == ["silent", "frozen", "drift"] * 2
    for column in (3, 7):
        np.testing.assert_array_equal(faulty.values[:, column], data.readings.values[:, column])
    for fault in faults:
        rows, before = slice(fault.begin, fault.end), data.readings.values[:, fault.column]
        values = faulty.values[:, fault.column]
        np.testing.assert_array_equal(values[: fault.begin], before[: fault.begin])
        assert fault.begin >= first + 72 * hour
        if fault.kind == "silent":
            assert faulty.missing[rows, fault.column].all()
            assert fault.end - fault.begin == 6 * hour
        elif fault.kind == "frozen":
            assert set(values[rows].tolist()) == {float(before[fault.begin - 1])}
            assert not faulty.missing[rows, fault.column].any()
        else:
            moved = (values - before)[-1] / before[:first].std()
            assert moved == pytest.approx(offset * (-1) ** (fault.column // 4), rel=1e-3)


def test_faults_of_hourly_readings_last_longer_than_a_history() -> None:
    data = network(4, 300, dropout=0.0)
    _, faults = planted(data.readings, 100, HOUR, 1.5)
    assert [fault.end - fault.begin for fault in faults if fault.kind != "drift"] == [36, 36]


def test_a_sensor_that_falls_silent_is_named_after_a_history(small_run: SmallRun) -> None:
    """By the watch of the service, with forecasts and ranges of the run; and nobody is while all send."""
    readings = small_run.data.readings
    filled = 50 + np.random.default_rng(0).normal(size=readings.values.shape)
    values = np.where(readings.missing, filled, readings.values).astype(np.float32)
    sending = replace(readings, values=values, missing=np.zeros_like(readings.missing))
    named = played(small_run.run, replace(small_run.data, readings=sending), KNOWN)
    assert not {kind for _, column, kind in named if column >= 0}
    missing = sending.missing.copy()
    missing[KNOWN + 7 :, 2] = True
    faulty = replace(sending, values=np.where(missing, np.nan, values), missing=missing)
    found = played(small_run.run, replace(small_run.data, readings=faulty), KNOWN)
    assert [alarm for alarm in found if alarm[1] >= 0] == [(KNOWN + 7 + HISTORY - 1, 2, "silent")]


@pytest.mark.slow
def test_the_latency_of_several_sites_is_that_of_the_last(small_run: SmallRun, tmp_path: Path) -> None:
    """Two services stand for the sites, each with all sensors: uploads, events and counting are the same."""
    ids, values = small_run.data.readings.ids, small_run.data.readings.values
    full = replace(small_run.data.readings, values=np.nan_to_num(values, nan=50.0).astype(np.float32))
    data = replace(small_run.data, readings=replace(full, missing=np.zeros_like(full.missing)))
    settings = LiveSettings(data=small_run.folder, clock=FEED, deadline=250)
    with ExitStack() as opened:
        names = ("one", "other")
        clients = {
            name: opened.enter_context(serving(small_run.run, replace(settings, state=tmp_path / name)))[1]
            for name in names
        }
        kind = {"Content-Type": "application/json"}
        places = {name: Place(client.host, client.headers | kind) for name, client in clients.items()}
        heard = {name: Listener(place) for name, place in places.items()}
        everybody = {name: range(len(ids)) for name in names}
        federation = Federation({}, everybody, data, places)
        rows = range(KNOWN, KNOWN + 4)
        found = latencies(federation, rows, heard)
    for one in heard.values():
        one.join(60)  # the stream ends with the service
        assert not one.is_alive()
    assert len(found["seconds"]) == len(rows)
    assert all(0 < seconds < 60 for seconds in found["seconds"])
    assert 0 < found["full"] <= len(rows) * len(names)
    steps = [str(data.readings.times[row]) for row in rows]
    assert all(step in one.arrived for one in heard.values() for step in steps)
    assert resident(os.getpid()) > 50


@pytest.mark.slow
def test_false_alarms_and_planted_faults_are_counted() -> None:
    done = ran("watch.py", "--sensors", 4, "--days", 14, "--rounds", 1, "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["sensor_days"] == pytest.approx(4 * 7)
    assert {kind: found["planted"] for kind, found in results["faults"].items() if found["planted"]} == {
        "silent": 1,
        "frozen": 1,
        "drift": 1,
    }
    for kind in ("silent", "frozen"):
        assert results["faults"][kind]["named"] == 1
        assert 0.5 < results["faults"][kind]["median_hours"] < 2
