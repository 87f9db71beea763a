"""What a task at the server works with: the project, its graph, the sites that take part, and the status."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import torch

from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.experiment import Experiment, federate, state_bytes
from cnfgnn.algorithm.messages.number_rules import TAG
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.algorithm.server import Server
from cnfgnn.attack.recording import Recorder
from cnfgnn.config.settings import Config
from cnfgnn.data.files.folder import load_network
from cnfgnn.data.series import Scaler
from cnfgnn.data.windows import Windows
from cnfgnn.errors import ConfigError, NodeError
from cnfgnn.federation.kits.kit import read_server
from cnfgnn.federation.server.federated_run import (
    check_same_times,
    inputs_of,
    memory_plan_of,
    recorder_for,
)
from cnfgnn.federation.server.rendezvous import incompatible_sites, rejoin_problem, wait_for_sites
from cnfgnn.federation.server.status import StatusFile
from cnfgnn.federation.spans import Span, covering_span, reading_warnings, unblurred_warnings
from cnfgnn.federation.task import RUNS, Task
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.folder import Run
from cnfgnn.transports.remote.endpoint import Terms
from cnfgnn.transports.remote.link import Link
from cnfgnn.transports.remote.live_transport import LiveTransport
from cnfgnn.transports.remote.messages import Channel
from cnfgnn.transports.remote.transport import RemoteTransport, Site


class TaskContext:
    """The project of a server's kit and the sites that were found for one task."""

    def __init__(
        self, kit: Path, task: Task, channel: Channel, stopped: Callable[[], bool], status: StatusFile
    ) -> None:
        self.kit, self.task, self.stopped, self.status = kit, task, stopped, status
        if not TAG.fullmatch(task.run):
            raise ConfigError("--name", f"{task.run!r} cannot be the name of a run")
        if task.do not in ("train", "retrain") or task.resume:
            Run.open(self.folder)  # fail before waiting for sites if there is no such run
        if task.earlier and not TAG.fullmatch(task.earlier):
            raise ConfigError("--from", f"{task.earlier!r} cannot be the name of a run")
        self.project = read_server(kit)
        self.ids = self.project.sensors
        self.positions, self.graph = load_network(
            self.ids, self.project.graph.sensors, self.project.graph.edges
        )
        session = secrets.token_hex(8)
        piece, names = self.project.piece_kib << 10, [site.name for site in self.project.sites]
        self.links = {name: Link(name, channel, session, piece, stopped=stopped) for name in names}
        self.spans = self._find_sites()
        self.recorder: Recorder | None = None  # if the task is to be recorded
        self.warnings: list[str] = []
        self.warn(unblurred_warnings(self.spans))
        if task.do != "evaluate":  # an evaluation uses the time steps of the training
            self.warn(reading_warnings(self.spans, time.time()))

    def _find_sites(self) -> dict[str, Span]:
        """The sites that take part, with their time spans.

        A training ends if the readings of a site do not fit those of the others. A forecast leaves it out.
        """
        plans = {site.name: site for site in self.project.sites}
        min_sites = 1 if self.task.forecasts else self.project.min_sites
        found = wait_for_sites(self.links, plans, min_sites, self.task.wait, self.stopped, self.status.set)
        data = Run.open(self.folder).data if self.task.forecasts else None
        trained = None if data is None else (data.step_seconds, data.utc)
        for name, problem in incompatible_sites(found, trained).items():
            if not self.task.forecasts or len(found) == 1:
                raise NodeError(name, "hello", problem)
            del found[name]
            known = self.status.fields
            self.status.set(missing={**known["missing"], name: problem})
            self.status.set(objections={**known["objections"], name: "readings"})
        return {name: found[name] for name in plans if name in found}  # in the project's order

    @property
    def span(self) -> Span:
        """From the first reading of any site to the last."""
        return covering_span(self.spans)

    @property
    def blurs(self) -> dict[str, float | None]:
        """The blur of each site of the project; None for sites that were not found for this task."""
        return {name: self.spans[name].blur if name in self.spans else None for name in self.links}

    @property
    def rows(self) -> dict[str, list[int]]:
        """The rows of each site's sensors."""
        rows = iter(range(len(self.ids)))
        return {site.name: list(islice(rows, len(site.sensors))) for site in self.project.sites}

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.kit / RUNS / self.task.run

    @property
    def missing_sites(self) -> set[str]:
        """The sites of the project that were not found for this task."""
        return self.links.keys() - self.spans.keys()

    def set_up(
        self,
        run: Run,
        terms: Terms,
        windows: Windows,
        tick: Callable[[], None],
        scaler: Scaler | None,
        kept_scaler: Scaler | None = None,
    ) -> Experiment:
        """Connect to the sites and prepare them for the run. `kept_scaler` is the scale of the run that a new
        one goes on from."""
        config = run.config
        check_same_times(run, self.span)
        transport = self._connect(terms, config)
        graph = self.graph if config.graph.direction == "files" else self.graph.reversed()
        if self.task.record:
            self.recorder = recorder_for(self.task.do, self.task.split, transport)
        experiment = federate(
            self.recorder or transport,
            graph,
            windows,
            config,
            None,
            self.project.name,
            run.store("server"),
            tick,
            scaler,
            memory_plan=memory_plan_of(run),
            inputs=inputs_of(run, self.span.inputs),
            kept_scaler=kept_scaler,
        )
        for site, plan in zip(transport.parties, self.project.sites, strict=True):
            needed = state_bytes(experiment, len(plan.sensors))
            site.objection = partial(rejoin_problem, plan=plan, span=self.span, needed=needed)
        transport.setting_up = False
        return experiment

    def set_up_best(self, run: Run, terms: Terms, windows: Windows) -> Experiment:
        """The same with the best round of the run, to forecast and not to learn."""
        experiment = self.set_up(run, terms, windows, lambda: None, run.scaler)
        strategy_of(experiment).restore(run.progress.best.tag, to_learn=False)
        self.status.set(state="running", round=run.progress.best.r_g)
        return experiment

    def _connect(self, terms: Terms, config: Config) -> RemoteTransport:
        sites, rows = [], self.rows
        for plan in self.project.sites:
            own = torch.tensor(rows[plan.name])
            site = Site(plan.name, own, self.links[plan.name], Sizes(len(own)))
            site.reachable = plan.name in self.spans
            site.memory_limit = self.spans[plan.name].memory if site.reachable else 0
            site.objection = partial(rejoin_problem, plan=plan, span=self.span)
            sites.append(site)
        if self.task.do != "live":  # which handles little at a time, for weeks: its memory would creep up
            keep_freed_memory()
        if self.status.transport is not None:  # of another run in the same task
            self.status.transport.close()
        device = Compute.of(config.compute).device
        training = not self.task.forecasts
        min_sites = self.project.min_sites if training else 0
        kind = LiveTransport if self.task.do == "live" else RemoteTransport
        transport = kind(sites, terms, min_sites, device, self.stopped, self.status.touch)
        transport.setting_up = training
        self.status.transport = transport
        return transport

    def warn(self, warnings: Sequence[str]) -> None:
        """Tell the operator about problems that do not end the task."""
        self.warnings += warnings
        self.status.set(warnings=list(self.warnings))

    # ---- which sites took part ---------------------------------------------------------------------------

    def absent_sites(self) -> dict[str, str]:
        """The sites that took no part in the last exchange, and why."""
        missing = self.status.fields.get("missing", {})
        absent = {}
        for site in self._transport.parties:
            if not site.present:
                absent[site.name] = site.problem or missing.get(site.name) or "it does not answer"
        return absent

    def sites_without_forecast(self, experiment: Experiment) -> dict[str, str]:
        """The sites without a forecast, and why; warns about sensors that are forecast from older readings.

        The sites need not report this: their census tells which sensors have a recent reading.
        """
        has_window = strategy_of(experiment).everyone.present("test")
        history, without = experiment.windows.history, self.absent_sites()
        for site in self._transport.parties:
            if site.name in without or has_window is None:
                continue
            silent = int((~has_window[site.rows].cpu().any(dim=1)).sum())
            if silent:
                sensors = f"{silent} of its {len(site.rows)} sensors"
                since = f"the last {history} steps: their forecasts rest on older ones"
                self.warn([f"site {site.name}: no reading of {sensors} in {since}"])
        return without

    @property
    def _transport(self) -> RemoteTransport:
        assert self.status.transport is not None
        return self.status.transport


def strategy_of(experiment: Experiment) -> Server:
    assert isinstance(experiment.strategy, Server)
    return experiment.strategy
