"""Load a data set from a path: METR-LA and PEMS-BAY as published, or a folder of a user's own files."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cnfgnn.config.settings import Dates, Decimal
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.adjacency import (
    detected,
    graph_of_distances,
    graph_of_own_distances,
    graph_of_weights,
    read_edges,
    read_matrix,
    read_plain_matrix,
    read_positions,
)
from cnfgnn.data.files.input_files import has_variables, read_traffic, read_with_inputs
from cnfgnn.data.files.text import shown
from cnfgnn.data.files.traffic import is_basicts, read_basicts, read_npz
from cnfgnn.data.graph import Floats, Graph
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import Readings, columns_of
from cnfgnn.data.refusals import LeftOutSensor, Refusals
from cnfgnn.errors import DataError

OWN_READINGS = ("readings.csv", "readings.parquet", "readings.h5")
READINGS_FILES = "readings.csv, readings.parquet or readings.h5, or a single METR-LA or PEMS-BAY .h5 file"
Positions = Mapping[str, tuple[float, float]]


def load(
    path: str | Path,
    *,
    dates: Dates = "auto",
    decimal: Decimal = "auto",
    timezone: str = "",
    target: str = "",
    inputs: str = "all",
) -> Dataset:
    """Load a data set from a folder or file; the options are for ambiguous files, see docs/data.md.

    A folder with readings.csv, readings.parquet or readings.h5 holds a user's own data. Only empty cells and
    the like are missing, rows are put on a regular time grid, and the graph comes from edges.csv or, without
    that file, connects the nearest neighbours by the positions in sensors.csv. Further inputs come from the
    folders variables and covariates beside it; `target` names the variable to forecast.

    Any other .h5 file, or the only one of a folder, is a traffic file such as metr-la.h5. Zeros count as
    missing (but stay in the values), rows stay as they are, and DCRNN's files for the graph are searched for
    beside it. So are PEMS03.npz and the like, and a folder as BasicTS distributes it.

    A line that cannot be read, or a row that contradicts another one, is an error.
    """
    return load_with(Path(path), ReadingOptions(dates, decimal, timezone, target, inputs))


def load_with(path: Path, options: ReadingOptions) -> Dataset:
    """As `load` does. With refusals in the options, as a live service reads files, lines that cannot be read
    are noted there and left out, and the last row of a time counts; so are sensors that sensors.csv does not
    have."""
    if is_basicts(path):
        return read_basicts(path, options)
    if path.is_dir():
        file = _readings_of(path, options.refusals is not None)
        if file is None:
            return _own(path, read_with_inputs(path, None, options), options)
        return _load_file(file, options)
    if not path.is_file():
        raise DataError(path, "no such file or folder")
    if path.suffix == ".npz":
        return read_npz(path, options)
    if path.suffix != ".h5" and path.name not in OWN_READINGS:
        raise DataError(path, f"is not a file of readings: give a folder with {READINGS_FILES}")
    return _load_file(path, options)


def load_readings(path: str | Path, options: ReadingOptions | None = None) -> Readings:
    """Load the readings of a folder or file as `load` does, on a regular time grid, without a graph."""
    options = options or ReadingOptions()
    return _on_grid(read_rows(Path(path), options), options)


def read_rows(path: Path, options: ReadingOptions) -> Readings:
    """The same with the rows as they are in the file."""
    live = options.refusals is not None
    if path.is_dir() and _readings_of(path, live) is None:
        return read_with_inputs(path, None, options)
    file = readings_file(path, live)
    if file.name in OWN_READINGS:
        return read_with_inputs(file.parent, file, options)
    readings = read_traffic(file, options)
    return replace(readings, missing=readings.missing | (readings.values == 0))


def _on_grid(readings: Readings, options: ReadingOptions) -> Readings:
    if options.refusals is not None:
        return readings.on_nearest_grid(options.refusals, options.known)
    return readings.on_grid() if options.known is None else readings.on_known_grid(options.known)


def readings_file(path: Path, live: bool = False) -> Path:
    """The file that `load` reads the readings from; if there are several, a live service begins with one."""
    file = _readings_of(path, live) if path.is_dir() else path
    if file is None:
        raise DataError(path, "its readings are in the folder variables: give a folder with readings.csv")
    if not file.is_file():
        raise DataError(path, "no such file or folder")
    return file


def zeros_are_missing(path: Path) -> bool:
    """Whether `load` takes a reading of zero in this folder or file for a missing one."""
    if path.suffix == ".npz" or is_basicts(path):
        return True
    if path.is_dir() and _readings_of(path, live=True) is None:  # its variables are in files of their own
        return False
    return zeros_are_missing_in(readings_file(path, live=True))


def zeros_are_missing_in(file: Path) -> bool:
    """The same for a file of readings."""
    return file.name not in OWN_READINGS


def load_network(ids: Sequence[str], sensors: Path, edges: Path | None) -> tuple[Floats, Graph]:
    """Load positions and graph of sensors whose readings are elsewhere."""
    located = read_positions(sensors)
    positions = _positions(sensors, located, ids)
    if edges is None:
        return positions, Graph.nearest(positions)
    return positions, _own_graph(edges, ids, {*ids, *located})


def known_positions(path: str | Path, ids: Sequence[str], file: Path | None = None) -> Floats | None:
    """(n 2): latitude and longitude of sensors whose readings are in a folder or file, from `file` or from
    the files beside the readings; NaN for a sensor that is not there, None if there is no such file."""
    if file is not None:
        files = [file]
    elif (readings := readings_file(Path(path))).name in OWN_READINGS:
        files = list(_files([readings.parent], "sensors.csv"))
    else:
        files = list(_files(_graph_folders(readings), "graph_sensor_locations*.csv"))
    if not files:
        return None
    located = max(map(read_positions, files), key=lambda positions: len(positions.keys() & set(ids)))
    nowhere = (math.nan, math.nan)
    return np.array([located.get(sensor, nowhere) for sensor in ids], dtype=np.float64)


def _readings_of(folder: Path, live: bool) -> Path | None:
    """The file of a folder that holds its readings; None if its folder of variables holds them."""
    own = [folder / name for name in OWN_READINGS if (folder / name).exists()]
    files = own[:1] if live and own else own or sorted(folder.glob("*.h5"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise DataError(folder, f"holds several files of readings ({names}): give the path of one of them")
    if not files and has_variables(folder):
        return None
    if not files:
        needs = next((f"give the path of {file.name}" for file in sorted(folder.glob("*.npz"))), None)
        raise DataError(folder, f"the folder has no readings: {needs or f'it needs {READINGS_FILES}'}")
    return files[0]


def _load_file(file: Path, options: ReadingOptions) -> Dataset:
    if file.name in OWN_READINGS:
        return _own(file.parent, read_with_inputs(file.parent, file, options), options)
    return _traffic(file, read_traffic(file, options))


def _own(folder: Path, readings: Readings, options: ReadingOptions) -> Dataset:
    refusals = options.refusals
    sensors, edges = folder / "sensors.csv", folder / "edges.csv"
    there = [file for file in (sensors, edges) if file.exists()]
    for file in there:
        if not file.is_file():  # opening a pipe would block
            raise DataError(file, "is not a file: replace it by one, or remove it")
    notes = readings.notes + tuple(note for file in there for note in detected(file))
    located: Positions = {}
    if sensors.exists():
        located = read_positions(sensors)
        if refusals is not None:
            readings = readings.select(_located(sensors, located, readings, refusals))
            silent = [one for one in refusals.expected if one in located and one not in readings.ids]
            readings = columns_of(readings, (*readings.ids, *silent))
        readings = replace(readings, positions=_positions(sensors, located, readings.ids))
    if edges.exists():
        graph = _own_graph(edges, readings.ids, {*readings.ids, *located})
    elif readings.positions is not None:
        graph = Graph.nearest(readings.positions)
    else:
        problem = "add sensors.csv (id, latitude, longitude) or edges.csv (from, to, weight or distance)"
        raise DataError(folder, f"the graph of the sensors is unknown: {problem}")
    return Dataset(folder.absolute().name, _on_grid(replace(readings, notes=notes), options), graph)


def _own_graph(path: Path, ids: Sequence[str], known: Collection[str]) -> Graph:
    """The graph of edges.csv over the sensors `ids`; edges of other `known` sensors are left out.

    Weights are used as they are, distances go through a Gaussian kernel. A sensor without a self-loop gets
    one of weight 1, as in DCRNN's files.
    """
    edges, kind = read_edges(path)
    lines: dict[tuple[str, str], int] = {}
    for edge in edges:
        for sensor in (edge.sender, edge.receiver):
            if sensor not in known:
                raise DataError(path, f"unknown sensor {shown(sensor)}", line=edge.line)
        if (pair := (edge.sender, edge.receiver)) in lines:
            raise DataError(path, f"repeats the edge of line {lines[pair]}: keep one", line=edge.line)
        lines[pair] = edge.line
    if kind == "weight":
        return graph_of_weights(edges, ids)
    return graph_of_own_distances(edges, ids)


def _traffic(file: Path, readings: Readings) -> Dataset:
    folders = _graph_folders(file)
    missing = readings.missing | (readings.values == 0)
    for locations in _files(folders, "graph_sensor_locations*.csv"):
        located: Positions = read_positions(locations)
        if _unknown(located, readings.ids) is None:
            positions = _positions(locations, located, readings.ids)
            readings = replace(readings, missing=missing, positions=positions)
            return Dataset(file.stem, readings, _traffic_graph(file, folders, readings, tuple(located)))
    readings = replace(readings, missing=missing)
    return Dataset(file.stem, readings, _traffic_graph(file, folders, readings, readings.ids))


def _traffic_graph(file: Path, folders: Sequence[Path], readings: Readings, listed: Sequence[str]) -> Graph:
    """The first graph beside a traffic file that covers all its sensors.

    `listed` are the sensors of the whole network. The width of the kernel is computed from all of them, so
    that a part of the network has the same weights as the whole.
    """
    unknown: DataError | None = None
    for candidate in _files(folders, "adj_mx*.pkl"):
        ids, graph = read_matrix(candidate)
        if (sensor := _unknown(ids, readings.ids)) is None:
            return _among(graph, ids, readings.ids)
        unknown = unknown or DataError(candidate, f"has no sensor {shown(sensor)}, which {file.name} has")
    for candidate in _files(folders, "adj_mx*.npy"):
        return read_plain_matrix(candidate, readings.ids)
    for candidate in _files(folders, "distances*.csv"):
        edges, _ = read_edges(candidate, only_distances=True)
        ends = {end for edge in edges for end in (edge.sender, edge.receiver)}
        if (sensor := _unknown(ends, readings.ids)) is None:
            return _among(graph_of_distances(edges, listed), listed, readings.ids)
        unknown = unknown or DataError(candidate, f"has no sensor {shown(sensor)}, which {file.name} has")
    if unknown is not None:
        raise unknown
    if readings.positions is None:
        wanted = "adj_mx*.pkl, adj_mx*.npy, distances*.csv or graph_sensor_locations*.csv of all its sensors"
        raise DataError(file, f"its graph is unknown: put {wanted} beside it or into sensor_graph")
    return Graph.nearest(readings.positions)


def _graph_folders(file: Path) -> tuple[Path, ...]:
    """Where the positions and the graph of a traffic file may be."""
    here = file.parent
    above = here.parent if here.name not in ("", "..") else here / ".."
    return here, here / "sensor_graph", above / "sensor_graph"


def _files(folders: Sequence[Path], pattern: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(folder.glob(pattern))


def _unknown(known: Collection[str], ids: Sequence[str]) -> str | None:
    """The first id that is not known, if any."""
    known = set(known)
    return next((sensor for sensor in ids if sensor not in known), None)


def _among(graph: Graph, ids: Sequence[str], wanted: Sequence[str]) -> Graph:
    place = {sensor: node for node, sensor in enumerate(ids)}
    return graph.subgraph([place[sensor] for sensor in wanted])


def _located(file: Path, located: Positions, readings: Readings, refusals: Refusals) -> list[str]:
    """The sensors that a file of positions has; the others are refused."""
    for sensor in readings.ids:
        if sensor not in located:
            problem = f"has no sensor {shown(sensor)}, which the readings have"
            refusals.note(LeftOutSensor(readings.source, sensor, problem, where=file))
            refusals.sensors.add(sensor)
    return [sensor for sensor in readings.ids if sensor in located]


def _positions(file: Path, located: Positions, ids: Sequence[str]) -> Floats:
    if (sensor := _unknown(located, ids)) is not None:
        raise DataError(file, f"has no sensor {shown(sensor)}, which the readings have")
    return np.array([located[sensor] for sensor in ids], dtype=np.float64)
