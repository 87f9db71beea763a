"""What the page knows of the sensors: where they are, who is whose neighbour, and their last readings."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cnfgnn.config.settings import DataConfig
from cnfgnn.data.graph import Graph
from cnfgnn.data.quality import mask_codes
from cnfgnn.data.readings import Readings
from cnfgnn.live.intake.clock import Clock, Zone
from cnfgnn.live.intake.recent import RecentReadings
from cnfgnn.report.layout import force_layout

MOST_STEPS = 288  # of readings in one answer: a day of five-minute steps
MOST_EDGES = 20_000  # more lines would be one grey area
MOST_LAID_OUT = 300  # sensors without positions that are placed by their edges, which compares all pairs
IN_RANGE = (0.02, 0.98)  # quantiles of the readings: a single odd one must not decide about all colours

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class SensorList:
    """The sensors of a service as `GET /sensors` tells them.

    graph      who is whose neighbour; None if it is not known
    positions  (n 2) latitude and longitude; None if they are not known
    config     which readings mean "no reading"; None: all count
    """

    def __init__(
        self,
        recent: RecentReadings,
        clock: Clock,
        zone: Zone,
        graph: Graph | None = None,
        positions: Floats | None = None,
        config: DataConfig | None = None,
    ) -> None:
        self.recent, self.clock, self.zone, self.config = recent, clock, zone, config
        self.graph, self.positions = graph, positions

    def readings(self, sensors: Collection[str] | None, steps: int) -> Readings:
        """The last readings of some sensors, or of all, up to the newest step; a copy."""
        recent = self.recent
        ids = tuple(s for s in recent.ids if s in sensors) if sensors is not None else recent.ids
        seconds = recent.newest + recent.step * np.arange(1 - steps, 1)
        values = recent.values_at(ids, seconds)
        missing = np.isnan(values)
        if recent.zeros_missing:
            missing |= values == 0
        times = seconds.astype("datetime64[s]")
        readings = Readings(times, ids, values, missing, source="live readings")
        return readings if self.config is None else mask_codes(readings, self.config)

    def json(self, readings: Readings, whole: bool) -> bytes:
        """These readings as JSON, with the sensors' places; if they are `whole`, with edges and range."""
        seconds = readings.times.astype(np.int64).tolist()
        told: dict[str, Any] = {
            "now": self.zone.write(self.clock.now()),
            "speed": self.clock.speed,
            "step": self.recent.step,
            "times": [self.zone.write(second) for second in seconds],
        }
        if whole:
            told |= {"range": _range(self.readings(None, MOST_STEPS)), "edges": self._edges.tolist()}
        columns = np.where(readings.missing, np.nan, readings.values.astype(np.float64)).T.tolist()
        told["sensors"] = [
            {"id": sensor, **self._place(sensor), "readings": [_number(value) for value in column]}
            for sensor, column in zip(readings.ids, columns, strict=True)
        ]
        return json.dumps(told, allow_nan=False, separators=(",", ":")).encode()

    def _place(self, sensor: str) -> dict[str, float | None]:
        """Latitude and longitude; if they are not known, where to draw the sensor beside its neighbours."""
        column = self.recent.column_of[sensor]
        if self.positions is not None:
            latitude, longitude = self.positions[column].tolist()
            return {"latitude": _number(latitude, 6), "longitude": _number(longitude, 6)}
        place: dict[str, float | None] = {"latitude": None, "longitude": None}
        if self._points is not None:
            x, y = self._points[column].tolist()
            place |= {"x": round(x, 4), "y": round(y, 4)}
        return place

    @cached_property
    def _edges(self) -> Ints:
        """(e 2) pairs of sensors that are neighbours, each pair once; none if they are too many to draw."""
        if self.graph is None:
            return np.empty((0, 2), dtype=np.int64)
        pairs = np.sort(np.stack([self.graph.senders, self.graph.receivers], axis=1), axis=1)
        pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
        return pairs if len(pairs) <= MOST_EDGES else pairs[:0]

    @cached_property
    def _points(self) -> Floats | None:
        sensors = len(self.recent.ids)
        return (
            force_layout(sensors, self._edges) if 1 < sensors <= MOST_LAID_OUT and len(self._edges) else None
        )


def _number(value: float, digits: int = 4) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


def _range(readings: Readings) -> list[float] | None:
    """The lowest and highest reading without the odd ones; None if there is none."""
    there = readings.values[~readings.missing]
    if not len(there):
        return None
    low, high = np.quantile(there.astype(np.float64), IN_RANGE).tolist()
    return [round(low, 4), round(high, 4)]
