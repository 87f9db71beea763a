"""A site while the federation is live: its nodes answer for each step, and its owner serves the forecasts.

One process holds both. The nodes have the blurred copy of the newest readings, which their owner hands them,
and no way to the readings. The live service of `cnfgnn.live` takes readings in and gives forecasts out at the
site; `SitePredictor` connects it with the server's requests.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.messages import verbs
from cnfgnn.algorithm.messages.verb import Verb
from cnfgnn.algorithm.owner import Owner
from cnfgnn.data.files.folder import known_positions, readings_file
from cnfgnn.data.files.input_files import names_of_files
from cnfgnn.data.readings import Readings, columns_of, last_rows, rows_of, with_rows_before
from cnfgnn.data.refusals import Refusals
from cnfgnn.errors import CnfgnnError, ConfigError, RunError, StorageError
from cnfgnn.federation.coverage_sums import COVERAGE, ToldCoverage
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.site.live.model import SiteModel
from cnfgnn.federation.site.live.predictor import Ready, SitePredictor
from cnfgnn.federation.site.newcomer_fits import State, use
from cnfgnn.federation.site.nodes import NO_COPIES, UNUSABLE, SiteNodes
from cnfgnn.federation.site.owner import SiteClients, SiteOwner
from cnfgnn.federation.site.readings import SiteData
from cnfgnn.federation.site.run_readings import RunReadings
from cnfgnn.federation.site.settings import read_site, settings_file
from cnfgnn.federation.site_task import LiveTerms
from cnfgnn.federation.spans import format_time
from cnfgnn.files import make_folder
from cnfgnn.forecasters.intervals import Intervals
from cnfgnn.live.forecasting.predictor import KEPT_ROWS, Floats, window_of
from cnfgnn.live.forecasting.watch import seconds_judged
from cnfgnn.live.intake.folder_source import InputFile
from cnfgnn.live.options import FEED, LIVE, SYSTEM, LiveSettings, ServiceOptions
from cnfgnn.live.start import Files, Parts, ServiceProcess
from cnfgnn.models.params import Params
from cnfgnn.privacy.truth_and_copy import READINGS
from cnfgnn.runs.events import EventLog
from cnfgnn.transports.remote.endpoint import Terms
from cnfgnn.transports.remote.messages import Note

SWITCHES = "switches.jsonl"  # in the folder of the service: every switch of models
SETTINGS_EVERY = 1.0  # seconds between looks at the settings, for new sensors
TRIES_FOR = 60.0  # seconds in which the process of an earlier task may still hold the port

log = logging.getLogger(__name__)


class LiveClients(SiteClients):
    """The nodes of a live site, which turn to one step after another."""

    turned_to = 0  # the time of the newest row of their window
    _copy: Readings | None = None
    _for_new: Sequence[State] = ()

    def show(self, copy: Readings, for_new: Sequence[State] = ()) -> None:
        """Use these newest readings of the copy, and what was computed from it for new sensors."""
        self._copy, self._for_new = columns_of(copy, self.readings.store.sensors), for_new

    def turn(self, row: int) -> Tensor:
        terms = self.readings.terms
        self.turned_to = terms.first + terms.step * row
        if self._for_new:
            use(self.data, self._for_new)
            self._for_new = ()
        if self._copy is not None:
            recent = rows_until(self._copy, self.turned_to, terms.step, 2 * self.data.history)
            self.data = window_of(recent, self.data)
        has = self.data.heard["test"]
        return torch.ones((self.series.nodes, 1), dtype=torch.bool) if has is None else has.cpu()


def rows_until(readings: Readings, seconds: int, step: int, least: int) -> Readings:
    """The readings up to a time step, at least so many rows; steps that they do not reach are missing."""
    ahead = max((seconds - int(readings.seconds[-1])) // step, -len(readings.times))
    readings = with_rows_before(readings, least - min(0, ahead), step)
    if ahead <= 0:
        return rows_of(readings, slice(0, len(readings.times) + ahead))
    ahead = min(ahead, len(readings.times))
    times = (seconds - step * np.arange(ahead - 1, -1, -1)).astype("datetime64[s]")
    values = np.full((ahead, len(readings.ids)), np.nan, dtype=readings.values.dtype)
    return replace(
        readings,
        times=np.concatenate([readings.times[ahead:].astype("datetime64[s]"), times]),
        values=np.concatenate([readings.values[ahead:], values]),
        missing=np.concatenate([readings.missing[ahead:], np.isnan(values)]),
    )


class LiveOwner(SiteOwner):
    """The owner of a live site's nodes: it starts the service, and passes embeddings on to it."""

    def __init__(self, site: LiveSiteNodes, nodes: LiveClients, *args: Any) -> None:
        super().__init__(nodes, *args)
        self.site, self.live_nodes = site, nodes

    def follow(self, request: Verb, arrays: Params, answer: Params) -> Params:
        added = super().follow(request, arrays, answer)
        if isinstance(request, verbs.Turn):
            self.site.is_ready(self._ready(), self.live_nodes)
            if self.site.service is not None:
                self.site.service.pass_time(self.live_nodes.turned_to)
        return added

    def _ready(self) -> Ready:
        nodes, terms = self.nodes, self.terms
        sensors = (self.site_data.truth.ids, len(terms.added), nodes.settings)
        found = nodes.forecaster, nodes.theta, self.data, self.trust, terms.run, *sensors
        return Ready(*found, self.restored, self.first_intervals, self.when_trained)

    def _live_intervals(self) -> None:
        """The service itself goes on from what it has left."""

    def first_intervals(self) -> Intervals | None:
        """A copy of the ranges as the last evaluation or forecast has left them; rows count from 1970."""
        if self.intervals is None:
            return None
        found = Intervals.of(self.intervals.state())
        found.renumber(self._first_row)
        return found

    def when_trained(self) -> float | None:
        """When this site saved the state that forecasts are made with; None if it took no part in it."""
        for store in (self.own_store, self.joined.store):
            with suppress(OSError):
                return (store.folder / f"{self.restored}.safetensors").stat().st_mtime
        return None

    def forecast(self, levels: Any = ()) -> None:
        """The service makes the forecast, in a thread of its own: when this site has its readings."""
        if self.site.predictor is not None:
            self.site.predictor.embed(self.live_nodes.turned_to, self.h_G)


class LiveSiteNodes(SiteNodes):
    """What the endpoint of a live site needs; once the site is prepared, its service runs beside it."""

    retried = (NO_COPIES, UNUSABLE)  # a file may be empty or half-written for a moment

    def __init__(self, kit: Path, live: LiveTerms) -> None:
        self.live = live
        self.ended = threading.Event()  # whether the server's operator has ended the task
        self.closed = threading.Event()
        self.predictor: SitePredictor | None = None
        self.service: SiteService | None = None
        self._changing = threading.Lock()  # held while the site's sensors change
        self.files: Files | None = None
        self.coverage = ToldCoverage()
        super().__init__(kit)

    def _owner(self, plan: SitePlan, data: SiteData, joined: RunReadings, compute: Compute) -> Owner:
        nodes = LiveClients(joined, compute, joined.store, plan.name, self.memory)
        return LiveOwner(self, nodes, data, joined.terms, joined, self.kit, plan.tell_errors)

    def due(self, note: Note) -> Mapping[str, Any]:
        """For the server: the newest step that is due at this site, and whether the site can take part."""
        after, done, joined = note.whole("after"), note.whole("done"), note.fields.get("joined") is True
        if note.fields.get("ends") is True:
            self.ended.set()
        predictor = self.predictor
        if predictor is None:
            self.ended.wait(0.1)
            return {"step": 0, "present": 0, "ready": False}
        predictor.hear(joined, done)
        step, present = (0, 0) if self.ended.is_set() else predictor.wait_until_due(after)
        return {"step": step, "present": present, "ready": True, **self._told_coverage(step)}

    def _told_coverage(self, step: int) -> Mapping[str, Any]:
        """What the owner tells about true readings: nothing, unless the site's settings say so."""
        if self.plan is None or not self.plan.live.tell_coverage:
            return {}
        if self.predictor is not None and self.data is not None and self.data.retired:
            lengths = self.predictor.history, self.predictor.horizon
            if step <= self.data.retired[READINGS] + seconds_judged(self.data.step, *lengths):
                return {}  # retired readings are among those that the sums are of
        process = None if self.service is None else self.service.process
        sums = self.coverage.at(step, None if process is None else process.service.report)
        return {} if sums is None else {COVERAGE: sums}

    def is_ready(self, ready: Ready, nodes: LiveClients) -> None:
        """The nodes and their owner have everything that a forecast needs."""
        assert self.plan is not None
        assert self.data is not None
        begins = self.predictor is None
        if self.predictor is not None:
            before = self.predictor.ready.run
            if ready.run != before:
                self._record_switch(before, ready.run)
            if self.predictor.suits(ready):
                self.predictor.use(ready, nodes.show)
                return
            self._end_service()  # of a run with forecasts of another length
        nodes.show(newest_copy(self.data))
        ids, cleaning, blurring = self.data.truth.ids, self.plan.cleaning, self.data.live_blurring(self.plan)
        used = ids, ready, cleaning, blurring, nodes.show
        self.predictor = SitePredictor(*used, self._report, self.kit / LIVE)
        self.service = SiteService(self, self.predictor, self.plan, self.data)
        self.service.start()
        if begins:
            threading.Thread(target=self._watch_settings, name="settings", daemon=True).start()

    def _record_switch(self, before: str, after: str) -> None:
        """The server has made another model live: an event, and a line in the log."""
        log.warning("model: %s instead of %s", after, before)
        try:
            EventLog(self.kit / LIVE / SWITCHES).append("switch", **{"from": before, "to": after})
            self._report("switch", None)
        except StorageError as error:  # a full disk does not keep a better model away
            self._report("switch", error)

    def _check_clock(self, plan: SitePlan) -> None:
        """Refuse a task whose clock is another than the one in the site's own settings."""
        if self.live.feed != (plan.live.clock == FEED):
            follows, wanted = ("recordings", FEED) if self.live.feed else ("the machines' clocks", SYSTEM)
            problem = (
                f"the server's task follows {follows}, and this site's clock is {plan.live.clock!r}: start"
                f' the task with another --clock, or set clock = "{wanted}" under [live]'
            )
            raise ConfigError(f"{settings_file(self.kit)}: live.clock", problem)

    def _read(self, plan: SitePlan) -> SiteData:
        self._check_clock(plan)
        more = [sensor.id for sensor in plan.new_sensors]
        files, refusals = None, Refusals()
        if plan.readings is not None:
            folder = self.kit / plan.readings
            file = readings_file(folder, live=True)
            inputs = InputFile.all_in(file.parent, names_of_files(file.parent))
            files = Files(folder, file, inputs, refusals)
        data = SiteData(plan, self.kit, more, refusals=refusals)  # reports if no readings are set
        if files is not None:
            files.check_read(data.source, f"{settings_file(self.kit)}: reading.target", plan.reading.target)
            inputs = [one for one in files.inputs if one.name in data.input_names]
            self.files = files._replace(inputs=inputs)
        return data

    # ---- new sensors --------------------------------------------------------------------------------

    def describe(self) -> Mapping[str, Any]:
        about = super().describe()
        plan = self.plan
        if about.get("ready") is not True or plan is None or not plan.new_sensors:
            return about
        return {**about, "new_sensors": {sensor.id: sensor.told() for sensor in plan.new_sensors}}

    def join(self, terms: Terms) -> Owner:
        with self._changing:
            return super().join(terms)

    def _watch_settings(self) -> None:
        """Take in the sensors that the owner adds to the settings while the site is live."""
        file = settings_file(self.kit)
        seen = file.stat().st_mtime_ns
        while not self.ended.wait(SETTINGS_EVERY) and not self.closed.is_set():
            try:
                now = file.stat().st_mtime_ns
                if now != seen:
                    seen = now
                    self._take_new_sensors(read_site(self.kit))
                    self._report("new sensors", None)
            except Exception as error:  # the owner may be in the middle of writing it
                self._report("new sensors", error)

    def _take_new_sensors(self, wanted: SitePlan) -> None:
        """Serve the new sensors of these settings from now on, and tell the server of them. All else in the
        settings counts when the service starts."""
        plan, predictor = self.plan, self.predictor
        if plan is None or predictor is None or wanted.new_sensors == plan.new_sensors:
            return
        plan = replace(plan, new_sensors=wanted.new_sensors)
        data = self._read(plan)
        before = self.service
        if before is not None:
            before.stop()
        with self._changing:
            predictor.blurring = data.live_blurring(plan)  # of rows with more columns
            self.service = SiteService(self, predictor, plan, data)
            self.plan, self.data = plan, data  # from now on the server is told
        self.service.start()
        log.warning("new sensors: %s", ", ".join(sensor.id for sensor in plan.new_sensors) or "none")

    def close(self) -> None:
        """End the service, as the end of the process would."""
        self.closed.set()
        self._end_service()

    def _end_service(self) -> None:
        if self.predictor is not None:
            self.predictor.close()
        if self.service is not None:
            self.service.stop()


class SiteService(threading.Thread):
    """The live service of a site in a thread of its task's process: what `cnfgnn live` serves, for the site's
    own sensors."""

    def __init__(self, site: LiveSiteNodes, predictor: SitePredictor, plan: SitePlan, data: SiteData) -> None:
        super().__init__(name="service", daemon=True)
        self.site, self.predictor, self.plan, self.data = site, predictor, plan, data
        predictor.ids = data.truth.ids
        self.process: ServiceProcess | None = None
        self.stopping = False
        self._ignores = False  # whether the server's last step was ignored

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # the server must not notice: the owner is told
            self.site._report("live", error)

    async def _serve(self) -> None:
        state = make_folder(self.site.kit / LIVE)
        state.chmod(0o700)
        settings = settings_of(self.plan, self.site.kit, self.site.live)
        until = time.monotonic() + TRIES_FOR
        while not self.stopping:
            try:
                process = ServiceProcess(settings, state, self._parts)
                break
            except RunError:  # the port or the database is still in use by the process of an earlier task
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.5)
        else:
            return
        self.process = process
        clock, deadline = process.service.clock, process.service.schedule.deadline
        self.predictor.patience = lambda step: max(0.0, step + deadline - clock.now()) / clock.speed
        self.predictor.furthest = partial(clock.furthest, process.service.recent.step)

        def started() -> None:
            self.site.status.record_live(process.address, process.token_file)
            self.site.status.works("live", "clock")
            log.info("live on %s", process.address)

        await process.serve(started)

    def _parts(self) -> Parts:
        """What the service is made of; the graph is not known here."""
        self.site.status.works("watch")  # whether ranges and watch can begin is reported next
        site, plan, predictor, files = self.site, self.plan, self.predictor, self.site.files
        assert files is not None
        readings = counted_readings(self.data)
        if not predictor.takes_inputs:
            readings, files = replace(readings, others=()), files._replace(inputs=())
        return Parts(
            predictor,
            replace(readings, positions=_positions(site, plan, files.folder, readings.ids)),
            plan.reading,
            intervals=predictor.intervals,
            model=lambda service: SiteModel(service, predictor, plan.name, site.kit / LIVE),
            config=plan.cleaning,
            files=files,
            retired=self.data.retired.get(READINGS),
            report=site._report,  # it may be about true readings: the server must not notice that it failed
        )

    def pass_time(self, step: int) -> None:
        """The server is at this step; a recording may have no reading of this site for it. A step that
        cannot be yet is ignored, and the owner is told once."""
        process = self.process
        if process is None or not hasattr(process, "loop"):
            return
        ignored, self._ignores = self._ignores, step > self.predictor.furthest()
        if not self._ignores:
            self.site._report("clock", None)
            process.loop.call_soon_threadsafe(process.service.pass_time, step)
        elif not ignored:
            latest = format_time(int(self.predictor.furthest()))
            problem = f"the server is at {format_time(step)}: steps after {latest} are ignored for now"
            self.site._report("clock", RunError(self.site.kit, problem))

    def stop(self) -> None:
        self.stopping = True
        process = self.process
        if process is not None and hasattr(process, "loop"):
            process.loop.call_soon_threadsafe(process.service.stopping.set)
        self.join(10.0)


def _positions(site: LiveSiteNodes, plan: SitePlan, folder: Path, ids: Sequence[str]) -> Floats | None:
    """Where the sensors are, for the site's page, if the site knows it."""
    chosen = plan.live.positions
    try:
        found = known_positions(folder, ids, site.kit / chosen if chosen else None)
        site._report("positions", None)
        return found
    except CnfgnnError as error:  # the page can do without
        site._report("positions", error)
        return None


def newest_copy(data: SiteData) -> Readings:
    """What the nodes begin with: the copy from its first reading to its newest one."""
    told = (data.seconds >= data.measured[0]) & (data.seconds <= data.measured[-1])
    return last_rows(rows_of(data.copy, told).on_grid(data.step), KEPT_ROWS)


def counted_readings(data: SiteData) -> Readings:
    """The site's readings without rows in the future and rows that are far from all others. What is retired
    is still the owner's."""
    counted, observed = np.isin(data.seconds, data.counted), data.observed
    if data.retired:
        known = ~observed.missing.all(axis=1)
        counted |= known & (data.seconds >= data.first) & (data.seconds <= data.retired[READINGS])
    values = np.where(counted[:, None], observed.values, np.float32(np.nan))
    first, last = np.flatnonzero(counted)[[0, -1]].tolist()
    # With rows between them that are empty, so that it does not matter for the step which are.
    rows = rows_of(replace(observed, values=values), slice(first, last + 1)).on_grid(data.step)
    return with_rows_before(rows, 2, data.step)  # which tell the step


def settings_of(plan: SitePlan, kit: Path, live: LiveTerms) -> LiveSettings:
    """The settings of a site's service: `[live]` in its local/site.toml."""
    chosen = {field.name: getattr(plan.live, field.name) for field in fields(ServiceOptions)}
    if plan.live.token_file:
        chosen["token_file"] = str(kit / plan.live.token_file)
    name = f"cnfgnn-{plan.name}"
    return LiveSettings(**chosen, state=kit / LIVE, deadline=live.deadline, speed=live.speed, client=name)
