"""`cnfgnn report` as a user sees it: what it writes, and its error messages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cnfgnn.cli.main import app
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.runs.folder import Run
from tests.commands import refused
from tests.conftest import network
from tests.tiny_runs import tiny


def test_it_writes_one_page_and_prints_its_path(run_folders: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", *map(str, run_folders), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert result.output == f"report {out}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert "<title>at-fedavg, gru-fedavg</title>" in out.read_text(encoding="utf-8")


def test_a_run_whose_data_are_gone_is_shown_without_them(
    run_folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copy = Path(shutil.copytree(run_folders[0], tmp_path / "copy"))
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(config.replace('path = "city"', 'path = "gone.h5"'))
    result = CliRunner().invoke(app, ["report", "copy"])
    assert result.exit_code == 0, result.output
    assert "copy: without forecasts, because gone.h5: no such file or folder" in result.output
    assert (tmp_path / "report.html").is_file()


def test_data_that_have_moved_can_be_named(data: Dataset, tmp_path: Path) -> None:
    write_folder(data, tmp_path)
    moved, out = tmp_path / "moved", tmp_path / "page.html"
    train = ["train", str(tmp_path), "--method", "gru-fedavg", "--out", str(tmp_path / "run")]
    small = ["--set=model.hidden=3", "--set=training.rounds=1", "--set=training.client_batch=32"]
    assert CliRunner().invoke(app, [*train, *small]).exit_code == 0
    moved.mkdir()
    for path in [p for p in tmp_path.iterdir() if p.is_file()]:
        shutil.move(path, moved)
    arguments = ["report", str(tmp_path / "run"), "--out", str(out)]
    assert "without forecasts" in CliRunner().invoke(app, arguments).output
    found = CliRunner().invoke(app, [*arguments, "--data", str(moved)])
    assert found.output == f"report {out}\n"


def test_bad_input_is_one_sentence_and_its_exit_code(
    run_folders: list[Path], city_data: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    Run.create(tmp_path / "begun", tiny("gru-fedavg"), city_data)
    write_folder(network(), tmp_path / "empty")
    out = tmp_path / "page.html"
    out.write_text("what was there")
    for arguments, expected, sentence in (
        ([tmp_path], 4, "is not a run"),
        ([run_folders[0], tmp_path / "nowhere"], 4, "is not a run"),
        ([tmp_path / "begun"], 4, "has no finished round yet"),
        ([run_folders[0], "--data", tmp_path / "empty"], 2, "its sensors are not those of"),
        ([run_folders[0], "--data", tmp_path / "nowhere"], 2, "no such file or folder"),
    ):
        code, told = refused("report", *arguments, "--out", out)
        assert code == expected
        assert sentence in told
    assert out.read_text() == "what was there"
    damaged = Path(shutil.copytree(run_folders[0], tmp_path / "damaged"))
    (damaged / "events.jsonl").write_bytes(b"")
    assert refused("report", damaged, "--out", out) == (
        4,
        f"{damaged / 'events.jsonl'}: is damaged: events that the run had written are gone",
    )


def test_a_folder_that_is_not_there_is_named_before_anything_is_done(
    run_folders: list[Path], tmp_path: Path
) -> None:
    code, told = refused("report", run_folders[0], "--out", tmp_path / "nowhere" / "page.html")
    assert code == 5
    assert "there is no such folder" in told


def test_a_folder_that_is_not_a_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    problem = f"{tmp_path}: is not a run: it has no manifest.json"
    assert refused("report", tmp_path, "--out", tmp_path / "page.html") == (4, problem)
    assert list(tmp_path.iterdir()) == []
