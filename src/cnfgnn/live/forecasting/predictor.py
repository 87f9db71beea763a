"""A trained run that stays in memory and forecasts one window after another.

Setting up a run takes seconds: its settings, graph, weights and weekly profiles are read once, here. A
forecast then cuts one window out of the newest readings, and the run's own strategy does the rest: encode,
mix, decode. So a live forecast is what `cnfgnn forecast` would write for the same readings.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cnfgnn.algorithm.server import Server
from cnfgnn.config.settings import DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.inputs import NO_NAMES, with_inputs
from cnfgnn.data.prepared_series import PreparedSeries
from cnfgnn.data.readings import DAY, Readings, last_rows, rows_of, weekday, with_rows_before
from cnfgnn.data.series import NEVER, LastReadings, Past, Series
from cnfgnn.data.windows import Windows
from cnfgnn.errors import DataError
from cnfgnn.forecasters.usual import MOST_ROWS
from cnfgnn.live.forecasting.forecasts import quality_of
from cnfgnn.models.params import part
from cnfgnn.privacy.copies import CopiesOfNewest, SimulatedCopies
from cnfgnn.privacy.truth_and_copy import Blurring, TruthAndCopy
from cnfgnn.runs.checkpoints import FolderStore
from cnfgnn.runs.evaluate import restore_best
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import with_rows_ahead

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Of the newest readings: outliers are sought among them, and usual readings use those of a week ago.
KEPT_ROWS = MOST_ROWS + 1


class Predictor(ABC):
    """What the service needs of whatever makes its forecasts: a run on this machine, or a federation.

    cleaning  which readings mean "no reading"
    blurring  how the copy of readings and further inputs is made; None if the copy is the readings
    repeats   whether a step may be forecast again when late readings arrive; not where others are asked for
              each forecast: when they are asked must not depend on readings
    """

    repeats = False

    ids: tuple[str, ...]
    history: int
    horizon: int
    cleaning: DataConfig
    blurring: Blurring | None
    _last: tuple[Readings, TruthAndCopy] | None = None  # the last readings, and what was made of them

    @property
    @abstractmethod
    def key(self) -> str:
        """Identifies the model and its sensors: ranges and errors are those of one model."""

    @property
    @abstractmethod
    def weekly_profiles(self) -> Floats | None:
        """(n 7 SLOTS): what each sensor usually reads; None if that is unknown."""

    @property
    @abstractmethod
    def about(self) -> Mapping[str, Any]:
        """The run and its round, for /health."""

    @abstractmethod
    def forecast(self, readings: Readings) -> Floats:
        """(n t): the readings that follow these; NaN for a sensor that cannot be forecast."""

    @abstractmethod
    def quality(self, readings: Readings) -> Ints:
        """(n,): how complete the last forecast, of these readings, is, as positions in QUALITIES."""

    def cleaned(self, readings: Readings) -> Readings:
        """The readings as forecasts use them: codes for "missing" and outliers are missing."""
        return self._truth_and_copy(readings).truth

    def _truth_and_copy(self, readings: Readings) -> TruthAndCopy:
        """That of the last readings is remembered."""
        last = self._last
        if last is None or last[0] is not readings or last[1].blurring is not self.blurring:
            both = TruthAndCopy(self._with_used_inputs(readings), self.cleaning, self.blurring)
            last = self._last = readings, both
        return last[1]

    def _with_used_inputs(self, readings: Readings) -> Readings:
        """The readings with the further inputs that forecasts use."""
        return readings


class RunPredictor(Predictor):
    """The best round of a run on the sensors of a data set.

    If the run has a blur, copies are drawn as in a simulation.

    store  remembers what was computed from the readings at hand for sensors that the run does not know, so
           that forecasts do not change when the process starts again
    """

    repeats = True

    def __init__(self, run: Run, data: Dataset, store: FolderStore | None = None) -> None:
        self.run, self.ids, self.config = run, data.readings.ids, run.config
        d = run.config.data
        self.history, self.horizon = d.history, d.horizon
        new = sorted(set(self.ids) - set(run.data.sensors))
        newest = _up_to_last_reading(data.readings, None if new else run.scaler.mean)
        if not new:  # nothing is computed from older readings
            newest = last_rows(newest, KEPT_ROWS)
        newest = with_rows_before(newest, 2 * d.history, data.readings.step_seconds)
        ahead = Windows.next(len(newest.times), d.history, d.horizon)
        self.experiment = restore_best(run, replace(data, readings=with_rows_ahead(newest, d.horizon)), ahead)
        [(_, self.owner)] = self.experiment.owners
        # As the run calibrated them, if it did. The service adapts them, and needs none of the owner.
        self.intervals, self.owner.intervals = self.owner.intervals, None
        self.graph = data.graph if run.config.graph.direction == "files" else data.graph.reversed()
        self.has_network = run.config.model.embedding > 0
        copies = CopiesOfNewest(SimulatedCopies(run.config.seed))
        self.cleaning, self.blurring = d, Blurring.of(run.config, copies)
        if new and store is not None:
            self._remember(store)

    @property
    def key(self) -> str:
        return key_of(self.ids, begun=self.run.events()[0], round=self.run.progress.best.tag)

    @property
    def weekly_profiles(self) -> Floats | None:
        """(n 7 SLOTS): what each sensor usually reads; None if the run does not use it."""
        return self.owner.data.weekly_profiles

    @property
    def about(self) -> Mapping[str, Any]:
        return {"run": str(self.run.folder), "round": self.run.progress.best.r_g}

    def quality(self, readings: Readings) -> Ints:
        return quality_of(readings, self.graph if self.has_network else None, self.history)

    def forecast(self, readings: Readings) -> Floats:
        """(n t): the readings that follow these; NaN for a sensor of which nothing is known, and for all if
        none has a reading in the history.

        The readings are as they arrived, on a regular grid, and at least as long as the history; with them
        are the further inputs that the run was trained with.
        """
        both, nodes = self._truth_and_copy(readings), self.owner.nodes
        own = window_of(both.truth, self.owner.data)
        nodes.data = own if both.copy is both.truth else window_of(both.copy, nodes.data)
        self.owner.data = own
        has = nodes.data.heard["test"]
        if has is not None and not bool(has.any()):
            return np.full((len(self.ids), self.horizon), np.nan)
        if isinstance(self.experiment.strategy, Server):
            self.experiment.strategy.everyone.has = {} if has is None else {"test": has}
        self.experiment.strategy.forecast()
        forecasts = self.owner.forecasts
        assert forecasts is not None
        values: Floats = forecasts.cpu().numpy()
        return values

    def _with_used_inputs(self, readings: Readings) -> Readings:
        names = self.run.data.inputs if self.config.model.takes_inputs else NO_NAMES
        return with_inputs(readings, names, str(self.run.folder))

    def _remember(self, store: FolderStore) -> None:
        """Use what was computed for unknown sensors when the service first started, or keep it now."""
        tag, of = self.run.progress.best.tag, {"owner.": self.owner.data}
        if self.owner.nodes.data is not self.owner.data:
            of["nodes."] = self.owner.nodes.data
        if not store.has(tag):
            state = {prefix + name: w for prefix, data in of.items() for name, w in data.state().items()}
            store.write(tag, state, [tag])
            return
        saved = store.read(tag)
        for prefix, data in of.items():
            data.restore(part(saved, prefix))


def key_of(sensors: Sequence[str], **about: object) -> str:
    """What tells a model and its sensors from others, in one word."""
    told = json.dumps({**about, "sensors": sensors}, sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()


def window_of(readings: Readings, before: PreparedSeries) -> PreparedSeries:
    """The last window of the readings, and as many rows before it as forecasts use. Longer series would give
    the same and take longer; only usual readings look further back, and gaps at the beginning are filled from
    the last reading before it. `before` are earlier readings of the same sensors: the scale and what was
    computed from them stay.
    """
    n, horizon = len(readings.ids), before.horizon
    rows = min(len(readings.times), 2 * before.history)
    future = np.full((n, horizon), np.nan)
    values = np.concatenate([readings.values[-rows:].T, future], axis=1)
    absent = np.concatenate([readings.missing[-rows:].T, np.isnan(future)], axis=1)
    last = readings.seconds[-1]
    step = readings.step_seconds
    seconds = last + step * np.arange(1 - rows, horizon + 1)
    day = int(DAY.astype(np.int64))
    others = [] if before.others is None else [one.at(seconds) for one in readings.others]
    past = Past(readings.seconds.astype(np.float64), readings.values.T, readings.missing.T)
    earlier = _before(readings, rows, before.masked)
    window = Series(values, absent, (seconds % day) / day, weekday(seconds), others, seconds, past, earlier)
    return before.with_readings(window, Windows.next(rows, before.history, horizon))


def _before(readings: Readings, rows: int, masked: bool) -> LastReadings:
    """The last readings before the last `rows` rows, of nodes for which these begin with a gap. For other
    nodes they do not matter."""
    n = len(readings.ids)
    found = LastReadings(np.full(n, np.nan), np.full(n, NEVER))
    absent = readings.missing if masked else np.isnan(readings.values)
    for node in np.flatnonzero(absent[-rows]).tolist():
        earlier = np.flatnonzero(~absent[:-rows, node])
        if len(earlier):
            found.values[node] = readings.values[earlier[-1], node]
            found.steps[node] = len(absent) - rows - earlier[-1]
    return found


def _up_to_last_reading(readings: Readings, usual: float | None) -> Readings:
    """Without the rows at the end in which no sensor has a reading. If none has any, the `usual` one stands
    for it: a model that computes nothing from readings can be set up, and wait for the first."""
    measured = np.flatnonzero(~readings.missing.all(axis=1))
    if not len(measured):
        if usual is None:
            raise DataError(readings.source, "no sensor has a reading")
        filled = np.full_like(readings.values, usual)
        return replace(readings, values=filled, missing=np.zeros_like(readings.missing))
    return rows_of(readings, slice(0, int(measured[-1]) + 1))
