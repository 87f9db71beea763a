"""Cross-node federated graph neural networks: sensors forecast together without sharing their readings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cnfgnn.algorithm.methods import METHODS, Like, preset
from cnfgnn.config import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.folder import load
from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings
from cnfgnn.data.synthetic import city
from cnfgnn.errors import CnfgnnError, ConfigError, DataError, NodeError
from cnfgnn.evaluation import Errors, Scores
from cnfgnn.simulation import Experiment, simulate
from cnfgnn.training import Progress, Result, Round, evaluate, finish, train
from cnfgnn.version import __version__


def fit(
    data: Dataset,
    config: Config | str = "cnfgnn",
    on_round: Callable[[Progress], None] | None = None,
    **changes: Any,
) -> Result:
    """Train a method on a data set, go back to its best round and judge it on the test split.

    `config` is a method's name or a whole configuration; settings can be changed by name with a double
    underscore for the dot: fit(data, "at", training__rounds=3, seed=2).
    """
    settings = preset(config) if isinstance(config, str) else config
    settings = settings.with_changes({key.replace("__", "."): value for key, value in changes.items()})
    experiment = simulate(data, settings)
    return finish(experiment, train(experiment, on_round=on_round))


__all__ = [
    "METHODS",
    "CnfgnnError",
    "Config",
    "ConfigError",
    "DataError",
    "Dataset",
    "Errors",
    "Experiment",
    "Graph",
    "Like",
    "NodeError",
    "Progress",
    "Readings",
    "Result",
    "Round",
    "Scores",
    "__version__",
    "city",
    "evaluate",
    "finish",
    "fit",
    "load",
    "preset",
    "simulate",
    "train",
]
