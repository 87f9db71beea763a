"""The public Python API. Import these names from `cnfgnn`, which loads this module on first use."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnfgnn.algorithm.compute.device import caller_settings_restored
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.messages.ledger import Bytes
from cnfgnn.algorithm.methods import METHODS, Like, Method, preset
from cnfgnn.config.presets import DEFAULT_METHOD
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
    PrivacyConfig,
    TrainingConfig,
    Wire,
)
from cnfgnn.data.batch import Loss
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.folder import load
from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings
from cnfgnn.data.synthetic.city import city
from cnfgnn.data.windows import Split
from cnfgnn.errors import (
    CnfgnnError,
    ConfigError,
    DataError,
    DivergedError,
    MachineError,
    NodeError,
    NoSiteAnswered,
    RunError,
    StorageError,
)
from cnfgnn.runs.evaluate import evaluate_run, open_run_data
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import forecast_run, unknown_ahead, unusual_inputs
from cnfgnn.runs.scores import Errors, IntervalErrors, IntervalScores, Scores
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.train import Unwatched, Watcher, train_run, train_watched
from cnfgnn.runs.training_loop import Phase, Progress, Result, Round, evaluate_best

if TYPE_CHECKING:
    import pandas as pd


@caller_settings_restored()
def fit(
    data: Dataset,
    config: Config | str = DEFAULT_METHOD,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    **changes: Any,
) -> Result:
    """Train a method, return to its best round and evaluate it on the test split.

    Args:
        data: The readings and the graph, from `load` or `city`.
        config: The name of a method, which stands for its preset, or a whole configuration.
        out: A new or empty folder for the run. Without it, the run is kept in memory only.
        watcher: Called when training begins and ends, and after every minibatch and round.
        **changes: Settings by name, with two underscores for the dot: `training__rounds=3, seed=2`.

    Returns:
        The test scores, the history of the rounds, and the trained experiment.

    Raises:
        ConfigError: A setting does not exist or has a value that it cannot have.
        DataError: The data cannot be used, for example because they are too short for a window.
        RunError: `out` is not empty.
        DivergedError: The validation loss is not a number.
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
    """Continue an interrupted run, with the same result, bit for bit, as if it had not been interrupted.

    Args:
        run: The run or its folder.
        data: The data that it was trained on; by default they are read again from where they were.
        watcher: Called when training begins and ends, and after every minibatch and round.

    Returns:
        The result of the whole run. A run that has finished is only evaluated again.
    """
    opened = _opened(run)
    return train_run(opened, data or open_run_data(opened), watcher or Unwatched())


@caller_settings_restored()
def evaluate(run: Run | str | Path, data: Dataset | None = None, split: Split = "test") -> Scores:
    """Compute the errors of a run's best round.

    Args:
        run: The run or its folder.
        data: Other data to evaluate on; by default those that the run was trained on.
        split: Which part of the data: "train", "validation" or "test".

    Returns:
        Errors overall, by step ahead and by sensor.
    """
    opened = _opened(run)
    return evaluate_run(opened, data or open_run_data(opened), split)


@caller_settings_restored()
def forecast(
    run: Run | str | Path, data: Dataset | None = None, intervals: Sequence[int] = ()
) -> pd.DataFrame:
    """Forecast the readings that follow the last ones.

    Args:
        run: The run or its folder; its best round is used.
        data: Newer readings, which may include new sensors; by default those that the run was trained on.
        intervals: Levels in per cent, such as `[80, 95]`: 50, 80, 90, 95 and 99 are possible.

    Returns:
        A row for each step ahead, indexed by time, and a column for each sensor. Each level adds two columns
        per sensor: `"S1 low 80"` and `"S1 high 80"`.

    Warns:
        UserWarning: The newest readings are far outside the range of those in training, or a covariate is
            not known for all times of the forecast.
    """
    opened = _opened(run)
    readings = data or open_run_data(opened)
    frame = forecast_run(opened, readings, intervals)
    for finding in unusual_inputs(opened, readings):
        warnings.warn(str(finding), stacklevel=2)
    for sentence in unknown_ahead(opened, readings):
        warnings.warn(sentence, stacklevel=2)
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
    "IntervalErrors",
    "IntervalScores",
    "Like",
    "Loss",
    "MachineError",
    "Method",
    "Missing",
    "ModelConfig",
    "NoSiteAnswered",
    "NodeError",
    "Phase",
    "Precision",
    "PrivacyConfig",
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
