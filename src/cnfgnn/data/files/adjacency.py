"""Read where sensors are and how they are connected: positions, edges, distances, pickled matrices."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from cnfgnn.data.files.pickles import unpickle
from cnfgnn.data.files.text import Row, Text, decimal_comma, number, open_text, reason, shown
from cnfgnn.data.graph import Floats, Graph, Ints
from cnfgnn.errors import DataError

LARGEST = 1e12  # more than any distance on Earth in any unit; its square is still finite
SENSOR_COLUMNS = {
    "id": ("id", "sensor_id", "sensor", "station", "station_id", "name"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon", "lng", "long"),
}
EDGE_COLUMNS = {"from": ("from", "source", "sender", "src"), "to": ("to", "target", "receiver", "dst")}
VALUE_COLUMNS = {"weight": ("weight", "w"), "distance": ("distance", "dist", "cost", "metres", "meters")}
Kind = Literal["weight", "distance"]
Number = TypeVar("Number", bound=np.floating[Any])


class Edge(NamedTuple):
    line: int
    sender: str
    receiver: str
    value: float  # a weight or a distance


def read_positions(path: Path) -> dict[str, tuple[float, float]]:
    """Latitude and longitude by sensor id; without a header, the columns are id, latitude and longitude."""
    _, header, rows = _rows(path)
    place = _columns(header[1], SENSOR_COLUMNS)
    if len(place) < 3:
        if len(header[1]) != 3 or not _is_number(header[1][1]):
            problem = "the columns id, latitude and longitude are needed, like id,latitude,longitude"
            raise DataError(path, problem, line=header[0])
        place, rows = {"id": 0, "latitude": 1, "longitude": 2}, [header, *rows]
    # Degrees are never in thousands, so that a comma is always a decimal comma, as in files with semicolons.
    decimal = _decimal(rows, (place["latitude"], place["longitude"]), ";")
    positions: dict[str, tuple[float, float]] = {}
    for line, fields in rows:
        sensor = fields[place["id"]]
        if sensor in positions:
            raise DataError(path, f"sensor {shown(sensor)} occurs twice: keep one line", line=line)
        latitude, longitude = (fields[place[name]] for name in ("latitude", "longitude"))
        degrees = [number(text, decimal) or 0.0 for text in (latitude, longitude)]
        if 0 < abs(degrees[1]) < 90 < abs(degrees[0]) <= 180:
            problem = f"{shown(latitude)} is not between -90 and 90: are latitude and longitude swapped?"
            raise DataError(path, problem, line=line, column="latitude")
        positions[sensor] = (
            _bounded(latitude, -90, 90, decimal, path, line, "latitude"),
            _bounded(longitude, -180, 180, decimal, path, line, "longitude"),
        )
    if not positions:
        raise DataError(path, "there are no lines below the header")
    return positions


def read_edges(path: Path, *, only_distances: bool = False) -> tuple[list[Edge], Kind]:
    """Read an edge list with a header: from, to, and a weight or a distance; the weight if it has both.

    With `only_distances`, as in the file of PEMS-BAY, the header may be missing.
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
        raise DataError(path, f"the columns from, to and {wanted} are needed, like {example}", line=header[0])
    decimal = _decimal(rows, place[2:], text.separator)
    edges = []
    for line, fields in rows:
        sender, receiver, value = (fields[column] for column in place)
        edges.append(Edge(line, sender, receiver, _bounded(value, 0, LARGEST, decimal, path, line, kind)))
    if not edges:
        raise DataError(path, "there are no lines below the header")
    return edges, kind


def graph_of_weights(edges: Sequence[Edge], ids: Sequence[str]) -> Graph:
    """The graph of the edges among `ids` with the weights of the file; a weight of 0 means no edge."""
    return _with_loops(Graph(len(ids), *_arrays([edge for edge in edges if edge.value > 0], ids)))


def graph_of_distances(edges: Sequence[Edge], ids: Sequence[str]) -> Graph:
    """DCRNN's graph: a Gaussian kernel as wide as the standard deviation of all distances among `ids`.

    Distances of 0 from a sensor to itself count. If a pair occurs twice, the last distance is used.
    """
    return _with_loops(Graph.from_distances(len(ids), *_arrays(edges, ids)))


def graph_of_own_distances(edges: Sequence[Edge], ids: Sequence[str]) -> Graph:
    """The graph of a user's own list of distances; every listed edge is kept.

    DCRNN's rule drops distant pairs from a list of all pairs. A user's list usually holds neighbours only,
    with similar distances, so that the kernel is as wide as their root mean square and has no threshold.
    """
    senders, receivers, distances = _arrays(edges, ids)
    width = kernel_width(distances)
    return _with_loops(
        Graph.from_distances(len(ids), senders, receivers, distances, sigma=width, threshold=0.0)
    )


def kernel_width(distances: Floats) -> float:
    """The width of the kernel for a user's own list of distances."""
    apart = distances[distances > 0]
    return float(np.sqrt(np.square(apart).mean())) if len(apart) else 1.0


def read_matrix(path: Path, otherwise: tuple[str, ...] = ()) -> tuple[tuple[str, ...], Graph]:
    """The ids and the graph of DCRNN's pickled (ids, id -> index, W), or of W alone, whose rows are those of
    the ids `otherwise`; self-loops are those of W."""
    try:
        found = unpickle(path.read_bytes())
        if otherwise and not isinstance(found, tuple | list):
            return otherwise, _graph(path, otherwise, np.asarray(found, dtype=np.float64))
        _, places, matrix = found
        ids = tuple(str(sensor) for sensor in sorted(places, key=places.__getitem__))
        dense = np.asarray(matrix, dtype=np.float64)
        ordered = sorted(places.values()) == list(range(len(dense)))
    except DataError:
        raise
    except pickle.UnpicklingError as problem:
        raise DataError(
            path, f"this pickle does not hold a plain adjacency matrix ({reason(problem)})"
        ) from None
    except Exception as problem:  # damaged pickles make the unpickler raise anything
        raise DataError(
            path, f"this is not DCRNN's tuple of ids, index and matrix ({reason(problem)})"
        ) from None
    if not ordered or len(set(ids)) != len(ids):
        raise DataError(path, f"{len(ids)} ids do not match a matrix of shape {dense.shape}")
    return ids, _graph(path, ids, dense)


def read_plain_matrix(path: Path, ids: tuple[str, ...]) -> Graph:
    """The graph of a matrix in a .npy file, whose rows are those of the ids."""
    try:
        with path.open("rb") as file:
            dense = as_numbers(np.load(file, allow_pickle=False), np.float64)
    except Exception as problem:  # numpy raises any exception for a damaged file
        raise DataError(path, f"cannot be read as a matrix of numbers ({reason(problem)})") from None
    return _graph(path, ids, dense)


def as_numbers(found: npt.NDArray[Any], kind: type[Number]) -> npt.NDArray[Number]:
    """An array in another precision; ValueError if it does not hold numbers."""
    if found.dtype.kind not in "biuf":
        raise ValueError(f"it holds {found.dtype}")
    with np.errstate(over="ignore"):  # Readings refuses what is too large
        return found.astype(kind)


def _graph(path: Path, ids: tuple[str, ...], dense: Floats) -> Graph:
    """The graph of a matrix of weights."""
    if dense.shape != (len(ids), len(ids)):
        raise DataError(path, f"{len(ids)} ids do not match a matrix of shape {dense.shape}")
    wrong = ~(np.isfinite(dense) & (dense >= 0))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise DataError(
            path, "a weight must be a number that is not negative", row=ids[row], column=ids[column]
        )
    return Graph.from_matrix(dense)


def _arrays(edges: Sequence[Edge], ids: Sequence[str]) -> tuple[Ints, Ints, Floats]:
    """Senders, receivers and values of the edges among `ids`."""
    place = {sensor: node for node, sensor in enumerate(ids)}
    inside = [edge for edge in edges if edge.sender in place and edge.receiver in place]
    kept = {(place[edge.sender], place[edge.receiver]): edge.value for edge in inside}
    ends = np.array(list(kept), dtype=np.int64).reshape(-1, 2)
    return ends[:, 0], ends[:, 1], np.array(list(kept.values()), dtype=np.float64)


def _with_loops(graph: Graph) -> Graph:
    """The graph with a self-loop of weight 1 at every node that has none."""
    bare = np.setdiff1d(np.arange(graph.nodes), graph.senders[graph.senders == graph.receivers])
    ends = np.r_[graph.senders, bare], np.r_[graph.receivers, bare]
    return Graph(graph.nodes, *ends, np.r_[graph.weights, np.ones(len(bare))])


def _rows(path: Path) -> tuple[Text, Row, list[Row]]:
    """A csv file, its first non-blank line, and all others; each must have as many fields as the first."""
    text = open_text(path)
    rows = [(line, [field.strip() for field in fields]) for line, fields in text.rows()]
    rows = [(line, fields) for line, fields in rows if any(fields)]
    if not rows:
        raise DataError(path, "the file is empty")
    for line, fields in rows:
        if len(fields) != len(rows[0][1]):
            raise DataError(
                path, f"{len(fields)} fields, but the first line has {len(rows[0][1])}", line=line
            )
    return text, rows[0], rows[1:]


def detected(path: Path) -> tuple[str, ...]:
    """How a file of positions or edges was read, where that had to be detected."""
    text, _, rows = _rows(path)
    decimal = _decimal(rows, range(1, len(rows[0][1]) if rows else 0), text.separator)
    notes = text.notes
    if decimal == ",":
        notes += ("numbers with decimal commas",)
    return (f"{path.name}: {', '.join(notes)}",) if notes else ()


def _decimal(rows: Sequence[Row], columns: Iterable[int], separator: str) -> str:
    """The decimal mark of some columns: a comma if some number can only be read with one."""
    places = tuple(columns)
    cells = ((line, fields[place]) for line, fields in rows for place in places)
    return "," if decimal_comma(cells, separator)[0] else "."


def _is_number(text: str) -> bool:
    return number(text) is not None or number(text, ",") is not None


def _columns(header: Sequence[str], wanted: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The index of every wanted column that the header has under one of its names."""
    lower = [name.lower() for name in header]
    found = {column: [n for n in names if n in lower] for column, names in wanted.items()}
    return {column: lower.index(names[0]) for column, names in found.items() if names}


def _bounded(text: str, low: float, high: float, decimal: str, path: Path, line: int, column: str) -> float:
    value = number(text, decimal)
    if value is None or not low <= value <= high:
        wanted = f"a number like 12{decimal}5" if value is None else f"between {low:g} and {high:g}"
        raise DataError(path, f"{shown(text)} is not {wanted}", line=line, column=column)
    return value
