"""A run whose process is killed at any moment goes on as if it had not been: real processes and kills."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cnfgnn.runs.checkpoints
import cnfgnn.runs.folder
import cnfgnn.runs.manifest
from cnfgnn.algorithm.methods import METHODS
from cnfgnn.data.dataset import Dataset
from cnfgnn.runs.folder import Run
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.train import Unwatched, train_run
from tests.conftest import network, small

DATA: Dataset = network(rows=110)
ROUNDS = 3


def config(method: str) -> Any:
    epochs = {"training.client_rounds": 1, "training.server_rounds": 1}
    return small(method, **epochs, **{"training.rounds": ROUNDS, "compute.precision": "fp32"})


def in_a_process(work: Callable[[], None]) -> int:
    """Start a process that does this work, and return its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads; ours has none
        child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ended(child: int) -> int:
    """How it ended: 0, or the number of the signal that killed it."""
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    assert os.WEXITSTATUS(status) == 0, "the process failed by itself"
    return 0


def events(folder: Path) -> list[dict[str, Any]]:
    """Events without what depends on the clock."""
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in ("time", "seconds")} for line in lines]


def assert_same_run(actual: Path, expected: Path) -> None:
    assert events(actual) == events(expected)
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (actual, expected)]
    assert manifests[0]["progress"]["history"] == manifests[1]["progress"]["history"]
    states = sorted(path.relative_to(expected) for path in expected.rglob("*.safetensors"))
    assert sorted(path.relative_to(actual) for path in actual.rglob("*.safetensors")) == states
    for path in states:
        assert (actual / path).read_bytes() == (expected / path).read_bytes(), path


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """An uninterrupted run of a method, made once; and how long it took."""
    made: dict[str, Path] = {}

    def of(method: str) -> Path:
        if method not in made:
            made[method] = tmp_path_factory.mktemp("straight") / method
            train_run(Run.create(made[method], config(method), DATA), DATA, Unwatched())
        return made[method]

    return of


class Ticking(Unwatched):
    """Writes a byte into a pipe at every minibatch, and waits at the last of so many."""

    def __init__(self, pipe: int, minibatches: int) -> None:
        self.pipe, self.left = pipe, minibatches

    def tick(self) -> None:
        os.write(self.pipe, b".")
        self.left -= 1
        if self.left == 0:
            time.sleep(600)  # until it is killed


def killed_after(folder: Path, minibatches: int) -> bool:
    """Go on with the run in a process and kill it once it has begun so many; whether it was still alive."""
    reading, writing = os.pipe()
    child = in_a_process(lambda: train_run(Run.open(folder), DATA, Ticking(writing, minibatches)))
    os.close(writing)
    for _ in range(minibatches):
        if not os.read(reading, 1):
            break  # it came to its end before
    os.kill(child, signal.SIGKILL)
    was_killed = ended(child) == signal.SIGKILL
    os.close(reading)
    return was_killed


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_killed_at_random_moments(method: str, straight: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    Run.create(folder, config(method), DATA)
    per_round = simulate(DATA, config(method)).strategy.minibatches
    moments = random.Random(method)
    assert killed_after(folder, moments.randint(1, per_round))  # in the first round of three
    for _ in range(2):
        left = ROUNDS - len(Run.open(folder).progress.history)
        killed_after(folder, moments.randint(1, max(1, left * per_round)))
    train_run(Run.open(folder), DATA, Unwatched())
    assert_same_run(folder, straight(method))


def killed_at(folder: Path, operation: int) -> bool:
    """Run in a process that kills itself before its n-th change of a file, which is after the one before it;
    whether it got there."""

    def work() -> None:
        counted = 0

        def watched(real: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                nonlocal counted
                counted += 1
                if counted == operation:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return wrapper

        # every way a run changes its folder: a whole file, the rename in it, an event, a state forgotten
        cnfgnn.runs.checkpoints.write_whole = watched(cnfgnn.runs.checkpoints.write_whole)
        cnfgnn.runs.folder.write_whole = cnfgnn.runs.checkpoints.write_whole
        cnfgnn.runs.manifest.write_whole = cnfgnn.runs.checkpoints.write_whole
        Path.replace = watched(Path.replace)  # type: ignore[method-assign]
        Path.unlink = watched(Path.unlink)  # type: ignore[method-assign]
        Run.append = watched(Run.append)  # type: ignore[method-assign]
        train_run(Run.open(folder), DATA, Unwatched())

    return ended(in_a_process(work)) == signal.SIGKILL


@pytest.mark.slow
def test_killed_at_every_change_of_a_file(straight: Callable[[str], Path], tmp_path: Path) -> None:
    operation, went_through = 0, False
    while not went_through:
        operation += 1
        folder = tmp_path / f"{operation}"
        Run.create(folder, config("at-fedavg"), DATA)
        went_through = not killed_at(folder, operation)
        train_run(Run.open(folder), DATA, Unwatched())
        assert_same_run(folder, straight("at-fedavg"))
    assert operation > ROUNDS * 6  # two states, an event and a manifest a round, each several changes


def test_a_finished_run_is_left_alone(straight: Callable[[str], Path]) -> None:
    folder = straight("gru-local")
    before = events(folder)
    train_run(Run.open(folder), DATA, Unwatched())
    assert events(folder) == before
    assert Run.open(folder).finished
