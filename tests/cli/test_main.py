"""The command line as a user sees it: what it prints, where it writes, how it ends."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.text import Text
from typer.main import get_command
from typer.testing import CliRunner

from cnfgnn.cli.main import app
from cnfgnn.errors import DataError, MachineError
from cnfgnn.runs.folder import Run
from tests.commands import COMMAND, ENVIRONMENT, said
from tests.waiting import WITHIN, wait_for

SMALL = [f"--set=model.{name}=4" for name in ("hidden", "embedding")] + ["--set=model.gn_widths=[6, 5]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A person's folder: hourly readings with gaps, text ids, no edges."""
    place = tmp_path_factory.mktemp("data") / "harbour"
    said("data", "synthesize", place, "--sensors", 4, "--days", 3)
    frame = pd.read_csv(place / "readings.csv", index_col="time", parse_dates=["time"])
    hourly = frame.resample("15min").mean()
    hourly.columns = pd.Index(["north quay", "south quay", "bridge", "town hall"])
    hourly.iloc[20:26, 1] = float("nan")
    hourly = hourly.drop(hourly.index[40:45])  # a hole in time
    hourly.to_csv(place / "readings.csv")
    sensors = pd.read_csv(place / "sensors.csv")
    sensors["id"] = hourly.columns
    sensors.to_csv(place / "sensors.csv", index=False)
    (place / "edges.csv").unlink()
    return place


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    said("train", folder, "--out", out, "--set=training.rounds=2", *SMALL)
    return out


def test_a_newcomer_gets_from_a_folder_to_forecasts(folder: Path, run: Path, tmp_path: Path) -> None:
    described = json.loads(said("data", "describe", folder, "--json"))
    assert described["sensors"] == 4
    assert described["step_minutes"] == 15
    assert described["rows"] == 288
    assert 0 < described["missing"] < 0.1
    out = tmp_path / "forecasts.csv"
    assert "12 steps" in said("forecast", run, folder, "--out", out)
    frame = pd.read_csv(out, index_col="time", parse_dates=["time"])
    assert list(frame.columns) == ["north quay", "south quay", "bridge", "town hall"]
    last = pd.read_csv(folder / "readings.csv")["time"].iloc[-1]
    assert frame.index[0] - pd.Timestamp(last) == pd.Timedelta(minutes=15)
    assert frame.notna().all().all()


def test_forecasts_can_be_parquet(folder: Path, run: Path, tmp_path: Path) -> None:
    said("forecast", run, folder, "--out", tmp_path / "f.parquet")
    assert pd.read_parquet(tmp_path / "f.parquet").shape == (12, 4)
    assert "csv, .parquet" in said("forecast", run, folder, "--out", tmp_path / "f.xlsx", fails=True)


def test_a_run_remembers_its_data(run: Path) -> None:
    events = Run.open(run).events()
    judged = json.loads(said("evaluate", run, "--json"))
    assert judged["overall"] == events[-1]["overall"]
    assert set(judged["per_node"]) == {"north quay", "south quay", "bridge", "town hall"}
    assert len(judged["per_step"]) == 12
    assert json.loads(said("evaluate", run, "--split", "train", "--json"))["overall"] != judged["overall"]
    simple = judged["baselines"]
    assert {"last value", "yesterday", "daily average", "ridge"} <= simple.keys()
    table = said("evaluate", run, "--per-node", "--per-step")
    best = min(simple, key=lambda name: simple[name]["masked_rmse"])
    assert f"masked RMSE of simple forecasts: last value {simple['last value']['masked_rmse']:.3f}, " in table
    wins = simple[best]["masked_rmse"] < judged["overall"]["masked_rmse"]
    assert (f"a simple forecast is better here: {best} has" in table) == wins
    assert "steps ahead" in table
    assert "town hall" in table
    assert "3 h ahead" in table


def test_runs_are_listed_with_what_is_wrong_with_them(run: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    (tmp_path / "good").symlink_to(run)
    listed = said("runs", tmp_path)
    assert "cnfgnn-plus" in listed
    assert "finished" in listed
    assert "damaged" in listed.replace("\n", "")
    (tmp_path / "none").mkdir()
    assert said("runs", tmp_path / "none") == f"no runs in {tmp_path / 'none'}\n"


def test_a_folder_of_runs_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["runs", str(tmp_path / "nowhere")])
    assert isinstance(result.exception, DataError)
    assert str(result.exception) == f"{tmp_path / 'nowhere'}: no such folder"


def test_an_unused_run_leaves_what_was_there_before(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "sub"
    mine.mkdir(parents=True)
    no_validation = ["--set=data.shares=[0.8, 0.0, 0.2]", *SMALL]
    assert "no validation windows" in said("train", folder, "--out", mine, *no_validation, fails=True)
    assert mine.is_dir()
    assert "no validation windows" in said(
        "train", folder, "--out", mine.parent / "a" / "b", *no_validation, fails=True
    )
    assert [path.name for path in mine.parent.iterdir()] == ["sub"]


def test_a_run_without_a_finished_round_can_be_neither_evaluated_nor_forecast(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    told = said("train", folder, "--out", out, "--set=training.client_lr=1e30", *SMALL, fails=True)
    assert "round 1 is not a number: begin a new run" in told
    for command in ("evaluate", "forecast"):
        assert "no finished round" in said(command, out, fails=True)


def test_a_folder_in_another_locale_is_trained_on_and_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Semicolons, decimal commas, Latin-1, days first, a zone: told once, kept, and used again by the run."""
    there, zone = tmp_path / "see", "--set=data.timezone=Europe/Zurich"
    there.mkdir()
    times = pd.date_range("2024-10-26", periods=120, freq="30min", tz="Europe/Zurich")
    values = [f"{10 + k % 48 / 10:.1f}".replace(".", ",") for k in range(len(times))]
    rows = [f"{time:%d.%m.%Y;%H:%M};{value};{value}" for time, value in zip(times, values, strict=True)]
    readings = there / "readings.csv"
    readings.write_bytes("\n".join(["Datum;Zeit;Zürich;Genève", *rows[::-1]]).encode("latin-1"))
    (there / "sensors.csv").write_bytes("id;lat;lon\nZürich;47,4;8,5\nGenève;46,2;6,1\n".encode("latin-1"))
    told = said("data", "describe", there, fails=True)
    assert "readings.csv, line " in told
    assert "--set data.timezone=Europe/Paris" in told
    described = json.loads(said("data", "describe", there, zone, "--json"))
    assert (described["times"], described["rows"], described["missing"]) == ("UTC", 120, 0)
    for part in ("semicolons", "decimal commas", "Latin-1", "day-first", "'Zeit'", "Zurich", "reversed"):
        assert part in described["understood"]
    run = tmp_path / "run"
    batches = [f"--set=training.{name}_batch=16" for name in ("client", "server")]
    monkeypatch.chdir(tmp_path)
    told = said("train", "see", zone, "--out", run, "--set=training.rounds=1", *batches, *SMALL)
    assert f"see/readings.csv: {described['understood']}" in told.splitlines()
    start = json.loads((run / "events.jsonl").read_text().splitlines()[0])
    assert "; ".join(start["data"]["understood"]) == described["understood"]
    readings.write_bytes(
        "\n".join(["Datum;Zeit;Zürich;Genève", *rows[:30]]).replace("26.10.", "05.10.").encode()
    )
    assert "--set data.dates=day-first" in said(
        "forecast", run, there, "--out", tmp_path / "f.csv", fails=True
    )
    said("forecast", run, there, "--set=data.dates=day-first", "--out", tmp_path / "f.csv")
    assert pd.read_csv(tmp_path / "f.csv")["time"].iloc[0] == "2024-10-05 13:00:00+00:00"


@pytest.mark.slow
def test_times_with_an_offset_are_converted_to_utc(folder: Path, run: Path, tmp_path: Path) -> None:
    there = tmp_path / "zoned"
    there.mkdir()
    frame = pd.read_csv(folder / "readings.csv")
    frame["time"] = [f"{time}+02:00" for time in frame["time"]]
    frame.to_csv(there / "readings.csv", index=False)
    (there / "sensors.csv").write_bytes((folder / "sensors.csv").read_bytes())
    assert json.loads(said("data", "describe", there, "--json"))["times"] == "UTC"
    assert "times are in UTC, but" in said("forecast", run, there, fails=True)  # the run's have no time zone
    out = tmp_path / "run"
    said("train", there, "--out", out, "--set=training.rounds=1", *SMALL)
    said("forecast", out, there, "--out", tmp_path / "f.csv")
    first = pd.read_csv(tmp_path / "f.csv")["time"].iloc[0]
    assert first.endswith("+00:00")
    assert pd.Timestamp(first) - pd.Timestamp(frame["time"].iloc[-1]) == pd.Timedelta(minutes=15)


def test_few_rows_can_be_described(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "readings.csv").read_text().splitlines()[:15]
    (tmp_path / "readings.csv").write_text("\n".join(lines))
    (tmp_path / "sensors.csv").write_bytes((folder / "sensors.csv").read_bytes())
    assert json.loads(said("data", "describe", tmp_path, "--json"))["train_windows"] == 0


def test_settings_are_printed_as_a_file_that_can_be_used(tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    file.write_text(said("settings", "--method", "gru-local", "--size", "727k"))
    out = tmp_path / "run"
    tiny = ["--set=city.sensors=2", "--set=city.days=2", "--set=model.hidden=3", "--set=training.rounds=1"]
    said("train", "--config", file, "--out", out, *tiny)
    assert Run.open(out).config.model.layers == 2


def test_no_word_of_the_help_is_taken_for_markup() -> None:
    """A terminal would not show a word in square brackets."""

    def texts(command: Any) -> Iterator[str]:
        yield command.help or ""
        yield from (option.help or "" for option in command.params if hasattr(option, "help"))
        for one in getattr(command, "commands", {}).values():
            yield from texts(one)

    swallowed = [text for text in texts(get_command(app)) if Text.from_markup(text).plain != text]
    assert swallowed == []


def test_methods_and_version_are_printed() -> None:
    assert "CNFGNN (AT + FedAvg)" in said("methods")
    assert said("--version").startswith("cnfgnn ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "nowhere"], "no such file or folder"),
        (["train", "--method", "cnn"], "there is no method 'cnn'"),
        (["train", "--set", "training.epochs=3"], "training.epochs: there is no setting 'epochs'"),
        (["train", "--set", "training.rounds=no"], "training.rounds: takes a whole number"),
        (["train", "--set", "method=at"], "method: give it as --method"),
        (["train", "--set", f"seed=1{'0' * 400}"], "seed: takes a whole number"),
        (["train", "--set", f"seed=1{'0' * 5000}"], "seed: takes a whole number"),
        (["train", "--set", "seed=100000000000000000000"], "seed: must be below 2^63"),
        (["train", "--set", "model.hidden=1000000000"], "model.hidden: must be at most 65536"),
        (["train", "--like", "mnist"], "metr-la, pems-bay"),
        (["train", "--device", "cuda:77"], "compute.device: 'cuda:77' is not available"),
        (["train", "--config", "nowhere.toml"], "nowhere.toml"),
        (["settings", "--method", "at", "--size", "727k"], "size: at has no size '727k' (valid: 63k)"),
        (["train", "--resume", "nowhere"], "is not a run"),
        (["evaluate", "nowhere"], "is not a run"),
        (["forecast", "nowhere"], "is not a run"),
        (["compare", "nowhere.toml"], "nowhere.toml"),
        (["data", "describe", "nowhere"], "no such file or folder"),
        (["data", "synthesize", ".", "--sensors", "3"], "already exists"),
        (["data", "synthesize", "new", "--sensors", "0"], "city.sensors"),
    ],
)
def test_an_error_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    told = said(*arguments, fails=True)
    assert sentence in told
    assert "\n" not in told
    assert [path.name for path in tmp_path.iterdir()] == ["something"]  # and nothing was left behind


def test_a_resumed_run_keeps_its_settings(run: Path) -> None:
    assert "keeps the settings" in said("train", "--resume", run, "--seed", 3, fails=True)


def test_a_new_run_gets_an_unused_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = ["--set=city.sensors=2", "--set=city.days=1", "--set=training.rounds=1", *SMALL]
    for _ in range(2):
        said("train", *tiny)
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_settings_come_from_preset_file_changes_and_options_in_that_order(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('method = "gru-fedavg"\nseed = 5\n[training]\nrounds = 7\npatience = 3\n')
    out = tmp_path / "run"
    tiny = ["--set=city.sensors=2", "--set=city.days=2", "--set=model.hidden=3", "--set=training.rounds=1"]
    said("train", "--config", file, "--seed", 6, "--out", out, *tiny)
    config = Run.open(out).config
    assert (config.method, config.seed, config.training.rounds, config.training.patience) == (
        "gru-fedavg",
        6,
        1,
        3,
    )
    assert config.training.client_batch == 256  # the preset's


# ---- real processes ---------------------------------------------------------------------------------------


def long_run(out: Path, *more: str) -> list[str]:
    tiny = [
        "--set=city.sensors=3",
        "--set=city.days=1",
        "--set=training.rounds=400",
        "--set=training.patience=400",
    ]
    return [*COMMAND, "train", "--out", str(out), *tiny, *SMALL, *more]


def has_trained(rounds: int, folder: Path, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the process ended before its time"
    return (folder / "manifest.json").exists() and len(Run.open(folder).progress.history) >= rounds


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_cleanly_and_nothing_is_lost(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(long_run(out), stderr=subprocess.PIPE, env=ENVIRONMENT)
    wait_for(lambda: has_trained(2, out, process), "two rounds")
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert f"train --resume {out}".encode() in errors
    assert len(Run.open(out).progress.history) >= 2


@pytest.mark.slow
def test_two_processes_cannot_train_one_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(long_run(out), stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    try:
        wait_for(lambda: has_trained(1, out, process), "a round")
        second = subprocess.run(
            [*COMMAND, "train", "--resume", str(out)], capture_output=True, env=ENVIRONMENT
        )
        assert second.returncode == 4
        assert second.stderr.decode().strip().endswith(f"is in use by process {process.pid}")
    finally:
        process.kill()
        process.wait()


def test_bad_input_is_one_line_and_exit_code_two(tmp_path: Path) -> None:
    (tmp_path / "readings.csv").write_text("time,a\n2024-01-01,1\n2024-01-01,x\n")
    done = subprocess.run([*COMMAND, "train", str(tmp_path)], capture_output=True, env=ENVIRONMENT)
    assert done.returncode == 2
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1
    assert "readings.csv, line 3, column 'a'" in lines[0]


@pytest.mark.slow
def test_a_terminal_gets_a_bar_with_rate_best_and_time_left(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        long_run(tmp_path / "run"),
        stderr=terminal,
        stdout=terminal,
        env=ENVIRONMENT | {"TERM": "xterm", "COLUMNS": "150"},
    )
    os.close(terminal)
    shown = b""
    end = time.monotonic() + WITHIN
    try:
        while not (b"best RMSE" in shown and b"minibatches/s" in shown and b"at most" in shown):
            assert time.monotonic() < end, shown[-2000:]
            if select.select([controller], [], [], 0.2)[0]:
                shown += os.read(controller, 65536)
    finally:
        process.kill()
        process.wait()
        os.close(controller)
    assert b"round " in shown


TOO_LARGE = """
import resource, sys
import numpy, torch, cnfgnn.api
from cnfgnn.cli.main import main
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = size + (256 << 20)  # enough to begin: what is to fail is the city, which takes more
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
large = ["--set", "city.sensors=5000", "--set", "city.days=60"]
sys.argv = ["cnfgnn", "train", *large, "--out", sys.argv[1]]
main()
"""


@pytest.mark.slow
def test_too_little_memory_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TOO_LARGE, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith("cnfgnn: the machine has too little memory: free some")
    )
    assert "Traceback" not in done.stderr


def test_a_failed_gpu_is_one_sentence() -> None:
    import torch

    lost = torch.AcceleratorError(
        "CUDA error: unspecified launch failure\nCompile with `TORCH_USE_CUDA_DSA`."
    )
    assert str(MachineError.of(lost)).endswith("see --resume (CUDA error: unspecified launch failure)")
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 73.00 GiB.\nmore")
    assert "compute.memory" in str(MachineError.of(full))
    assert MachineError.of(RuntimeError("a shape that does not fit")) is None
