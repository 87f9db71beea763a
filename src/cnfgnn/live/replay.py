"""Play recorded readings to a live service as if they were being measured now."""

from __future__ import annotations

import http.client
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from cnfgnn.data.readings import Readings
from cnfgnn.errors import ConfigError, RunError

ANSWERS_WITHIN = 30.0  # seconds
TRIES = 5  # of a row that the service could not take


class Played(NamedTuple):
    """A row that was sent: its time, and how many of its readings the service stored."""

    time: np.datetime64
    readings: int
    stored: int


class Player:
    """Sends rows to the service at a URL, over one connection."""

    def __init__(self, url: str, token: str = "") -> None:
        place = urlsplit(url if "//" in url else f"http://{url}")
        if place.scheme not in ("http", "https") or not place.hostname:
            raise ConfigError("--to", f"must be like http://127.0.0.1:8707, not {url!r}")
        kind = http.client.HTTPConnection if place.scheme == "http" else http.client.HTTPSConnection
        self.url, self.path = url, place.path.rstrip("/") + "/readings"
        self._connection = kind(place.hostname, place.port, timeout=ANSWERS_WITHIN)
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def send(self, readings: Readings, row: int) -> Played:
        """Send one row, and wait until the service has it."""
        moment = str(readings.times[row].astype("datetime64[s]")) + ("Z" if readings.utc else "")
        values = {
            sensor: float(value)
            for sensor, value in zip(readings.ids, readings.values[row], strict=True)
            if not math.isnan(value)
        }
        body = json.dumps({"time": moment, "values": values})
        for attempt in range(1, TRIES + 1):
            status, answer = self._post(body)
            if status == 200:
                return Played(readings.times[row], len(values), int(answer["stored"]))
            if status not in (429, 503) or attempt == TRIES:
                break
            time.sleep(attempt)
        raise RunError(self.url, f"does not take the readings of {moment}: {answer.get('error', status)}")

    def close(self) -> None:
        self._connection.close()

    def _post(self, body: str) -> tuple[int, dict[str, Any]]:
        try:
            self._connection.request("POST", self.path, body, self._headers)
            response = self._connection.getresponse()
            content = response.read()
        except OSError as error:
            self._connection.close()
            problem = f"does not answer ({error.strerror or error}): is the service running there?"
            raise RunError(self.url, problem) from error
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise RunError(self.url, "does not answer like a live service of cnfgnn")
        return response.status, answer


def replay(
    readings: Readings,
    player: Player,
    speed: float,
    since: np.datetime64 | None = None,
    until: np.datetime64 | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Played]:
    """Send row after row at their times, `speed` times as fast; each row is returned when it was taken."""
    chosen = np.ones(len(readings.times), dtype=np.bool_)
    if since is not None:
        chosen &= readings.times >= since
    if until is not None:
        chosen &= readings.times < until
    rows = np.flatnonzero(chosen & ~np.isnan(readings.values).all(axis=1)).tolist()
    if not rows:
        raise ConfigError("--from", "there are no readings in that time")
    begun, first = time.monotonic(), readings.times[rows[0]]
    for row in rows:
        at = begun + float((readings.times[row] - first).astype("timedelta64[s]").astype(int)) / speed
        if (wait := at - time.monotonic()) > 0:
            sleep(wait)
        yield player.send(readings, row)
