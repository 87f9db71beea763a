"""Prints the bytes by which one round raises the peak memory of this process: METHOD NODES GIB."""

from __future__ import annotations

import resource
import sys

import numpy as np
import torch

from cnfgnn.algorithm.methods import preset
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.simulation import simulate

STEPS = 18


def ring(nodes: int) -> Dataset:
    """Random readings; each node hears its two neighbours and itself."""
    values = np.random.default_rng(0).normal(50, 10, (STEPS, nodes)).astype(np.float32)
    times = np.datetime64("2024-01-01T00:00:00") + 300 * np.arange(STEPS).astype("timedelta64[s]")
    ids, missing = tuple(f"s{i}" for i in range(nodes)), np.zeros(values.shape, dtype=np.bool_)
    receivers = np.tile(np.arange(nodes), 3)
    senders = (receivers + np.repeat([-1, 0, 1], nodes)) % nodes
    graph = Graph(nodes, senders, receivers, np.ones(3 * nodes))
    return Dataset("ring", Readings(times, ids, values, missing, source="ring"), graph)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one_round(method: str, nodes: int, gib: float) -> None:
    """A round and an evaluation; short windows keep the work small, and the weights as large as ever."""
    changes = {"data.history": 2, "data.horizon": 2, "training.client_batch": 8, "training.server_batch": 8}
    config = preset(method).with_changes({**changes, "compute.device": "cpu", "compute.memory": gib})
    experiment = simulate(ring(nodes), config)
    experiment.strategy.round(1)
    experiment.strategy.score("validation")


if __name__ == "__main__":
    keep_freed_memory()
    torch.set_num_threads(1)
    one_round(sys.argv[1], 4, 1.0)  # what torch needs in any case
    before = peak()
    one_round(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    print(peak() - before)
