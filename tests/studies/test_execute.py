"""A plan of runs is carried out once, whatever happens in between, in this process or in several."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cnfgnn.data.source import open_data
from cnfgnn.errors import CnfgnnError, ConfigError, RunError
from cnfgnn.runs.folder import Run
from cnfgnn.studies.execute import finished_rows, run_plan
from cnfgnn.studies.plan import Plan
from tests.commands import A_PLAN, Unobserved
from tests.waiting import wait_for

TINY = A_PLAN


class Noted(Unobserved):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.planned: tuple[int, int] = (0, 0)
        self.ended: list[tuple[str, str | None]] = []
        self.rounds: list[int] = []

    def plan(self, runs: int, done: int) -> None:
        self.planned = runs, done

    def process(self, run: Run) -> None:
        self.rounds.append(len(run.progress.history))

    def done(self, run: Run, problem: str | None) -> None:
        self.ended.append((run.folder.name, problem))


def read(tmp_path: Path, text: str = TINY) -> Plan:
    (tmp_path / "plan.toml").write_text(text)
    return Plan.read(tmp_path / "plan.toml")


def test_a_plan_does_not_write_into_the_folder_of_a_run(tmp_path: Path) -> None:
    plan = read(tmp_path)
    data = open_data(plan.cases()[0].config)
    Run.create(tmp_path / "plan", plan.cases()[0].config, data)
    before = sorted(path.name for path in (tmp_path / "plan").iterdir())
    with pytest.raises(RunError, match=r"plan: is a run itself: choose another folder .* with --out"):
        run_plan(plan, data, tmp_path / "plan", Noted())
    assert sorted(path.name for path in (tmp_path / "plan").iterdir()) == before


@pytest.mark.slow
def test_runs_that_are_done_are_kept(tmp_path: Path) -> None:
    plan, observer = read(tmp_path), Noted()
    data = open_data(plan.cases()[0].config)
    first = run_plan(plan, data, tmp_path / "runs", observer)
    assert observer.planned == (4, 0)
    # seed by seed: a plan that is stopped early has every line
    names = ["at-fedavg-seed1", "gru-local-seed1", "at-fedavg-seed2", "gru-local-seed2"]
    assert observer.ended == [(name, None) for name in names]
    again = Noted()
    second = run_plan(plan, data, tmp_path / "runs", again)
    assert (again.planned, again.ended) == ((4, 4), [])
    assert [row.tests for row in second] == [row.tests for row in first]


@pytest.mark.slow
def test_processes_give_what_this_process_gives(tmp_path: Path) -> None:
    plan, observer = read(tmp_path), Noted()
    data = open_data(plan.cases()[0].config)
    alone = run_plan(plan, data, tmp_path / "alone", Noted())
    together = run_plan(plan, data, tmp_path / "together", observer, jobs=2)
    assert sorted(name for name, _ in observer.ended) == sorted(
        run.folder.name for r in alone for run in r.runs
    )
    assert max(observer.rounds) == 2
    for one, other in zip(alone, together, strict=True):
        assert [e.rmse for e in one.errors] == pytest.approx([e.rmse for e in other.errors], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [2])
def test_more_rounds_go_on_where_fewer_ended(jobs: int, tmp_path: Path) -> None:
    plan = read(tmp_path)
    data = open_data(plan.cases()[0].config)
    run_plan(plan, data, tmp_path / "runs", Noted())
    longer, observer = plan.with_changes({"training.rounds": 4}), Noted()
    rows = run_plan(longer, data, tmp_path / "runs", observer, jobs)
    assert observer.planned == (4, 0)
    run_plan(longer, data, tmp_path / "runs", again := Noted())
    assert again.planned == (4, 4)
    for one, other in zip(rows, run_plan(longer, data, tmp_path / "straight", Noted()), strict=True):
        assert [run.config for run in one.runs] == [run.config for run in other.runs]
        for ours, theirs in zip(one.runs, other.runs, strict=True):
            assert [e["event"] for e in ours.events()] == ["start", *["round"] * 4, "test"]
            if jobs == 1:  # processes have other threads: other last bits
                assert ours.progress.history == theirs.progress.history
                assert ours.test()["overall"] == theirs.test()["overall"]


@pytest.mark.slow
def test_a_run_without_its_states_is_kept_as_it_ended(tmp_path: Path) -> None:
    plan = read(tmp_path)
    data = open_data(plan.cases()[0].config)
    run_plan(plan, data, tmp_path / "runs", Noted())
    for state in (tmp_path / "runs").glob("*/checkpoints/server/*"):
        state.unlink()
    rows = run_plan(plan.with_changes({"training.rounds": 4}), data, tmp_path / "runs", observer := Noted())
    assert observer.planned == (4, 4)
    assert {len(run.progress.history) for row in rows for run in row.runs} == {2}


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_does_not_hold_up_the_others(jobs: int, tmp_path: Path) -> None:
    plan, observer = read(tmp_path, TINY + "[only.gru-local.training]\nclient_lr = 1e30\n"), Noted()
    data = open_data(plan.cases()[0].config)
    with pytest.raises(CnfgnnError, match="not a number"):
        run_plan(plan, data, tmp_path / "runs", observer, jobs)
    assert {name for name, problem in observer.ended if problem is None} == {
        "at-fedavg-seed1",
        "at-fedavg-seed2",
    }
    assert len(observer.ended) == 4


def test_a_line_that_cannot_be_is_refused_before_any_is_begun(tmp_path: Path) -> None:
    plan = read(tmp_path, TINY + "[only.gru-local.training]\nclient_batch = 5000\n")
    data = open_data(plan.cases()[0].config)
    with pytest.raises(ConfigError, match="5000"):
        run_plan(plan, data, tmp_path / "runs", Noted())
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_what_is_done_can_be_shown_without_starting_anything(tmp_path: Path) -> None:
    plan = read(tmp_path)
    data = open_data(plan.cases()[0].config)
    with pytest.raises(RunError, match="no finished run"):
        finished_rows(plan, data, tmp_path / "runs")
    first = read(tmp_path, TINY.replace("[1, 2]", "[2]").replace(', "gru-local"', ""))
    run_plan(first, data, tmp_path / "runs", Noted())
    Run.create(tmp_path / "runs" / "gru-local-seed1", plan.cases()[1].of_seed(1), data)  # begun, not finished
    rows = finished_rows(read(tmp_path), data, tmp_path / "runs")
    assert [(row.case.name, [run.config.seed for run in row.runs]) for row in rows] == [("at-fedavg", [2])]


@pytest.mark.slow
def test_a_plan_that_is_killed_goes_on_and_leaves_no_process_behind(tmp_path: Path) -> None:
    read(tmp_path, TINY.replace("rounds = 2", "rounds = 10", 1))
    command = [sys.executable, "-m", "cnfgnn", "compare", "plan.toml", "--out", "runs", "--jobs", "2"]
    running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for(lambda: _rounds(tmp_path), "a round")
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=300) == 130
    owners = [int(lock.read_text()) for lock in tmp_path.glob("runs/*/lock") if lock.read_text().strip()]
    assert owners
    assert not any(_alive(owner) for owner in owners)
    kept = _rounds(tmp_path)
    assert kept
    plan = Plan.read(tmp_path / "plan.toml")
    data = open_data(plan.cases()[0].config)
    for row in run_plan(plan, data, tmp_path / "runs", Noted()):
        assert all(len(run.progress.history) >= kept.get(run.folder.name, 0) for run in row.runs)
        assert all(run.finished for run in row.runs)


def _rounds(folder: Path) -> dict[str, int]:
    """Rounds of each run that has any."""
    runs = [Run.open(manifest.parent) for manifest in folder.glob("runs/*/manifest.json")]
    return {run.folder.name: len(run.progress.history) for run in runs if run.progress.history}


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
