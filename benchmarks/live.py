"""A live service as a real process: seconds from a reading in to a forecast out, requests beside it, memory.

Every row is sent with POST /readings and waited for in the stream of events: the time in between has the
upload, the disk, the model and the way back. It is measured twice, first alone and then while another process
asks for forecasts at a steady rate. Seconds of the service's own processor time are beside it, because other
programs on the machine do not change them. The naive version sets the run up anew for each forecast, as a job
that is started at every step would, without the seconds that starting it takes.

    python benchmarks/live.py                                   # 207 sensors, cnfgnn-plus, 2,000 steps
    python benchmarks/live.py --shape 24 40 --steps 50 --naive 1 --json
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import numpy as np

from cnfgnn.algorithm.methods import preset
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.files.folder import load
from cnfgnn.data.readings import last_rows, rows_of
from cnfgnn.errors import CnfgnnError
from cnfgnn.live.forecasting.predictor import KEPT_ROWS
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import forecast_run
from cnfgnn.runs.train import Unwatched, train_run
from live_place import Place
from shapes import OneSentence, random_network

METHOD = "cnfgnn-plus"
TRAINED_ROWS = 320  # enough to train one round on: the weights do not matter here
WARM_UP = 20  # steps that are not measured
MIB = 2**20


@dataclass(frozen=True)
class Service:
    """A running service and the readings that it has not seen."""

    run: Run
    data: Dataset
    begun_with: int
    place: Place
    pid: int

    def memory(self) -> float:
        """Resident memory in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024

    def processor(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(sensors: int, edges: int, steps: int) -> Iterator[Service]:
    """Train a run, write a week of its readings into a folder, and serve it."""
    with tempfile.TemporaryDirectory() as parent:
        run, data = trained_run(Path(parent), sensors, edges, steps)
        with started(run, data) as service:
            yield service


def trained_run(parent: Path, sensors: int, edges: int, steps: int) -> tuple[Run, Dataset]:
    """A run in a folder, with a week of readings, and readings of so many steps more."""
    data = random_network(sensors, KEPT_ROWS + steps, edges)
    folder, trained = parent / "data", parent / "run"
    folder.mkdir()
    write_folder(replace(data, readings=rows_of(data.readings, slice(0, TRAINED_ROWS))), folder)
    config = preset(METHOD).with_changes(
        {"training.rounds": 1, "data.path": str(folder), "compute.device": "cpu"}
    )
    run = Run.create(trained, config, load(folder))
    train_run(run, load(folder), Unwatched())
    write_folder(replace(data, readings=rows_of(data.readings, slice(0, KEPT_ROWS))), folder)
    return Run.open(trained), data


@contextmanager
def started(run: Run, data: Dataset) -> Iterator[Service]:
    """The service of a run."""
    command = [sys.executable, "-m", "cnfgnn", "live", str(run.folder), "--clock", "feed", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        place = Place.of(process.stdout.readline(), run.folder / "live")
        yield Service(run, data, KEPT_ROWS, place, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def events(place: Place) -> Iterator[str]:
    """The steps of forecasts as they are made."""
    connection = http.client.HTTPConnection(place.host, timeout=60)
    connection.request("GET", "/events", headers=place.headers)
    stream = connection.getresponse()
    kind = b""
    for line in stream:
        if line.startswith(b"event: "):
            kind = line[7:].strip()
        elif line.startswith(b"data: ") and kind == b"forecast":
            yield json.loads(line[6:])["step"]


def latencies(service: Service, rows: Sequence[int], heard: Iterator[str]) -> list[float]:
    """Seconds from each row's upload to its forecast."""
    connection = http.client.HTTPConnection(service.place.host, timeout=60)
    readings, found = service.data.readings, []
    for row in rows:
        moment = str(readings.times[row])
        values = dict(zip(readings.ids, readings.values[row].tolist(), strict=True))
        body = json.dumps({"time": moment, "values": values})
        begun = time.perf_counter()
        connection.request("POST", "/readings", body, service.place.headers)
        connection.getresponse().read()
        while next(heard) != moment:
            pass
        found.append(time.perf_counter() - begun)
    connection.close()
    return found


def ask(place: Place, per_second: float, sensors: Sequence[str], stop: Any, told: Queue[Any]) -> None:
    """Ask for forecasts at a steady rate: mostly of one sensor, sometimes of all, or for the health."""
    connection, seconds, failed = http.client.HTTPConnection(place.host, timeout=60), [], 0
    begun = time.perf_counter()
    number = 0
    while not stop.is_set():
        due = begun + number / per_second
        if (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)
        path = f"/forecasts?sensor={sensors[number % len(sensors)]}"
        if number % 10 == 0:
            path = "/forecasts" if number % 20 else "/health"
        asked = time.perf_counter()
        connection.request("GET", path, headers=place.headers)
        response = connection.getresponse()
        response.read()
        failed += response.status != 200
        seconds.append(time.perf_counter() - asked)
        number += 1
    told.put((number / (time.perf_counter() - begun), seconds, failed))


@contextmanager
def asked(service: Service, per_second: float) -> Iterator[dict[str, Any]]:
    """Requests at this rate while the block runs; afterwards, how they were answered."""
    processes = multiprocessing.get_context("fork")
    stop, told = processes.Event(), processes.Queue()
    arguments = (service.place, per_second, service.data.readings.ids, stop, told)
    other = processes.Process(target=ask, args=arguments)
    other.start()
    answered: dict[str, Any] = {}
    try:
        yield answered
    finally:
        stop.set()
        rate, seconds, failed = told.get(timeout=60)
        other.join()
        answered |= {"per_second": rate, "failed": failed, **spread(seconds)}


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and largest, in milliseconds."""
    found = np.array(seconds) * 1000
    return {
        "median_ms": float(np.median(found)),
        "p99_ms": float(np.percentile(found, 99)),
        "most_ms": float(found.max()),
    }


def each(begun: float, ended: float, steps: int) -> float:
    """Milliseconds for each of so many steps."""
    return (ended - begun) * 1000 / steps


def naive(service: Service, times: int) -> dict[str, float]:
    """Seconds of a forecast that sets up the run each time, on the readings that the service holds."""
    readings = last_rows(service.data.readings, KEPT_ROWS)
    data = replace(service.data, readings=readings)
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        forecast_run(Run.open(service.run.folder), data)
        found.append(time.perf_counter() - begun)
    return spread(found)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All measurements."""
    sensors, edges = options.shape
    steps = WARM_UP + 2 * options.steps
    with served(sensors, edges, steps) as service:
        heard = events(service.place)
        first = service.begun_with
        alone_from, beside_from = first + WARM_UP, first + WARM_UP + options.steps
        latencies(service, range(first, alone_from), heard)
        memory, processor = [service.memory()], [service.processor()]
        alone = latencies(service, range(alone_from, beside_from), heard)
        memory.append(service.memory())
        processor.append(service.processor())
        with asked(service, options.requests) as answered:
            beside = latencies(service, range(beside_from, first + steps), heard)
        memory.append(service.memory())
        processor.append(service.processor())
        results: dict[str, Any] = {
            "sensors": sensors,
            "edges": edges,
            "steps": options.steps,
            "cores": len(os.sched_getaffinity(0)),
            "load": os.getloadavg()[0],
            "alone": spread(alone) | {"processor_ms": each(processor[0], processor[1], options.steps)},
            "beside": spread(beside) | {"processor_ms": each(processor[1], processor[2], options.steps)},
            "requests": answered,
            "memory_mib": memory,
            "naive": None,
            "ratio": None,
        }
        if options.naive:
            results["naive"] = naive(service, options.naive)
            results["ratio"] = results["naive"]["median_ms"] / results["alone"]["median_ms"]
    return results


def arguments() -> argparse.Namespace:
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=2, default=[207, 1722], metavar=("SENSORS", "EDGES"))
    parser.add_argument("--steps", type=int, default=2000, help="steps to measure, alone and beside requests")
    parser.add_argument(
        "--requests", type=float, default=200.0, help="requests a second beside the forecasts"
    )
    parser.add_argument("--naive", type=int, default=10, help="forecasts of the naive version; 0 skips it")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args()
    for name, least in (("steps", 1), ("naive", 0)):
        if getattr(options, name) < least:
            parser.error(f"argument --{name}: at least {least}, not {getattr(options, name)}")
    return options


def main() -> None:
    keep_freed_memory()
    options = arguments()
    try:
        results = measured(options)
    except CnfgnnError as problem:
        print(f"live.py: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
    print(
        f"{results['sensors']} sensors, {results['edges']} edges, {METHOD}, {results['cores']} cores,",
        end=" ",
    )
    print(f"{results['steps']} steps each; load of the machine {results['load']:.1f}")
    print(
        "\n| from reading to forecast | median ms | p99 ms | most ms | processor ms |\n|---|---|---|---|---|"
    )
    answered = results["requests"]
    rows = {"alone": "alone", "beside": f"beside {answered['per_second']:.0f} requests a second"}
    for name, title in [
        *rows.items(),
        ("requests", "the requests themselves"),
        ("naive", "naive, set up anew"),
    ]:
        if (found := results[name]) is not None:
            cells = (f"{found[key]:.1f}" for key in ("median_ms", "p99_ms", "most_ms"))
            processor = f"{found['processor_ms']:.1f}" if "processor_ms" in found else ""
            print(f"| {title} | {' | '.join(cells)} | {processor} |")
    print(f"\n{answered['failed']} requests failed; memory", end=" ")
    print(" -> ".join(f"{mib:.0f}" for mib in results["memory_mib"]), "MiB")
    if results["ratio"] is not None:
        print(f"naive: ratio {results['ratio']:.1f}")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
