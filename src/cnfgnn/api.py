"""A few lines of Python that run a method end to end; `import cnfgnn` offers all of it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnfgnn.algorithm.compute import caller_settings_restored
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.ledger import Bytes
from cnfgnn.algorithm.methods import METHODS, Like, Method, preset
from cnfgnn.config.settings import (
    CityConfig,
    ComputeConfig,
    Config,
    DataConfig,
    Dates,
    Decimal,
    GraphConfig,
    Missing,
    ModelConfig,
    Precision,
    TrainingConfig,
    Wire,
)
from cnfgnn.data.batch import Loss
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.folder import load
from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings
from cnfgnn.data.synthetic.city import city
from cnfgnn.data.windows import Split
from cnfgnn.errors import (
    CnfgnnError,
    ConfigError,
    DataError,
    DivergedError,
    NodeError,
    RunError,
    StorageError,
)
from cnfgnn.runs.evaluate import evaluate_run, open_run_data
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import forecast_run, unusual_inputs
from cnfgnn.runs.scores import Errors, Scores
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.train import Unwatched, Watcher, train_run, train_watched
from cnfgnn.runs.training_loop import Phase, Progress, Result, Round, evaluate_best

if TYPE_CHECKING:
    import pandas as pd


@caller_settings_restored()
def fit(
    data: Dataset,
    config: Config | str = "cnfgnn",
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    **changes: Any,
) -> Result:
    """Train a method on a data set, go back to its best round and judge it on the test split.

    `config` is a method's name or a whole configuration; settings can be changed by name with a double
    underscore for the dot: fit(data, "at", training__rounds=3, seed=2). With `out` the run is kept in that
    folder, from which `resume`, `evaluate` and `forecast` take it up; without, in memory.
    """
    settings = preset(config) if isinstance(config, str) else config
    settings = settings.with_changes({key.replace("__", "."): value for key, value in changes.items()})
    watcher = watcher or Unwatched()
    if out is not None:
        return train_run(Run.create(Path(out), settings, data), data, watcher)
    experiment = simulate(data, settings, tick=watcher.tick)
    return evaluate_best(experiment, train_watched(experiment, Progress(), watcher))


@caller_settings_restored()
def resume(run: Run | str | Path, data: Dataset | None = None, watcher: Watcher | None = None) -> Result:
    """Go on with an interrupted run, bit for bit as if it had never stopped."""
    opened = _opened(run)
    return train_run(opened, data or open_run_data(opened), watcher or Unwatched())


@caller_settings_restored()
def evaluate(run: Run | str | Path, data: Dataset | None = None, split: Split = "test") -> Scores:
    """Errors of a run's best round from sums per node and step (n t 8), on its own data or on others."""
    opened = _opened(run)
    return evaluate_run(opened, data or open_run_data(opened), split)


@caller_settings_restored()
def forecast(run: Run | str | Path, data: Dataset | None = None) -> pd.DataFrame:
    """The readings that follow the last ones: a row per step ahead, a column per sensor (t n).

    Readings far outside those of training give a UserWarning.
    """
    opened = _opened(run)
    readings = data or open_run_data(opened)
    frame = forecast_run(opened, readings)
    for finding in unusual_inputs(opened, readings):
        warnings.warn(str(finding), stacklevel=2)
    return frame


def _opened(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else Run.open(Path(run))


__all__ = [
    "METHODS",
    "Bytes",
    "CityConfig",
    "CnfgnnError",
    "ComputeConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "DataError",
    "Dataset",
    "Dates",
    "Decimal",
    "DivergedError",
    "Errors",
    "Experiment",
    "Graph",
    "GraphConfig",
    "Like",
    "Loss",
    "Method",
    "Missing",
    "ModelConfig",
    "NodeError",
    "Phase",
    "Precision",
    "Progress",
    "Readings",
    "Result",
    "Round",
    "Run",
    "RunError",
    "Scores",
    "Split",
    "StorageError",
    "TrainingConfig",
    "Unwatched",
    "Watcher",
    "Wire",
    "city",
    "evaluate",
    "fit",
    "forecast",
    "load",
    "preset",
    "resume",
]
