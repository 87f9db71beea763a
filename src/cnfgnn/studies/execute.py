"""A plan of runs carried out, in turn or several processes at a time; whatever is done is kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from cnfgnn.algorithm.experiment import fit_batches
from cnfgnn.algorithm.methods import method_of
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.windows import Windows
from cnfgnn.errors import CnfgnnError, RunError, StorageError
from cnfgnn.process_setup import PARENT
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Watcher, train_run
from cnfgnn.studies.plan import Plan, Row, ended_early, runs_of

POLL_S = 0.2  # how often processes are asked whether they have ended
DOCUMENTED = range(2, 7)  # exit codes of what a person can mend


class Observer(Protocol):
    """Whoever waits for a plan."""

    def plan(self, runs: int, done: int) -> None:
        """So many runs there are, and so many were done before."""

    def watcher(self, run: Run) -> Watcher:
        """For a run in this process."""

    def process(self, run: Run) -> None:
        """A run in another process has got one round further, or has just begun."""

    def done(self, run: Run, problem: str | None) -> None: ...

    def end(self) -> None: ...


def perform(plan: Plan, data: Dataset, folder: Path, observer: Observer, jobs: int = 1) -> list[Row]:
    """A row for each case of the plan, once all its runs are done; those that were done before are kept.

    One that was begun for fewer rounds than the plan has now goes on, as if it had never ended. A run that
    fails does not hold up the others; the first failure is raised when they have ended.
    """
    cases = plan.cases(data)
    for case in cases:  # all of them before the first is begun
        d = case.config.data
        windows = Windows.of(len(data.readings.times), d.history, d.horizon, d.shares, data.readings.source)
        fit_batches(case.config, method_of(case.method), windows.count("train"))
    lines = [(case, runs_of(case, plan.seeds, folder, data, plan.source)) for case in cases]
    for case, runs in lines:
        for run in runs:
            if run.finished and ended_early(run, case) and _has_its_states(run):
                run.extend(case.config.training.rounds, case.config.training.patience)
    # seed by seed: whoever stops a long plan early has every line with the seeds that are done
    in_turn = [runs[k] for k in range(len(plan.seeds)) for _, runs in lines]
    waiting = [run for run in in_turn if not run.finished]
    observer.plan(len(in_turn), len(in_turn) - len(waiting))
    try:
        if jobs == 1:
            problems = _in_turn(waiting, data, observer)
        else:
            path = lines[0][0].config.data.path
            problems = at_once([(run, path) for run in waiting], observer, jobs)
    finally:
        observer.end()
        for run in waiting:
            _forget_unless_used(run)
    if problems:
        raise problems[0]
    return [Row(case, tuple(Run.open(run.folder) for run in runs)) for case, runs in lines]


def done(plan: Plan, data: Dataset, folder: Path) -> list[Row]:
    """A row for each case that has finished runs, with those; nothing is started."""
    rows = []
    for case in plan.cases(data):
        there = [seed for seed in plan.seeds if (case.folder(folder, seed) / "manifest.json").exists()]
        # in whichever precision they were computed: tables say so
        found = runs_of(case, there, folder, data, plan.source, ["compute.precision"])
        runs = [run for run in found if run.finished]
        rows += [Row(case, tuple(runs))] if runs else []
    if not rows:
        raise RunError(folder, f"holds no finished run of {plan.source.name}")
    return rows


def _has_its_states(run: Run) -> bool:
    """Whether every owner's last state is there: a run that was copied for its results alone has none."""
    owners = [folder.name for folder in (run.folder / "checkpoints").glob("*")]
    tag = run.progress.history[-1].tag
    return "server" in owners and all(run.store(owner).has(tag) for owner in owners)


def _forget_unless_used(run: Run) -> None:
    """A run that we began and that nobody got to leaves nothing: it would hold the plan to its settings."""
    with suppress(CnfgnnError):  # gone, damaged or in use by now: not ours to mend
        run.manifest = Run.open(run.folder).manifest
        if not run.started:
            with run.locked():
                run.discard_if_unused()


def _in_turn(runs: Sequence[Run], data: Dataset, observer: Observer) -> list[CnfgnnError]:
    problems: list[CnfgnnError] = []
    for run in runs:
        said = None
        try:
            train_run(run, data, observer.watcher(run))
        except CnfgnnError as problem:
            problems.append(problem)
            said = str(problem)
        observer.done(run, said)
    return problems


@dataclass
class _Process:
    """A run in a process of its own, which says what happens in the run's log."""

    run: Run
    path: str  # of its readings, wherever they lay when it was begun
    threads: int
    changed: int = 0  # when its manifest was written last
    log: IO[bytes] = field(init=False)
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        data = [] if self.path == "city" else [self.path]
        path = self.run.folder / "log.txt"
        try:
            self.log = path.open("wb")
        except OSError as error:
            raise StorageError(path, error) from error
        command = [sys.executable, "-m", "cnfgnn", "train", "--resume", str(self.run.folder), *data]
        # processes with as many threads as there are cores each would stand in each other's way
        threads = {"OMP_NUM_THREADS": str(self.threads)} | os.environ
        around = threads | {PARENT: str(os.getpid())}
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=around)

    def problem(self) -> RunError | None:
        """What it failed with: the sentence it said, and its exit code; None if it did not."""
        self.log.close()
        code = self.process.returncode
        if code == 0:
            return None
        lines = (self.run.folder / "log.txt").read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line for line in lines if line.strip()] if code > 0 else []  # who is killed says nothing
        sentence = said[-1].removeprefix("cnfgnn: ") if said else f"its process ended with code {code}"
        problem = RunError(self.run.folder, sentence)
        problem.exit_code = code if code in DOCUMENTED else RunError.exit_code
        return problem


def at_once(runs: Sequence[tuple[Run, str]], observer: Observer, jobs: int) -> list[CnfgnnError]:
    """Runs and where their readings are, as many processes at a time as there are jobs.

    When we are stopped, so are they, politely: each keeps its last round.
    """
    waiting, working = list(runs), list[_Process]()
    threads = max(1, (os.cpu_count() or 1) // jobs)
    problems: list[CnfgnnError] = []
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                working.append(_Process(*waiting.pop(0), threads))
            for busy in list(working):
                changed = (busy.run.folder / "manifest.json").stat().st_mtime_ns
                if changed != busy.changed:  # cheaper than reading it
                    busy.changed = changed
                    observer.process(Run.open(busy.run.folder))
                if busy.process.poll() is not None:
                    working.remove(busy)
                    problem = busy.problem()
                    problems += [] if problem is None else [problem]
                    observer.done(Run.open(busy.run.folder), None if problem is None else problem.problem)
            time.sleep(POLL_S)
    finally:
        for busy in working:
            busy.process.terminate()
        for busy in working:
            busy.process.wait()
            busy.log.close()
    return problems
