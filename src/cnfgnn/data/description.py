"""A short description of a data set: enough to recognise it, without a single reading."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.inputs import NO_NAMES, InputNames
from cnfgnn.data.readings import Readings


@dataclass(frozen=True)
class FederatedData:
    """What a federation adds to the description of its data.

    first  time of the first row, in seconds since 1970
    id     random, so that a deleted run and a new one of the same name are not confused
    sites  the sensors of each site, in the order of their rows
    """

    first: int
    id: str
    sites: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class DataDescription:
    """What a run remembers of the data that it is trained on.

    fingerprint   digest of everything that a run learns from
    sensors       sensor ids, in the order of the rows
    rows          number of times
    step_seconds  time between two readings
    utc           whether times are in UTC; False if their time zone is unknown
    federation    more about data that are spread over sites; None in the simulator
    inputs        names of other variables and of covariates
    """

    name: str
    fingerprint: str
    sensors: list[str]
    rows: int
    step_seconds: int
    utc: bool
    federation: FederatedData | None = None
    inputs: InputNames = NO_NAMES

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> DataDescription:
        """Read a description; raises KeyError, TypeError or ValueError if it is damaged."""
        kinds = {"name": str, "fingerprint": str, "sensors": list, "rows": int, "step_seconds": int}
        kinds["utc"] = bool
        for key, kind in kinds.items():
            if type(stored[key]) is not kind:
                raise TypeError(key)
        if not all(isinstance(sensor, str) for sensor in stored["sensors"]):
            raise TypeError("sensors")
        if stored["step_seconds"] < 1:
            raise ValueError("step_seconds")
        federation = None
        if {"first", "id", "sites"} <= stored.keys():
            federation = FederatedData(stored["first"], stored["id"], stored["sites"])
        return cls(
            **{key: stored[key] for key in kinds},
            federation=federation,
            inputs=_names(stored),
        )

    def other_times(self, run: str, step_seconds: int, utc: bool) -> str:
        """What is wrong with the times of other readings for a run that was trained on these; else empty.

        By another clock, the hour of the day would be another one.
        """
        if step_seconds != self.step_seconds:
            trained = f"{run} was trained on one every {self.step_seconds} s"
            return f"readings come every {step_seconds} s, but {trained}"
        if utc != self.utc:
            found, before = ("in UTC", "without a time zone")[:: 1 if utc else -1]
            trained = f"{run} was trained on times {before}"
            return f"times are {found}, but {trained}: write them as then, or train again"
        return ""

    def as_json(self) -> dict[str, Any]:
        """As a flat JSON object."""
        stored: dict[str, Any] = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "sensors": self.sensors,
            "rows": self.rows,
            "step_seconds": self.step_seconds,
            "utc": self.utc,
        }
        if self.inputs != NO_NAMES:
            stored |= {kind: list(names) for kind, names in self.inputs._asdict().items()}
        if self.federation is not None:
            stored |= vars(self.federation)
        return stored


def _names(stored: Mapping[str, Any]) -> InputNames:
    """The names of further inputs; runs that have none do not mention them."""
    kinds = [stored.get(kind, []) for kind in InputNames._fields]
    if not all(isinstance(names, list) and all(isinstance(n, str) for n in names) for names in kinds):
        raise TypeError("inputs")
    return InputNames(*map(tuple, kinds))


def describe(data: Dataset) -> DataDescription:
    """Describe a data set that is at hand."""
    return DataDescription(
        name=data.name,
        fingerprint=fingerprint(data),
        sensors=list(data.readings.ids),
        rows=len(data.readings.times),
        step_seconds=data.readings.step_seconds,
        utc=data.readings.utc,
        inputs=InputNames.of(data.readings.others),
    )


def fingerprint(data: Dataset) -> str:
    """A digest of everything a run learns from: times, sensors, readings, what is missing, the graph, and
    further inputs."""
    sha = hashlib.sha256("\n".join(data.readings.ids).encode())
    graph = data.graph
    _update(sha, *_arrays(data.readings), graph.senders, graph.receivers, graph.weights)
    for one in data.readings.others:
        sha.update(repr((one.name, one.known_ahead, one.for_all, one.readings.values.shape)).encode())
        _update(sha, *_arrays(one.readings))
    return sha.hexdigest()


def checksum(readings: Readings) -> str:
    """A digest of times, sensors and readings, which is the same on every machine; a graph that is computed
    from positions may differ in its last digits."""
    sha = hashlib.sha256("\n".join(readings.ids).encode())
    _update(sha, *_arrays(readings))
    return sha.hexdigest()


def _arrays(readings: Readings) -> tuple[npt.NDArray[Any], ...]:
    return readings.seconds, np.nan_to_num(readings.values, nan=-1.0), readings.missing


def _update(sha: hashlib._Hash, *arrays: npt.NDArray[Any]) -> None:
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
