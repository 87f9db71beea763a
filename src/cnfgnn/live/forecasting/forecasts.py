"""A forecast of all sensors as it goes out: with its quality, its age, and until when it may be used."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings, weekday
from cnfgnn.forecasters.weekly_profile import SLOTS
from cnfgnn.live.intake.clock import Zone

Quality = Literal[
    "full", "neighbours missing", "own readings missing", "fallback", "last embedding", "no embedding"
]
QUALITIES: tuple[Quality, ...] = get_args(Quality)  # those with an embedding are a federation's
COLUMNS = ("sensor", "time", "forecast", "quality", "last_reading", "made", "valid_until", "stale")
DECIMALS = 4  # of a forecast, as in the files of `cnfgnn forecast`
DAY_SECONDS = 86_400

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Forecast:
    """What is forecast after one step.

    step          time of the newest readings that it can be based on
    made          when it was made
    valid_until   when the next one should be there
    values        (n t)  NaN where nothing can be forecast
    quality       (n,)   positions in QUALITIES
    last_reading  (n,)   time of each sensor's last reading; -1 if it has none among those at hand
    ranges        (2 n t)  by level in per cent: the bounds between which that share of readings should lie;
                  NaN for a fallback, and no level at all if the run has no intervals
    """

    ids: tuple[str, ...]
    zone: Zone
    step_seconds: int
    step: int
    made: float
    valid_until: float
    values: Floats
    quality: Ints
    last_reading: Ints
    ranges: Mapping[int, Floats]

    @property
    def times(self) -> list[int]:
        """The times that are forecast."""
        horizon = self.values.shape[1]
        return [self.step + self.step_seconds * ahead for ahead in range(1, horizon + 1)]

    @property
    def newest_reading(self) -> int | None:
        """The time of the newest reading of any sensor."""
        newest = int(self.last_reading.max())
        return None if newest < 0 else newest

    def is_stale(self, now: float) -> bool:
        """Whether it is too old; or from the future, because the clock was set back. A reading may be up to a
        step ahead of the clock."""
        return now > self.valid_until or now < self.step - self.step_seconds

    def counts(self) -> dict[str, int]:
        """How many sensors have a forecast of each quality."""
        counted = np.bincount(self.quality, minlength=len(QUALITIES)).tolist()
        return dict(zip(QUALITIES, counted, strict=True))

    # ---- JSON ---------------------------------------------------------------------------------------

    def json(self, now: float, sensors: Collection[str] | None = None) -> bytes:
        """As JSON; of some sensors, or of all."""
        head = json.dumps(self._head() | {"stale": self.is_stale(now)}, allow_nan=False)
        if sensors is None:
            body = self.sensors_json
        else:
            body = self._joined(row for row, sensor in enumerate(self.ids) if sensor in sensors)
        return f'{head[:-1]}, "sensors": {body}}}'.encode()

    @cached_property
    def sensors_json(self) -> str:
        return self._joined(range(len(self.ids)))

    def _joined(self, rows: Iterable[int]) -> str:
        """Some sensors as a JSON object."""
        values, about, intervals = self._texts
        told = (
            f'{json.dumps(self.ids[row])}: {{{about[row]}, "values": {values[row]}{intervals[row]}}}'
            for row in rows
        )
        return f"{{{', '.join(told)}}}"

    @cached_property
    def _texts(self) -> tuple[list[str], list[str], list[str]]:
        """What JSON says of each sensor: its values, what is known of them, and its intervals.

        Thousands of numbers are written at every step: this is several times as fast as `json.dumps`.
        """
        write, about = self.zone.write, []
        for quality, last in zip(self.quality.tolist(), self.last_reading.tolist(), strict=True):
            time = "null" if last < 0 else f'"{write(last)}"'
            about.append(f'"quality": "{QUALITIES[quality]}", "lastReading": {time}')
        levels = []
        for level, both in self.ranges.items():
            lows_and_highs = zip(*map(_lists, both), strict=True)
            levels.append([f'"{level}": {{"low": {low}, "high": {high}}}' for low, high in lows_and_highs])
        with_bounds = [~np.isnan(both[0]).all(axis=1) for both in self.ranges.values()]
        intervals = []
        for row in range(len(self.ids)):
            told = [texts[row] for texts, there in zip(levels, with_bounds, strict=True) if there[row]]
            intervals.append(f', "intervals": {{{", ".join(told)}}}' if told else "")
        return _lists(self.values), about, intervals

    def _head(self) -> dict[str, Any]:
        write, newest = self.zone.write, self.newest_reading
        return {
            "step": write(self.step),
            "made": write(self.made),
            "lastReading": None if newest is None else write(newest),
            "validUntil": write(self.valid_until),
            "times": [write(time) for time in self.times],
        }

    # ---- CSV ----------------------------------------------------------------------------------------

    def csv(self, now: float, sensors: Collection[str] | None = None) -> bytes:
        """A line for each sensor and time; of some sensors, or of all."""
        write = self.zone.write
        times = [write(time) for time in self.times]
        age = f"{write(self.made)},{write(self.valid_until)},{'yes' if self.is_stale(now) else 'no'}"
        columns = [f"{side}_{level}" for level in self.ranges for side in ("low", "high")]
        lines = [",".join((*COLUMNS, *columns))]
        # (n t c): the forecast, and the bounds around it.
        bounds = [bound for both in self.ranges.values() for bound in both]
        numbers = np.stack([self.values, *bounds], axis=-1).tolist()
        for row, sensor in enumerate(self.ids):
            if sensors is not None and sensor not in sensors:
                continue
            last = int(self.last_reading[row])
            about = f"{QUALITIES[self.quality[row]]},{'' if last < 0 else write(last)},{age}"
            beginning, cell = _quoted(sensor), f"%.{DECIMALS}f"
            line = ",".join([cell, about, *[cell] * len(bounds)])  # no word of `about` has "nan" in it
            for time, around in zip(times, numbers[row], strict=True):
                lines.append(f"{beginning},{time},{(line % tuple(around)).replace('nan', '')}")
        return ("\n".join(lines) + "\n").encode()

    # ---- SensorThings -------------------------------------------------------------------------------

    def observations(self) -> list[tuple[str, bytes]]:
        """Each sensor, and its forecast in the shape of an OGC SensorThings Observation.

        The result is the list of forecasts. `phenomenonTime` is the interval that they are about, and
        `validTime` the one in which the forecast may be used.
        """
        write, times = self.zone.write, self.times
        about = {
            "phenomenonTime": f"{write(times[0])}/{write(times[-1])}",
            "resultTime": write(self.made),
            "validTime": f"{write(self.made)}/{write(self.valid_until)}",
        }
        values, known, intervals = self._texts
        head, found = json.dumps(about, allow_nan=False)[:-1], []
        for row, sensor in enumerate(self.ids):
            name = json.dumps(sensor)
            more = f'"sensor": {name}, "stepSeconds": {self.step_seconds}'
            parameters = f"{{{known[row]}{intervals[row]}, {more}}}"
            datastream = f'"Datastream": {{"@iot.id": {name}}}'
            observation = f'{head}, "result": {values[row]}, {datastream}, "parameters": {parameters}}}'
            found.append((sensor, observation.encode()))
        return found


def _lists(values: Floats) -> list[str]:
    """(n t) -> a list of numbers for each row, as JSON."""
    template = f"[{', '.join([f'%.{DECIMALS}f'] * values.shape[1])}]"
    return [(template % tuple(row)).replace("nan", "null") for row in values.tolist()]


def _quoted(text: str) -> str:
    """A field of a CSV file."""
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n\r') else text


# ---- quality and fallback -------------------------------------------------------------------------------


def quality_of(readings: Readings, graph: Graph | None, history: int) -> Ints:
    """(n,): how complete the readings of a forecast are, as positions in QUALITIES.

    graph  whose senders a sensor's forecast depends on; None if each sensor forecasts by itself
    """
    known = (~readings.missing[-history:]).sum(axis=0)
    # After a gap the first reading is there, and what the model sees before it is as old as the gap.
    there, any_in_history = ~readings.missing[-1] & (known >= history / 2), known > 0
    lacking = np.zeros(len(readings.ids), dtype=np.bool_)
    if graph is not None:
        lacking[graph.receivers[~there[graph.senders]]] = True
    conditions = [~any_in_history, ~there, lacking]
    worst = [QUALITIES.index(name) for name in ("fallback", "own readings missing", "neighbours missing")]
    found: Ints = np.select(conditions, worst, default=QUALITIES.index("full"))
    return found


def last_readings(values: npt.NDArray[Any], observed: Bools) -> tuple[Floats, Ints]:
    """(n,) each: the last reading of each sensor, and its row; NaN and -1 if there is none."""
    rows = len(observed) - 1 - np.argmax(observed[::-1], axis=0)
    last = values[rows, np.arange(observed.shape[1])].astype(np.float64)
    there = observed.any(axis=0)
    return np.where(there, last, np.nan), np.where(there, rows, -1)


def fallback(readings: Readings, profiles: Floats | None, times: Sequence[int]) -> Floats:
    """(n t): what is known without a recent reading: the sensor's weekly profile, or its last reading."""
    last, _ = last_readings(readings.values, ~readings.missing)
    simple = np.repeat(last[:, None], len(times), axis=1)
    if profiles is None:
        return simple
    seconds = np.array(times, dtype=np.int64)
    slot = (seconds % DAY_SECONDS) * SLOTS // DAY_SECONDS
    usual: Floats = profiles[:, weekday(seconds), slot]
    return np.where(np.isnan(usual), simple, usual)
