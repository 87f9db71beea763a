"""Put a service together and run it until it is told to stop."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvicorn
from starlette.types import ASGIApp

from cnfgnn.algorithm.intervals import Intervals
from cnfgnn.config.settings import DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.folder import readings_file, zeros_are_missing
from cnfgnn.data.graph import Graph
from cnfgnn.data.inputs import NO_NAMES, with_inputs
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import Readings, last_rows
from cnfgnn.data.source import open_data
from cnfgnn.errors import CnfgnnError, ConfigError, RunError
from cnfgnn.live.broker import Broker, broker_settings
from cnfgnn.live.clock import Clock, FeedClock, SystemClock, Zone
from cnfgnn.live.folder_source import FolderSource, InputFile, state_of
from cnfgnn.live.learning import NICER, Learning, LearningSettings, Load, Loaded
from cnfgnn.live.limits import MOST_BYTES, MOST_CONNECTIONS
from cnfgnn.live.models import Models
from cnfgnn.live.options import LIVE, ServiceOptions, command_option
from cnfgnn.live.page.sensors import SensorList
from cnfgnn.live.predictor import KEPT_ROWS, Predictor, RunPredictor
from cnfgnn.live.recent import RecentReadings
from cnfgnn.live.retrain import HOLD_OUT, RetrainSettings
from cnfgnn.live.schedule import SHARE_OF_STEP, Schedule
from cnfgnn.live.service import LiveService
from cnfgnn.live.store import FileState, ReadingStore
from cnfgnn.live.token_file import TOKEN, open_token, read_token
from cnfgnn.live.tracking import Tracking, adapted_intervals, open_tracking
from cnfgnn.live.web import ServedModel, Web
from cnfgnn.runs.checkpoints import FolderStore
from cnfgnn.runs.folder import Run

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
ENDS_WITHIN = 5  # seconds that open requests have when the service stops

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LiveSettings(ServiceOptions):
    """How a service runs.

    data       a folder or file of readings; None: those that the run was trained on
    state      the folder of its database; None: `live` in the run's folder
    latest     the file that always holds the last forecast; None: latest.csv in the state's folder
    deadline   seconds after a step at which its forecast is made whoever is missing; None: a fifth of a step
    speed      of a recording
    client     its name at the broker, which keeps readings for it while the service is away
    retrain    seconds between two retrainings; None: none
    hold_out   days at the end that a retraining does not learn from, but is judged by
    """

    data: Path | None = None
    state: Path | None = None
    latest: Path | None = None
    deadline: float | None = None
    speed: float = 1.0
    client: str = "cnfgnn-live"
    most_bytes: int = MOST_BYTES
    changes: dict[str, str] = field(default_factory=dict)
    retrain: float | None = None
    retrain_threads: int = 1
    retrain_nice: int = NICER
    hold_out: float = HOLD_OUT

    def check(self) -> None:
        """Refuse settings that cannot be meant."""
        self.check_options(command_option)
        if self.token_file:
            read_token(Path(self.token_file))
        if self.deadline is not None and not 0 <= self.deadline < 86_400:
            raise ConfigError("--deadline", f"must be from 0 to a day in seconds, not {self.deadline:g}")
        if not 0 < self.speed <= 100_000:
            raise ConfigError("--speed", f"must be above 0 and at most 100000, not {self.speed:g}")
        self.learning.retraining.check()
        if self.speed != 1 and not self.feed:
            raise ConfigError("--speed", "is for a recording: use it with --clock feed")

    @property
    def learning(self) -> LearningSettings:
        """How the service keeps learning."""
        retraining = RetrainSettings(self.data, self.hold_out, self.changes)
        return LearningSettings(self.retrain, self.retrain_threads, self.retrain_nice, retraining)


@dataclass(frozen=True)
class Parts:
    """What a service is made of: all that differs between a run on one machine and a site of a federation.

    predictor      makes the forecasts
    readings    of the files, as far as they have been read, and where the sensors are
    options     how readings are parsed
    intervals   finds the first ranges of the model; None if it has none
    model       what the service tells about its model, and what replaces it
    config      which readings mean "no reading"
    graph       who is whose neighbour; None if that is not known here
    folder      the folder or file of the readings; None if there is none
    begun_with  the file in it that was read, and how far
    inputs      files of further inputs in it, as far as they were read
    """

    predictor: Predictor
    readings: Readings
    options: ReadingOptions
    intervals: Callable[[], Intervals | None]
    model: Callable[[LiveService], ServedModel]
    config: DataConfig
    graph: Graph | None = None
    folder: Path | None = None
    begun_with: tuple[str, FileState] = ("", FileState(0, 0, 0))
    inputs: Sequence[InputFile] = ()


class ServiceProcess:
    """A service with all its doors: HTTP, folder and broker. `address` is known once it is built.

    state  the folder of its database
    parts  are made once the port and the database are known to be free
    """

    def __init__(self, settings: LiveSettings, state: Path, parts: Callable[[], Parts]) -> None:
        settings.check()
        self.settings = settings
        with ExitStack() as opened:
            self.socket = opened.enter_context(listening(settings.host, settings.port))
            store = opened.enter_context(closing(ReadingStore(state)))
            self.token_file = open_token(settings.token_file, state / TOKEN)
            self.token = read_token(self.token_file)
            self._build(parts(), store, state)
            opened.pop_all()

    def _build(self, parts: Parts, store: ReadingStore, state: Path) -> None:
        settings, predictor, readings = self.settings, parts.predictor, parts.readings
        zeros_missing = parts.folder is not None and zeros_are_missing(parts.folder)
        recent = recent_readings(readings, store, zeros_missing)
        self.service = service = LiveService(
            predictor,
            recent,
            store,
            _clock(settings, recent, readings),
            Zone(readings.utc, settings.zone),
            Schedule(recent.step, _deadline(settings, recent.step), predictor.history),
            settings.latest or state / "latest.csv",
            self._tracking(parts, recent, store),
        )
        self.model = parts.model(service)
        clock, zone = service.clock, service.zone
        shown = SensorList(recent, clock, zone, parts.graph, readings.positions, parts.config)
        self.web = Web(service, parts.options, settings.most_bytes, self.model, shown)
        self.folder: FolderSource | None = None
        if parts.folder is not None:
            self.folder = FolderSource(
                service, parts.folder, parts.options, parts.begun_with, settings.poll, parts.inputs
            )
        self.broker = Broker(service, broker_settings(settings, settings.client)) if settings.mqtt else None

    def _tracking(self, parts: Parts, recent: RecentReadings, store: ReadingStore) -> Tracking | None:
        """The ranges and the watch."""
        return open_tracking(parts.predictor, parts.intervals, recent.until(recent.newest), store)

    @property
    def address(self) -> str:
        return address_of(self.socket)

    async def serve(self, started: Callable[[], None] = lambda: None) -> None:
        """Serve until `service.stopping` is set; `started` is called once requests are answered."""
        self.loop = asyncio.get_running_loop()
        server = http_server(self.web.app(self.token, self.settings.host not in LOOPBACK_HOSTS))
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
            server.should_exit = True
            for task in others:
                task.cancel()
            if self.broker is not None:
                await self.broker.stop()
            await asyncio.gather(http, serving, *others, return_exceptions=True)


class LiveProcess(ServiceProcess):
    """The service of a run on this machine.

    next_parts  what it begins again with if the folder has new sensors; None if it ends for good
    """

    def __init__(self, run: Run, settings: LiveSettings, parts: Parts | None = None) -> None:
        state = settings.state or run.folder / LIVE
        self.parts_now = partial(parts_of_run, run, settings, state)
        self.next_parts: Parts | None = None
        super().__init__(settings, state, self.parts_now if parts is None else lambda: parts)
        if self.folder is not None:
            self.folder.unknown = self._begin_again_with

    async def _begin_again_with(self, sensors: set[str]) -> None:
        """Begin again with sensors that are new in the folder. If they cannot be used, for instance because
        the graph lacks them, the service goes on without them, and the log says why."""
        try:
            parts = await asyncio.to_thread(self.parts_now)
        except CnfgnnError as error:
            self.service.metrics.failures.labels("folder").inc()
            log.warning("new sensors: %s", error)
            return
        if sensors <= set(parts.readings.ids):
            log.warning("new sensors: %s", ", ".join(sorted(sensors)))
            self.next_parts = parts
            self.service.stopping.set()


def parts_of_run(run: Run, settings: LiveSettings, state: Path) -> Parts:
    """The model of a run that is live, with the readings that it was trained on or those of a folder."""
    options, data, begun_with, inputs = _opened(run, settings)
    models = Models(run.folder, state)
    load = _loader(models, data)
    name, predictor = models.usable(lambda model: load(model, data.readings).predictor)
    parts = Parts(
        predictor,
        data.readings,
        options,
        intervals=lambda: adapted_intervals(predictor, data),
        model=lambda service: Learning(service, predictor.run, models, name, load, settings.learning),
        config=predictor.config.data,
        graph=predictor.graph,
    )
    if begun_with is None:
        return parts
    folder = settings.data or Path(run.config.data.path)
    return replace(parts, folder=folder, begun_with=begun_with, inputs=inputs)


class QuietServer(uvicorn.Server):
    """uvicorn that leaves signals alone: the service ends as a whole."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(app: ASGIApp) -> QuietServer:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=ENDS_WITHIN,
        timeout_keep_alive=65,
        server_header=False,
    )
    return QuietServer(config)


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


class _Opened(NamedTuple):
    """The data and how they are read; the file that they are in, as far as it was read, and those of further
    inputs."""

    options: ReadingOptions
    data: Dataset
    begun_with: tuple[str, FileState] | None
    inputs: Sequence[InputFile] = ()


def _opened(run: Run, settings: LiveSettings) -> _Opened:
    config = run.config.with_changes(settings.changes)
    d = config.data
    options = ReadingOptions(d.dates, d.decimal, d.timezone, d.target, "none")
    if settings.data is None and config.data.path == "city":
        return _Opened(options, _with_used_inputs(run, open_data(config)), None)
    file = readings_file(settings.data or Path(config.data.path))
    # Before they are read: what is added meanwhile is read again.
    begun_with, inputs = (file.name, state_of(file)), InputFile.all_in(file.parent, run.data.inputs)
    data = open_data(config, settings.data)
    if Path(data.readings.source) != file:
        problem = (
            f"a live service forecasts what {file} holds, and not {d.target!r}: write that variable to a"
            " folder of its own, as readings.csv"
        )
        raise ConfigError("data.target", problem)
    data = _with_used_inputs(run, replace(data, readings=data.readings.on_grid()))
    return _Opened(options, data, begun_with, inputs)


def _with_used_inputs(run: Run, data: Dataset) -> Dataset:
    """The data with the further inputs that the run was trained with; refused if one is not there."""
    names = run.data.inputs if run.config.model.takes_inputs else NO_NAMES
    return replace(data, readings=with_inputs(data.readings, names, str(run.folder)))


def _loader(models: Models, data: Dataset) -> Load:
    """Makes the predictor of a model from its name and readings of the sensors of `data`."""
    network = replace(data, readings=last_rows(data.readings, 1))  # not all readings: it lasts

    def load(model: str, readings: Readings) -> Loaded:
        # What is computed for sensors that a model does not know belongs to all sensors together.
        ids = hashlib.sha256("\n".join(network.readings.ids).encode()).hexdigest()[:16]
        known = FolderStore(models.state / "new-sensors" / model / ids)
        at_hand = replace(
            network.readings,
            times=readings.times,
            values=readings.values,
            missing=readings.missing,
            others=readings.others,
        )
        newest = replace(network, readings=at_hand)
        return Loaded(RunPredictor(Run.open(models.folder(model)), newest, store=known), newest)

    return load


def recent_readings(readings: Readings, store: ReadingStore, zeros_missing: bool) -> RecentReadings:
    """The newest readings: those of the files, and on top of them those that the service has stored."""
    recent = RecentReadings(readings, KEPT_ROWS, zeros_missing)
    oldest = max(recent.newest, store.newest() or 0) - KEPT_ROWS * recent.step
    recent.put_stored(store.stored(oldest), oldest)
    return recent


def _clock(settings: LiveSettings, recent: RecentReadings, readings: Readings) -> Clock:
    if settings.feed:
        return FeedClock(recent.newest, recent.step, settings.speed)
    return SystemClock(UTC if readings.utc else settings.zone)


def _deadline(settings: LiveSettings, step: int) -> float:
    return SHARE_OF_STEP * step if settings.deadline is None else settings.deadline


def address_of(opened: socket.socket) -> str:
    host, port = opened.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 lets the system choose one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches off the waiting of TCP for more to send only if the protocol is named here.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(128)
    except OSError as error:
        found.close()
        problem = f"port {port} cannot be opened ({error.strerror}): choose another one with --port"
        raise RunError(host, problem) from error
    return found
