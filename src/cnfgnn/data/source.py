"""The data set that a configuration names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.folder import load
from cnfgnn.data.synthetic.city import city


def open_data(config: Config, path: Path | None = None) -> Dataset:
    """A file or folder of readings, or the synthetic city.

    `path` takes the place of the configured one: other readings, or the same path as a person wrote it, which
    is how messages should name it.
    """
    if path is not None or config.data.path != "city":
        d = config.data
        return load(path or d.path, dates=d.dates, decimal=d.decimal, timezone=d.timezone)
    c = config.city
    return city(c.sensors, c.days, seed=c.seed)


def description(data: Dataset) -> dict[str, Any]:
    """What a run remembers of its data."""
    return {
        "name": data.name,
        "fingerprint": fingerprint(data),
        "sensors": list(data.readings.ids),
        "rows": len(data.readings.times),
        "step_seconds": step_seconds(data),
        "edges": data.graph.edges,
    }


def step_seconds(data: Dataset) -> int:
    return int(data.readings.step.astype("timedelta64[s]").astype(int))


def fingerprint(data: Dataset) -> str:
    """A digest of everything a run learns from: times, sensors, readings, what is missing, and the graph."""
    sha = hashlib.sha256("\n".join(data.readings.ids).encode())
    readings, graph = data.readings, data.graph
    for array in (
        readings.times.astype("datetime64[s]").astype(np.int64),
        np.nan_to_num(readings.values, nan=-1.0),
        readings.missing,
        graph.senders,
        graph.receivers,
        graph.weights,
    ):
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()
