"""`cnfgnn reproduce` as a user sees it: what it refuses, what it prints, and how it stops."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cnfgnn.algorithm.methods import Like
from cnfgnn.cli.progress import print_study
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.source import open_data
from cnfgnn.errors import ConfigError, StorageError
from cnfgnn.runs.folder import Run
from cnfgnn.studies.execute import finished_rows, run_in_parallel
from cnfgnn.studies.experiments import experiment_file
from cnfgnn.studies.lines import Study
from cnfgnn.studies.paper import _curve, forecasting, inductive
from cnfgnn.studies.plan import Plan, network_of
from cnfgnn.studies.tables import Column, Table
from tests import commands
from tests.commands import ENVIRONMENT, Unobserved
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

COMMAND = [*commands.COMMAND, "reproduce"]
TINY = ["--set=city.sensors=4", "--set=city.days=2", "--set=model.hidden=4", "--quick"]


def said(*arguments: object, fails: bool = False) -> str:
    """Of `cnfgnn reproduce`."""
    return commands.said("reproduce", *arguments, fails=fails)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forecasting and inductive, in one folder."""
    out = tmp_path_factory.mktemp("made") / "out"
    said("forecasting", *TINY, "--out", out)
    said("inductive", *TINY, "--out", out)
    return out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["forecast"], "there is no table 'forecast'"),
        (["forecasting", "nowhere.h5"], "no such file or folder"),
        (["forecasting", "--like", "london"], "metr-la, pems-bay"),
        (["forecasting", "--set", "training.epochs=3"], "there is no setting 'epochs'"),
        (["histograms", "--set", "city.sensor=3"], "there is no setting 'sensor'"),
        (["cost", "--quick", "--set", "city.sensor=3"], "there is no setting 'sensor'"),
        (["forecasting", "--set", "method=sl"], "method: forecasting.toml sets this"),
        (["forecasting", "--set", "size=727k"], "size: forecasting.toml sets this"),
        (["forecasting", "--set", "seed=7"], "seed: forecasting.toml sets this"),
        (["rounds", "--set", "training.server_rounds=2"], "rounds.toml sets this"),
        (["inductive", "--set", "training.seen=0.5"], "inductive.toml sets this"),
        (["deviations", "--set", "training.sampling=0"], "deviations.toml sets this"),
        (["strategies", "--done"], "has no finished run"),
        (["privacy", "--blurs", "0,five"], "--blurs: needs numbers, such as 0,2.5,10, not 0,five"),
        (["privacy", "--methods", "cnfgnn"], "privacy.toml has no method 'cnfgnn'"),
    ],
)
def test_an_error_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = said(*arguments, fails=True)
    assert sentence in told
    assert "\n" not in told
    assert not list(tmp_path.iterdir())  # and nothing was left behind


def test_studies_without_training_accept_settings(tmp_path: Path) -> None:
    assert "city-4" in said(
        "histograms", "--set=city.sensors=4", "--set=city.days=1", "--out", tmp_path / "o"
    )


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("metr-la", "metr-la"),
        ("METR_LA-29", "metr-la"),
        ("pems-bay.part", "pems-bay"),
        ("tampa-bay", None),
        ("parametric", None),
        ("city-24", None),
    ],
)
def test_only_the_papers_data_sets_have_published_numbers(
    name: str, network: Like | None, data: Dataset
) -> None:
    assert network_of(replace(data, name=name)) == network


def test_published_numbers_depend_on_the_data_not_on_the_settings(made: Path) -> None:
    plan = _tiny("forecasting")
    data = open_data(plan.cases()[0].config)
    rows = finished_rows(plan, data, made / "runs")
    table = forecasting(Study("forecasting", replace(data, name="metr-la"), "pems-bay", rows, [])).tables[0]
    assert next(c.label for c in table.columns if c.key == "published").endswith("all 207 sensors")
    assert table.rows[-1]["published"] == 11.487
    assert any("settings that were published for PEMS-BAY" in note for note in table.notes)


def test_runs_of_fewer_rounds_than_the_plan_has_are_named(made: Path) -> None:
    plan = _tiny("forecasting")
    data = open_data(plan.cases()[0].config)

    def notes(plan: Plan) -> str:
        return " ".join(
            Study("forecasting", data, "metr-la", finished_rows(plan, data, made / "runs"), []).notes()
        )

    assert "fewer rounds" not in notes(plan)
    assert "fewer rounds than the plan has now: gru-central," in notes(
        plan.with_changes({"training.rounds": 500})
    )


def test_shares_that_are_left_out_are_named(made: Path) -> None:
    plan = _tiny("inductive")
    data = open_data(plan.cases()[0].config)
    plan = replace(plan, changes=plan.changes | {"grid.training.seen": [0.5, 0.75, 0.9]})
    study = Study("inductive", data, "metr-la", finished_rows(plan, data, made / "runs"), [])
    assert any(note.endswith("would train: 5%, 25%.") for note in inductive(study).tables[0].notes)


def test_a_damaged_test_event_is_said_in_one_sentence(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(made, out)
    events = out / "runs" / "gru-local-seed1" / "events.jsonl"
    events.write_text(events.read_text().replace('"per_step"', '"per_stop"'))
    told = said("forecasting", *TINY, "--out", out, fails=True)
    assert told == f"{events}: is damaged: an entry is missing or has the wrong type"


def test_data_without_positions_are_refused_before_anything_is_begun(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    hours = [f"2024-01-{1 + k // 24:02d} {k % 24:02d}:00" for k in range(96)]
    rows = [f"{hour},{k % 7 + 1},{k % 5 + 1}" for k, hour in enumerate(hours)]
    (folder / "readings.csv").write_text("\n".join(["time,a,b", *rows]) + "\n")
    (folder / "edges.csv").write_text("from,to,weight\na,b,1\n")
    assert "no positions" in said("inductive", folder, "--out", tmp_path / "out", fails=True)
    assert not (tmp_path / "out").exists()


def test_finished_runs_are_shown_even_without_traffic(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "runs" / "gru-gn-central-seed1", tmp_path / "runs" / "gru-gn-central-seed1")
    assert "gru-gn-central" in said("strategies", *TINY, "--done", "--out", tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["strategies-curves.png"]


def test_learning_curves_show_the_errors_that_decide_the_best_round(made: Path) -> None:
    run = Run.open(made / "runs" / "at-fedavg-seed1")
    rounds = [done.validation for done in run.progress.history]
    assert _curve(run, "unmasked") == [errors.rmse for errors in rounds]
    assert _curve(run, "masked") == [errors.masked_rmse for errors in rounds]


def test_the_page_shows_the_papers_method_and_says_what_it_leaves_out(made: Path) -> None:
    page = (made / "forecasting.html").read_text()
    assert '"name":"at-fedavg-seed1"' in page
    assert "6 of 10 runs, one seed each" in page


def _tiny(name: str) -> Plan:
    changes = {"city.sensors": 4, "city.days": 2.0, "model.hidden": 4}
    return Plan.read(experiment_file(name)).quick().with_changes(changes)


# ---- what is printed --------------------------------------------------------------------------------------

WIDE = Table("wide", "Wide", [Column(f"c{k}", f"column {k}") for k in range(20)], [{"c0": "gru-gn-central"}])


def test_a_file_gets_every_column_of_a_wide_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_study(WIDE)
    printed = capsys.readouterr().out
    assert "gru-gn-central" in printed
    assert "column 19" in printed
    assert "…" not in printed


def test_a_terminal_gets_the_columns_that_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    print_study(WIDE)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "gru-gn-central" in printed
    assert "…" not in printed
    assert "more columns are in wide.csv" in printed
    assert max(map(len, printed.splitlines())) <= 80


# ---- stopped and going on ---------------------------------------------------------------------------------


def test_a_run_interrupted_during_creation_is_created_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in ("config.toml", ".manifest.json.partial"):
        path = out / "runs" / "sl-seed1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("seed = ")
    said("strategies", *TINY, "--out", out)
    assert Run.open(out / "runs" / "sl-seed1").finished


def test_other_files_in_place_of_a_run_are_not_touched(tmp_path: Path) -> None:
    mine = tmp_path / "runs" / "sl-seed1" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.touch()
    assert "never overwrites" in said("strategies", *TINY, "--out", tmp_path, fails=True)
    assert mine.exists()


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_that_cannot_be_trained_leave_nothing_and_keep_their_exit_code(
    jobs: int, tmp_path: Path
) -> None:
    asked = [f"--set=training.{side}_batch=128" for side in ("client", "server")]
    few = [*TINY, "--set=city.days=0.5", *asked, "--out", str(tmp_path), "--jobs", str(jobs)]
    ended = subprocess.run([*COMMAND, "strategies", *few], capture_output=True, text=True, env=ENVIRONMENT)
    assert ended.returncode == ConfigError.exit_code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "minibatches of 128" in ended.stderr.splitlines()[-1]
    assert not (tmp_path / "runs").exists()


def test_a_log_that_cannot_be_written_is_said_in_one_sentence(tmp_path: Path) -> None:
    plan = _tiny("strategies")
    data = open_data(plan.cases()[0].config)
    run = Run.create(tmp_path / "run", plan.cases()[0].of_seed(1), data)
    (run.folder / "log.txt").mkdir()
    with pytest.raises(StorageError, match=r"log\.txt: cannot be written"):
        run_in_parallel([(run, "city")], Unobserved(), jobs=2)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    """A plan under way, with so many jobs, once every job has a round."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(jobs: int) -> subprocess.Popen[bytes]:
        command = [*COMMAND, "strategies", *TINY, "--set=training.rounds=400", "--set=training.patience=400"]
        command += ["--jobs", str(jobs), "--out", str(tmp_path)]
        processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, env=ENVIRONMENT))
        wait_for(lambda: len(_begun(tmp_path)) >= jobs, "every job has trained a round")
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGINT, 1), (signal.SIGTERM, 2)])
def test_a_stopped_plan_says_how_to_continue_and_keeps_its_runs(
    number: signal.Signals,
    jobs: int,
    started: Callable[[int], subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    process = started(jobs)
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert b"the same command continues" in errors
    assert {path.name for path in (tmp_path / "runs").iterdir()} == set(_begun(tmp_path))
    assert not any(map(_alive, _owners(tmp_path)))


def test_processes_end_with_a_plan_that_is_killed(
    started: Callable[[int], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = started(2)
    process.kill()
    process.wait()
    owners = _owners(tmp_path)
    assert len(owners) == 2
    wait_for(lambda: not any(map(_alive, owners)), "its processes end")


def _begun(folder: Path) -> list[str]:
    """Runs that have a round."""
    runs = [Run.open(manifest.parent) for manifest in folder.glob("runs/*/manifest.json")]
    return [run.folder.name for run in runs if run.progress.history]


def _owners(folder: Path) -> list[int]:
    return [int(lock.read_text()) for lock in folder.glob("runs/*/lock")]


def _alive(process: int) -> bool:
    """Running, that is: one that nobody has waited for yet is not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
