"""Read traffic data in the other two forms that the field distributes, besides DCRNN's .h5 files.

    PEMS04.npz   (T n k) numbers called data; the distances are beside it in PEMS04.csv, the ids of PEMS03 in
                 PEMS03.txt
    data.dat     BasicTS: (T n k) float32, described by desc.json; adj_mx.pkl or adj_mx.npy is beside it. From
                 1.0 on: train_data.npy, val_data.npy and test_data.npy (T n), times of the same three names,
                 and meta.json

Neither holds dates, so that only data sets whose first day is known can be read. Zeros are missing readings
(but stay in the values), as in METR-LA.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.adjacency import (
    as_numbers,
    graph_of_own_distances,
    read_edges,
    read_matrix,
    read_plain_matrix,
)
from cnfgnn.data.files.text import reason
from cnfgnn.data.graph import Graph
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import UNNAMED, Readings
from cnfgnn.errors import ConfigError, DataError

BASICTS = {"desc.json": "data.dat", "meta.json": "train_data.npy"}  # readings, by what describes them
PARTS = ("train", "val", "test")
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
Shares = npt.NDArray[np.float64]


def is_basicts(folder: Path) -> bool:
    """Whether a folder is one of BasicTS."""
    return any((folder / file).is_file() and (folder / name).is_file() for name, file in BASICTS.items())


def read_npz(path: Path, options: ReadingOptions) -> Dataset:
    """PEMS03, 04, 07 or 08; `data.target` chooses among flow (the default), occupancy and speed."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            values = as_numbers(file["data"], np.float32)
    except Exception as problem:  # numpy raises any exception for a damaged file
        raise DataError(path, f"has no array called data ({reason(problem)})") from None
    if values.ndim != 3 or not 1 <= values.shape[2] <= len(CHANNELS):
        raise DataError(path, f"its data have the shape {values.shape}, not (times, sensors, 1 to 3)")
    channel = _channel(path, CHANNELS[: values.shape[2]], options)
    listed, distances = path.with_suffix(".txt"), path.with_suffix(".csv")
    if listed.is_file():
        ids: tuple[str, ...] = tuple(listed.read_text(encoding="utf-8-sig", errors="replace").split())
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
    name = next(
        name for name, file in BASICTS.items() if (folder / name).is_file() and (folder / file).is_file()
    )
    description, path = _Description.read(folder / name), folder / BASICTS[name]
    _channel(path, description.variables, options)
    values, share = (_of_one_file if path.suffix == ".dat" else _of_parts)(path, description)
    ids, graph = _matrix(folder, "adj_mx.pkl", tuple(map(str, range(values.shape[1]))))
    clock = None
    if share is not None:
        if not ((share >= 0) & (share < 1)).all():
            raise DataError(path, "its time of day is not a share of the day, from 0 to below 1")
        clock = np.rint(share * DAY_MINUTES)
    readings = _readings(path, description.name, values, ids, clock)
    return Dataset(folder.absolute().name, readings, graph)


@dataclass(frozen=True)
class _Description:
    """What BasicTS says of a data set: name, shape, names of variables, and where the time of day stands."""

    name: str
    shape: tuple[int, ...]
    variables: Sequence[str]
    time_of_day: int | None

    @classmethod
    def read(cls, path: Path) -> _Description:
        of_times = "feature_description" if path.name == "desc.json" else "timestamps_description"
        try:
            found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            shape = tuple(int(length) for length in found["shape"])
            features = [str(feature) for feature in found[of_times]]
            minutes = int(found["frequency (minutes)"])
            if min(shape) < 1 or len(shape) not in (2, 3) or not features:
                raise ValueError("shape")
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as problem:
            wanted = f"name, shape, {of_times} and frequency (minutes)"
            told = f"does not describe data of BasicTS by {wanted} ({reason(problem)})"
            raise DataError(path, told) from None
        if minutes != STEP_MINUTES:
            raise DataError(path, f"has a reading every {minutes} minutes; only {STEP_MINUTES} can be read")
        place = features.index("time of day") if "time of day" in features else None
        return cls(str(found.get("name", "")), shape, features[:1] if path.name == "desc.json" else [], place)


def _of_one_file(path: Path, description: _Description) -> tuple[Numbers, Shares | None]:
    """Readings (T n) and the time of day of each row, if it is known."""
    shape, place = description.shape, description.time_of_day
    if len(shape) != 3 or (place or 0) >= shape[2] or path.stat().st_size != 4 * math.prod(shape):
        raise DataError(path, f"is not as large as the shape {shape} in desc.json")
    whole = np.memmap(path, dtype=np.float32, mode="r", shape=shape)
    share = None if place is None else np.asarray(whole[:, 0, place], np.float64)
    return np.array(whole[..., 0]), share


def _of_parts(path: Path, description: _Description) -> tuple[Numbers, Shares | None]:
    """The same from a file for each split."""
    place = description.time_of_day
    values = _joined(path)
    if values.shape != description.shape[:2]:
        problem = (
            f"and the other parts have the shape {values.shape}, not {description.shape} as in meta.json"
        )
        raise DataError(path, problem)
    if place is None:
        return values, None
    times = _joined(path.with_name("train_timestamps.npy"))
    if len(times) != len(values) or place >= times.shape[1]:
        raise DataError(
            path.with_name("train_timestamps.npy"), "and the other parts are not the times of the data"
        )
    return values, times[:, place].astype(np.float64)


def _joined(first: Path) -> Numbers:
    """The rows of all parts, of which one file is the first."""
    parts = [_array(first.with_name(first.name.replace(PARTS[0], part, 1))) for part in PARTS]
    if len({part.shape[1] for part in parts}) > 1:
        raise DataError(first, "has not as many columns as the other parts")
    return np.concatenate(parts)


def _array(path: Path) -> Numbers:
    """(T n), from an array (T n) or (T n k), of which the first of k is taken."""
    try:
        found = np.load(path, allow_pickle=False)
        if found.ndim not in (2, 3) or 0 in found.shape:
            raise ValueError(f"its shape is {found.shape}")
        return as_numbers(found if found.ndim == 2 else found[..., 0], np.float32)
    except Exception as problem:  # numpy raises any exception for a damaged file
        raise DataError(path, f"cannot be read as rows of numbers ({reason(problem)})") from None


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
