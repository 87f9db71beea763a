"""A live federation of real processes on this machine: from the last reading to forecasts at every site.

Each row of readings is sent to all sites at once, each site's own sensors with POST /readings, and waited for
in the stream of events of every site. The time from the moment in which the last site is sent its readings to
the moment in which the last site has its forecast has the uploads, the disks, the blurred copies, three
exchanges with the server over mutual TLS, the Graph Network and the models of the sites. Beside it are the
seconds of the server's part, and the memory of all processes.

    python benchmarks/federation_live.py                       # 207 sensors at four sites, 1,000 steps
    python benchmarks/federation_live.py --shape 12 30 --steps 20 --sites 2 --json
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cnfgnn.algorithm.methods import preset
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.readings import rows_of
from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.example import write_example
from cnfgnn.federation.kits import processes
from cnfgnn.federation.kits.processes import read_live
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.operator.tasks import TaskError, run_task
from cnfgnn.federation.project import read_project
from cnfgnn.federation.server.status import read_status, request_stop
from cnfgnn.federation.site.status import read_site_status
from cnfgnn.federation.task import Task, settings_of
from cnfgnn.live.options import LIVE as LIVE_FOLDER
from cnfgnn.process_setup import keep_freed_memory

if __package__:  # imported by tests
    from benchmarks.live_place import Place
    from benchmarks.shapes import OneSentence, random_network
else:
    from live_place import Place
    from shapes import OneSentence, random_network

METHOD, BLUR = "cnfgnn-private", 5.0
KNOWN = 320  # rows that the sites have before: enough to train one round on, the weights do not matter here
WARM_UP = 10  # steps that are not measured
LIVE = {"deadline": 60.0, "feed": True, "speed": 1.0}
STARTS_WITHIN = 300.0  # seconds


@dataclass
class Federation:
    """Running kits, and the readings that the sites have not seen."""

    kits: Mapping[str, Path]
    sites: Mapping[str, Sequence[int]]
    data: Dataset
    places: Mapping[str, Place]

    def memory(self) -> dict[str, float]:
        """Resident memory in MiB: of the server's task, of the engine's process there, and of the largest
        process of each kind at a site."""
        jobs = {name: processes.jobs_of(kit) for name, kit in self.kits.items()}
        services = [read_live(self.kits[name])["pid"] for name in self.sites]
        tasks = [pid for name in self.sites for pid in jobs[name]]
        return {
            "server": max(map(resident, jobs["server"])),
            "engine": resident(processes.running(self.kits["server"]) or 0),
            "service": max(map(resident, services)),
            "task": max(map(resident, tasks)),
        }


def resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024


@contextmanager
def live(sensors: int, edges: int, count: int, steps: int) -> Iterator[Federation]:
    """Make kits, train a round, and go live."""
    data = random_network(sensors, KNOWN + steps, edges)
    places = np.random.default_rng(0).random((sensors, 2))
    data = replace(data, readings=replace(data.readings, positions=places))
    parts = np.array_split(np.arange(sensors), count)
    sites = {f"site-{k + 1}": part.tolist() for k, part in enumerate(parts)}
    with tempfile.TemporaryDirectory() as place:
        known = replace(data, readings=rows_of(data.readings, slice(0, KNOWN)))
        kits = make_kits(
            read_project(write_example(Path(place) / "example", known, sites, blur=BLUR)),
            Path(place) / "kits",
        )
        for name in sites:
            file = kits[name] / "local" / "site.toml"
            file.write_text(file.read_text() + '\n[live]\nport = 0\nclock = "feed"\n')
        try:
            for kit in kits.values():
                processes.up(kit)
            config = preset(METHOD).with_changes({"training.rounds": 1, "compute.device": "cpu"})
            task = Task("train", "run", settings=settings_of(config), wait=STARTS_WITHIN)
            run_task(kits["server"], task, lambda status: None)
            with task_of(kits["server"]):
                yield Federation(kits, sites, data, {name: place_of(kits[name]) for name in sites})
        finally:
            for kit in kits.values():
                processes.down(kit)


@contextmanager
def task_of(server: Path) -> Iterator[None]:
    """The live task, in a thread that follows it."""
    problems: list[BaseException] = []

    def follow() -> None:
        try:
            run_task(server, Task("live", "run", live=LIVE, wait=STARTS_WITHIN), lambda status: None)
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        wait_for(lambda: problems or (read_status(server) or {}).get("live"), "the task")
        if problems:
            raise problems[0]
        yield
    except Exception as error:
        if problems:  # the task has ended, and what else went wrong follows from that
            raise problems[0] from error
        raise
    finally:
        request_stop(server, str((read_status(server) or {}).get("token")))
        thread.join(60)
    if not (len(problems) == 1 and isinstance(problems[0], TaskError) and problems[0].exit_code == 130):
        raise problems[0]


def place_of(kit: Path) -> Place:
    told: dict[str, str] = wait_for(lambda: read_site_status(kit).get("live"), "the service of a site")
    return Place.of(told["address"], kit / LIVE_FOLDER)


def wait_for(condition: Any, what: str) -> Any:
    deadline = time.monotonic() + STARTS_WITHIN
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TaskError(f"waited in vain for {what}", 3)
        time.sleep(0.1)
    return found


class Listener(threading.Thread):
    """The forecasts of a site as they are made: when each step arrived, and how complete it was."""

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True)
        self.headers = place.headers
        self.connection = http.client.HTTPConnection(place.host, timeout=STARTS_WITHIN)
        self.arrived: dict[str, float] = {}
        self.full: dict[str, bool] = {}
        self.changed = threading.Condition()
        self.start()

    def run(self) -> None:
        """Listen until the stream ends."""
        with closing(self.connection):
            self.connection.request("GET", "/events", headers=self.headers)
            with self.connection.getresponse() as lines:
                self._hear(lines)

    def _hear(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if line.startswith(b"data: "):
                now, made = time.perf_counter(), json.loads(line[6:])
                if "step" not in made:  # alarms are events as well
                    continue
                with self.changed:
                    self.arrived[made["step"]] = now
                    self.full[made["step"]] = all(
                        told["quality"] == "full" for told in made["sensors"].values()
                    )
                    self.changed.notify_all()

    def when(self, step: str) -> float:
        """When the forecast of a step arrived."""
        with self.changed:
            if not self.changed.wait_for(lambda: step in self.arrived, 60):
                raise TaskError(f"no forecast of {step} came", 3)
            return self.arrived[step]


def post(connection: http.client.HTTPConnection, headers: Mapping[str, str], body: str) -> float:
    """Send readings; returns when they were sent."""
    begun = time.perf_counter()
    connection.request("POST", "/readings", body, headers)
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    if answer.status != 200:
        raise TaskError(f"a site refused its readings: {answer.status} {text[:200]}", 3)
    return begun


def latencies(federation: Federation, rows: Sequence[int], heard: Mapping[str, Listener]) -> dict[str, Any]:
    """Seconds from each row's last upload to the last site's forecast, and how many forecasts were full."""
    readings, found, full = federation.data.readings, [], 0
    places = federation.places
    connections = {name: http.client.HTTPConnection(place.host, timeout=60) for name, place in places.items()}
    with ExitStack() as opened:
        for connection in connections.values():
            opened.enter_context(closing(connection))
        pool = opened.enter_context(ThreadPoolExecutor(len(connections)))
        for row in rows:
            moment, bodies = str(readings.times[row]), {}
            for name, columns in federation.sites.items():
                values = {readings.ids[k]: float(readings.values[row, k]) for k in columns}
                bodies[name] = json.dumps({"time": moment, "values": values})
            sent = max(
                pool.map(
                    lambda name: post(connections[name], places[name].headers, bodies[name]),  # noqa: B023
                    bodies,
                )
            )
            found.append(max(one.when(moment) for one in heard.values()) - sent)
            full += sum(one.full[moment] for one in heard.values())
    return {"seconds": found, "full": full}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    sensors, edges = options.shape
    with live(sensors, edges, options.sites, WARM_UP + options.steps) as federation:
        heard = {name: Listener(place) for name, place in federation.places.items()}
        latencies(federation, range(KNOWN, KNOWN + WARM_UP), heard)
        rows = np.arange(KNOWN + WARM_UP, KNOWN + WARM_UP + options.steps)
        memory, parts = {}, []
        for part in np.split(rows, [len(rows) // 6, len(rows) // 2]):
            parts.append(latencies(federation, part.tolist(), heard))
            memory[int(part[-1]) + 1 - KNOWN - WARM_UP] = federation.memory()
        server = (read_status(federation.kits["server"]) or {})["live"]
    seconds = np.concatenate([part["seconds"] for part in parts])
    return {
        "sensors": sensors,
        "sites": options.sites,
        "steps": len(seconds),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "median_ms": float(np.median(seconds) * 1000),
        "p99_ms": float(np.percentile(seconds, 99) * 1000),
        "most_ms": float(seconds.max() * 1000),
        "server_median_ms": server["median_seconds"] * 1000,
        "full": sum(part["full"] for part in parts) / (len(seconds) * options.sites),
        "memory_mib": memory,
    }


def arguments() -> argparse.Namespace:
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=2, default=[207, 1722], metavar=("SENSORS", "EDGES"))
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000, help="steps to measure")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args()
    for name, least in (("steps", 6), ("sites", 1)):
        if getattr(options, name) < least:
            parser.error(f"argument --{name}: at least {least}, not {getattr(options, name)}")
    return options


def main() -> None:
    keep_freed_memory()
    os.environ["OMP_NUM_THREADS"] = "1"  # all processes compute on this machine
    options = arguments()
    try:
        found = measured(options)
    except CnfgnnError as problem:
        print(f"federation_live.py: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
    print(
        f"{found['sensors']} sensors at {found['sites']} sites, {METHOD}, {found['cores']} cores,"
        f" {found['steps']} steps; load of the machine {found['load']:.1f}"
    )
    print(
        f"from the last reading to forecasts at every site: median {found['median_ms']:.0f} ms,"
        f" p99 {found['p99_ms']:.0f} ms, most {found['most_ms']:.0f} ms;"
        f" of these, the server and its exchanges: median {found['server_median_ms']:.0f} ms"
    )
    print(f"forecasts of full quality: {found['full']:.2%}")
    for name in ("server", "engine", "service", "task"):
        at = ", ".join(
            f"{memory[name]:.0f} ({steps:,} steps)" for steps, memory in found["memory_mib"].items()
        )
        print(f"memory of the {name}, MiB: {at}")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
