"""Read what senders send: readings as JSON, as OGC SensorThings Observations, or as CSV.

Three kinds of JSON objects are understood, alone or in a list, mixed as one likes:

    {"sensor": "s1", "time": "2024-01-31T08:05:00Z", "value": 51.2}              one reading
    {"time": "2024-01-31T08:05:00Z", "values": {"s1": 51.2, "s2": null}}         readings of one time
    {"phenomenonTime": "2024-01-31T08:05:00Z", "result": 51.2,
     "Datastream": {"@iot.id": "s1"}}                                            a SensorThings Observation

A reading without a time is of now. One of another variable than the one that is forecast names it, as in
"variable": "flow"; an Observation does so in its `parameters`. CSV has the formats of docs/data.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cnfgnn.data.files.formats import read_variables
from cnfgnn.data.files.text import MISSING, number
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import Readings, last_of_each
from cnfgnn.errors import DataError
from cnfgnn.live.intake.clock import Zone
from cnfgnn.live.intake.recent import Arrived

KINDS = (
    '{"sensor": ..., "time": ..., "value": ...}, {"time": ..., "values": {...}} or a SensorThings Observation'
)
IN_UTC = Zone(utc=True)
DATASTREAM = re.compile(r"Datastreams\('?(.*?)'?\)$")


class MalformedInput(Exception):
    """Input that is not readings at all; the message is a sentence for the sender."""


def read_json(body: bytes, zone: Zone, now: float, datastream: str | None = None) -> list[Arrived]:
    """Read readings from JSON; `datastream` is the sensor that the place of arrival names."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise MalformedInput(f"the body is not JSON: {reason}") from None
    if isinstance(content, dict) and isinstance(content.get("readings"), list):
        content = content["readings"]
    items = content if isinstance(content, list) else [content]
    return [reading for item in items for reading in _from_item(item, zone, now, datastream)]


def _from_item(item: Any, zone: Zone, now: float, datastream: str | None) -> Iterator[Arrived]:
    if not isinstance(item, dict):
        if datastream is not None and not isinstance(item, list):  # a bare number on a sensor's own topic
            yield Arrived(datastream, now, as_value(item))
            return
        raise MalformedInput(f"a reading must be an object like {KINDS}, not {json.dumps(item)[:80]}")
    variable = _variable_of(item)
    if isinstance(item.get("values"), dict):
        seconds = as_seconds(item.get("time"), zone, now)
        for sensor, value in item["values"].items():
            yield Arrived(sensor, seconds, as_value(value), variable)
    elif "result" in item:
        seconds = as_seconds(item.get("phenomenonTime"), zone, now)
        yield Arrived(_sensor_of(item, datastream), seconds, as_value(item["result"]), variable)
    elif "value" in item:
        sensor = item.get("sensor", datastream)
        if not isinstance(sensor, str | int):
            raise MalformedInput('a reading must name its sensor, like {"sensor": "s1", ...}')
        seconds = as_seconds(item.get("time"), zone, now)
        yield Arrived(str(sensor), seconds, as_value(item["value"]), variable)
    else:
        raise MalformedInput(f"a reading must be an object like {KINDS}, not {json.dumps(item)[:80]}")


def _variable_of(item: Mapping[str, Any]) -> str:
    """The variable that a reading or an Observation names; empty if it names none."""
    parameters = item.get("parameters")
    named = item.get("variable", parameters.get("variable") if isinstance(parameters, dict) else None)
    if named is None:
        return ""
    if not isinstance(named, str):
        raise MalformedInput(f'"variable" must be the name of a variable, not {json.dumps(named)[:80]}')
    return named


def _sensor_of(observation: Mapping[str, Any], datastream: str | None) -> str:
    """The sensor of an Observation: `parameters.sensor`, the id of its Datastream, or that of its topic."""
    parameters, stream = observation.get("parameters"), observation.get("Datastream")
    if isinstance(parameters, dict) and isinstance(parameters.get("sensor"), str):
        return str(parameters["sensor"])
    if isinstance(stream, dict) and isinstance(stream.get("@iot.id"), str | int):
        return str(stream["@iot.id"])
    if datastream is None:
        raise MalformedInput('an Observation must name its sensor, like "Datastream": {"@iot.id": "s1"}')
    return datastream


def datastream_of(topic: str) -> str:
    """The sensor that an MQTT topic names: `v1.1/Datastreams(s1)/Observations` or `anything/s1`."""
    levels = topic.removesuffix("/Observations").split("/")
    found = DATASTREAM.search(levels[-1])
    return found[1] if found else levels[-1]


def as_value(value: Any) -> float | None:
    """A number, also as text; NaN for "no reading"; None for anything else."""
    if value is None or (isinstance(value, str) and value.strip() in MISSING):
        return math.nan
    if isinstance(value, str):
        return number(value.strip(), ".")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def as_seconds(moment: Any, zone: Zone, now: float) -> float | None:
    """Seconds since 1970 of a time in ISO 8601 or of a number of seconds; now if there is none."""
    if moment is None:
        return now
    try:
        if isinstance(moment, str):
            return zone.read(moment)
        if isinstance(moment, int | float) and not isinstance(moment, bool):
            return float(moment)
    except (ValueError, OverflowError):
        pass
    return None


def read_csv(
    path: Path,
    options: ReadingOptions,
    called: str,
    variables: Collection[str] = (),
    variable: str = "",
    zone: Zone = IN_UTC,
) -> list[Arrived]:
    """Read readings from a CSV file, which messages call by another name; see `by_variable`."""
    try:
        content = read_variables(path, options, regular=False)
        found = by_variable(path, content, options.target, variables, variable)
    except DataError as error:
        raise MalformedInput(str(error).replace(str(path), called)) from None
    return [reading for name, readings in found for reading in cells_of(in_zone(readings, zone), name)]


def by_variable(
    path: Path,
    found: Mapping[str, Readings],
    target: str,
    variables: Collection[str],
    variable: str = "",
) -> list[tuple[str, Readings]]:
    """What was found in a file by the names of its variables; what is forecast has none.

    target     what the file may call the variable that is forecast
    variables  the further ones that are used; others are left out
    variable   the only one of the file, if something else than its columns names it
    """
    if variable:
        if len(found) > 1:
            raise DataError(path, f"holds several variables ({', '.join(found)}), and not {variable!r} alone")
        (readings,) = found.values()
        return [(variable, readings)]
    used = [(name, readings) for name, readings in found.items() if name in variables]
    rest = {name: readings for name, readings in found.items() if name not in variables}
    if target in rest:
        return [("", rest[target]), *used]
    if len(rest) > 1:
        raise DataError(path, f"holds several variables ({', '.join(found)}): keep those that are used")
    return [*(("", readings) for readings in rest.values()), *used]


def in_zone(readings: Readings, zone: Zone) -> Readings:
    """The same, in local times if those of the service are; in an hour that occurs twice, the last counts."""
    if zone.utc or not readings.utc:
        return readings
    clock = pd.DatetimeIndex(readings.times, tz="UTC").tz_convert(zone.zone).tz_localize(None)
    local = clock.to_numpy().astype("datetime64[s]")
    order = np.argsort(local, kind="stable")
    times, values, missing = last_of_each(local[order], readings.values[order], readings.missing[order])
    return replace(readings, times=times, values=values, missing=missing, utc=False)


def cells_of(readings: Readings, variable: str = "") -> list[Arrived]:
    """Every reading; cells without a number are left out."""
    seconds = readings.seconds.tolist()
    return [
        Arrived(readings.ids[column], seconds[row], float(readings.values[row, column]), variable)
        for row, column in np.argwhere(~np.isnan(readings.values)).tolist()
    ]
