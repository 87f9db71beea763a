"""A federation of real processes on this machine, for tests: the synthetic city split between sites."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.files.folder import load
from cnfgnn.data.synthetic.city import city
from cnfgnn.federation.example import write_example
from cnfgnn.federation.kits import processes
from cnfgnn.federation.kits.engine_files import CONTROLLER, ENGINE_FOLDER
from cnfgnn.federation.kits.refusals import read_refusals
from cnfgnn.federation.kits.requests import KEY, make_request
from cnfgnn.federation.operator import tasks as task_client
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.operator.tasks import run_task
from cnfgnn.federation.project import read_project
from cnfgnn.federation.server.status import read_status, request_stop
from cnfgnn.federation.task import RUNS, Task, settings_of
from cnfgnn.runs.folder import Run
from tests.federation import fault_injection, message_log
from tests.federation.in_memory_federation import given_of
from tests.federation.site_processes import engine_of, workers_of
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
ALL_COME = 240.0  # seconds that a task waits for its sites, where it needs all of them
SITES: Mapping[str, Sequence[int]] = {"north": [0], "south": [1, 2], "west": [3, 4, 5, 6, 7]}

# The engine leaves the sockets of a session to the garbage collector.
ENGINE_WARNINGS = [
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class RunningFederation:
    """The kits and processes of one project; tasks run in a thread while a test injects faults."""

    def __init__(self, folder: Path, kits: Mapping[str, Path]) -> None:
        self.folder, self.kits, self.server = folder, kits, kits["server"]
        self.result: Mapping[str, Any] = {}
        self.problem: BaseException | None = None
        self.worker: threading.Thread | None = None

    @property
    def status(self) -> Mapping[str, Any]:
        return read_status(self.server) or {}

    def run(self, name: str = "one") -> Run:
        return Run.open(self.server / RUNS / name)

    def begin(self, task: Task) -> None:
        before = self.status.get("token")
        pid = processes.running(self.server)
        if pid is not None:  # on a busy machine it takes a while after its start
            processes.wait_until_listening(self.server, pid)

        def run() -> None:
            try:
                self.result = run_task(self.server, task, lambda status: None)
            except BaseException as problem:
                self.problem = problem

        self.result, self.problem = {}, None
        self.worker = threading.Thread(target=run, daemon=True)
        self.worker.start()
        wait_for(
            lambda: self.problem is not None or self.status.get("token") not in (None, before),
            "the task starts",
            within=300.0,
        )

    def end(self, timeout: float = 600.0) -> Mapping[str, Any]:
        assert self.worker is not None
        self.worker.join(timeout)
        assert not self.worker.is_alive(), self.status
        if self.problem is not None:
            raise self.problem
        return self.result

    def train(self, config: Config, name: str = "one", **more: Any) -> Mapping[str, Any]:
        self.begin_training(config, name, **more)
        return self.end()

    def begin_training(self, config: Config, name: str = "one", **more: Any) -> None:
        self.begin(Task("train", name, settings=settings_of(config), given=given_of(config), **more))

    def during(self, round_: int, phase: int = 0) -> None:
        """Wait until training has reached this round and, if given, this phase."""

        def there() -> bool:
            status = self.status
            if self.problem is not None:
                raise self.problem
            now = (status.get("round", 0), status.get("phase", 0))
            return now[0] > round_ or (now[0] == round_ and now[1] >= phase)

        wait_for(there, f"round {round_}, phase {phase}")

    # ---- faults --------------------------------------------------------------------------------------

    def site(self, name: str) -> Mapping[str, Any]:
        """A site's entry in the status."""
        return (self.status.get("sites") or {}).get(name, {})

    def block(self, name: str, phase: int, number: int | None = None) -> None:
        """Block a site the next time it executes a phase, or its minibatch `number`; wait until it is."""
        blocked = self.kits[name] / fault_injection.BLOCKED
        blocked.unlink(missing_ok=True)
        fault_injection.inject(self.kits[name], fault_injection.PHASES[phase], "block", number)
        self.until(blocked.exists, f"{name} is blocked in phase {phase}")

    def until(self, condition: Callable[[], bool], what: str, timeout: float = 300.0) -> None:
        """Wait for a condition while the task runs; fail as soon as the task fails."""

        def holds() -> bool:
            if self.problem is not None:
                raise self.problem
            return condition()

        wait_for(holds, what, timeout)

    def wait_for_rejoin(self, name: str, since: int) -> None:
        """Wait until a site is present and more than three exchanges followed exchange `since`: the status
        lags behind, and a short absence may never show in it."""

        def rejoined() -> bool:
            # at first the status says nothing of exchanges and sites
            return bool(self.status.get("exchanges", 0) > since + 3 and self.site(name).get("present"))

        self.until(rejoined, f"{name} rejoins")

    def is_paused_without(self, name: str) -> bool:
        return bool(self.status["waiting"]) and not self.site(name)["reachable"]

    def stop(self) -> None:
        """Stop the task."""
        request_stop(self.server, str(self.status["token"]))
        with pytest.raises(task_client.TaskError, match="stopped"):
            self.end()

    def kill_job(self, name: str) -> None:
        """Kill the process that has the nodes of a site, or the server's process of the task."""
        kit = self.kits[name]
        [job] = processes.jobs_of(kit) if name == "server" else workers_of(kit)
        os.kill(job, signal.SIGKILL)

    def release(self, name: str) -> None:
        """Let a blocked site go on."""
        (self.kits[name] / fault_injection.BLOCKED).unlink()

    def kill_relay(self, name: str) -> None:
        """Kill the process of a site's engine that passes requests on."""
        [job] = processes.jobs_of(self.kits[name])
        os.kill(job, signal.SIGKILL)

    def kill_engine(self, name: str) -> None:
        """Kill the parent process of a site's engine."""
        engine = engine_of(self.kits[name])
        assert engine is not None
        os.kill(engine, signal.SIGKILL)

    def kill_supervisor(self, name: str) -> None:
        """Kill the process that has started all others of a site, and no other."""
        supervisor = processes.running(self.kits[name])
        assert supervisor is not None
        os.kill(supervisor, signal.SIGKILL)
        wait_for(lambda: processes.running(self.kits[name]) is None, f"{name}'s supervisor is dead")

    def kill(self, name: str) -> None:
        """Kill every process of a kit, the parent first because it restarts the others."""
        parent = processes.running(self.kits[name])
        assert parent is not None
        for process in (psutil.Process(parent), *psutil.Process(parent).children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        wait_for(lambda: processes.running(self.kits[name]) is None, f"{name} is dead")


@contextmanager
def running_federation(
    folder: Path,
    data: Dataset,
    sites: Mapping[str, Sequence[int]] = SITES,
    min_sites: int = 1,
    up: bool = True,
    faults: bool = False,
    blur: float = 0.0,
    logged: bool = False,
    planted: str = "",
    own_keys: Sequence[str] = (),
) -> Iterator[RunningFederation]:
    """Make the kits, start the server and the sites, and stop every process at the end.

    With `faults`, sites fail when a test says so. With `logged`, the server notes every message. The code
    `planted` is what all processes run first. The sites `own_keys` make their keys themselves.
    """
    before = os.environ.copy()
    # sums are bit-identical only with the same number of threads
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), str(ROOT)]
    )  # for the executor that injects faults
    planted += fault_injection.PROGRAM * faults
    if planted:
        (folder / "first").mkdir(parents=True)
        (folder / "first" / "sitecustomize.py").write_text(planted)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder / "first"), os.environ["PYTHONPATH"]])
    task_client.CONTROLLER = message_log.CONTROLLER if logged else CONTROLLER
    starts_within, task_client.STARTS_WITHIN = task_client.STARTS_WITHIN, 120.0  # on a busy machine
    project = read_project(write_example(folder / "example", data, sites, min_sites, blur))
    requests = {name: make_request(name, folder / "keys" / name) for name in own_keys}
    made = make_kits(project, folder / "kits", [message_log.CONTROLLER] * logged, requests=requests)
    for name, request in requests.items():
        request.file.with_name(KEY).rename(made[name] / "startup" / KEY)
    try:
        if up:
            for kit in made.values():
                processes.up(kit)
        yield RunningFederation(folder, made)
        refused = [read_refusals(place) for kit in made.values() for place in (kit, kit / ENGINE_FOLDER)]
        assert not any(refused), "parties that keep to the protocol are refused nothing"
    finally:
        with ThreadPoolExecutor(len(made)) as pool:
            list(pool.map(processes.down, made.values()))
        task_client.CONTROLLER = CONTROLLER
        task_client.STARTS_WITHIN = starts_within
        os.environ.clear()
        os.environ.update(before)
        gc.collect()  # the sockets of the engine's sessions, while their warnings are ignored


def every_process(kit: Path) -> list[int]:
    """All processes of a kit that do something for it."""
    parents = [processes.running(kit), engine_of(kit)]
    found = [pid for pid in parents if pid is not None]
    return [*found, *processes.jobs_of(kit), *workers_of(kit)]


@contextmanager
def suspended(*pids: int) -> Iterator[float]:
    """Suspend processes, as on a suspended machine; yields the time it began."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield time.monotonic()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def city_on_disk(folder: Path, sensors: int = 8, days: float = 3.0, seed: int = 1) -> Dataset:
    """A small city, written to files and read back as sites read it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_folder(city(sensors, days, seed=seed), folder)
    return load(folder)
