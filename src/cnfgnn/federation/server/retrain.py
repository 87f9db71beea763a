"""A training beside a live task: go on from the live model, judge both, and make the new one live if it is
better.

The newest days are held out. The new model does not learn from them, the live one could not, and both
forecast them. The sites sum up the errors against their blurred copies, as for the validation of every round,
and the server compares the sums. True errors stay at the sites, unless an owner tells their sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cnfgnn.data.prepared_series import SUMS
from cnfgnn.data.windows import Windows
from cnfgnn.federation.server.federated_run import federated_data, terms_of
from cnfgnn.federation.server.live.models import FederatedModels
from cnfgnn.federation.server.task_context import TaskContext, strategy_of
from cnfgnn.federation.spans import Span, training_span
from cnfgnn.live.learning.retrain import Ints, Trial, WindowPlan, judged_error, plan_rows, train_and_judge
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import Scores
from cnfgnn.runs.training_loop import Result

Begin = Callable[[TaskContext, Mapping[str, Any]], Run]
Train = Callable[[TaskContext, Run], Result]


def retrain(context: TaskContext, begin: Begin, train: Train) -> dict[str, Any]:
    """Train once and judge; `begin` makes a run that goes on from the live one, and `train` trains it."""
    models, task = FederatedModels(context.kit, context.task.line), context.task

    def trial() -> Trial:
        old = Run.open(models.folder(task.earlier))
        span, _ = training_span(context.spans)
        plan = plan_judged(old, span, task.hold_out)

        def trained(shares: tuple[float, float, float]) -> Run:
            new = begin(context, {"data.shares": shares})
            train(context, new)
            return new

        def errors(new: Run) -> tuple[float, float]:
            return _compared(old, *(sums_on(context, run, span, plan.judged) for run in (old, new)))

        return Trial(old, plan, trained, errors)

    models.note_try()
    training = train_and_judge(models, task.earlier, task.hold_out, trial)
    return {"outcome": training.outcome, "model": training.model, "text": training.text}


def plan_judged(old: Run, span: Span, hold_out: float) -> WindowPlan:
    """Which windows of these time steps to train on, and which neither model has seen."""
    d = old.config.data
    passed = (federated_data(old).first - span.first) // span.step
    return plan_rows(d, span.rows, span.step, hold_out, passed + int(old.windows.starts["test"][0]))


def sums_on(context: TaskContext, run: Run, span: Span, starts: Ints) -> Tensor:
    """(n t 8): the summed errors of a run's best round on the windows that begin at these rows, as it would
    forecast them now: with what was computed from readings when it was trained."""
    d = run.config.data
    terms = terms_of(run)._replace(first=span.first, rows=span.rows)
    windows = Windows.to_forecast(starts, d.history, d.horizon)
    experiment = context.set_up(run, terms, windows, lambda: None, run.scaler)
    strategy = strategy_of(experiment)
    strategy.restore(run.progress.best.tag, to_learn=False)
    return strategy.score("test").best_known.cpu()


def _compared(run: Run, old: Tensor, new: Tensor) -> tuple[float, float]:
    """The errors of both models over the sensors that were there for both."""
    count = SUMS.index("count")
    both = (old[..., count].sum(dim=1) > 0) & (new[..., count].sum(dim=1) > 0)
    old_error, new_error = (
        judged_error(Scores(torch.where(both[:, None, None], sums, 0.0)), run.config) for sums in (old, new)
    )
    return old_error, new_error
