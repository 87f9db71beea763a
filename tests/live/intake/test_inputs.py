"""Runs that were trained with other variables and covariates are served: variables arrive like readings, by
the folder and by HTTP, and covariates are read from their files. What is forecast is what a command would."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cnfgnn.data.files.export import write_folder
from cnfgnn.data.files.folder import load
from cnfgnn.data.inputs import Input
from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.errors import ConfigError, DataError
from cnfgnn.live.forecasting.predictor import RunPredictor
from cnfgnn.live.intake.at_hand import at_hand
from cnfgnn.live.intake.replay import moments_of
from cnfgnn.live.intake.variables import VariableRows, newest_rows
from cnfgnn.live.options import FEED, LiveSettings
from cnfgnn.live.start import LiveProcess
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import forecast_run
from cnfgnn.runs.train import Unwatched, train_run
from tests.commands import said
from tests.conftest import network, small
from tests.live.small_service import Client, serving
from tests.privacy.two_truths import with_inputs
from tests.waiting import wait_for

ROWS, KNOWN = 130, 120


def trained(folder: Path, run: Path, method: str = "mlp-fedavg", **changes: object) -> Run:
    config = small(method, **{"data.path": str(folder), "training.rounds": 1, **changes})
    options = {name: getattr(config.data, name) for name in ("target", "inputs")}
    data = load(folder, **options)
    train_run(Run.create(run, config, data), data, Unwatched())
    return Run.open(run)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Readings with a variable and two covariates in files of their own."""
    data, folder = network(3, ROWS), tmp_path_factory.mktemp("inputs")
    write_folder(replace(data, readings=with_inputs(data.readings)), folder)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(folder, tmp_path_factory.mktemp("run") / "run", **{"data.inputs": "flow,rain"})


def lines_until(table: Path, row: int) -> str:
    """The head of a CSV file: its header and so many rows."""
    return "".join(table.read_text().splitlines(keepends=True)[: row + 1])


def row_of(table: Path, row: int) -> str:
    return table.read_text().splitlines(keepends=True)[row + 1]


@pytest.fixture
def growing(folder: Path, tmp_path: Path) -> Path:
    """The folder as it was after the known rows, with a forecast of rain."""
    grown = tmp_path / "growing"
    shutil.copytree(folder, grown)
    for name in ("readings.csv", "variables/flow.csv"):
        (grown / name).write_text(lines_until(folder / name, KNOWN))
    return grown


def forecast_of(run: Run, folder: Path, rows: int) -> pd.DataFrame:
    """What the command forecasts after so many rows."""
    data = load(folder, inputs="flow,rain")
    return forecast_run(run, replace(data, readings=rows_of(data.readings, slice(0, rows))))


def compare(found: Any, expected: pd.DataFrame) -> None:
    """All sensors but one, which has sent nothing of late."""
    by_model = {sensor: made for sensor, made in found["sensors"].items() if made["quality"] != "fallback"}
    assert sorted(by_model) == ["s0", "s2"]
    for sensor, made in by_model.items():
        np.testing.assert_allclose(made["values"], expected[sensor], atol=1e-3)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("mlp-fedavg", {"privacy.inputs": "flow=70"}),
        ("cnfgnn-private", {"privacy.blur": 3.0, "privacy.inputs": "flow=70, rain=public, holiday=public"}),
    ],
)
def test_a_live_forecast_from_other_inputs_is_that_of_the_command(
    folder: Path, tmp_path: Path, method: str, changes: dict[str, object]
) -> None:
    run, data = trained(folder, tmp_path / "run", method=method, **changes), load(folder)
    predictor = RunPredictor(run, replace(data, readings=rows_of(data.readings, slice(0, KNOWN))))
    for rows in (KNOWN + 1, KNOWN + 4):
        known = replace(data, readings=rows_of(data.readings, slice(0, rows)))
        expected = forecast_run(run, known).to_numpy().T
        np.testing.assert_allclose(predictor.forecast(known.readings), expected, rtol=1e-6, atol=1e-6)


def test_variables_arrive_by_the_folder_and_covariates_are_read_again(
    folder: Path, growing: Path, run: Run
) -> None:
    rain = growing / "covariates" / "rain.csv"
    rain.write_text(lines_until(folder / "covariates" / "rain.csv", KNOWN // 6))
    settings = LiveSettings(data=growing, clock=FEED, deadline=250, poll=0.05)
    with serving(run, settings) as (process, client):
        times = load(folder).readings.times
        client.forecast_after(f"{times[KNOWN - 1]}")
        assert "covariate rain is not known from" in client.get("/health").json["problems"]["covariates"]
        rain.write_text((folder / "covariates" / "rain.csv").read_text())
        recent = process.service.recent
        wait_for(lambda: len(recent.covariates["rain"].readings.times) > KNOWN, "the new rain")
        # The readings alone are not enough before the deadline: the flow is still expected.
        with (growing / "readings.csv").open("a") as table:
            table.write(row_of(folder / "readings.csv", KNOWN))
        wait_for(lambda: recent.newest == times[KNOWN].astype(np.int64), "the readings")
        assert client.get("/forecasts").json["step"] == f"{times[KNOWN - 1]}"
        with (growing / "variables" / "flow.csv").open("a") as table:
            table.write(row_of(folder / "variables" / "flow.csv", KNOWN))
        found = client.forecast_after(f"{times[KNOWN]}")
        compare(found, forecast_of(run, folder, KNOWN + 1))
        assert "covariates" not in process.service.problems


def test_variables_arrive_by_http_and_survive_a_restart(
    folder: Path, growing: Path, run: Run, tmp_path: Path
) -> None:
    data = load(folder, inputs="flow,rain")
    readings, flow = data.readings, data.readings.others[0].readings
    settings = LiveSettings(data=growing, state=tmp_path / "state", clock=FEED, deadline=250)

    def row(of: Readings, at: int, **named: str) -> dict[str, Any]:
        values = zip(of.ids, of.values[at].tolist(), strict=True)
        there = {sensor: value for sensor, value in values if not np.isnan(value)}
        return {"time": f"{of.times[at]}", "values": there, **named}

    with serving(run, settings) as (_, client):
        flows = row(flow, KNOWN, variable="flow")
        assert client.post([flows, row(readings, KNOWN)]).status == 200
        compare(client.forecast_after(f"{readings.times[KNOWN]}"), forecast_of(run, folder, KNOWN + 1))
        assert client.post(flows).json["repeated"] == len(flows["values"])
        refused = client.post(row(flow, KNOWN, variable="humidity"))
        assert refused.status == 422
        assert refused.json["refused"][0] | {"sensor": ""} == {
            "sensor": "",
            "time": f"{readings.times[KNOWN]}",
            "reason": "unknown variable",
            "variable": "humidity",
        }
        assert client.post({**flows, "variable": 3}).status == 400
    with serving(run, settings) as (_, client):  # the next row: flow as CSV, the reading as an Observation
        header = lines_until(folder / "variables" / "flow.csv", 0)
        body = header + row_of(folder / "variables" / "flow.csv", KNOWN + 1)
        sent = client.ask("POST", "/readings?variable=flow", body, Content_Type="text/csv")
        assert sent.status == 200
        observations = [
            {"phenomenonTime": f"{readings.times[KNOWN + 1]}", "result": v, "parameters": {"sensor": sensor}}
            for sensor, v in row(readings, KNOWN + 1)["values"].items()
        ]
        assert client.post(observations).status == 200
        compare(client.forecast_after(f"{readings.times[KNOWN + 1]}"), forecast_of(run, folder, KNOWN + 2))
    [kept, _] = at_hand(
        run, LiveSettings(data=growing), tmp_path / "state", all_stored=True
    ).data.readings.others
    np.testing.assert_array_equal(kept.readings.values, flow.values[: KNOWN + 2])


def test_an_input_that_is_not_in_the_folder_is_asked_for(growing: Path, run: Run, tmp_path: Path) -> None:
    (growing / "covariates" / "rain.csv").unlink()
    says = said("live", run.folder, "--data", growing, "--state", tmp_path / "state", fails=True)
    assert "there is no variable or covariate 'rain'" in says


@pytest.mark.parametrize("name", ["variables/flow.csv", "covariates/rain.csv"])
def test_a_service_starts_again_without_an_input_and_takes_it_up_when_it_is_back(
    growing: Path, run: Run, tmp_path: Path, name: str
) -> None:
    settings = LiveSettings(data=growing, state=tmp_path / "state", clock=FEED, poll=0.05)
    with serving(run, settings) as (process, _):
        recent = process.service.recent
        expected = recent.until(recent.newest).others
    content = (growing / name).read_bytes()
    (growing / name).unlink()
    with serving(run, settings) as (process, client):
        assert Path(name).stem in client.get("/health").json["refused"]["last"][0]
        (growing / name).write_bytes(content)
        recent = process.service.recent

        def is_back() -> bool:
            found = recent.until(recent.newest).others
            seconds = recent.newest - 300 * np.arange(20)
            pairs = [
                (a.at(seconds).values, b.at(seconds).values) for a, b in zip(found, expected, strict=True)
            ]
            return all(np.array_equal(*pair, equal_nan=True) for pair in pairs)

        wait_for(is_back, "the input")


@pytest.mark.parametrize("name", ["variables/flow.csv", "sensors.csv"])
def test_a_pipe_in_the_place_of_a_file_blocks_neither_a_start_nor_a_service(
    growing: Path, run: Run, tmp_path: Path, name: str
) -> None:
    settings = LiveSettings(data=growing, state=tmp_path / "state", clock=FEED, poll=0.05)

    def told(client: Client) -> str:
        health = client.get("/health").json
        return str([health.get("refused"), health.get("problems")])

    with serving(run, settings) as (process, client):
        wait_for(process.service.store.files, "the first look")
        (growing / name).unlink()
        os.mkfifo(growing / name)
        if "/" in name:
            wait_for(lambda: f"{name}: is not a file" in told(client), "the pipe to be noticed")
        assert client.post({"sensor": "s0", "time": "2024-01-01T10:00", "value": 50}).status == 200
    with serving(run, settings) as (_, client):
        assert f"{name}: is not a file" in told(client)


def test_a_run_without_them_is_served_beside_files_of_inputs(folder: Path, tmp_path: Path) -> None:
    run, data = trained(folder, tmp_path / "run", **{"data.inputs": "none"}), load(folder)
    predictor = RunPredictor(run, replace(data, readings=rows_of(data.readings, slice(0, KNOWN))))
    np.testing.assert_allclose(
        predictor.forecast(data.readings), forecast_run(run, data).to_numpy().T, rtol=1e-9
    )


def test_the_variable_to_forecast_is_read_from_a_long_table_of_several(tmp_path: Path) -> None:
    """From the file when the service starts, from new lines of it, and from uploads."""
    data, folder = network(3, ROWS, dropout=0.0), tmp_path / "data"
    folder.mkdir()
    write_folder(data, folder)
    header, rows = "time,station,speed,flow\n", []
    for time, values in zip(data.readings.times, data.readings.values, strict=True):
        rows.append("".join(f"{time},{i},{v!s},7\n" for i, v in zip(data.readings.ids, values, strict=True)))
    table = folder / "readings.csv"
    table.write_text(header + "".join(rows[:KNOWN]))
    run = trained(folder, tmp_path / "run", **{"data.target": "speed", "data.inputs": "none"})
    settings = LiveSettings(data=folder, clock=FEED, deadline=250, poll=0.05)
    with serving(run, settings) as (_, client):
        with table.open("a") as opened:
            opened.write(rows[KNOWN])
        client.forecast_after(f"{data.readings.times[KNOWN]}")
        assert client.post(header + rows[KNOWN + 1], "text/csv").json["stored"] == 3
        found = client.forecast_after(f"{data.readings.times[KNOWN + 1]}")
    before = replace(data, readings=rows_of(data.readings, slice(0, KNOWN + 2)))
    expected = forecast_run(run, before)
    for sensor, made in found["sensors"].items():
        np.testing.assert_allclose(made["values"], expected[sensor], atol=1e-3)


def test_a_variable_that_is_not_in_the_file_of_readings_is_refused(folder: Path, tmp_path: Path) -> None:
    run = trained(folder, tmp_path / "run", **{"data.target": "flow", "data.inputs": "none"})
    with pytest.raises(ConfigError, match=r"^data.target: .*readings.csv holds, and not 'flow'"):
        LiveProcess(run, LiveSettings(port=0))
    only_variables = tmp_path / "only"
    only_variables.mkdir()
    (only_variables / "variables").symlink_to(folder / "variables")
    with pytest.raises(DataError, match="its readings are in the folder variables"):
        LiveProcess(run, LiveSettings(port=0, data=only_variables))


def test_values_of_a_variable_stay_at_their_times_when_older_rows_are_dropped() -> None:
    """A value at another time would get another blurred copy at a site, and two copies reveal it."""
    times = np.arange(20).astype("datetime64[s]")
    values = np.full((20, 2), np.nan, dtype=np.float32)
    values[:, 0], values[3, 1] = np.arange(20), 7  # the second sensor has been silent for long
    of = Readings(times, ("a", "b"), values, np.isnan(values))
    rows = VariableRows(Input("flow", False, of), newest=19, span=4)
    kept = rows.input()
    assert kept.readings.times.astype(int).tolist() == [3, 15, 16, 17, 18, 19]
    for second in range(20, 40):
        rows.put(second, 0, second)
    kept = rows.input()
    assert len(kept.readings.times) < 12
    for time, row in zip(kept.readings.times.astype(int), kept.readings.values, strict=True):
        assert row[0] == time
    assert kept.at(np.array([39])).values[:, 0].tolist() == [39, 7]
    nothing = replace(of, values=np.full_like(values, np.nan), missing=np.ones_like(of.missing))
    assert len(newest_rows(nothing, 30).times) == 1


def test_what_is_played_is_in_the_order_of_time_and_without_covariates(folder: Path) -> None:
    readings = load(folder).readings
    between = readings.times[:-1] + np.timedelta64(60, "s")
    flow = replace(rows_of(readings.others[0].readings, slice(0, ROWS - 1)), times=between)
    later = replace(readings, others=(replace(readings.others[0], readings=flow), *readings.others[1:]))
    found = moments_of(later, since=readings.times[KNOWN], until=readings.times[KNOWN + 1])
    assert [[row.variable for row in found[moment]] for moment in sorted(found)] == [[""], ["flow"]]
    together = moments_of(readings)
    assert {tuple(row.variable for row in rows) for rows in together.values()} == {("", "flow")}


@pytest.mark.slow
def test_recorded_variables_are_played_to_a_service_that_uses_them(
    folder: Path, growing: Path, run: Run, tmp_path: Path
) -> None:
    data = load(folder, inputs="flow")
    readings, flow = data.readings, data.readings.others[0].readings
    played = [
        "--speed",
        "3000",
        "--from",
        f"{readings.times[KNOWN]}",
        "--until",
        f"{readings.times[KNOWN + 2]}",
    ]
    rows = slice(KNOWN, KNOWN + 2)
    counts = [int((~np.isnan(of.values[rows])).sum()) for of in (readings, flow)]

    def token_of(state: str) -> list[object]:
        return ["--token-file", tmp_path / state / "token"]

    with serving(run, LiveSettings(data=growing, state=tmp_path / "a", clock=FEED, deadline=250)) as (
        _,
        client,
    ):
        says = said("replay", folder, "--to", f"http://{client.host}", *played, *token_of("a"))
        assert says.splitlines()[-1] == f"{sum(counts)} readings were sent, {sum(counts)} were new"
        assert "not played: holiday, rain; the service reads covariates from its own files" in says
        compare(client.forecast_after(f"{readings.times[KNOWN + 1]}"), forecast_of(run, folder, KNOWN + 2))
    without = trained(growing, tmp_path / "run", **{"data.inputs": "none"})
    settings = LiveSettings(data=growing, state=tmp_path / "b", clock=FEED, deadline=250)
    with serving(without, settings) as (_, client):
        says = said("replay", folder, "--to", f"http://{client.host}", *played, *token_of("b"))
        assert "the service does not use: flow" in says
        assert f" readings were sent, {counts[0]} were new" in says
