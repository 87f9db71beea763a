"""What the server does with a task: find the sites, agree on time steps, then train, judge or forecast.

It knows the graph and no reading; the engine that carries notes is not its business.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cnfgnn.algorithm.compute import Compute
from cnfgnn.algorithm.experiment import Experiment, federate, held_by
from cnfgnn.algorithm.memory_plan import Keeping
from cnfgnn.algorithm.methods import check_method
from cnfgnn.algorithm.server import Server
from cnfgnn.config.settings import Config
from cnfgnn.config.toml import flat
from cnfgnn.data.description import DataDescription, FederatedData
from cnfgnn.data.folder import load_network
from cnfgnn.data.series import Scaler
from cnfgnn.data.windows import SPLITS, Windows
from cnfgnn.errors import EVERYBODY, CnfgnnError, ConfigError, DataError, NodeError, RunError
from cnfgnn.federation.kits import read_server
from cnfgnn.federation.rendezvous import gather, objection, unlike
from cnfgnn.federation.spans import Span, forecast_span, remarks, shown_time, span_of, training_span
from cnfgnn.federation.status import Status, StatusWatcher, asked_to_stop
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import scores_as_dict
from cnfgnn.runs.train import train_run_with
from cnfgnn.runs.training_loop import evaluate
from cnfgnn.transports.remote.endpoint import Terms
from cnfgnn.transports.remote.link import Link
from cnfgnn.transports.remote.messages import Channel
from cnfgnn.transports.remote.rules import TAG
from cnfgnn.transports.remote.schema import Sizes
from cnfgnn.transports.remote.transport import RemoteTransport, Site, Stopped

RUNS = "runs"


@dataclass(frozen=True)
class Task:
    """What a job is to do; it travels with the job, where every site can read it."""

    do: str  # train, evaluate, forecast
    run: str  # the name of its folder in the server's kit
    token: str = ""  # by which the one who asked knows the status
    settings: Mapping[str, Any] = field(default_factory=dict)  # of a new training
    given: Sequence[str] = ()  # those of them that somebody chose; the others may adapt to the data
    resume: bool = False
    wait: float = 60.0  # seconds for sites that are not there yet
    split: str = "test"


def serve(kit: Path, task: Task, channel: Channel, stopped: Callable[[], bool]) -> None:
    """Carry out a task; how it ended is in the status file."""
    status = Status(kit, task.token, do=task.do, run=task.run)
    try:
        work = {"train": _train, "evaluate": _evaluate, "forecast": _forecast}[task.do]
        ends = partial(asked_to_stop, kit, task.token)
        result = work(Federation(kit, task, channel, lambda: stopped() or ends(), status))
        status.end("finished", result=result)
    except Stopped:
        status.end("stopped")
    except CnfgnnError as problem:
        status.end("failed", problem=str(problem), exit_code=problem.exit_code)
    except Exception as problem:
        logging.getLogger(__name__).exception("the task failed")
        status.end("failed", problem=f"{type(problem).__name__}: {problem}"[:500], exit_code=1)
    finally:
        if status.transport is not None:
            status.transport.close()


class Federation:
    """The sites of a kit's project, found over a channel."""

    def __init__(
        self, kit: Path, task: Task, channel: Channel, stopped: Callable[[], bool], status: Status
    ) -> None:
        self.kit, self.task, self.stopped, self.status = kit, task, stopped, status
        if not TAG.fullmatch(task.run):
            raise ConfigError("--name", f"{task.run!r} cannot be the name of a run")
        if task.do != "train" or task.resume:
            Run.open(self.folder)  # says at once if there is none
        self.project = read_server(kit)
        self.ids = self.project.sensors
        self.positions, self.graph = load_network(
            self.ids, self.project.graph.sensors, self.project.graph.edges
        )
        session = secrets.token_hex(8)
        piece, names = self.project.piece_kib << 10, [site.name for site in self.project.sites]
        self.links = {name: Link(name, channel, session, piece, stopped=stopped) for name in names}
        self.spans = self._gathered()
        self.warnings: list[str] = []
        if task.do != "evaluate":  # which goes by the steps of the training
            self.warn(remarks(self.spans, time.time()))

    def _gathered(self) -> dict[str, Span]:
        """Who takes part. What a training cannot do with ends it; a forecast is made for all others."""
        plans = {site.name: site for site in self.project.sites}
        enough = 1 if self.task.do == "forecast" else self.project.min_sites
        found = gather(self.links, plans, enough, self.task.wait, self.stopped, self.status.set)
        for name, problem in unlike(found).items():
            if self.task.do != "forecast" or len(found) == 1:
                raise NodeError(name, "hello", problem)
            del found[name]
            self.status.set(missing={**self.status.fields["missing"], name: problem})
        return {name: found[name] for name in plans if name in found}  # in the project's order, for messages

    def span(self) -> Span:
        """From the first reading of any site to the last."""
        return span_of(self.spans)

    def connect(self, terms: Terms, config: Config) -> RemoteTransport:
        sites, start = [], 0
        for plan in self.project.sites:
            rows = torch.arange(start, start + len(plan.sensors))
            start += len(plan.sensors)
            site = Site(plan.name, rows, self.links[plan.name], Sizes(len(rows)))
            site.reachable = plan.name in self.spans
            site.room = self.spans[plan.name].room if site.reachable else 0
            site.objection = partial(objection, plan=plan, span=self.span())
            sites.append(site)
        keep_freed_memory()
        device = Compute.of(config.compute).device
        training = self.task.do != "forecast"  # which is made for whoever can take part, and waits for nobody
        enough = self.project.min_sites if training else 0
        transport = RemoteTransport(sites, terms, enough, device, self.stopped, self.status.touch)
        transport.setting_up = training
        self.status.transport = transport
        return transport

    def set_up(
        self, run: Run, terms: Terms, windows: Windows, tick: Callable[[], None], scaler: Scaler | None
    ) -> Experiment:
        transport, config = self.connect(terms, run.config), run.config
        graph = self.graph if config.graph.direction == "files" else self.graph.reversed()
        about = (None, self.project.name, run.store("server"), tick, scaler)
        experiment = federate(transport, graph, windows, config, *about, keeping=_kept_so_far(run))
        for site, plan in zip(transport.parties, self.project.sites, strict=True):
            takes = held_by(experiment, len(plan.sensors))
            site.objection = partial(objection, plan=plan, span=self.span(), takes=takes)
        transport.setting_up = False
        return experiment

    def describe(self, span: Span) -> DataDescription:
        """What the run remembers of data that it never sees."""
        known = repr((self.ids, self.graph.senders.tolist(), self.graph.receivers.tolist()))
        return DataDescription(
            name=self.project.name,
            fingerprint=hashlib.sha256(known.encode() + self.graph.weights.tobytes()).hexdigest(),
            sensors=list(self.ids),
            rows=span.rows,
            step_seconds=span.step,
            edges=self.graph.edges,
            federation=FederatedData(
                first=span.first,
                id=secrets.token_hex(6),  # a run of the same name that was deleted is another one
                sites={site.name: list(site.sensors) for site in self.project.sites},
            ),
        )

    def check_same(self, run: Run) -> None:
        """Refuse to go on with other sensors or another graph than the run began with."""
        _federated(run)
        if run.data.fingerprint != self.describe(self.span()).fingerprint:
            raise RunError(run.folder, "began with other sensors or another graph than this kit's")

    def warn(self, sentences: Sequence[str]) -> None:
        """Tell the operator of what does not end the task."""
        self.warnings += sentences
        self.status.set(warnings=list(self.warnings))

    def not_forecast(self, experiment: Experiment) -> dict[str, str]:
        """The sites without a forecast, each with the reason; those that lack a part of it are warned of.

        The server need not be told: which sensors have readings to forecast from is in their census.
        """
        has = _strategy(experiment).everyone.present("test")
        history, without = experiment.windows.history, self.absent()
        for site in self._transport.parties:
            silent = 0 if has is None else int((~has[site.rows].cpu().any(dim=1)).sum())
            if site.name in without or not silent:
                continue
            if silent == len(site.rows):
                problem = f"none of its sensors has a reading in the last {history} steps before the forecast"
                without[site.name] = f"{problem}; its latest.csv is kept as it was"
            else:
                problem = (
                    f"{silent} of its {len(site.rows)} sensors have no reading in the last {history} steps"
                )
                self.warn([f"site {site.name}: {problem} and no forecast"])
        return without

    def absent(self) -> dict[str, str]:
        """The sites that had no part in the last exchange, and why."""
        missing = self.status.fields.get("missing", {})
        return {
            site.name: site.problem or missing.get(site.name) or "it does not answer"
            for site in self._transport.parties
            if not site.present
        }

    def away(self) -> dict[str, Any]:
        """The sites that had no part in the last exchange."""
        return {"away": list(self.absent())}

    @property
    def _transport(self) -> RemoteTransport:
        assert self.status.transport is not None
        return self.status.transport

    @property
    def folder(self) -> Path:
        return self.kit / RUNS / self.task.run


# ---- the three tasks ------------------------------------------------------------------------------------


def _train(federation: Federation) -> dict[str, Any]:
    task = federation.task
    if task.resume:
        run = Run.open(federation.folder)
        federation.check_same(run)
    else:
        config = Config().with_changes(task.settings).with_given(task.given)
        check_federated(config)
        span, apart = training_span(federation.spans)
        federation.warn(apart)
        run = Run.begin(federation.folder, config, federation.describe(span))
    watcher = StatusWatcher(federation.status, _federated(run).sites)
    scaler = run.scaler if run.started else None
    terms, windows = _terms(run), _windows(run)

    def set_up() -> Experiment:
        experiment = federation.set_up(run, terms, windows, watcher.tick, scaler)
        if run.started:
            _check_same_windows(run, experiment, federation)
        return experiment

    result = train_run_with(run, set_up, lambda: _about(federation, run), watcher, save_phases=True)
    left_out = [federation.ids[row] for row in result.progress.left_out]
    scores = scores_as_dict(result.test, federation.ids)
    return {"scores": scores, **result.summary(), "left_out": left_out, **federation.away()}


def _evaluate(federation: Federation) -> dict[str, Any]:
    run = _finished_round(federation)
    experiment = federation.set_up(run, _terms(run), _windows(run), lambda: None, run.scaler)
    _strategy(experiment).restore(run.progress.best.tag, to_learn=False)
    federation.status.set(state="running", round=run.progress.best.r_g)
    split: Any = federation.task.split
    return {"scores": scores_as_dict(evaluate(experiment, split), federation.ids), **federation.away()}


def _forecast_made(federation: Federation, run: Run, span: Span) -> Experiment:
    d = run.config.data
    terms = _terms(run)._replace(first=span.first, rows=span.rows + d.horizon)
    windows = Windows.next(span.rows, d.history, d.horizon)
    experiment = federation.set_up(run, terms, windows, lambda: None, run.scaler)
    strategy = _strategy(experiment)
    strategy.restore(run.progress.best.tag, to_learn=False)
    federation.status.set(state="running", round=run.progress.best.r_g)
    strategy.forecast()
    return experiment


def _forecast(federation: Federation) -> dict[str, Any]:
    """Every site writes its own; the result names those that have one, and why each other has none."""
    run = _finished_round(federation)
    d = run.config.data
    span, apart = forecast_span(federation.spans, time.time())
    federation.warn(apart)
    if span.rows < d.history:
        problem = f"all sites' readings together span {span.rows} steps, and a forecast needs {d.history}"
        raise DataError(federation.project.name, problem)
    if span.step != run.data.step_seconds:
        trained = f"{run.folder.name} was trained on one every {run.data.step_seconds} s"
        raise DataError(federation.project.name, f"readings come every {span.step} s, and {trained}")
    try:
        without = federation.not_forecast(_forecast_made(federation, run, span))
    except NodeError as error:
        if error.site != EVERYBODY:
            raise
        without = federation.absent()
    there = [site.name for site in federation.project.sites if site.name not in without]
    zone = " UTC" if span.utc else ""
    begin, end = (shown_time(span.last + k * span.step) + zone for k in (1, d.horizon))
    return {"sites": there, "without": without, "from": begin, "to": end}


# ---------------------------------------------------------------------------------------------------------


def check_federated(config: Config) -> None:
    """Refuse what cannot be done without everybody's readings in one place."""
    method = check_method(config)
    if not method.federated:
        raise ConfigError("--method", f"{method.name} pools all readings: it cannot run on a federation")
    for key in ("missing_value", "outliers"):
        if f"data.{key}" in config.given:
            problem = f"each site says which of its readings count as missing: {key} in its local/site.toml"
            raise ConfigError(f"data.{key}", problem)
    if config.training.seen < 1:
        raise ConfigError("training.seen", "sensors that do not train are a study for the simulator")


def _check_same_windows(run: Run, experiment: Experiment, federation: Federation) -> None:
    """Refuse to go on with other windows than before: some are known to sites that are away."""
    if {split: experiment.windows.count(split) for split in SPLITS} != run.events()[0]["windows"]:
        away = ", ".join(sorted(federation.links.keys() - federation.spans.keys())) or "nobody"
        problem = f"its windows are not those it began with (away: {away}); start the sites and resume again"
        raise RunError(run.folder, problem)


def _finished_round(federation: Federation) -> Run:
    run = Run.open(federation.folder)
    federation.check_same(run)
    if not run.progress.history:
        raise RunError(run.folder, "has no finished round yet")
    return run


def _kept_so_far(run: Run) -> Keeping | None:
    """How a run that has begun keeps hidden states: sites that are away now had a say in it."""
    if not run.started:
        return None
    known = run.events()[0].get("memory", {})
    return Keeping(**{name: known[name] for name in vars(Keeping()) if name in known}) if known else None


def _strategy(experiment: Experiment) -> Server:
    assert isinstance(experiment.strategy, Server)
    return experiment.strategy


def _federated(run: Run) -> FederatedData:
    """What the run knows of its sites; a run of the simulator knows nothing."""
    if run.data.federation is None:
        raise RunError(run.folder, "is not a federation's run")
    return run.data.federation


def _terms(run: Run) -> Terms:
    data, federated = run.data, _federated(run)
    name = f"{run.folder.name[:40]}-{federated.id}"
    return Terms(federated.first, data.step_seconds, data.rows, run.config.compute.precision, name)


def _windows(run: Run) -> Windows:
    d = run.config.data
    return Windows.of(run.data.rows, d.history, d.horizon, d.shares, run.data.name)


def _about(federation: Federation, run: Run) -> dict[str, Any]:
    """For the run's first event."""
    graph, terms = federation.graph, _terms(run)
    ends = np.array([terms.first, terms.first + (terms.rows - 1) * terms.step]).astype("datetime64[s]")
    return {
        "name": federation.project.name,
        "sensors": list(federation.ids),
        "positions": federation.positions.tolist(),
        "from": str(ends[0]),
        "to": str(ends[1]),
        "rows": terms.rows,
        "missing": None,
        "edges": [graph.senders.tolist(), graph.receivers.tolist(), graph.weights.tolist()],
        "sites": _federated(run).sites,
    }


def settings_of(config: Config) -> dict[str, Any]:
    """A configuration as a task carries it."""
    settings = flat(config.as_dict())
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
