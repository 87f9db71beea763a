"""What looks wrong with readings is said where a person meets it: describe, train, forecast, check."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import cnfgnn
from cnfgnn.cli.main import app
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.quality import findings
from cnfgnn.runs.folder import Run
from tests.commands import said
from tests.conftest import network

SMALL = ["--set=training.rounds=1", "--set=model.hidden=3", "--set=model.embedding=2", "--device=cpu"]


def changed(data: Dataset, values: np.ndarray) -> Dataset:
    return replace(data, readings=replace(data.readings, values=values.astype(np.float32)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sensors, of which one has an absurd reading and one a code for missing readings."""
    place = tmp_path_factory.mktemp("data") / "mine"
    place.mkdir()
    data = network(4, dropout=0.0)
    values = data.readings.values.copy()
    values[70, 1], values[::10, 2] = 99999, -999
    write_folder(changed(data, values), place)
    return place


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    said("train", folder, "--out", out, "--set=data.missing_value=-999", *SMALL)
    return out


def test_describe_and_train_say_the_same_and_the_run_keeps_it(folder: Path, tmp_path: Path) -> None:
    expected = [str(finding) for finding in findings(cnfgnn.load(folder))]
    assert len(expected) == 2
    described = said("data", "describe", folder)
    trained = said("train", folder, "--out", tmp_path / "run", *SMALL)
    for sentence in expected:
        assert f"note: {sentence}\n" in described
        assert f"note: {sentence}\n" in trained
    as_json = json.loads(said("data", "describe", folder, "--json"))
    kept = Run.open(tmp_path / "run").events()[0]["data"]["findings"]
    assert [finding["message"] for finding in as_json["findings"]] == expected
    assert kept == as_json["findings"]


def test_settings_change_what_is_found_and_what_is_missing(folder: Path) -> None:
    named = json.loads(
        said(
            "data", "describe", folder, "--json", "--set=data.missing_value=-999", "--set=data.outliers=keep"
        )
    )
    assert [finding["kind"] for finding in named["findings"]] == ["spike"]
    assert named["missing"] == pytest.approx(15 / 600)
    assert named["latitude_from_to"][0] < named["latitude_from_to"][1]


def test_good_readings_are_described_without_a_note(tmp_path: Path) -> None:
    said("data", "synthesize", tmp_path / "city", "--sensors", 3, "--days", 2)
    assert "note:" not in said("data", "describe", tmp_path / "city")


def test_forecasts_from_another_unit_come_with_a_warning_on_stderr(run: Path, tmp_path: Path) -> None:
    data = network(4, dropout=0.0)
    place = tmp_path / "kelvin"
    place.mkdir()
    write_folder(changed(data, data.readings.values + 273.15), place)
    ended = CliRunner().invoke(app, ["forecast", str(run), str(place), "--out", str(tmp_path / "f.csv")])
    assert ended.exit_code == 0, ended.stderr
    assert "note: 4 sensors (s0, s1, s2 and 1 more): the newest readings lie far outside" in ended.stderr
    assert "another unit" in ended.stderr
    assert "note:" not in ended.stdout
    assert (tmp_path / "f.csv").exists()


def test_the_python_api_warns_and_is_silent_about_usual_readings(run: Path, folder: Path) -> None:
    data = network(4, dropout=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cnfgnn.forecast(run, data)
        cnfgnn.forecast(run, cnfgnn.load(folder))  # with the codes that the run takes for missing
    with pytest.warns(UserWarning, match="far outside those of training") as warned:
        cnfgnn.forecast(run, changed(data, data.readings.values * 10))
    assert warned[0].filename == __file__
