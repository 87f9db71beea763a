"""The public Python API. Import these names from `cnfgnn`, which loads this module on first use."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cnfgnn.algorithm.compute.device import caller_settings_restored
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.messages.ledger import Bytes
from cnfgnn.algorithm.methods import METHODS, Like, Method, method_of, preset, register
from cnfgnn.config.declarations import setting
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
from cnfgnn.data.files.formats import read_frame
from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings, columns_of
from cnfgnn.data.source import open_data, reading_options
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
    settings = _changed(preset(config) if isinstance(config, str) else config, changes)
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
        warnings.warn(str(finding), stacklevel=3)  # behind the decorator
    for sentence in unknown_ahead(opened, readings):
        warnings.warn(sentence, stacklevel=3)
    return frame


def _changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """A configuration with other settings, by names with two underscores for the dot."""
    return config.with_changes({key.replace("__", "."): value for key, value in changes.items()})


def _opened(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else Run.open(Path(run))


class Forecaster:
    """A method as an estimator: a table of readings in, a table of forecasts out.

    It follows scikit-learn where that fits: `get_params`, `set_params` and `sklearn.base.clone` work, nothing
    is checked before `fit`, and what ends in an underscore exists after it. Readings are a table with times
    as its index and a column for each sensor (or a long table, see docs/data.md), a folder or file, or a
    `Dataset`. In forecasts, ids of sensors are text, and times with a time zone are in UTC.

    Args:
        method: The name of a method.
        sensors: Where the sensors are, for readings in a table: a row for each, with its id as the index and
            the columns latitude and longitude.
        graph: The graph of the sensors, in the order of their columns, instead of `sensors`. Methods without
            a Graph Network need neither.
        **settings: Settings by name, with two underscores for the dot: `training__rounds=3, seed=2`.

    Attributes:
        run_: The run that was trained; without `out`, it is deleted with this object.
        result_: What `cnfgnn.fit` returns; not after `load`, nor in what pickle or copy make of it.
        feature_names_in_: The sensors.
    """

    run_: Run
    result_: Result
    feature_names_in_: np.ndarray[Any, Any]

    def __init__(
        self,
        method: str = DEFAULT_METHOD,
        *,
        sensors: pd.DataFrame | None = None,
        graph: Graph | None = None,
        **settings: Any,
    ) -> None:
        self.method, self.sensors, self.graph, self.settings = method, sensors, graph, settings

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments that it was made with."""
        return {"method": self.method, "sensors": self.sensors, "graph": self.graph, **self.settings}

    def set_params(self, **params: Any) -> Forecaster:
        """Change some of these arguments; the next `fit` uses them."""
        for name, value in params.items():
            if name in ("method", "sensors", "graph"):
                setattr(self, name, value)
            else:
                self.settings = {**self.settings, name: value}
        return self

    def __repr__(self) -> str:
        shown = [repr(self.method), *(f"{name}={value!r}" for name, value in self.settings.items())]
        return f"Forecaster({', '.join(shown)})"

    def fit(
        self,
        data: pd.DataFrame | Dataset | str | Path,
        y: None = None,
        *,
        out: str | Path | None = None,
        watcher: Watcher | None = None,
    ) -> Forecaster:
        """Train on readings, of which the last are kept for validation and for `result_.test`.

        Args:
            data: The readings.
            y: Not used.
            out: A new or empty folder for the run, to keep it.
            watcher: Called when training begins and ends, and after every minibatch and round.
        """
        config = _changed(preset(self.method), self.settings)
        if isinstance(data, str | Path):  # as a run on disk names its data
            config = config.with_changes({"data.path": str(Path(data).absolute())})
        dataset = self._dataset(data, config)
        folder = self._own_folder() if out is None else Path(out)
        self.result_ = fit(dataset, config, folder, watcher)
        self._use(Run.open(folder), dataset)
        return self

    def predict(
        self, data: pd.DataFrame | Dataset | str | Path | None = None, intervals: Sequence[int] = ()
    ) -> pd.DataFrame:
        """Forecast the readings that follow the last ones, as `cnfgnn.forecast` does.

        Args:
            data: Newer readings; without them, those of `fit`.
            intervals: Levels in per cent, such as `[80, 95]`.
        """
        return forecast(self._fitted, self._newer(data), intervals)

    def score(self, data: pd.DataFrame | Dataset | str | Path | None = None, y: None = None) -> float:
        """The negative masked RMSE on the validation split, so that more is better and no choice is made by
        test errors."""
        return -evaluate(self._fitted, self._newer(data), "validation").overall.masked_rmse

    def save(self, folder: str | Path) -> None:
        """Copy the trained run to a new folder, for `load` and for the command line."""
        run, target = self._fitted, Path(folder)
        if target.exists():
            raise RunError(target, "already exists; choose another folder")
        try:
            shutil.copytree(run.folder, target)
        except OSError as error:
            raise StorageError(target, error) from error

    @classmethod
    def load(cls, run: Run | str | Path) -> Forecaster:
        """Open what `save`, `fit(out=...)` or `cnfgnn train` wrote."""
        opened = _opened(run)
        settings = {key.replace(".", "__"): opened.config.setting(key) for key in opened.manifest.given}
        loaded = cls(opened.config.method, **settings)
        loaded._use(opened, None)
        return loaded

    # ---- what it is fitted to ----

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: the files of the run, whose folder may be deleted before they are needed."""
        state = {name: value for name, value in vars(self).items() if name not in ("run_", "result_")}
        if hasattr(self, "run_"):
            folder = Run.open(self.run_.folder).folder  # refused if it is not there any more
            paths = [path for path in folder.rglob("*") if path.is_file()]
            state["files"] = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("files", None)
        vars(self).update(state)
        if files is not None:
            folder = self._own_folder()
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            self._use(Run.open(folder), self._data)

    def _own_folder(self) -> Path:
        """A folder that is deleted with this object."""
        folder = Path(tempfile.mkdtemp(prefix="cnfgnn-"))
        weakref.finalize(self, _delete, folder, os.getpid())
        return folder

    def _use(self, run: Run, data: Dataset | None) -> None:
        self.run_, self._data = run, data
        self.feature_names_in_ = np.array(run.data.sensors, dtype=object)

    @property
    def _fitted(self) -> Run:
        if not hasattr(self, "run_"):
            raise RunError("Forecaster", "is not fitted yet: call fit or load first")
        return self.run_

    def _newer(self, data: pd.DataFrame | Dataset | str | Path | None) -> Dataset:
        """The readings to forecast from, on the network that it was fitted to if they come without one."""
        if data is not None:
            return self._dataset(data, self.run_.config, fitted=True)
        if self._data is None:
            raise DataError("Forecaster", "a loaded one has no readings: pass them")
        return self._data

    def _dataset(
        self, data: pd.DataFrame | Dataset | str | Path, config: Config, fitted: bool = False
    ) -> Dataset:
        if isinstance(data, Dataset):
            return data
        if isinstance(data, str | Path):
            return open_data(config, Path(data))
        if not isinstance(data, pd.DataFrame):
            kinds = "a DataFrame, a Dataset, or the path of a folder or file"
            raise DataError("readings", f"must be {kinds}, not a {type(data).__name__}")
        readings = read_frame(data, reading_options(config))
        if self.sensors is not None:
            if self.graph is not None:
                raise ConfigError("graph", "give either the graph or the sensors, from which one is made")
            positions = _positions(self.sensors, readings.ids)
            return Dataset("DataFrame", replace(readings, positions=positions), Graph.nearest(positions))
        if not fitted:
            return Dataset("DataFrame", readings, self._given_graph(len(readings.ids)))
        known = list(self.feature_names_in_)
        for sensor in readings.ids:
            if sensor not in known:
                problem = "it was not fitted to this sensor: pass a Dataset, or sensors with their positions"
                raise DataError("DataFrame", problem, column=sensor)
        if absent := [sensor for sensor in known if sensor not in readings.ids]:
            how = "forecast from what was learned and from the others, or left empty if the method cannot"
            warnings.warn(f"no readings of {', '.join(absent)}: {how}", stacklevel=4)
        return Dataset("DataFrame", columns_of(readings, known), self._graph_of_run())

    def _given_graph(self, n: int) -> Graph:
        if self.graph is not None:
            if not isinstance(self.graph, Graph):
                raise ConfigError("graph", f"must be a cnfgnn.Graph, not a {type(self.graph).__name__}")
            return self.graph
        if method_of(self.method).graph_network:
            problem = f"the graph of the sensors is unknown, and {self.method} needs it"
            raise DataError("DataFrame", f"{problem}: give sensors (latitude, longitude) or a graph")
        return Graph(n, np.arange(n), np.arange(n), np.ones(n))

    def _graph_of_run(self) -> Graph:
        try:
            senders, receivers, weights = (np.array(x) for x in self.run_.events()[0]["data"]["edges"])
            return Graph(len(self.feature_names_in_), senders.astype(int), receivers.astype(int), weights)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise RunError(self.run_.folder, "its events are damaged") from error


def _delete(folder: Path, owner: int) -> None:
    """Delete a folder, unless this process is a fork of its owner, such as a web server's worker."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _positions(sensors: pd.DataFrame, ids: Sequence[str]) -> np.ndarray[Any, Any]:
    """(n 2) of a table of sensors."""
    if not isinstance(sensors, pd.DataFrame):
        raise DataError("sensors", f"must be a DataFrame, not a {type(sensors).__name__}")
    table = sensors.set_index("id") if "id" in sensors.columns else sensors
    table = table.set_axis(table.index.map(str))
    for name in ("latitude", "longitude"):
        if name not in table.columns:
            raise DataError("sensors", f"has no column {name}")
    table = table[["latitude", "longitude"]].apply(pd.to_numeric, errors="coerce")
    for sensor in ids:
        if sensor not in table.index:
            raise DataError("sensors", f"has no sensor {sensor}, which the readings have")
    table = table.loc[table.index.isin([*ids])]
    for sensor in table.index[table.index.duplicated()]:
        raise DataError("sensors", f"sensor {sensor} occurs twice: keep one row")
    positions: np.ndarray[Any, Any] = table.loc[list(ids)].to_numpy(dtype=np.float64)
    for sensor, (latitude, longitude) in zip(ids, positions, strict=True):
        if not (abs(latitude) <= 90 and abs(longitude) <= 180):  # nor of NaN
            problem = "needs a latitude between -90 and 90 and a longitude between -180 and 180"
            raise DataError("sensors", f"sensor {sensor} {problem}")
    return positions


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
    "Forecaster",
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
    "register",
    "resume",
    "setting",
]
