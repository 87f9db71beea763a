"""The tasks at the server: train, evaluate, forecast, and forecast at every step (live).

The server knows the graph and no readings. A channel carries its requests to the sites.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.config.settings import Config
from cnfgnn.data.prepared_series import SUMS
from cnfgnn.data.windows import Windows
from cnfgnn.errors import CnfgnnError, DataError, NoSiteAnswered, RunError
from cnfgnn.federation.server.federated_run import (
    check_recordable,
    check_same_federation,
    check_same_times,
    check_same_windows,
    describe_data,
    federated_data,
    first_event,
    keep_recording,
    terms_of,
)
from cnfgnn.federation.server.live.models import FederatedModels
from cnfgnn.federation.server.live.task import LiveLoop
from cnfgnn.federation.server.retrain import retrain
from cnfgnn.federation.server.status import STOP, STOP_TRAINING, StatusFile, StatusWatcher, stop_requested
from cnfgnn.federation.server.task_context import TaskContext, strategy_of
from cnfgnn.federation.spans import Span, forecast_span, format_time, training_span
from cnfgnn.federation.task import RUNS, Task, check_federated
from cnfgnn.forecasters.intervals import check_levels
from cnfgnn.models.params import part
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import Errors, Scores, scores_as_dict
from cnfgnn.runs.train import to_go_on, train_run_with
from cnfgnn.runs.training_loop import Result, evaluate
from cnfgnn.transports.remote.messages import Channel
from cnfgnn.transports.remote.transport import Stopped


def serve(kit: Path, task: Task, channel: Channel, stopped: Callable[[], bool]) -> None:
    """Run a task to its end; the status file records the outcome."""
    status = StatusFile(kit, task.token, do=task.do, run=task.run)
    tasks = {"train": _train, "evaluate": _evaluate, "forecast": _forecast, "live": _live}
    tasks["retrain"] = partial(retrain, begin=_new_run_from, train=_trained)
    stop = STOP_TRAINING if task.do == "retrain" else STOP
    operator_stopped = partial(stop_requested, kit, task.token, stop)
    try:
        context = TaskContext(kit, task, channel, lambda: stopped() or operator_stopped(), status)
        status.end("finished", result=tasks[task.do](context))
    except Stopped:
        status.end("stopped")
    except CnfgnnError as error:
        status.end("failed", problem=str(error), exit_code=error.exit_code)
    except Exception as error:
        logging.getLogger(__name__).exception("the task failed")
        status.end("failed", problem=f"{type(error).__name__}: {error}"[:500], exit_code=1)
    finally:
        if status.transport is not None:
            status.transport.close()


def _train(context: TaskContext) -> dict[str, Any]:
    run = _existing_run(context, context.folder) if context.task.resume else _new_run(context)
    result = _trained(context, run)
    return {
        "scores": scores_as_dict(result.test, context.ids),
        **result.summary(),
        **_recorded(context, run),
        **about_errors(context, run, result.test),
        "left_out": [context.ids[row] for row in result.progress.left_out],
        "absent": list(context.absent_sites()),
    }


def _trained(context: TaskContext, run: Run) -> Result:
    watcher = StatusWatcher(context.status, federated_data(run).sites)
    scaler = run.scaler if run.started else None
    terms, windows = terms_of(run), run.windows

    def set_up() -> Experiment:
        # A run that has weights of its own does not begin with those of an earlier one.
        origin = run.origin if run.progress.last_tag is None else None
        earlier = None if origin is None else Run.open(Path(origin.run))
        kept = None if earlier is None else earlier.scaler
        experiment = context.set_up(run, terms, windows, watcher.tick, scaler, kept)
        if run.started:
            check_same_windows(run, experiment, context.missing_sites)
        if earlier is not None:
            _go_on_from(experiment, earlier)
        return experiment

    def about() -> dict[str, Any]:
        return first_event(run, context.project, context.graph, context.positions, context.blurs)

    return train_run_with(run, set_up, about, watcher, save_phases=True)


def _go_on_from(experiment: Experiment, earlier: Run) -> None:
    """Begin with the weights of an earlier run: sites and their owners with those that they have kept, the
    server with the ones that all share and with the Graph Network's. Nothing else is sent."""
    strategy, tag = strategy_of(experiment), earlier.progress.best.tag
    state = earlier.store("server").read(tag)
    strategy.nodes.inherit(terms_of(earlier).run, tag)
    strategy.go_on_from(part(state, "theta_bar.", strategy.graph.weights.device), state)


def _new_run(context: TaskContext) -> Run:
    if context.task.earlier:
        return _new_run_from(context)
    config = Config().with_changes(context.task.settings).with_given(context.task.given)
    _check_new(context, config)
    span, warnings = training_span(context.spans)
    context.warn(warnings)
    return Run.begin(context.folder, config, describe_data(context.project, context.graph, span))


def _new_run_from(context: TaskContext, changes: Mapping[str, Any] | None = None) -> Run:
    """A run that goes on from an earlier one of this server, with its settings, except for `changes`, and
    newer readings."""
    earlier = Run.open(context.kit / RUNS / context.task.earlier)
    federated_data(earlier)
    if not earlier.progress.history:
        raise RunError(earlier.folder, "has no finished round yet, so there is nothing to go on from")
    span, warnings = training_span(context.spans)
    context.warn(warnings)
    check_same_times(earlier, span)
    config, origin = to_go_on(earlier, span.rows, {**context.task.settings, **(changes or {})})
    _check_new(context, config)
    return Run.begin(context.folder, config, describe_data(context.project, context.graph, span), origin)


def _check_new(context: TaskContext, config: Config) -> None:
    check_federated(config)
    if context.task.record:
        check_recordable(config.method, config.model.levels)


def _existing_run(context: TaskContext, folder: Path) -> Run:
    run = Run.open(folder)
    check_same_federation(run, context.project, context.graph)
    if context.task.record:
        check_recordable(run.config.method, run.config.model.levels)
    return run


def _run_with_a_round(context: TaskContext, folder: Path) -> Run:
    run = _existing_run(context, folder)
    if not run.progress.history:
        raise RunError(run.folder, "has no finished round yet: train it first")
    return run


def _evaluate(context: TaskContext) -> dict[str, Any]:
    run = _run_with_a_round(context, context.folder)
    experiment = context.set_up_best(run, terms_of(run), run.windows)
    split: Any = context.task.split
    scores = evaluate(experiment, split)
    return {
        "scores": scores_as_dict(scores, context.ids),
        **about_errors(context, run, scores),
        **_recorded(context, run),
        "absent": list(context.absent_sites()),
    }


def _recorded(context: TaskContext, run: Run) -> dict[str, str]:
    """Keep what was recorded, if anything was; the result names the file."""
    if context.recorder is None:
        return {}
    return {"recording": keep_recording(context.recorder, run, context.blurs)}


def _forecast(context: TaskContext) -> dict[str, Any]:
    """Every site writes its own forecast; the result names the sites that have one and why others do not."""
    run = _run_with_a_round(context, context.folder)
    horizon = run.config.data.horizon
    span, warnings = forecast_span(context.spans, time.time())
    context.warn(warnings)
    _check_forecast_span(context, run, span)
    try:
        experiment = _set_up_to_forecast(context, run, span)
        strategy_of(experiment).forecast(check_levels(context.task.intervals, "--intervals"))
        without = context.sites_without_forecast(experiment)
    except NoSiteAnswered:
        without = context.absent_sites()
    zone = " UTC" if span.utc else ""
    return {
        "sites": [site.name for site in context.project.sites if site.name not in without],
        "without": without,
        "from": format_time(span.last + span.step) + zone,
        "to": format_time(span.last + horizon * span.step) + zone,
    }


def _check_forecast_span(context: TaskContext, run: Run, span: Span) -> None:
    if span.rows < (history := run.config.data.history):
        problem = f"the readings of all sites together span {span.rows} steps; a forecast needs {history}"
        raise DataError(context.project.name, problem)
    check_same_times(run, span)


def _set_up_to_forecast(context: TaskContext, run: Run, span: Span) -> Experiment:
    """The best round of the run, and the window after these time steps."""
    d = run.config.data
    terms = terms_of(run)._replace(first=span.first, rows=span.rows + d.horizon)
    return context.set_up_best(run, terms, Windows.next(span.rows, d.history, d.horizon))


def _live(context: TaskContext) -> dict[str, Any]:
    """Forecast at every step until the operator stops it, with the model that is live."""
    span, warnings = forecast_span(context.spans, time.time())
    context.warn(warnings)
    models = FederatedModels(context.kit, context.task.run)
    loop: LiveLoop | None = None

    def usable(name: str) -> Run:
        found = _run_with_a_round(context, models.folder(name))
        _check_forecast_span(context, found, span)
        return found

    while True:
        model, run = models.usable(usable)
        loop = LiveLoop(context, _set_up_to_forecast(context, run, span), span, models, model, loop)
        context.status.set(model=models.about(model, run))
        loop.run()  # until another model is live


def about_errors(context: TaskContext, run: Run, scores: Scores) -> dict[str, Any]:
    """What the errors of a result are about, and the true errors of the owners who tell them, by site.

    errors_against  "readings" if they are errors against true readings, "copies" if some are against blurred
                    copies
    without_trust   whether they are errors with all that the network adds, of which sensors take a share
    told  the true errors of each site whose owner tells them
    step  seconds between two readings
    """
    all_told = scores.all_told
    blurred = any(span.blur > 0 for span in context.spans.values())
    told: dict[str, Any] = {}
    for site, rows in context.rows.items():
        if scores.told is not None and scores.told[rows, :, SUMS.index("count")].sum() > 0:
            told[site] = vars(Errors.of(scores.told[rows]))
    return {
        "errors_against": "copies" if blurred and not all_told else "readings",
        "without_trust": run.config.model.linear and not all_told,
        "told": told,
        "blur": context.blurs,
        "step": run.data.step_seconds,
    }
