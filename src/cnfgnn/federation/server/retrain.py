"""A training beside a live task: go on from the live model, judge both, and make the new one live if it is
better.

The newest days are held out. The new model does not learn from them, the live one could not, and both
forecast them. The sites sum up the errors against their blurred copies, as for the validation of every round,
and the server compares the sums. True errors stay at the sites, unless an owner tells their sums.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cnfgnn.data.prepared_series import SUMS
from cnfgnn.data.windows import SPLITS, Split, Windows
from cnfgnn.federation.server.federated_run import federated_data, terms_of
from cnfgnn.federation.server.live.models import FederatedModels
from cnfgnn.federation.server.task_context import TaskContext, strategy_of
from cnfgnn.federation.spans import Span, training_span
from cnfgnn.live.models import Outcome, Training
from cnfgnn.live.retrain import Ints, WindowPlan, plan_rows
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import Scores
from cnfgnn.runs.training_loop import Result

Begin = Callable[[TaskContext, Mapping[str, Any]], Run]
Train = Callable[[TaskContext, Run], Result]


def retrain(context: TaskContext, begin: Begin, train: Train) -> dict[str, Any]:
    """Train once and judge; `begin` makes a run that goes on from the live one, and `train` trains it."""
    models = FederatedModels(context.kit, context.task.line)
    models.note_try()
    models.remove_others()  # of a training that was killed
    training = _retrained(context, models, begin, train)
    models.note_training(training)
    if training.outcome == "better":
        models.switch(training.model, training.text.partition(": ")[2])
    models.remove_others()
    return {"outcome": training.outcome, "model": training.model, "text": training.text}


def _retrained(context: TaskContext, models: FederatedModels, begin: Begin, train: Train) -> Training:
    begun, live, hold_out = time.time(), context.task.earlier, context.task.hold_out
    old = Run.open(models.folder(live))
    span, _ = training_span(context.spans)
    plan = plan_judged(old, span, hold_out)
    if len(plan.judged) < plan.least:
        text = (
            f"{live} has not learned from {len(plan.judged)} windows of the last {hold_out:g} days;"
            f" {plan.least} are needed to judge by, and as many days before them to learn from"
        )
        return Training(begun, "too few readings", live, None, None, text)
    new = begin(context, {"data.shares": plan.shares})
    train(context, new)
    new = Run.open(new.folder)
    found = [sums_on(context, run, span, plan.judged) for run in (old, new)]
    old_error, new_error = _compared(old, *found)
    kind = "mean error" if old.config.training.loss == "absolute" else "RMSE"
    verdict = f"{kind} {new_error:.4g} instead of {old_error:.4g} of {live}"
    text = f"{new.folder.name}: {verdict} on {len(plan.judged)} windows of the last {hold_out:g} days"
    outcome: Outcome = "better" if new_error < old_error else "not better"
    return Training(begun, outcome, new.folder.name, old_error, new_error, text)


def plan_judged(old: Run, span: Span, hold_out: float) -> WindowPlan:
    """Which windows of these time steps to train on, and which neither model has seen."""
    d = old.config.data
    windows = Windows.of(old.data.rows, d.history, d.horizon, d.shares, old.data.name)
    passed = (federated_data(old).first - span.first) // span.step
    return plan_rows(d, span.rows, span.step, hold_out, passed + int(windows.starts["test"][0]))


def sums_on(context: TaskContext, run: Run, span: Span, starts: Ints) -> Tensor:
    """(n t 8): the summed errors of a run's best round on the windows that begin at these rows, as it would
    forecast them now: with what was computed from readings when it was trained."""
    d = run.config.data
    terms = terms_of(run)._replace(first=span.first, rows=span.rows)
    none: dict[Split, Ints] = dict.fromkeys(SPLITS, np.zeros(0, dtype=np.int64))
    windows = Windows({**none, "test": starts}, d.history, d.horizon, ahead=True)
    experiment = context.set_up(run, terms, windows, lambda: None, run.scaler)
    strategy = strategy_of(experiment)
    strategy.restore(run.progress.best.tag, to_learn=False)
    return strategy.score("test").best_known.cpu()


def _compared(run: Run, old: Tensor, new: Tensor) -> tuple[float, float]:
    """The errors of both models over the sensors that were there for both."""
    count = SUMS.index("count")
    both = (old[..., count].sum(dim=1) > 0) & (new[..., count].sum(dim=1) > 0)
    masked, kind = run.config.data.missing == "masked", run.config.training.loss
    losses = [Scores(torch.where(both[:, None, None], sums, 0.0)).loss(masked, kind) for sums in (old, new)]
    old_error, new_error = losses if kind == "absolute" else (loss**0.5 for loss in losses)
    return float(old_error), float(new_error)
