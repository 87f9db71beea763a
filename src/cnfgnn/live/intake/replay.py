"""Play recorded readings to a live service as if they were being measured now.

Further variables are played with them, each value at its own time. Covariates are not: a service reads what
is known ahead from its own files.
"""

from __future__ import annotations

import http.client
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from cnfgnn.data.readings import Readings
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.live.intake.recent import Verdict

ANSWERS_WITHIN = 30.0  # seconds
TRIES = 5  # of a row that the service could not take


class Played(NamedTuple):
    """What was measured at one time and sent: how many readings, and how many of them the service stored."""

    time: np.datetime64
    readings: int
    stored: int


class Row(NamedTuple):
    """A row of readings, or of a further variable if it is named."""

    readings: Readings
    row: int
    variable: str = ""

    def values(self) -> dict[str, float]:
        """What was measured, by sensor."""
        found = zip(self.readings.ids, self.readings.values[self.row].tolist(), strict=True)
        return {sensor: value for sensor, value in found if not math.isnan(value)}


class Player:
    """Sends rows to the service at a URL, over one connection.

    unused  variables that the service does not know, and that are no longer sent to it
    """

    def __init__(self, url: str, token: str = "") -> None:
        place = urlsplit(url if "//" in url else f"http://{url}")
        if place.scheme not in ("http", "https") or not place.hostname:
            raise ConfigError("--to", f"must be like http://127.0.0.1:8707, not {url!r}")
        kind = http.client.HTTPConnection if place.scheme == "http" else http.client.HTTPSConnection
        self.url, self.path = url, place.path.rstrip("/") + "/readings"
        self.unused: set[str] = set()
        self._connection = kind(place.hostname, place.port, timeout=ANSWERS_WITHIN)
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def send(self, rows: Sequence[Row]) -> Played:
        """Send rows of one time together, and wait until the service has them."""
        readings = rows[0].readings
        at = readings.times[rows[0].row]
        moment = str(at.astype("datetime64[s]")) + ("Z" if readings.utc else "")
        body = []
        for row in rows:
            if row.variable not in self.unused and (values := row.values()):
                named = {"variable": row.variable} if row.variable else {}
                body.append({"time": moment, "values": values, **named})
        if not body:
            return Played(at, 0, 0)
        answer = self._taken(json.dumps(body), moment)
        return Played(at, sum(len(part["values"]) for part in body), int(answer["stored"]))

    def _taken(self, body: str, moment: str) -> dict[str, Any]:
        """The answer of the service; a variable that it does not know is no reason to end."""
        for attempt in range(1, TRIES + 1):
            status, answer = self._post(body)
            refused = answer.get("refused") or []
            unknown = [one for one in refused if one.get("reason") == Verdict.UNKNOWN_VARIABLE.value]
            self.unused |= {str(one.get("variable")) for one in unknown}
            if status == 200 or (status == 422 and unknown and len(unknown) == len(refused)):
                return answer
            if status == 401:
                raise RunError(self.url, "needs a token: its start line names the file for --token-file")
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
    """Send what was measured at one time after another, `speed` times as fast; each is returned when it was
    taken."""
    moments = moments_of(readings, since, until)
    if not moments:
        raise ConfigError("--from", "there are no readings in that time")
    begun, first = time.monotonic(), min(moments)
    for seconds in sorted(moments):
        if (wait := begun + (seconds - first) / speed - time.monotonic()) > 0:
            sleep(wait)
        yield player.send(moments[seconds])


def moments_of(
    readings: Readings, since: np.datetime64 | None = None, until: np.datetime64 | None = None
) -> dict[int, list[Row]]:
    """The rows of readings and variables by their times, in seconds since 1970; empty ones are left out."""
    variables = [(one.name, one.readings) for one in readings.others if not one.known_ahead]
    found: dict[int, list[Row]] = {}
    for name, of in [("", readings), *variables]:
        chosen = ~np.isnan(of.values).all(axis=1)
        if since is not None:
            chosen &= of.times >= since
        if until is not None:
            chosen &= of.times < until
        seconds = of.seconds
        for row in np.flatnonzero(chosen).tolist():
            found.setdefault(int(seconds[row]), []).append(Row(of, row, name))
    return found
