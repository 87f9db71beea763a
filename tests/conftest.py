"""What tests share: six nodes in float64, small enough that every method runs in a moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before torch is imported: tests are tiny and run side by side. `torch.set_num_threads` holds for one
# thread alone, and a pool of threads that another one starts makes forked processes hang.
os.environ["OMP_NUM_THREADS"] = "1"
# A shell that starts tests in the background has them ignore Ctrl-C, and so would every process they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest

from cnfgnn.algorithm.compute.device import multiplies_bf16
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.methods import METHODS, preset
from cnfgnn.algorithm.server import Server
from cnfgnn.config.presets import PRIVATE
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Unwatched, train_run
from cnfgnn.transports.in_process import InProcess

# Runs on a tiny city, for tests of the page, tables and commands; a browser, for tests of pages.
pytest_plugins = ["tests.tiny_runs", "tests.browser"]

needs_bf16 = pytest.mark.skipif(not multiplies_bf16(), reason="this processor has no bf16 instructions")
# `make test` asks of these what is asked of every method: one for each strategy, and the one for own data;
# `make test-slow` asks it of the others, but for those whose parts all belong to another one: `make trials`.
QUICK = ("at-fedavg", "sl", "gru-central", "cnfgnn-plus")
TRIALS = ("gru-fedavg", "gru-local", "at", "mlp-fedavg")
HISTORY, HORIZON = 6, 5  # of `small`: two lengths, so that nothing takes one for the other
FEDERATED = [name for name, method in METHODS.items() if method.federated]


def network(n: int = 6, rows: int = 150, seed: int = 0, dropout: float = 0.06, seconds: int = 300) -> Dataset:
    """Waves that run from node to node, with noise and gaps, and two nodes that fall silent for hours: which
    windows a node has differs from node to node. No two values are the same.

    In steps of five minutes they span half a day, of which nothing is usual; by the hour nearly a week.
    """
    rng = np.random.default_rng(seed)
    times = np.datetime64("2024-01-01T00:00:00") + seconds * np.arange(rows).astype("timedelta64[s]")
    phase = np.arange(rows)[:, None] / 9 - np.arange(n)[None] / 2
    values = (50 + 12 * np.sin(phase) + rng.normal(0, 1, (rows, n))).astype(np.float32)
    if dropout:
        values[rng.random((rows, n)) < dropout] = np.nan
        values[30:72, 2 % n] = values[100:132, 4 % n] = np.nan
    positions = np.stack([34 + rng.random(n), -118 - rng.permutation(n) / n], axis=1)
    readings = Readings(
        times, tuple(f"s{i}" for i in range(n)), values, np.isnan(values), positions, "network"
    )
    chain = np.arange(n - 1)
    loops = np.arange(n)
    graph = Graph(
        n,
        np.concatenate([chain, chain[::2] + 1, loops]),
        np.concatenate([chain + 1, chain[::2], loops]),
        np.concatenate([np.linspace(0.3, 0.9, n - 1), np.full(len(chain[::2]), 0.5), np.ones(n)]),
    )
    return Dataset("network", readings, graph)


def small(method: str, **changes: Any) -> Config:
    """A method in float64 with a few units: everything the real one has, but quick."""
    sizes: dict[str, Any] = {"model.hidden": 5}
    if METHODS[method].graph_network:
        sizes |= {"model.embedding": 4, "model.gn_widths": [7, 6]}
    if not METHODS[method].in_paper:
        sizes |= {
            "model.calendar": 3,
            "model.personal": 0 if METHODS[method].federated else 2,
            "model.sent": 3 if METHODS[method].graph_network else 0,
            "training.average_every": 2,
        }
    if method == PRIVATE:
        sizes["privacy.blur"] = 2.0
    return preset(method).with_changes(
        {
            **sizes,
            "data.history": HISTORY,
            "data.horizon": HORIZON,
            "compute.precision": "fp64",
            "compute.device": "cpu",
            "training.rounds": 2,
            "training.client_batch": 32,
            "training.server_batch": 24,
            "training.client_rounds": 2,
            "training.server_rounds": 1 if METHODS[method].strategy == "split" else 2,
            "training.server_lr": 3e-3,
            "training.sampling": 30.0,
            **changes,
        }
    )


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
