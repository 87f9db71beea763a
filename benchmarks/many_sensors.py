"""What a user waits for with many sensors: each command as a process of its own, on a synthetic city.

Makes a city, trains one round of a small model on it, and then runs the commands that follow a training:
seconds on the clock and of the processor, peak memory, and the size of what each command writes. The last two
rows are a live service: until it is ready, and from the readings of one more step to their forecast.

    python benchmarks/many_sensors.py                                # 10,000 sensors, two days
    python benchmarks/many_sensors.py --sensors 300 --days 1 --threads 1 --json
    python benchmarks/many_sensors.py --run runs/mine                # only what follows a training
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from cnfgnn.data.source import open_data
from cnfgnn.errors import CnfgnnError
from cnfgnn.runs.folder import Run
from live import events
from live_place import Place
from machine import GIB
from shapes import OneSentence

MEGABYTE = 1e6
SMALL = {  # a model that is quick to train: how good it is does not matter here
    "model.hidden": 8,
    "model.embedding": 8,
    "model.gn_widths": "[8,8]",
    "training.rounds": 1,
    "training.client_rounds": 1,
    "training.server_rounds": 1,
    "training.client_batch": 128,
}


class Failed(Exception):
    """A command did not succeed."""


def measured(name: str, command: list[str], threads: int, writes: Path | None = None) -> dict[str, Any]:
    """Run a command of cnfgnn to its end; `writes` is the file or folder that it makes."""
    begun = time.perf_counter()
    process = start(command, threads)
    told = process.stdout.read() if process.stdout is not None else ""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Failed(f"cnfgnn {' '.join(command)}: exit code {process.returncode}\n{told}")
    return row(name, time.perf_counter() - begun, used, size(writes))


def start(command: list[str], threads: int) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    whole = [sys.executable, "-m", "cnfgnn", *command]
    return subprocess.Popen(
        whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def row(name: str, seconds: float, used: resource.struct_rusage, written: int | None) -> dict[str, Any]:
    return {
        "command": name,
        "seconds": seconds,
        "processor": used.ru_utime + used.ru_stime,
        "peak_gib": used.ru_maxrss * 1024 / GIB,
        "megabytes": None if written is None else written / MEGABYTE,
    }


def size(path: Path | None) -> int | None:
    """Bytes of a file, or of all files in a folder."""
    if path is None:
        return None
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def training(place: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Make a city, describe it with either kind of graph, and train a run on it."""
    city, plain, run, threads = place / "city", place / "positions", place / "run", options.threads
    shape = ["--sensors", str(options.sensors), "--days", str(options.days)]
    yield measured("data synthesize", ["data", "synthesize", str(city), *shape], threads, city)
    yield measured("data describe", ["data", "describe", str(city)], threads)
    plain.mkdir()
    for name in ("readings.csv", "sensors.csv"):
        shutil.copy(city / name, plain / name)
    yield measured("data describe, graph from positions", ["data", "describe", str(plain)], threads)
    settings = [f"--set={key}={value}" for key, value in SMALL.items()]
    command = ["train", str(city), "--method", "at-fedavg", "--device", "cpu", "--out", str(run)]
    yield measured("train, one round", [*command, *settings], threads, run)


def use(place: Path, run: Path, threads: int) -> Iterator[dict[str, Any]]:
    """Every command that uses a run."""
    forecasts, page = place / "forecasts.csv", place / "report.html"
    yield measured("evaluate", ["evaluate", str(run)], threads)
    yield measured("forecast", ["forecast", str(run), "--out", str(forecasts)], threads, forecasts)
    ranges = ["forecast", str(run), "--intervals", "80,95", "--out", str(forecasts)]
    yield measured("forecast --intervals 80,95", ranges, threads, forecasts)
    yield measured("report", ["report", str(run), "--out", str(page)], threads, page)
    yield from served(run, place / "live", threads)


def served(run: Path, state: Path, threads: int) -> Iterator[dict[str, Any]]:
    """A live service: its start, and one step."""
    begun = time.perf_counter()
    process = start(["live", str(run), "--state", str(state), "--clock", "feed", "--port", "0"], threads)
    assert process.stdout is not None
    try:
        line = next((line for line in process.stdout if "http://" in line), "")
        if not line:
            raise Failed(f"cnfgnn live {run}: ended before it was ready")
        place = Place.of(line, state)
        ready = time.perf_counter() - begun
        until_ready = processor_of(process.pid)
        seconds = one_step(place, run)
        for_a_step = processor_of(process.pid) - until_ready
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
    whole = row("live, until it is ready", ready, used, size(state))
    yield whole | {"processor": until_ready}
    yield whole | {
        "command": "live, one step",
        "seconds": seconds,
        "processor": for_a_step,
        "megabytes": (size(state / "latest.csv") or 0) / MEGABYTE,
    }


def processor_of(pid: int) -> float:
    """Seconds of processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_step(place: Place, run: Path) -> float:
    """Send the last readings again as those of the next step, and wait for the forecast. A sensor whose last
    reading is missing sends the mean: the service would wait for it."""
    readings = open_data(Run.open(run).config).readings
    moment = str(readings.times[-1] + readings.step)
    last, mean = readings.values[-1].astype(float), float(np.nanmean(readings.values))
    values = dict(zip(readings.ids, np.where(readings.missing[-1], mean, last).tolist(), strict=True))
    heard = events(place)
    connection = http.client.HTTPConnection(place.host, timeout=600)
    begun = time.perf_counter()
    body = json.dumps({"time": moment, "values": values})
    connection.request("POST", "/readings", body, place.headers)
    answer = connection.getresponse()
    told = answer.read().decode()
    if answer.status >= 400:
        raise Failed(f"POST /readings: {answer.status} {told}")
    while next(heard) != moment:
        pass
    return time.perf_counter() - begun


def main() -> None:
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensors", type=int, default=10_000)
    parser.add_argument("--days", type=float, default=2.0)
    parser.add_argument("--run", type=Path, help="a run to use instead of training one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args()
    rows = []
    print(
        "| command | seconds | processor seconds | peak GiB | MB written |\n|---|---|---|---|---|", flush=True
    )
    with tempfile.TemporaryDirectory() as place:
        try:
            trained = [] if options.run else training(Path(place), options)
            run = options.run or Path(place) / "run"
            for done in chain(trained, use(Path(place), run, options.threads)):
                rows.append(done)
                written = "" if done["megabytes"] is None else f"{done['megabytes']:.1f}"
                cells = [f"{done[key]:.1f}" for key in ("seconds", "processor", "peak_gib")]
                print(f"| {' | '.join([done['command'], *cells, written])} |", flush=True)
        except (Failed, CnfgnnError) as problem:
            sys.exit(f"many_sensors.py: {problem}")
    if options.json:
        print(json.dumps({"sensors": options.sensors, "days": options.days, "rows": rows}))


if __name__ == "__main__":
    main()
