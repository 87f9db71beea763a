"""What tests share: six nodes in float64, small enough that every method runs in a moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

# Before torch is imported: tests are tiny and run side by side. `torch.set_num_threads` holds for one
# thread alone, and a pool of threads that another one starts makes forked processes hang.
os.environ["OMP_NUM_THREADS"] = "1"
# A shell that starts tests in the background has them ignore Ctrl-C, and so would every process they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest

from cnfgnn.algorithm.compute.device import multiplies_bf16
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.methods import METHODS
from cnfgnn.algorithm.server import Server
from cnfgnn.data.dataset import Dataset
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Unwatched, train_run
from cnfgnn.testing.small_networks import HISTORY as HISTORY
from cnfgnn.testing.small_networks import HORIZON as HORIZON
from cnfgnn.testing.small_networks import network as network
from cnfgnn.testing.small_networks import small as small
from cnfgnn.transports.in_process import InProcess

# Runs on a tiny city, for tests of the page, tables and commands; a browser, for tests of pages.
pytest_plugins = ["tests.tiny_runs", "tests.browser"]

needs_bf16 = pytest.mark.skipif(not multiplies_bf16(), reason="this processor has no bf16 instructions")
# `make test` asks of these what is asked of every method: one for each strategy, and the one for own data;
# `make test-slow` asks it of the others, but for those whose parts all belong to another one: `make trials`.
QUICK = ("at-fedavg", "sl", "gru-central", "cnfgnn-plus")
TRIALS = ("gru-fedavg", "gru-local", "at", "mlp-fedavg")
FEDERATED = [name for name, method in METHODS.items() if method.federated]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        method = getattr(item, "callspec", None) and item.callspec.params.get("method")  # type: ignore[attr-defined]
        if method in METHODS and method not in QUICK and not item.get_closest_marker("chaos"):
            item.add_marker(pytest.mark.trials if method in TRIALS else pytest.mark.slow)
        if "driver" in getattr(item, "fixturenames", ()):  # a browser takes seconds to start
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def data() -> Dataset:
    return network()


def server(experiment: Experiment) -> Server:
    assert isinstance(experiment.strategy, Server)
    return experiment.strategy


def transport(experiment: Experiment) -> InProcess:
    carrier = server(experiment).nodes.transport
    assert isinstance(carrier, InProcess)
    return carrier


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Runs on `network()`, by method and settings; each is trained once for the tests of a module."""
    data = network()
    made: dict[str, Path] = {}

    def of(method: str, **changes: object) -> Run:
        key = f"{method}-{sorted(changes.items())}"
        if key not in made:
            made[key] = tmp_path_factory.mktemp("run") / "run"
            train_run(Run.create(made[key], small(method, **changes), data), data, Unwatched())
        return Run.open(made[key])

    return of
