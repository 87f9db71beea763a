"""Execute a plan of runs, one after the other or in several processes; finished runs are kept."""

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

from cnfgnn.algorithm.experiment import fit_to_windows
from cnfgnn.algorithm.methods import method_of
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.windows import Windows
from cnfgnn.errors import CnfgnnError, RunError, StorageError
from cnfgnn.process_setup import PARENT
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Watcher, train_run
from cnfgnn.studies.plan import Plan, Row, ended_early, runs_of

POLL_S = 0.2  # seconds between checks of the processes
DOCUMENTED = range(2, 7)  # exit codes of errors that a user can correct


class Observer(Protocol):
    """Follows a plan, for example to show its progress."""

    def plan(self, runs: int, done: int) -> None:
        """The plan starts: the number of runs, and how many of them are finished already."""

    def watcher(self, run: Run) -> Watcher:
        """A watcher for a run in this process."""

    def process(self, run: Run) -> None:
        """A run in another process has started or completed a round."""

    def done(self, run: Run, problem: str | None) -> None:
        """A run has finished, or failed with a problem."""

    def attack(self, run: Run, name: str) -> None:
        """An attack of this name on a finished run begins."""

    def end(self) -> None:
        """All runs have ended, or the plan was interrupted."""


def run_plan(plan: Plan, data: Dataset, folder: Path, observer: Observer, jobs: int = 1) -> list[Row]:
    """Train every run of a plan that is not finished, and return a row for each case.

    A finished run that was begun for fewer rounds than the plan has now resumes as if it had never ended. A
    run that fails does not stop the others; the first error is raised when they have ended.
    """
    if (folder / "manifest.json").exists():  # by default it has the plan's name, and so may a run
        raise RunError(folder, "is a run itself: choose another folder for the runs of the plan with --out")
    cases = plan.cases(data)
    for case in cases:  # check all cases before the first run starts
        d = case.config.data
        windows = Windows.of(len(data.readings.times), d.history, d.horizon, d.shares, data.readings.source)
        fit_to_windows(case.config, method_of(case.method), windows.count("train"))
    lines = [(case, runs_of(case, plan.seeds, folder, data, plan.source)) for case in cases]
    for case, runs in lines:
        for run in runs:
            if run.finished and ended_early(run, case) and _has_checkpoints(run):
                run.extend(case.config.training.rounds, case.config.training.patience)
    # Seed by seed: a long plan that is stopped early has every case with the same seeds.
    in_turn = [runs[k] for k in range(len(plan.seeds)) for _, runs in lines]
    waiting = [run for run in in_turn if not run.finished]
    observer.plan(len(in_turn), len(in_turn) - len(waiting))
    try:
        if jobs == 1:
            problems = _run_in_turn(waiting, data, observer)
        else:
            path = lines[0][0].config.data.path
            problems = run_in_parallel([(run, path) for run in waiting], observer, jobs)
    finally:
        observer.end()
        for run in waiting:
            _discard_if_unused(run)
    if problems:
        raise problems[0]
    return [Row(case, tuple(Run.open(run.folder) for run in runs)) for case, runs in lines]


def finished_rows(plan: Plan, data: Dataset, folder: Path) -> list[Row]:
    """A row for each case that has finished runs; nothing is started."""
    rows = []
    for case in plan.cases(data):
        there = [seed for seed in plan.seeds if (case.folder(folder, seed) / "manifest.json").exists()]
        # Runs may have any precision: tables name it.
        found = runs_of(case, there, folder, data, plan.source, ["compute.precision"])
        runs = [run for run in found if run.finished]
        if runs:
            rows.append(Row(case, tuple(runs)))
    if not rows:
        raise RunError(folder, f"has no finished run of {plan.source.name}")
    return rows


def _has_checkpoints(run: Run) -> bool:
    """Whether every owner's last checkpoint exists; a run that was copied for its results may have none."""
    owners = [folder.name for folder in (run.folder / "checkpoints").glob("*")]
    tag = run.progress.history[-1].tag
    return "server" in owners and all(run.store(owner).has(tag) for owner in owners)


def _discard_if_unused(run: Run) -> None:
    """Remove a run that was begun but never started: it would tie the plan to its settings."""
    with suppress(CnfgnnError), run.locked():  # it may be gone, damaged or in use by now
        run.discard_if_unused()


def _run_in_turn(runs: Sequence[Run], data: Dataset, observer: Observer) -> list[CnfgnnError]:
    problems: list[CnfgnnError] = []
    for run in runs:
        message = None
        try:
            train_run(run, data, observer.watcher(run))
        except CnfgnnError as problem:
            problems.append(problem)
            message = str(problem)
        observer.done(run, message)
    return problems


@dataclass
class _Process:
    """A run in a process of its own, whose output goes to log.txt in the run folder."""

    run: Run
    path: str  # of its readings, which may have moved since it was begun
    threads: int
    changed: int = 0  # time of the last change of its manifest
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
        # Share the cores: processes with a thread per core each would slow each other down.
        threads = {"OMP_NUM_THREADS": str(self.threads)} | os.environ
        environment = threads | {PARENT: str(os.getpid())}
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment)

    def problem(self) -> RunError | None:
        """The error that the process ended with, from its last line of output; None if it succeeded."""
        self.log.close()
        code = self.process.returncode
        if code == 0:
            return None
        lines = (self.run.folder / "log.txt").read_text(encoding="utf-8", errors="replace").split("\n")
        written = [line for line in lines if line.strip()]
        sentence = f"its process ended with code {code}"
        if written and code > 0:  # a process that was killed has no message
            sentence = written[-1].removeprefix("cnfgnn: ")
        problem = RunError(self.run.folder, sentence)
        problem.exit_code = code if code in DOCUMENTED else RunError.exit_code
        return problem


def run_in_parallel(runs: Sequence[tuple[Run, str]], observer: Observer, jobs: int) -> list[CnfgnnError]:
    """Train runs, given with the paths of their readings, in up to `jobs` processes at a time.

    If this process is interrupted, it terminates the others; each keeps its last completed round.
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
                    if problem is not None:
                        problems.append(problem)
                    observer.done(Run.open(busy.run.folder), None if problem is None else problem.problem)
            time.sleep(POLL_S)
    finally:
        for busy in working:
            busy.process.terminate()
        for busy in working:
            busy.process.wait()
            busy.log.close()
    return problems
