"""Write a data set as the files that `load` reads."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pandas as pd

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.folder import zeros_are_missing_in
from cnfgnn.data.files.input_files import COVARIATES, VARIABLES
from cnfgnn.data.files.text import shown
from cnfgnn.data.readings import UNNAMED, Readings
from cnfgnn.errors import DataError
from cnfgnn.files import make_folder, write_whole


def write_folder(data: Dataset, out: Path, named: bool = False) -> None:
    """Write readings, further inputs, positions and graph into a folder. With `named`, the variable that is
    forecast keeps its name."""
    readings, first = data.readings, out / "readings.csv"
    for name in (readings.variable, *(one.name for one in readings.others)):
        if {"/", "\0"} & {*name} or name.startswith("."):  # elsewhere, nowhere, or not read again
            problem = f"the variable {shown(name)} cannot have a file of its name: rename it"
            raise DataError(readings.source, problem)
    write_network(data, out)
    files = {
        out / (COVARIATES if one.known_ahead else VARIABLES) / f"{one.name}.csv": one.readings
        for one in readings.others
    }
    unnamed = files.pop(out / VARIABLES / f"{UNNAMED}.csv", None)
    if unnamed is not None:  # another variable than that of readings.csv is forecast
        files[first] = unnamed
    if unnamed is not None or (named and readings.variable != UNNAMED):
        first = out / VARIABLES / f"{readings.variable}.csv"
    for path, content in ({first: readings} | files).items():
        make_folder(path.parent)
        _write_readings(content, path)


def write_traffic(data: Dataset, out: Path) -> None:
    """Write a data set whose zeros are missing readings, and rows as they are, as DCRNN's files have them."""
    readings, graph = data.readings, data.graph
    _write_positions(readings, out / "graph_sensor_locations.csv")
    matrix = np.zeros((graph.nodes, graph.nodes))
    matrix[graph.senders, graph.receivers] = graph.weights
    np.save(out / "adj_mx.npy", matrix)
    times = readings.times.astype("datetime64[ns]").view(np.int64)
    regular = {f"{axis}_variety": "regular" for axis in ("axis0", "axis1", "block0_items")}
    text = {"encoding": "UTF-8", "errors": "strict", "pandas_version": "0.15.2", "pandas_type": "frame"}
    path = out / f"{data.name}.h5"
    if not zeros_are_missing_in(path):  # a folder called readings
        path = out / "traffic.h5"
    with h5py.File(path, "w") as file:  # pandas' fixed format, without PyTables
        group = file.create_group("df")
        group.attrs.update({"ndim": 2, "nblocks": 1})
        for name, value in (text | regular).items():
            _set_text(group, name, value)
        for name in ("axis0", "block0_items"):
            group[name] = np.char.encode(np.array(readings.ids), "utf-8")
            _set_text(group[name], "kind", "string")
        group["axis1"] = times
        _set_text(group["axis1"], "kind", "datetime64[ns]")
        if readings.utc:
            _set_text(group["axis1"], "tz", "UTC")
        group["block0_values"] = readings.values
        group["block0_values"].attrs["transposed"] = np.uint8(1)


def _set_text(node: h5py.HLObject, name: str, value: str) -> None:
    """Set an attribute as PyTables does."""
    node.attrs.create(name, value, dtype=h5py.string_dtype("utf-8", len(value)))


def _write_readings(readings: Readings, path: Path) -> None:
    """Write a wide table."""
    times = pd.DatetimeIndex(readings.times, name="time", tz="UTC" if readings.utc else None)
    frame = pd.DataFrame(readings.values, index=times, columns=readings.ids)
    write_whole(path, frame.to_csv().encode())


def write_network(data: Dataset, out: Path) -> None:
    """Write positions and graph into a folder, without any reading."""
    readings, graph = data.readings, data.graph
    _write_positions(readings, out / "sensors.csv")
    names = np.array(readings.ids)
    edges = {"from": names[graph.senders], "to": names[graph.receivers], "weight": graph.weights}
    write_whole(out / "edges.csv", pd.DataFrame(edges).to_csv(index=False).encode())


def _write_positions(readings: Readings, path: Path) -> None:
    if readings.positions is not None:
        located = pd.DataFrame(readings.positions, columns=["latitude", "longitude"], index=readings.ids)
        write_whole(path, located.to_csv(index_label="id").encode())
