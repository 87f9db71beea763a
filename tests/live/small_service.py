"""A small run with its data, and a live service on it: in this process, or as a process of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.files.folder import load
from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.live.options import LiveSettings
from cnfgnn.live.start import LiveProcess
from cnfgnn.live.web.token_file import read_token
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import forecast_run
from cnfgnn.runs.train import Unwatched, train_run
from tests.conftest import network, small
from tests.waiting import WITHIN, wait_for

SENSORS, ROWS, KNOWN = 6, 180, 120


@dataclass(frozen=True)
class SmallRun:
    """A trained run on the first rows of a network, the folder of these rows, and all rows."""

    run: Run
    folder: Path
    data: Dataset

    def row(self, row: int) -> dict[str, Any]:
        """A row as it is sent to the service."""
        readings = self.data.readings
        values = {
            sensor: float(value)
            for sensor, value in zip(readings.ids, readings.values[row], strict=True)
            if not np.isnan(value)
        }
        return {"time": f"{readings.times[row]}", "values": values}

    def full_row(self, row: int) -> dict[str, Any]:
        """The same without gaps: every sensor has a reading."""
        sent = self.row(row)
        return sent | {"values": dict.fromkeys(self.data.readings.ids, 50.0) | sent["values"]}

    def until(self, row: int) -> Dataset:
        return replace(self.data, readings=rows_of(self.data.readings, slice(0, row)))


def make_small_run(place: Path, method: str = "cnfgnn-plus", **changes: object) -> SmallRun:
    data = network(SENSORS, ROWS)
    before = replace(data, readings=rows_of(data.readings, slice(0, KNOWN)))
    folder = place / "data"
    folder.mkdir()
    write_folder(before, folder)
    config = small(method, **{"data.path": str(folder), **changes})
    run = Run.create(place / "run", config, load(folder))
    train_run(run, load(folder), Unwatched())
    read_back = replace(data, readings=replace(data.readings, positions=load(folder).readings.positions))
    return SmallRun(Run.open(place / "run"), folder, read_back)


def readings_like(data: Dataset, values: np.ndarray) -> Readings:
    return replace(data.readings, values=values, missing=np.isnan(values))


def check_forecast(found: dict[str, Any], run: Run, data: Dataset) -> pd.DataFrame:
    """What a service forecasts is what its run forecasts from these readings, which is returned."""
    expected = forecast_run(run, data)
    for sensor, told in found["sensors"].items():
        if told["quality"] != "fallback":
            np.testing.assert_allclose(told["values"], expected[sensor], atol=1e-4)
    return expected


@dataclass
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Talks to a service over HTTP, with its token or without one."""

    def __init__(self, address: str, token: str = "") -> None:
        self.host = address.removeprefix("http://")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.link = f"{address}/#token={token}"  # for a browser

    def without_token(self) -> Client:
        return Client(f"http://{self.host}")

    def ask(self, method: str, path: str, body: bytes | str | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection(self.host, timeout=WITHIN)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, self.headers | named)
            response = connection.getresponse()
            return Answer(response.status, response.read(), {k.lower(): v for k, v in response.getheaders()})
        except http.client.HTTPException as error:  # the process was killed in the middle of its answer
            raise ConnectionResetError(str(error)) from error
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, content: Any, kind: str = "application/json", **headers: str) -> Answer:
        body = content if isinstance(content, str | bytes) else json.dumps(content)
        return self.ask("POST", "/readings", body, Content_Type=kind, **headers)

    def forecast_after(self, step: str) -> Any:
        """The forecast after a step, once it is there."""

        def there() -> Any:
            answer = self.get("/forecasts")
            return answer.json if answer.status == 200 and answer.json["step"] >= step else None

        found = wait_for(there, f"the forecast after {step}")
        assert found["step"] == step
        return found


@contextmanager
def serving(run: Run, settings: LiveSettings) -> Iterator[tuple[LiveProcess, Client]]:
    """A service in a thread of this process, on a free port."""
    made: list[LiveProcess] = []
    ready, problems = threading.Event(), []

    async def main() -> None:
        process = LiveProcess(run, replace(settings, port=0))
        made.append(process)
        await process.serve(ready.set)

    def serve() -> None:
        try:
            asyncio.run(main())
        except BaseException as problem:
            problems.append(problem)
        finally:
            ready.set()

    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(WITHIN)
    if problems:
        raise problems[0]
    process = made[0]
    try:
        yield process, Client(process.address, process.token)
    finally:
        process.loop.call_soon_threadsafe(process.service.stopping.set)
        thread.join(WITHIN)
        assert not thread.is_alive()
        if problems:
            raise problems[0]


class LiveCommand:
    """`cnfgnn live` as a process of its own."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "cnfgnn", "live", *map(str, arguments), "--port", "0"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        lines = self.process.stdout.readline() + self.process.stdout.readline()
        found = re.match(r"live on (http://\S+),.*\npage: \S+ \(its token is in (\S+)\)", lines)
        if not found:
            _, errors = self.process.communicate()
            raise AssertionError(f"{lines}{errors}")
        self.client = Client(found[1], read_token(Path(found[2])))

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it by a signal; the exit code, and what it said on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=WITHIN)
        return self.process.returncode, errors
