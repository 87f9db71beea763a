"""`cnfgnn attack` as a user sees it: its table, its JSON and its error messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cnfgnn.cli.main import app
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.runs.folder import Run
from tests.commands import refused, said
from tests.conftest import network
from tests.tiny_runs import tiny

QUICKLY = ("--attacks", "series", "--sensors", 2, "--windows", 12, "--device", "cpu")


def test_it_prints_a_line_for_each_attack_beside_guesses(run_folders: list[Path]) -> None:
    printed = said("attack", run_folders[0], *QUICKLY)
    assert "at-fedavg, no blur: estimates of the readings of 2 sensors, test split" in printed
    for label in ("guess: each sensor's mean", "guess: the mean of all sensors", "whole series at once"):
        assert label in printed
    assert "it is not among those that are attacked" in printed
    assert "recording\n" in printed  # progress, on stderr


def test_the_same_as_json(run_folders: list[Path]) -> None:
    result = CliRunner().invoke(app, ["attack", str(run_folders[0]), *map(str, QUICKLY), "--json"])
    report = json.loads(result.stdout)
    assert report["split"] == "test"
    assert report["blur"] == 0
    assert report["colluding"] not in report["sensors"]
    assert [line["attack"] for line in report["lines"]] == ["guess", "guess", "series"]
    for line in report["lines"]:
        assert line["all"].keys() == {"rmse", "mae", "within_1", "within_3", "readings"}
        assert line["all"]["readings"] >= line["newest"]["readings"] > 0


@pytest.mark.slow
def test_problems_are_one_sentence_with_an_exit_code(
    run_folders: list[Path], city_data: Dataset, tmp_path: Path
) -> None:
    run = run_folders[0]
    Run.create(tmp_path / "begun", tiny("at-fedavg"), city_data)
    Run.create(tmp_path / "central", tiny("gru-central"), city_data)
    (tmp_path / "other").mkdir()
    write_folder(network(), tmp_path / "other")
    for arguments, code, sentence in (
        ([tmp_path], 4, "is not a run"),
        ([tmp_path / "begun"], 4, "has no finished round yet"),
        ([tmp_path / "central"], 4, "there is no server to attack"),
        ([run_folders[1]], 4, "gru-fedavg sends no hidden states"),
        ([run, "--colluding", "nobody"], 2, "there is no sensor 'nobody'"),
        ([run, "--attacks", "magic"], 2, "there is no attack 'magic'"),
        ([run, "--split", "tomorrow"], 2, "there is no split 'tomorrow'"),
        ([run, tmp_path / "other"], 2, "its sensors are not those of"),
    ):
        assert refused("attack", *arguments)[0] == code, arguments
        assert sentence in refused("attack", *arguments)[1]
