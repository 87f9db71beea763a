"""Files that say where sensors are and who influences whom: pickled matrices, distances, edges, positions."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from cnfgnn.data.graph import Floats, Graph, Ints
from cnfgnn.data.pickles import unpickle
from cnfgnn.data.text import Row, Text, decimal_comma, number, open_text, reason, shown
from cnfgnn.errors import DataError

FARTHEST = 1e12  # beyond any distance on Earth in any unit; keeps the kernel's squares finite
SENSOR_COLUMNS = {
    "id": ("id", "sensor_id", "sensor", "station", "station_id", "name"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon", "lng", "long"),
}
EDGE_COLUMNS = {"from": ("from", "source", "sender", "src"), "to": ("to", "target", "receiver", "dst")}
VALUE_COLUMNS = {"weight": ("weight", "w"), "distance": ("distance", "dist", "cost", "metres", "meters")}
Kind = Literal["weight", "distance"]


class Edge(NamedTuple):
    line: int
    sender: str
    receiver: str
    value: float  # a weight or a distance


def read_positions(path: Path) -> dict[str, tuple[float, float]]:
    """Latitude and longitude by sensor id; without a header the columns are id, latitude and longitude."""
    _, header, rows = _rows(path)
    place = _columns(header[1], SENSOR_COLUMNS)
    if len(place) < 3:
        if len(header[1]) != 3 or not _is_number(header[1][1]):
            problem = "columns id, latitude and longitude are needed, like id,latitude,longitude"
            raise DataError(path, problem, line=header[0])
        place, rows = {"id": 0, "latitude": 1, "longitude": 2}, [header, *rows]
    # degrees are no thousands, so that their commas are decimal ones as between semicolons
    decimal = _decimal(rows, (place["latitude"], place["longitude"]), ";")
    positions: dict[str, tuple[float, float]] = {}
    for line, fields in rows:
        sensor = fields[place["id"]]
        if sensor in positions:
            raise DataError(path, f"sensor {shown(sensor)} occurs twice", line=line)
        latitude, longitude = (fields[place[name]] for name in ("latitude", "longitude"))
        degrees = [number(text, decimal) or 0.0 for text in (latitude, longitude)]
        if 0 < abs(degrees[1]) < 90 < abs(degrees[0]) <= 180:
            problem = f"{shown(latitude)} is not in -90 .. 90: are latitude and longitude swapped?"
            raise DataError(path, problem, line=line, column="latitude")
        positions[sensor] = (
            _bounded(latitude, -90, 90, decimal, path, line, "latitude"),
            _bounded(longitude, -180, 180, decimal, path, line, "longitude"),
        )
    if not positions:
        raise DataError(path, "there is nothing below the header")
    return positions


def read_edges(path: Path, *, only_distances: bool = False) -> tuple[list[Edge], Kind]:
    """An edge list with a header: from, to, and a weight or a distance (the weight, where it has both).

    Only a list of distances can do without a header, as that of PEMS-BAY does.
    """
    text, header, rows = _rows(path)
    ends, values = _columns(header[1], EDGE_COLUMNS), _columns(header[1], VALUE_COLUMNS)
    kind: Kind = "distance" if only_distances or "weight" not in values else "weight"
    if len(ends) == 2 and kind in values:
        place = (ends["from"], ends["to"], values[kind])
    elif only_distances and len(header[1]) == 3 and _is_number(header[1][2]):
        place, rows = (0, 1, 2), [header, *rows]
    else:
        wanted = "distance" if only_distances else "weight or distance"
        example = f"from,to,{'distance' if only_distances else 'weight'}"
        raise DataError(path, f"columns from, to and {wanted} are needed, like {example}", line=header[0])
    decimal = _decimal(rows, place[2:], text.separator)
    edges = []
    for line, fields in rows:
        sender, receiver, value = (fields[column] for column in place)
        edges.append(Edge(line, sender, receiver, _bounded(value, 0, FARTHEST, decimal, path, line, kind)))
    if not edges:
        raise DataError(path, "there is nothing below the header")
    return edges, kind


def graph_of_weights(edges: Sequence[Edge], ids: Sequence[str]) -> Graph:
    """The graph of the edges among `ids` with their own weights; 0 means no edge."""
    return _with_loops(Graph(len(ids), *_arrays([edge for edge in edges if edge.value > 0], ids)))


def graph_of_distances(edges: Sequence[Edge], ids: Sequence[str]) -> Graph:
    """DCRNN's graph: a Gaussian kernel as wide as the standard deviation of all distances among `ids`.

    A listed distance of 0 from a sensor to itself counts; of two between the same sensors the last does.
    """
    return _with_loops(Graph.from_distances(len(ids), *_arrays(edges, ids)))


def graph_of_own_distances(edges: Sequence[Edge], ids: Sequence[str]) -> Graph:
    """The graph of a person's own list of distances, none of which is dropped.

    DCRNN's rule is made for a list of all pairs. Who lists neighbours alone means every one of them, and
    their distances may hardly differ: the kernel is as wide as their root mean square.
    """
    senders, receivers, distances = _arrays(edges, ids)
    apart = distances[distances > 0]
    width = float(np.sqrt(np.square(apart).mean())) if len(apart) else 1.0
    return _with_loops(
        Graph.from_distances(len(ids), senders, receivers, distances, sigma=width, threshold=0.0)
    )


def read_matrix(path: Path) -> tuple[tuple[str, ...], Graph]:
    """The ids and the graph of DCRNN's pickled (ids, id -> index, W); loops are those of W."""
    try:
        _, places, matrix = unpickle(path.read_bytes())
        ids = tuple(str(sensor) for sensor in sorted(places, key=places.__getitem__))
        dense = np.asarray(matrix, dtype=np.float64)
        ordered = sorted(places.values()) == list(range(len(dense)))
    except pickle.UnpicklingError as problem:
        raise DataError(path, f"this pickle is not a plain adjacency ({reason(problem)})") from None
    except Exception as problem:  # damaged pickles make the unpickler raise anything
        raise DataError(path, f"this is not DCRNN's (ids, index, matrix) ({reason(problem)})") from None
    if dense.shape != (len(ids), len(ids)) or not ordered or len(set(ids)) != len(ids):
        raise DataError(path, f"{len(ids)} ids do not match a matrix of shape {dense.shape}")
    wrong = ~(np.isfinite(dense) & (dense >= 0))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise DataError(path, "a weight is a number that is not negative", row=ids[row], column=ids[column])
    return ids, Graph.from_matrix(dense)


def _arrays(edges: Sequence[Edge], ids: Sequence[str]) -> tuple[Ints, Ints, Floats]:
    """Senders, receivers and values of the edges among `ids`."""
    place = {sensor: node for node, sensor in enumerate(ids)}
    inside = [edge for edge in edges if edge.sender in place and edge.receiver in place]
    kept = {(place[edge.sender], place[edge.receiver]): edge.value for edge in inside}
    ends = np.array(list(kept), dtype=np.int64).reshape(-1, 2)
    return ends[:, 0], ends[:, 1], np.array(list(kept.values()), dtype=np.float64)


def _with_loops(graph: Graph) -> Graph:
    """The graph with an edge of weight 1 from every node to itself that has none."""
    bare = np.setdiff1d(np.arange(graph.nodes), graph.senders[graph.senders == graph.receivers])
    ends = np.r_[graph.senders, bare], np.r_[graph.receivers, bare]
    return Graph(graph.nodes, *ends, np.r_[graph.weights, np.ones(len(bare))])


def _rows(path: Path) -> tuple[Text, Row, list[Row]]:
    """A csv file, its first line that is not blank, and the others, which have as many fields."""
    text = open_text(path)
    rows = [(line, [field.strip() for field in fields]) for line, fields in text.rows()]
    rows = [(line, fields) for line, fields in rows if any(fields)]
    if not rows:
        raise DataError(path, "the file is empty")
    for line, fields in rows:
        if len(fields) != len(rows[0][1]):
            raise DataError(path, f"{len(fields)} fields where the first has {len(rows[0][1])}", line=line)
    return text, rows[0], rows[1:]


def understood(path: Path) -> tuple[str, ...]:
    """What had to be found out to read a file of positions or edges."""
    text, _, rows = _rows(path)
    decimal = _decimal(rows, range(1, len(rows[0][1]) if rows else 0), text.separator)
    notes = (*text.notes, *(("numbers with decimal commas",) if decimal == "," else ()))
    return (f"{path.name}: {', '.join(notes)}",) if notes else ()


def _decimal(rows: Sequence[Row], columns: Iterable[int], separator: str) -> str:
    """What stands between units and tenths in some columns: a comma where a number can only be meant so."""
    places = tuple(columns)
    cells = ((line, fields[place]) for line, fields in rows for place in places)
    return "," if decimal_comma(cells, separator)[0] else "."


def _is_number(text: str) -> bool:
    return number(text) is not None or number(text, ",") is not None


def _columns(header: Sequence[str], wanted: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The place of every wanted column that the header has, under one of its names."""
    lower = [name.lower() for name in header]
    found = {column: [n for n in names if n in lower] for column, names in wanted.items()}
    return {column: lower.index(names[0]) for column, names in found.items() if names}


def _bounded(text: str, low: float, high: float, decimal: str, path: Path, line: int, column: str) -> float:
    value = number(text, decimal)
    if value is None or not low <= value <= high:
        wanted = f"a number like 12{decimal}5" if value is None else f"in {low:g} .. {high:g}"
        raise DataError(path, f"{shown(text)} is not {wanted}", line=line, column=column)
    return value
