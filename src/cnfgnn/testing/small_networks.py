"""A network of six nodes, and settings in which every method trains in a moment."""

from __future__ import annotations

from typing import Any

import numpy as np

from cnfgnn.algorithm.methods import BUILT_IN, METHODS, preset
from cnfgnn.config.presets import PRIVATE
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings

HISTORY, HORIZON = 6, 5  # of `small`: two lengths, so that nothing takes one for the other


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
    # one of another package may need an even width, for two heads
    sizes: dict[str, Any] = {"model.hidden": 5 if method in BUILT_IN else 8}
    if METHODS[method].graph_network:
        sizes |= {"model.embedding": 4, "model.gn_widths": [7, 6]}
    if method in BUILT_IN and not METHODS[method].in_paper:
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
