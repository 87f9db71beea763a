"""Read traffic data in the other two forms that the field distributes, besides DCRNN's .h5 files.

    PEMS04.npz   (T n k) numbers called data; the distances are beside it in PEMS04.csv, the ids of PEMS03 in
                 PEMS03.txt
    data.dat     BasicTS: (T n k) float32, described by desc.json; adj_mx.pkl or adj_mx.npy is beside it

Neither holds dates, so that only data sets whose first day is known can be read. Zeros are missing readings
(but stay in the values), as in METR-LA.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.adjacency import graph_of_own_distances, read_edges, read_matrix, read_plain_matrix
from cnfgnn.data.files.text import reason
from cnfgnn.data.graph import Graph
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import UNNAMED, Readings
from cnfgnn.errors import ConfigError, DataError

BASICTS, DESCRIPTION = "data.dat", "desc.json"
FIRST_DAYS: Mapping[str, str] = {
    "METR-LA": "2012-03-01",
    "PEMS-BAY": "2017-01-01",
    "PEMS03": "2018-09-01",
    "PEMS04": "2018-01-01",
    "PEMS07": "2017-05-01",
    "PEMS08": "2016-07-01",
}
STEP_MINUTES, DAY_MINUTES = 5, 1440
CHANNELS = ("flow", "occupancy", "speed")  # of PEMS04 and PEMS08; the other two have the first
Numbers = npt.NDArray[np.float32]


def is_basicts(folder: Path) -> bool:
    """Whether a folder is one of BasicTS."""
    return (folder / BASICTS).is_file() and (folder / DESCRIPTION).is_file()


def read_npz(path: Path, options: ReadingOptions) -> Dataset:
    """PEMS03, 04, 07 or 08; `data.target` chooses among flow (the default), occupancy and speed."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            values = file["data"].astype(np.float32)
    except Exception as problem:  # numpy raises any exception for a damaged file
        raise DataError(path, f"has no array called data ({reason(problem)})") from None
    if values.ndim != 3 or not 1 <= values.shape[2] <= len(CHANNELS):
        raise DataError(path, f"its data have the shape {values.shape}, not (times, sensors, 1 to 3)")
    channel = _channel(path, CHANNELS[: values.shape[2]], options)
    listed, distances = path.with_suffix(".txt"), path.with_suffix(".csv")
    if listed.is_file():
        ids: tuple[str, ...] = tuple(listed.read_text(encoding="utf-8", errors="replace").split())
    else:
        ids = tuple(map(str, range(values.shape[1])))
    readings = _readings(path, path.stem, values[..., channel], ids)
    if distances.is_file():
        edges, _ = read_edges(distances, only_distances=True)
        known = set(ids)
        for edge in edges:
            if not {edge.sender, edge.receiver} <= known:
                raise DataError(distances, f"has a sensor that {path.name} does not have", line=edge.line)
        return Dataset(path.stem, readings, graph_of_own_distances(edges, ids))
    return Dataset(path.stem, readings, _matrix(path.parent, distances.name, ids)[1])


def read_basicts(folder: Path, options: ReadingOptions) -> Dataset:
    """A folder as BasicTS distributes it; its first feature is forecast."""
    path, described = folder / BASICTS, folder / DESCRIPTION
    name, shape, features = _description(described)
    _channel(path, features[:1], options)
    if path.stat().st_size != 4 * math.prod(shape):
        raise DataError(path, f"is not as large as the shape {shape} in {DESCRIPTION}")
    whole = np.memmap(path, dtype=np.float32, mode="r", shape=shape)
    ids, graph = _matrix(folder, "adj_mx.pkl", tuple(map(str, range(shape[1]))))
    clock = None
    if "time of day" in features:
        share = np.asarray(whole[:, 0, features.index("time of day")], np.float64)
        if not ((share >= 0) & (share < 1)).all():
            raise DataError(path, "its time of day is not a share of the day, from 0 to below 1")
        clock = np.rint(share * DAY_MINUTES)
    readings = _readings(path, name, np.array(whole[..., 0]), ids, clock)
    return Dataset(folder.absolute().name, readings, graph)


def _description(path: Path) -> tuple[str, tuple[int, int, int], Sequence[str]]:
    """Name, shape and features of a data set of BasicTS."""
    try:
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows, sensors, count = (int(length) for length in found["shape"])
        features = [str(feature) for feature in found["feature_description"]]
        minutes = int(found["frequency (minutes)"])
        if min(rows, sensors) < 1 or not 1 <= len(features) <= count:
            raise ValueError("shape")
    except (OSError, ValueError, KeyError, TypeError) as problem:
        wanted = "name, shape, feature_description and frequency (minutes)"
        raise DataError(path, f"does not describe data of BasicTS by {wanted} ({reason(problem)})") from None
    if minutes != STEP_MINUTES:
        raise DataError(path, f"has a reading every {minutes} minutes; only {STEP_MINUTES} can be read")
    return str(found.get("name", "")), (rows, sensors, count), features


def _readings(
    path: Path, name: str, values: Numbers, ids: tuple[str, ...], clock: npt.NDArray[Any] | None = None
) -> Readings:
    """Readings from the first day of a known data set on, every five minutes, or with the gaps that the time
    of day of each row shows, in minutes."""
    if name not in FIRST_DAYS:
        known = ", ".join(FIRST_DAYS)
        problem = f"holds no dates, and those of {name!r} are not known (but of {known})"
        raise DataError(path, f"{problem}: write a readings.csv with times")
    minutes = np.arange(len(values)) * STEP_MINUTES
    if clock is not None:
        minutes = np.concatenate([clock[:1], clock[0] + np.cumsum(np.diff(clock) % DAY_MINUTES)]).astype(int)
    times = np.datetime64(FIRST_DAYS[name], "s") + minutes * np.timedelta64(60, "s")
    return Readings(times, ids, values, values == 0, source=str(path))


def _channel(path: Path, names: Sequence[str], options: ReadingOptions) -> int:
    """Which of the variables is forecast."""
    if options.target in ("", UNNAMED):
        return 0
    if options.target not in names:
        raise ConfigError(options.key("target"), f"{path} has no variable {options.target!r}", names)
    return names.index(options.target)


def _matrix(folder: Path, wanted: str, ids: tuple[str, ...]) -> tuple[tuple[str, ...], Graph]:
    """The ids and the graph of the adjacency matrix in a folder; `ids` are the sensors if it names none."""
    for path in sorted(folder.glob("adj*.npy")):
        return ids, read_plain_matrix(path, ids)
    for path in sorted(folder.glob("adj*.pkl")):
        found, graph = read_matrix(path, ids)
        if len(found) != len(ids):
            raise DataError(path, f"has {len(found)} sensors, but there are readings of {len(ids)}")
        return found, graph
    raise DataError(folder, f"the graph of the sensors is unknown: add {wanted} or adj_mx.npy")
