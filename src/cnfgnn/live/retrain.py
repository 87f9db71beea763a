"""One retraining: train beside the service, judge the new model against the live one, and switch if it is
better.

The newest days are held out: the new model does not learn from them, the live one could not, and both are
judged by their forecasts of them. The training goes on from the live model's weights, so that it takes a
fraction of the rounds.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cnfgnn.config.settings import DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.folder import zeros_are_missing
from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.data.source import open_data
from cnfgnn.data.windows import SPLITS, Windows
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.files import hold_lock
from cnfgnn.live.engine import KEPT_ROWS
from cnfgnn.live.models import Models, Training
from cnfgnn.live.recent import Cell, RecentReadings
from cnfgnn.live.store import FILE as DATABASE
from cnfgnn.runs.evaluate import restore_best
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import first_row_after_training
from cnfgnn.runs.train import Unwatched, Watcher, begin_from, train_run
from cnfgnn.runs.training_loop import evaluate

HOLD_OUT = 3.0  # days that both models are judged on
LEAST_SHARE = 1 / 3  # of them that the live model has not learned from: with fewer, nothing is trained
DAY_SECONDS = 86_400
LOCK = "retrain.lock"

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RetrainSettings:
    """What to train on, and how to judge.

    data      a folder or file of readings; None: those that the run was trained on
    hold_out  days at the end that nobody learns from
    changes   settings of how files are read
    """

    data: Path | None = None
    hold_out: float = HOLD_OUT
    changes: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        if not 0 < self.hold_out <= 365:
            raise ConfigError("--hold-out", f"must be above 0 and at most 365 days, not {self.hold_out:g}")


def retrain(run: Run, models: Models, settings: RetrainSettings, watcher: Watcher | None = None) -> Training:
    """Train once, judge, and make the new model live if it is better.

    Raises:
        RunError: A retraining of this service is under way already.
        CnfgnnError: The readings or the live model cannot be used.
    """
    settings.check()
    handle = hold_lock(models.state / LOCK, models.state, "the retraining of process")
    try:
        models.note_try()
        models.remove_others()  # of a retraining that was killed
        training = _retrained(run, models, settings, watcher or Unwatched())
        models.note_training(training)
        models.remove_others()
    finally:
        os.close(handle)
    return training


def _retrained(run: Run, models: Models, settings: RetrainSettings, watcher: Watcher) -> Training:
    live = models.read().live
    old = Run.open(models.folder(live))
    data = readings_at_hand(run, models.state, settings)
    plan = plan_windows(old, data.readings, settings.hold_out)
    begun = time.time()
    if len(plan.judged) < plan.least:
        text = (
            f"{live} has not learned from {len(plan.judged)} windows of the last {settings.hold_out:g} days;"
            f" {plan.least} are needed to judge by, and as many days before them to learn from"
        )
        return Training(begun, "too few readings", live, None, None, text)
    name = datetime.now(UTC).strftime("trained-%Y%m%dT%H%M%S")
    changes = {**settings.changes, "data.shares": plan.shares}
    if settings.data is not None:
        changes["data.path"] = str(settings.data.absolute())
    new = begin_from(old, data, models.folder(name), changes)
    train_run(new, data, watcher)
    new = Run.open(new.folder)
    errors = [error_on(model, data, plan.judged) for model in (old, new)]
    better = errors[1] < errors[0]
    kind = "mean error" if old.config.training.loss == "absolute" else "RMSE"
    verdict = f"{kind} {errors[1]:.4g} instead of {errors[0]:.4g} of {live}"
    text = f"{name}: {verdict} on {len(plan.judged)} windows of the last {settings.hold_out:g} days"
    if better:
        models.switch(name, text.partition(": ")[2])
    return Training(begun, "better" if better else "not better", name, errors[0], errors[1], text)


# ---- readings -------------------------------------------------------------------------------------------


def readings_at_hand(run: Run, state: Path, settings: RetrainSettings) -> Dataset:
    """All that the service knows: the readings of the files, and on top of them those in its database."""
    config = run.config.with_changes(settings.changes)
    data = open_data(config, settings.data)
    path = settings.data or Path(config.data.path)
    zeros_missing = str(path) != "city" and zeros_are_missing(path)
    readings = with_stored(data.readings.on_grid(), state, zeros_missing)
    return replace(data, readings=readings)


def with_stored(readings: Readings, state: Path, zeros_missing: bool) -> Readings:
    """Readings of files, and on top of them those that a service has stored in its folder since."""
    cells, of_variables = _stored(state / DATABASE)
    if not cells:
        return readings
    first = int(readings.times[0].astype("datetime64[s]").astype(np.int64))
    newest = max(int(readings.times[-1].astype("datetime64[s]").astype(np.int64)), cells[-1][0])
    step = int(readings.step.astype("timedelta64[s]").astype(np.int64))
    recent = RecentReadings(readings, (newest - first) // step + 1, zeros_missing)
    for seconds, sensor, value in cells:
        if sensor in recent.column_of and seconds >= first:
            recent.put(Cell(recent.step_of(seconds), recent.column_of[sensor], value))
    for seconds, variable, sensor, value in of_variables:
        if sensor in recent.column_of and variable in recent.variables:
            recent.put(Cell(seconds, recent.column_of[sensor], value, variable))
    known = recent.until(recent.newest)
    return replace(
        readings, times=known.times, values=known.values, missing=known.missing, others=known.others
    )


def _stored(database: Path) -> tuple[list[tuple[int, str, float]], list[tuple[int, str, str, float]]]:
    """Time, sensor and value of all readings in the service's database, which may be in use; and time,
    variable, sensor and value of further variables."""
    if not database.exists():
        return [], []
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as opened:
            cells = opened.execute("SELECT time, sensor, value FROM readings ORDER BY time").fetchall()
            if not opened.execute("SELECT 1 FROM sqlite_master WHERE name = 'variables'").fetchall():
                return cells, []  # an older version made it
            chosen = "SELECT time, variable, sensor, value FROM variables ORDER BY time"
            return cells, opened.execute(chosen).fetchall()
    except sqlite3.Error as error:
        raise RunError(database, f"cannot be read ({error})") from error


# ---- judging --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowPlan:
    """Which windows a retraining learns from and is judged by.

    shares  of the windows to train, validate and test on: the test split is what is held out
    judged  start rows of the windows whose readings to forecast neither model has seen
    least   how many there must be
    """

    shares: tuple[float, float, float]
    judged: Ints
    least: int


def plan_windows(old: Run, readings: Readings, hold_out: float) -> WindowPlan:
    """Hold out the last days. The other windows train and validate in the proportion of the live model."""
    step = int(readings.step.astype("timedelta64[s]").astype(np.int64))
    of_old = first_row_after_training(old, readings)
    return plan_rows(old.config.data, len(readings.times), step, hold_out, of_old)


def plan_rows(d: DataConfig, rows: int, step: int, hold_out: float, of_old: int) -> WindowPlan:
    """The same for so many rows, a `step` in seconds apart; `of_old` is the row at which the first test
    window of the live model's training begins."""
    total = rows - d.history - d.horizon + 1
    held = max(1, round(hold_out * DAY_SECONDS / step))
    least = max(1, round(LEAST_SHARE * held))
    if 2 * held > total:  # more than half of the readings would be held out
        return WindowPlan(d.shares, np.zeros(0, dtype=np.int64), least)
    rest = 1 - held / total
    train = rest * d.shares[0] / (d.shares[0] + d.shares[1])
    shares = (train, rest - train, 1 - rest)
    own = Windows.of(rows, d.history, d.horizon, shares)
    # Windows before the test split reach into its first targets.
    first = max(int(own.starts["test"][0]), of_old) + d.horizon - 1
    judged = np.arange(max(0, first), total, dtype=np.int64)
    return WindowPlan(shares, judged, least)


def error_on(run: Run, data: Dataset, starts: Ints) -> float:
    """The error of a run's best round on the windows that begin at these rows, as it would forecast them now:
    with what it computed from readings when it was trained."""
    d = run.config.data
    first = 0
    if set(data.readings.ids) <= set(run.data.sensors):  # nothing is computed from older readings
        first = max(0, int(starts[0]) - KEPT_ROWS)
    newest = replace(data, readings=rows_of(data.readings, slice(first, None)))
    none = np.zeros(0, dtype=np.int64)
    windows = Windows(
        {**dict.fromkeys(SPLITS, none), "test": starts - first}, d.history, d.horizon, ahead=True
    )
    scores = evaluate(restore_best(run, newest, windows), "test")
    masked, kind = d.missing == "masked", run.config.training.loss
    loss = scores.loss(masked, kind)
    return loss if kind == "absolute" else float(loss**0.5)
