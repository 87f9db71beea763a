"""Put a service together and run it until it is told to stop."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cnfgnn.config.settings import DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.folder import zeros_are_missing_in
from cnfgnn.data.graph import Graph
from cnfgnn.data.inputs import with_inputs
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import Readings
from cnfgnn.data.refusals import LeftOutSensor, Refusals
from cnfgnn.errors import CnfgnnError, ConfigError
from cnfgnn.files import make_folder
from cnfgnn.forecasters.intervals import Intervals
from cnfgnn.live.forecasting.predictor import KEPT_ROWS, Predictor, RunPredictor
from cnfgnn.live.forecasting.schedule import SHARE_OF_STEP, Schedule
from cnfgnn.live.forecasting.service import LiveService
from cnfgnn.live.forecasting.tracking import Tracking, adapted_intervals, open_tracking
from cnfgnn.live.intake.at_hand import at_hand, inputs_of, latest_of
from cnfgnn.live.intake.clock import Clock, FeedClock, SystemClock, Zone
from cnfgnn.live.intake.folder_source import FolderSource, InputFile
from cnfgnn.live.intake.recent import RecentReadings
from cnfgnn.live.intake.store import ReadingStore
from cnfgnn.live.learning.live_model import Learning, Loaded, ServedModel
from cnfgnn.live.learning.models import Models
from cnfgnn.live.options import LATEST, LIVE, LiveSettings
from cnfgnn.live.web.broker import Broker
from cnfgnn.live.web.pages import Door, QuietServer
from cnfgnn.live.web.sensors import SensorList
from cnfgnn.live.web.service_pages import Web
from cnfgnn.live.web.token_file import TOKEN
from cnfgnn.runs.checkpoints import FolderStore
from cnfgnn.runs.folder import Run

NETWORK = ("sensors.csv", "edges.csv")
Load = Callable[[str, Readings], Loaded]

log = logging.getLogger(__name__)


class Files(NamedTuple):
    """The files of readings.

    folder    the folder or file that was named
    file      the one with the readings
    inputs    those of further inputs
    refusals  what was refused when they were read
    unread    whether they could not be read, so that all of them is new
    """

    folder: Path
    file: Path
    inputs: Sequence[InputFile]
    refusals: Refusals
    unread: bool = False

    def check_read(self, source: str, key: str, target: str) -> None:
        """Refuse readings that are from another file than the one that grows."""
        if Path(source) != self.file:
            problem = (
                f"a live service forecasts what {self.file} holds, and not {target!r}: write that variable to"
                " a folder of its own, as readings.csv"
            )
            raise ConfigError(key, problem)


@dataclass(frozen=True)
class Parts:
    """What a service is made of: all that differs between a run on one machine and a site of a federation.

    predictor  makes the forecasts
    readings   of the files, as far as they have been read, and where the sensors are
    options    how readings are parsed
    intervals  finds the first ranges of the model; None if it has none
    model      what the service tells about its model, and what replaces it
    config     which readings mean "no reading"
    graph      who is whose neighbour; None if that is not known here
    files      that the readings come from; None if there are none
    retired    up to this time readings count for forecasts, but not for when they are due; None: all count
    report     is told if ranges and watch cannot begin, and the service does without; None: it does not start
    """

    predictor: Predictor
    readings: Readings
    options: ReadingOptions
    intervals: Callable[[], Intervals | None]
    model: Callable[[LiveService], ServedModel]
    config: DataConfig
    graph: Graph | None = None
    files: Files | None = None
    retired: int | None = None
    report: Callable[[str, Exception], None] | None = None


class ServiceProcess(Door):
    """A service with all its doors: HTTP, folder and broker. `address` is known once it is built.

    state  the folder of its database
    parts  are made once the port and the database are known to be free
    """

    def __init__(self, settings: LiveSettings, state: Path, parts: Callable[[], Parts]) -> None:
        settings.check()
        self.settings = settings
        default = make_folder(state, 0o700) / TOKEN
        super().__init__(settings.host, settings.port, settings.token_file, default)
        with ExitStack() as opened:
            opened.enter_context(self.socket)
            store = opened.enter_context(closing(ReadingStore(state)))
            self.parts = parts()
            self._build(self.parts, store, state)
            opened.pop_all()

    def _build(self, parts: Parts, store: ReadingStore, state: Path) -> None:
        settings, readings, files = self.settings, parts.readings, parts.files
        zone, step = Zone(readings.utc, settings.zone), readings.step_seconds
        system = SystemClock(zone.zone)
        zeros_missing = files is not None and zeros_are_missing_in(files.file)
        latest = latest_of(settings, readings.utc, step)
        recent = recent_readings(readings, store, zeros_missing, latest, parts.retired)
        start = max(recent.newest, recent.retired)
        clock = FeedClock(start, step, settings.speed) if settings.feed else system
        _say_if_old(clock, zone, recent, parts.predictor.history)
        deadline = SHARE_OF_STEP * recent.step if settings.deadline is None else settings.deadline
        self.service = service = LiveService(
            parts.predictor,
            recent,
            store,
            clock,
            zone,
            Schedule(recent.step, deadline, parts.predictor.history),
            settings.latest or state / LATEST,
            _tracking(parts, recent, store, clock.furthest(step)),
        )
        self.model = parts.model(service)
        shown = SensorList(recent, service.clock, service.zone, parts.graph, readings.positions, parts.config)
        self.web = Web(service, parts.options, self.model, shown)
        self.folder: FolderSource | None = None
        if files is not None:
            followed = files.folder, parts.options, files.file.name, settings.poll, files.inputs
            self.folder = FolderSource(service, *followed)
            service.refuse(files.refusals.found)
            service.fill_gaps = self.folder.fill_gaps
            if files.unread:
                self.folder.read_anew(files.refusals.found)
        self.broker = Broker(service, settings, settings.client) if settings.mqtt else None

    async def serve(self, started: Callable[[], None] = lambda: None) -> None:
        """Serve until `service.stopping` is set; `started` is called once requests are answered."""
        self.loop = asyncio.get_running_loop()
        server = QuietServer(self.web.app(self.token, self.any_host))
        http = asyncio.create_task(server.serve(sockets=[self.socket]))
        others = [asyncio.create_task(self.model.run())]
        others += [] if self.folder is None else [asyncio.create_task(self.folder.run())]
        if self.broker is not None:
            self.broker.start()
        while not server.started and not http.done():
            await asyncio.sleep(0.01)
        started()
        serving = asyncio.create_task(self.service.run())
        try:
            done, _ = await asyncio.wait({http, serving, *others}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.service.stopping.set()
            self.web.wake()
            server.should_exit = True
            for task in others:
                task.cancel()
            if self.broker is not None:
                await self.broker.stop()
            await asyncio.gather(http, serving, *others, return_exceptions=True)


def _say_if_old(clock: Clock, zone: Zone, recent: RecentReadings, history: int) -> None:
    """Say that forecasts begin without a recent reading; a recording is always too old by the machine's
    clock."""
    age = clock.now() - recent.newest
    if age > history * recent.step:
        passed = f"{age / 86_400:,.0f} days" if age > 2 * 86_400 else f"{age / 3600:.1f} hours"
        log.warning(
            "the newest reading is of %s, %s ago: forecasts are fallbacks until new readings arrive;"
            " for a recording, let its times set the clock (--clock feed)",
            zone.write(recent.newest),
            passed,
        )


def _tracking(parts: Parts, recent: RecentReadings, store: ReadingStore, latest: float) -> Tracking | None:
    """The ranges and the watch; what they learned after the time `latest` is of another clock."""
    try:
        return open_tracking(parts.predictor, parts.intervals, recent.until(recent.newest), store, latest)
    except Exception as error:
        if parts.report is None:
            raise
        parts.report("watch", error)
        return None


class LiveProcess(ServiceProcess):
    """The service of a run on this machine.

    next_parts  what it begins again with if the folder has new sensors; None if it ends for good
    """

    def __init__(self, run: Run, settings: LiveSettings, parts: Parts | None = None) -> None:
        state = settings.state or run.folder / LIVE
        self.parts_now = partial(parts_of_run, run, settings, state)
        self.next_parts: Parts | None = None
        super().__init__(settings, state, self.parts_now if parts is None else lambda: parts)
        self._tried: tuple[set[str], object] = set(), None
        if self.folder is not None and self.parts.files is not None:
            self.folder.unknown = self._begin_again_with
            self._refusals = self.parts.files.refusals
            if not self.parts.files.unread:
                self._tried = self._refusals.sensors, self._network()

    async def _begin_again_with(self, sensors: set[str]) -> set[str]:
        """Begin again with sensors that are new in the folder. If they cannot be used, for instance because
        the graph lacks them, the service goes on without them, and the log says why. They are tried again
        when the files of the graph have changed, or with other sensors. Returns those that the owner knows
        of."""
        tried, self._tried = self._tried, (sensors, self._network())
        if sensors <= tried[0] and tried[1] == self._tried[1]:
            self._refuse_again(sensors)
            return sensors
        try:
            parts = await asyncio.to_thread(self.parts_now)
        except CnfgnnError as error:
            self.service.metrics.failures.labels("folder").inc()
            log.warning("new sensors: %s", error)
            self._tried = tried  # the files may be in the middle of being written
            return sensors
        if new := sensors & set(parts.readings.ids):
            log.warning("new sensors: %s", ", ".join(sorted(new)))
            self.next_parts = parts
            self.service.stopping.set()
            return sensors
        assert parts.files is not None
        if parts.files.unread:  # in the middle of being written
            self._tried = tried
            return sensors
        self._refusals = parts.files.refusals
        self.service.refuse(self._refusals.found)
        return self._refusals.sensors

    def _refuse_again(self, sensors: set[str]) -> None:
        """Their columns may have been gone for a while."""
        of_sensors = [
            one
            for one in self._refusals.found
            if isinstance(one.error, LeftOutSensor) and one.error.sensor in sensors
        ]
        self.service.refuse(of_sensors)

    def _network(self) -> list[int | None]:
        """When the files of the graph were last changed."""
        assert self.parts.files is not None
        files = [self.parts.files.file.parent / name for name in NETWORK]
        return [file.stat().st_mtime_ns if file.exists() else None for file in files]


def parts_of_run(run: Run, settings: LiveSettings, state: Path) -> Parts:
    """The model of a run that is live, with the readings that it was trained on or those of a folder."""
    d, files = run.config.with_changes(settings.changes).data, None
    found = at_hand(run, settings, state)
    if found.file is not None:
        ahead = run.data.inputs.covariates
        inputs = [InputFile(name, file, name in ahead) for name, file in found.inputs.items()]
        folder = settings.data or Path(d.path)
        files = Files(folder, found.file, inputs, found.refusals, found.unread)
        if not found.unread:
            files.check_read(found.data.readings.source, "data.target", d.target)
        silent = np.flatnonzero(found.data.readings.missing.all(axis=0)).tolist()
        if silent:
            names = ", ".join(found.data.readings.ids[k] for k in silent[:5])
            log.warning("%s has no reading of %s", files.file, names)
    readings = with_inputs(found.data.readings, inputs_of(run), str(run.folder))
    models, data = Models(run.folder, state), replace(found.data, readings=readings)
    data, load, (predictor, intervals) = _loaded(models, data, found.refusals)
    found.remember(state, data, settings)
    return Parts(
        predictor,
        data.readings,
        ReadingOptions(d.dates, d.decimal, d.timezone, d.target, "none"),
        intervals,
        model=lambda service: Learning(service, predictor, models, load, settings),
        config=predictor.config.data,
        graph=predictor.graph,
        files=files,
    )


def _loaded(models: Models, data: Dataset, refusals: Refusals) -> tuple[Dataset, Load, Loaded]:
    """The model that is live; without sensors that it cannot forecast because it does not know them."""

    def of(data: Dataset) -> tuple[Dataset, Load, Loaded]:
        load = partial(_load, models, data.name, data.graph)
        return data, load, models.usable(lambda model: load(model, data.readings))[1]

    try:
        return of(data)
    except CnfgnnError as error:
        trained = Run.open(models.folder(models.read().live)).data.sensors
        new = {*data.readings.ids} - {*trained}
        if not new or new == {*data.readings.ids}:
            raise
        found = of(data.select([sensor for sensor in data.readings.ids if sensor not in new]))
        for sensor in sorted(new):
            problem = f"the new sensor {sensor} is left out: {error}"
            refusals.note(LeftOutSensor(data.readings.source, sensor, problem, where=data.readings.source))
        refusals.sensors |= new
        return found


def _load(models: Models, name: str, graph: Graph, model: str, readings: Readings) -> Loaded:
    """The predictor of a model, from readings of the sensors of a graph; `name` is that of the data."""
    # What is computed for sensors that a model does not know belongs to all sensors together.
    ids = hashlib.sha256("\n".join(readings.ids).encode()).hexdigest()[:16]
    known = FolderStore(models.state / "new-sensors" / model / ids)
    data = Dataset(name, readings, graph)
    predictor = RunPredictor(Run.open(models.folder(model)), data, store=known)
    return predictor, lambda: adapted_intervals(predictor, data)


def run_live(run: Run, settings: LiveSettings, started: Callable[[LiveProcess], None]) -> None:
    """Serve until Ctrl-C or SIGTERM, and then end cleanly; raises KeyboardInterrupt at the end."""

    async def main() -> None:
        ended, chosen, parts = asyncio.Event(), settings, None
        while not ended.is_set():
            process = LiveProcess(run, chosen, parts)

            def end(process: LiveProcess = process) -> None:
                ended.set()
                process.service.stopping.set()

            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, end)
            chosen = replace(chosen, port=process.socket.getsockname()[1])
            await process.serve(partial(started, process))
            parts = process.next_parts
            if parts is None:
                return

    asyncio.run(main())
    raise KeyboardInterrupt


def recent_readings(
    readings: Readings,
    store: ReadingStore,
    zeros_missing: bool,
    latest: Callable[[int], float] = lambda newest: math.inf,
    retired: int | None = None,
) -> RecentReadings:
    """The newest readings: those of the files, and on top of them those that the service has stored; `latest`
    as in `latest_of`, `retired` as in `Parts`."""
    recent = RecentReadings(readings, KEPT_ROWS, zeros_missing)
    recent.retired = recent.retired if retired is None else retired
    newest = max(recent.newest, recent.retired)
    while (found := store.newest(latest(newest)) or newest) > newest:
        newest = found
    oldest, until = newest - KEPT_ROWS * recent.step, latest(newest)
    recent.put_stored(store.stored(oldest, until), oldest)
    if (store.newest() or newest) > until:
        after = Zone(readings.utc).write(until)
        problem = f"readings after {after} are not used: by the service's clock they are from the future"
        log.warning("%s: %s; if that clock is right, cnfgnn live reset removes all", store.path, problem)
    return recent
