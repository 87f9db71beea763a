"""One retraining: train beside the service, judge the new model against the live one, and switch if it is
better. On one machine or in a federation, only the training and the judging differ, see `Trial`.

The newest days are held out: the new model does not learn from them, the live one could not, and both are
judged by their forecasts of them. The training goes on from the live model's weights, so that it takes a
fraction of the rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cnfgnn.config.settings import Config, DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.data.windows import Windows
from cnfgnn.files import holding_lock
from cnfgnn.live.forecasting.predictor import KEPT_ROWS
from cnfgnn.live.intake.at_hand import at_hand
from cnfgnn.live.learning.models import Models, Outcome, Training
from cnfgnn.live.options import LiveSettings
from cnfgnn.runs.evaluate import restore_best
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import first_row_after_training
from cnfgnn.runs.scores import Scores
from cnfgnn.runs.train import Unwatched, Watcher, begin_from, train_run
from cnfgnn.runs.training_loop import evaluate

LEAST_SHARE = 1 / 3  # of them that the live model has not learned from: with fewer, nothing is trained
DAY_SECONDS = 86_400
LOCK = "retrain.lock"

Ints = npt.NDArray[np.int64]


class Trial(NamedTuple):
    """A training that is about to begin, on one machine or in a federation.

    old     the run that is live
    plan    what to train on, and what to judge by
    train   trains a run that goes on from the live one, with these shares of the windows
    errors  of the live run and of the new one on the windows to judge by
    """

    old: Run
    plan: WindowPlan
    train: Callable[[tuple[float, float, float]], Run]
    errors: Callable[[Run], tuple[float, float]]


def train_and_judge(models: Models, live: str, hold_out: float, begin: Callable[[], Trial]) -> Training:
    """Train once, judge the new model against the live one, and make it live if it is better."""
    models.remove_others()  # of a training that was killed
    training = _judged(begin(), live, hold_out)
    if training.outcome == "better":
        models.switch(training.model, training.text.partition(": ")[2])
    models.note_training(training)
    models.remove_others()
    return training


def _judged(trial: Trial, live: str, hold_out: float) -> Training:
    begun, plan = time.time(), trial.plan
    if len(plan.judged) < plan.least:
        text = (
            f"{live} has not learned from {len(plan.judged)} windows of the last {hold_out:g} days;"
            f" {plan.least} are needed to judge by, and as many days before them to learn from"
        )
        return Training(begun, "too few readings", live, None, None, text)
    new = Run.open(trial.train(plan.shares).folder)
    old_error, new_error = trial.errors(new)
    kind = "mean error" if trial.old.config.training.loss == "absolute" else "RMSE"
    verdict = f"{kind} {new_error:.4g} instead of {old_error:.4g} of {live}"
    text = f"{new.folder.name}: {verdict} on {len(plan.judged)} windows of the last {hold_out:g} days"
    outcome: Outcome = "better" if new_error < old_error else "not better"
    return Training(begun, outcome, new.folder.name, old_error, new_error, text)


def retrain(run: Run, models: Models, settings: LiveSettings, watcher: Watcher | None = None) -> Training:
    """One retraining of the service of a run on this machine.

    Raises:
        RunError: A retraining of this service is under way already.
        CnfgnnError: The readings or the live model cannot be used.
    """
    settings.check()
    with holding_lock(models.state / LOCK, models.state, "the retraining of process"):
        live = models.read().live
        begin = partial(_trial, run, models, live, settings, watcher or Unwatched())
        return train_and_judge(models, live, settings.hold_out, begin)


def _trial(run: Run, models: Models, live: str, settings: LiveSettings, watcher: Watcher) -> Trial:
    old, data = Run.open(models.folder(live)), at_hand(run, settings, models.state, all_stored=True).data
    plan = plan_windows(old, data.readings, settings.hold_out)

    def train(shares: tuple[float, float, float]) -> Run:
        name = datetime.now(UTC).strftime("trained-%Y%m%dT%H%M%S")
        changes = {**settings.changes, "data.shares": shares}
        if settings.data is not None:
            changes["data.path"] = str(settings.data.absolute())
        new = begin_from(old, data, models.folder(name), changes)
        train_run(new, data, watcher)
        return new

    def errors(new: Run) -> tuple[float, float]:
        return error_on(old, data, plan.judged), error_on(new, data, plan.judged)

    return Trial(old, plan, train, errors)


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
    step = readings.step_seconds
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
    windows = Windows.to_forecast(starts - first, d.history, d.horizon)
    return judged_error(evaluate(restore_best(run, newest, windows), "test"), run.config)


def judged_error(scores: Scores, config: Config) -> float:
    """The error that models are compared by: of the kind that they were trained to lessen, in the readings'
    unit."""
    kind = config.training.loss
    loss = scores.loss(config.data.missing == "masked", kind)
    return float(loss if kind == "absolute" else loss**0.5)
