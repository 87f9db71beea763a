"""The progress of a plan: one display for all of its runs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cnfgnn.cli.progress import LineWatcher, PlanWatcher
from cnfgnn.runs.training_loop import Progress
from tests.conftest import small

ROUNDS, MINIBATCHES = 4, 10


def carried_through(plan: PlanWatcher, name: str) -> list[float]:
    """A run of the plan from beginning to end; how full the bar is after each round."""
    run: Any = SimpleNamespace(folder=Path(name), progress=Progress())
    experiment: Any = SimpleNamespace(
        config=SimpleNamespace(training=SimpleNamespace(rounds=ROUNDS)),
        strategy=SimpleNamespace(minibatches=MINIBATCHES),
        memory_plan=SimpleNamespace(state_format="full"),
    )
    watcher, full = plan.watcher(run), []
    watcher.begin(experiment, Progress())
    for r_g in range(1, ROUNDS + 1):
        for _ in range(MINIBATCHES):
            watcher.tick()
        done: Any = SimpleNamespace(r_g=r_g)
        watcher.round_done(done, done, 1.0)
        full += [plan.bar.tasks[0].completed] if plan.bar is not None else []
    watcher.end()
    plan.done(run, None)
    return full


def test_on_a_terminal_one_bar_fills_over_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    plan = PlanWatcher()
    plan.plan(2, 0)
    assert plan.bar is not None
    assert carried_through(plan, "one") == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert carried_through(plan, "two") == pytest.approx([1.25, 1.5, 1.75, 2.0])
    assert len(plan.bar.tasks) == 1
    plan.end()


def test_without_a_terminal_rounds_are_not_printed_one_by_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr("cnfgnn.cli.progress.time.monotonic", lambda: clock[0])
    plan = PlanWatcher()
    plan.plan(2, 0)
    carried_through(plan, "one")
    assert capsys.readouterr().err == ""
    clock[0] = 31.0  # half a minute later it says that it is alive
    carried_through(plan, "two")
    assert capsys.readouterr().err == "1 of 2 runs finished; two: round 1/4\n"


def test_a_line_says_that_the_loss_chooses_the_best_round(capsys: pytest.CaptureFixture[str]) -> None:
    """A round may have a lower RMSE than the best one: without the loss, the line would contradict itself."""
    watcher = LineWatcher()
    config = small("cnfgnn-plus")
    strategy = SimpleNamespace(minibatches=MINIBATCHES, phases=(0,))
    watcher.begin(
        SimpleNamespace(config=config, strategy=strategy, memory_plan=SimpleNamespace(state_format="full")),  # type: ignore[arg-type]
        Progress(),
    )
    first, second = (
        SimpleNamespace(
            r_g=r_g, loss=loss, best=r_g == 1, validation=SimpleNamespace(masked_rmse=rmse, rmse=rmse)
        )
        for r_g, loss, rmse in ((1, 226.8, 15.05), (2, 230.3, 15.037))
    )
    watcher.round_done(second, first, 2.0)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "validation masked RMSE 15.037, loss 230.300" in said
    assert "best by its loss: round 1 (masked RMSE 15.050)" in said
