"""The service as a process: killed at any moment, fed by files, ended by a signal."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cnfgnn.data.files.folder import load
from cnfgnn.data.readings import rows_of
from cnfgnn.files import write_whole
from cnfgnn.runs.forecast import forecast_run
from tests.commands import COMMAND, ENVIRONMENT, said
from tests.live.small_service import KNOWN, LiveCommand, SmallRun, check_forecast, make_small_run
from tests.waiting import wait_for

FAST = ("--clock", "feed", "--speed", "100", "--deadline", "1", "--poll", "0.05")
PATIENT = ("--clock", "feed", "--deadline", "250")  # a forecast is made when the last reading is there


def started(small: SmallRun, state: Path, options: tuple[str, ...] = FAST) -> LiveCommand:
    return LiveCommand(small.run.folder, "--data", small.folder, "--state", state, *options)


def values_of(found: dict[str, Any]) -> dict[str, Any]:
    """What a forecast is about, without when it was made."""
    return {name: found[name] for name in ("step", "lastReading", "times", "sensors")}


# ---- kill -9 ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kill_9_loses_no_reading_and_changes_no_forecast(small_run: SmallRun, tmp_path: Path) -> None:
    """One process is killed again and again while readings arrive; another one is left alone."""
    undisturbed = started(small_run, tmp_path / "undisturbed", PATIENT)
    killed = started(small_run, tmp_path / "killed", PATIENT)
    chance = random.Random(1)
    acknowledged: dict[tuple[str, str], float] = {}
    try:
        for row in range(KNOWN, KNOWN + 7):
            sent = small_run.full_row(row)
            undisturbed.client.post(sent)
            if row % 2:
                killed = _killed_while_sending(
                    killed, small_run, tmp_path / "killed", sent, chance, acknowledged
                )
            else:
                assert killed.client.post(sent).status == 200
            expected = undisturbed.client.forecast_after(sent["time"])
            assert values_of(killed.client.forecast_after(sent["time"])) == values_of(expected)
            assert all("intervals" in told for told in expected["sensors"].values())
            assert killed.client.get("/watch").json == undisturbed.client.get("/watch").json
        assert undisturbed.client.get("/watch").json["overall"]["rmse"] > 0
        killed.end(signal.SIGKILL)
        with sqlite3.connect(tmp_path / "killed" / "live.sqlite") as database:
            kept = {(t, s): v for t, s, v in database.execute("SELECT time, sensor, value FROM readings")}
        database.close()
        seconds = {time: int(np.datetime64(time, "s").astype(int)) for time, _ in acknowledged}
        assert acknowledged
        for (moment, sensor), value in acknowledged.items():
            assert kept[seconds[moment], sensor] == value
    finally:
        killed.end(signal.SIGKILL)
        undisturbed.end()


def _killed_while_sending(
    service: LiveCommand,
    small: SmallRun,
    state: Path,
    sent: dict[str, Any],
    chance: random.Random,
    acknowledged: dict[tuple[str, str], float],
) -> LiveCommand:
    """Send reading by reading, kill the process at some moment, start it again and send the rest."""
    killer = threading.Timer(chance.random() * 0.1, service.process.kill)
    killer.start()
    left = dict(sent["values"])
    for sensor, value in sent["values"].items():
        try:
            answer = service.client.post({"sensor": sensor, "time": sent["time"], "value": value})
        except OSError:
            break
        assert answer.status == 200
        acknowledged[sent["time"], sensor] = value
        del left[sensor]
    killer.join()
    service.process.kill()
    service.end()
    again = started(small, state, PATIENT)
    if left:
        assert again.client.post({"time": sent["time"], "values": left}).status == 200
    return again


# ---- files ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_readings_come_from_a_file_that_grows_and_from_new_files(tmp_path: Path) -> None:
    small = make_small_run(tmp_path)
    service = started(small, tmp_path / "state")
    try:
        for row in range(KNOWN, KNOWN + 3):
            _append(small, row)
            found = service.client.forecast_after(small.row(row)["time"])
            check_forecast(found, small.run, small.until(row + 1))
        sent = small.row(KNOWN + 3)
        frame = pd.DataFrame([sent["values"]], index=pd.Index([sent["time"]], name="time"))
        frame.to_csv(small.folder / "readings-tuesday.csv")
        service.client.forecast_after(sent["time"])
        sent = small.row(KNOWN + 4)
        frame = pd.DataFrame([sent["values"]], index=pd.DatetimeIndex([sent["time"]], name="time"))
        frame.to_parquet(small.folder / ".new.parquet")
        (small.folder / ".new.parquet").rename(small.folder / "readings-wednesday.parquet")
        service.client.forecast_after(sent["time"])
    finally:
        service.end()


@pytest.mark.slow
def test_half_lines_wait_and_bad_lines_are_refused(tmp_path: Path) -> None:
    small = make_small_run(tmp_path)
    service = started(small, tmp_path / "state")
    file = small.folder / "readings.csv"
    try:
        with file.open("a", buffering=1) as opened:
            moment = small.row(KNOWN)["time"]
            opened.write(f"{moment},51.5,52.5,5")  # the end of the line, and of a number, is still missing
            opened.flush()
            size = file.stat().st_size
            state = tmp_path / "state" / "live.sqlite"
            wait_for(lambda: size_looked_at(state) == size, "the half line to be looked at")
            assert service.client.get("/forecasts").json.get("step", "") < moment  # there may be none yet
            opened.write("3.5,54.5,55.5,56.5\nnonsense\n")
            following = small.row(KNOWN + 1)["time"]
            opened.write(f"{following},51.0,wet,53.0,54.0,55.0,56.0\n")
            last = small.row(KNOWN + 2)["time"]
            opened.write(f"{last},41.0,42.0,43.0,44.0,45.0,46.0\n")
        found = service.client.forecast_after(last)
        qualities = [told["quality"] for told in found["sensors"].values()]
        assert qualities.count("full") == 4  # s4 has a gap before these rows: it and a neighbour are not full
        with sqlite3.connect(tmp_path / "state" / "live.sqlite") as database:
            kept = [v for (v,) in database.execute("SELECT value FROM readings ORDER BY time, sensor")]
        database.close()
        assert kept == [51.5, 52.5, 53.5, 54.5, 55.5, 56.5, 41.0, 42.0, 43.0, 44.0, 45.0, 46.0]
        counted = b'cnfgnn_live_readings_total{source="folder",verdict="unreadable line"} 2.0'
        assert counted in service.client.get("/metrics").body
    finally:
        _, errors = service.end()
    assert f"readings.csv, line {KNOWN + 3}: 1 fields, but the header has 7" in errors
    assert f"readings.csv, line {KNOWN + 4}, column 's1': 'wet' is not a number" in errors


def size_looked_at(database: Path) -> int | None:
    """The size of readings.csv when the service last looked at it."""
    with closing(sqlite3.connect(database)) as opened:
        found = opened.execute("SELECT state FROM files WHERE name = 'readings.csv'").fetchone()
    return None if found is None else int(json.loads(found[0])[1])


@pytest.mark.slow
def test_files_that_came_while_the_service_was_away_count_when_it_is_back(tmp_path: Path) -> None:
    small = make_small_run(tmp_path)
    service = started(small, tmp_path / "state")
    _append(small, KNOWN)
    service.client.forecast_after(small.row(KNOWN)["time"])
    service.end(signal.SIGKILL)
    _append(small, KNOWN + 1)
    sent = small.row(KNOWN + 2)
    frame = pd.DataFrame([sent["values"]], index=pd.Index([sent["time"]], name="time"))
    frame.to_csv(small.folder / "readings 2.csv")
    service = started(small, tmp_path / "state")
    try:
        found = service.client.forecast_after(sent["time"])
        check_forecast(found, small.run, small.until(KNOWN + 3))
    finally:
        service.end()


@pytest.mark.slow
def test_a_sensor_that_is_new_in_the_folder_is_served_without_a_restart_by_hand(tmp_path: Path) -> None:
    small = make_small_run(tmp_path)
    service = started(small, tmp_path / "state")
    try:
        before = pd.read_csv(small.folder / "readings.csv", index_col=0)
        with_new = before.assign(new=np.linspace(40.0, 60.0, len(before)))
        write_whole(small.folder / "readings.csv", with_new.to_csv().encode())
        wait_for(lambda: "refused" in service.client.get("/health").json, "the graph to lack it")
        positions = small.folder / "sensors.csv"
        positions.write_text(positions.read_text() + "new,34.5,-118.5\n")
        edges = small.folder / "edges.csv"
        edges.write_text(edges.read_text() + "s5,new,0.6\nnew,s1,0.4\n")
        _append(small, KNOWN, new=61.0)

        def is_served() -> bool:
            with suppress(OSError, KeyError):
                return "new" in service.client.get("/forecasts").json["sensors"]
            return False

        wait_for(is_served, "the new sensor to be served")  # at the same address
        _append(small, KNOWN + 1, new=62.0)
        found = service.client.forecast_after(small.row(KNOWN + 1)["time"])
        assert found["sensors"]["new"]["quality"] == "full"
        data = load(small.folder)
        known = forecast_run(small.run, replace(data, readings=rows_of(data.readings, slice(0, KNOWN + 1))))
        assert list(known.columns) == list(found["sensors"])
    finally:
        code, errors = service.end()
    assert code == 130
    assert "has no sensor 'new', which the readings have" in errors


def _append(small: SmallRun, row: int, **more: float) -> None:
    sent = small.row(row)
    cells = [sent["values"].get(sensor, "") for sensor in small.data.readings.ids] + list(more.values())
    with (small.folder / "readings.csv").open("a") as file:
        file.write(",".join([sent["time"], *map(str, cells)]) + "\n")


# ---- the commands -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(small_run: SmallRun, tmp_path: Path, number: int) -> None:
    service = started(small_run, tmp_path / "state")
    service.client.post(small_run.row(KNOWN))
    service.client.forecast_after(small_run.row(KNOWN)["time"])
    wait_for(lambda: (tmp_path / "state" / "latest.csv").exists(), "latest.csv")
    code, errors = service.end(number)
    others = [line for line in errors.splitlines() if " alarm: " not in line and " over: " not in line]
    assert (code, others) == (130, ["cnfgnn: stopped"])
    assert not list((tmp_path / "state").glob("*-wal"))  # the database is closed
    assert not list((tmp_path / "state").glob(".*.partial"))


@pytest.mark.slow
def test_recorded_readings_are_played_as_if_live(small_run: SmallRun, tmp_path: Path) -> None:
    from cnfgnn.data.files.export import write_folder

    recorded = tmp_path / "recorded"
    recorded.mkdir()
    write_folder(small_run.data, recorded)
    service = started(small_run, tmp_path / "state")
    first, last = small_run.row(KNOWN)["time"], small_run.row(KNOWN + 9)["time"]
    arguments = ["replay", recorded, "--to", f"http://{service.client.host}", "--speed", "3000"]
    assert "needs a token: its start line names the file for --token-file" in said(*arguments, fails=True)
    arguments += ["--token-file", tmp_path / "state" / "token"]
    try:
        begun = time.monotonic()
        output = said(*arguments, "--from", first, "--until", small_run.row(KNOWN + 10)["time"])
        assert time.monotonic() - begun >= 9 * 300 / 3000
        sent = sum(len(small_run.row(row)["values"]) for row in range(KNOWN, KNOWN + 10))
        assert output.splitlines()[-1] == f"{sent} readings were sent, {sent} were new"
        service.client.forecast_after(last)
    finally:
        service.end()
    problem = said(*arguments, fails=True)
    assert problem.startswith(f"http://{service.client.host}: does not answer")


def test_a_file_for_forecasts_that_cannot_be_written_is_refused_at_once(
    small_run: SmallRun, tmp_path: Path
) -> None:
    for place, why in (
        (tmp_path / "nowhere" / "latest.csv", "there is no such folder"),
        (tmp_path, "folder"),
    ):
        assert why in said("live", small_run.run.folder, "--latest", place, fails=True)


@pytest.mark.slow
def test_the_demo_shows_a_service_at_speed(tmp_path: Path) -> None:
    command = [*COMMAND, "live", "demo", "--out", str(tmp_path), "--once", "--speed", "36000", "--port", "0"]
    done = subprocess.run(
        [*command, "--steps", "12"], capture_output=True, text=True, env=ENVIRONMENT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("live on http://127.0.0.1:")
    assert "12 steps were played in" in done.stdout
    assert "24 full" in done.stdout
    latest = (tmp_path / "live" / "latest.csv").read_text().splitlines()
    assert len(latest) == 1 + 24 * 12


def test_without_the_extra_one_sentence_says_what_to_install(small_run: SmallRun, tmp_path: Path) -> None:
    """Importing cnfgnn and every other command work without it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('starlette', 'uvicorn', 'paho', 'prometheus_client'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    code = "import cnfgnn; from cnfgnn.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "live", str(small_run.run.folder)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 2
    assert done.stderr == (
        "cnfgnn: cnfgnn live: needs packages that are not installed (starlette, uvicorn, paho-mqtt,"
        " prometheus-client): pip install 'cnfgnn[live]'\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--clock", "sun"], "--clock: there is no clock 'sun' (valid: system, feed)"),
        (["--speed", "3"], "--speed: is for a recording"),
        (["--deadline", "-1"], "--deadline: must be from 0 to a day"),
        (["--timezone", "Mars"], "--timezone: there is no time zone 'Mars'"),
        (["--mqtt", "localhost"], "--mqtt: must be like mqtt://localhost:1883"),
        (["--mqtt-readings", "a/b"], "--mqtt: is needed with"),
        (["--token-file", "nowhere"], "nowhere: the token cannot be read"),
    ],
)
def test_settings_that_cannot_be_meant_get_one_sentence(
    small_run: SmallRun, arguments: list[str], says: str
) -> None:
    assert said("live", small_run.run.folder, *arguments, fails=True).startswith(says)
