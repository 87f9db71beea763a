"""A live service receives readings alone: runs that need other inputs are refused, all others are served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cnfgnn.data.export import write_folder
from cnfgnn.data.folder import load
from cnfgnn.errors import ConfigError, DataError, RunError
from cnfgnn.live.engine import Engine, rows_of
from cnfgnn.live.start import LiveProcess, LiveSettings
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import forecast_run
from cnfgnn.runs.train import Unwatched, train_run
from tests.commands import said
from tests.conftest import network, small
from tests.live.small_service import serving
from tests.privacy.two_truths import with_inputs

ROWS, KNOWN = 130, 120


def trained(folder: Path, run: Path, **changes: object) -> Run:
    config = small("mlp-fedavg", **{"data.path": str(folder), "training.rounds": 1, **changes})
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


def test_a_run_with_other_inputs_is_refused_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    run = trained(folder, tmp_path / "run", **{"data.inputs": "flow,rain"})
    assert said("live", run.folder, "--port", "0", fails=True) == (
        f"{run.folder}: was trained with further inputs (variables: flow; covariates: rain), which a live"
        " service does not receive: train a run without them, with --set data.inputs=none"
    )
    assert not (run.folder / "live").exists()
    with pytest.raises(RunError, match="was trained with further inputs") as refused:
        Engine(run, load(folder))
    assert refused.value.exit_code == 4


def test_a_run_without_them_is_served_beside_files_of_inputs(folder: Path, tmp_path: Path) -> None:
    run, data = trained(folder, tmp_path / "run", **{"data.inputs": "none"}), load(folder)
    engine = Engine(run, replace(data, readings=rows_of(data.readings, slice(0, KNOWN))))
    np.testing.assert_allclose(
        engine.forecast(data.readings), forecast_run(run, data).to_numpy().T, rtol=1e-9
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
    settings = LiveSettings(data=folder, feed=True, deadline=250, poll=0.05)
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
