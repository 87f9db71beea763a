"""A directed, weighted graph over the sensors: who influences whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cnfgnn.errors import DataError

EARTH_RADIUS_M = 6_371_008.8
PAIRS_AT_ONCE = 1 << 21  # whose distances are computed at a time
# The narrowest cubes in the search for neighbours, and those with which all nodes are around every node, as
# shares of the Earth's radius.
NARROWEST, WHOLE = 1e-6, 2.0
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Graph:
    """A directed graph over nodes 0 .. n-1; edge k goes from senders[k] to receivers[k].

    Edges are kept sorted by (receiver, sender), so that sums over a receiver's edges are sums over a
    segment. The arrays cannot be written to.

    senders, receivers  (e,)  int64
    weights             (e,)  float64, finite
    """

    nodes: int
    senders: Ints
    receivers: Ints
    weights: Floats

    def __post_init__(self) -> None:
        shapes = {self.senders.shape, self.receivers.shape, self.weights.shape}
        if len(shapes) != 1 or len(self.senders.shape) != 1:
            raise DataError("graph", "senders, receivers and weights must have the same length")
        ends = np.concatenate([self.senders, self.receivers])
        if len(ends) and (ends.min() < 0 or ends.max() >= self.nodes):
            raise DataError(
                "graph", f"an edge names node {int(ends.max())}, but nodes are 0 to {self.nodes - 1}"
            )
        if not np.isfinite(self.weights).all():
            raise DataError("graph", "an edge has a weight that is not a number")
        order = np.lexsort((self.senders, self.receivers))
        pairs = self.receivers[order] * self.nodes + self.senders[order]
        if (np.diff(pairs) == 0).any():
            k = order[int(np.argmax(np.diff(pairs) == 0))]
            raise DataError("graph", f"the edge {self.senders[k]} -> {self.receivers[k]} occurs twice")
        for name in ("senders", "receivers", "weights"):
            column = np.ascontiguousarray(getattr(self, name)[order])
            column.setflags(write=False)
            object.__setattr__(self, name, column)

    @property
    def edges(self) -> int:
        """The number of edges, self-loops included."""
        return len(self.senders)

    @property
    def loops(self) -> int:
        """The number of self-loops."""
        return int((self.senders == self.receivers).sum())

    @classmethod
    def from_matrix(cls, matrix: npt.ArrayLike) -> Graph:
        """Entry W[i, j] != 0 is the edge from sender i to receiver j, as in DCRNN's files."""
        dense = np.asarray(matrix, dtype=np.float64)
        if dense.ndim != 2 or dense.shape[0] != dense.shape[1]:
            shape = " x ".join(map(str, dense.shape))
            raise DataError("graph", f"an adjacency matrix must be square, not {shape}")
        senders, receivers = np.nonzero(dense)
        return cls(len(dense), senders, receivers, dense[senders, receivers])

    @classmethod
    def from_distances(
        cls,
        nodes: int,
        senders: Ints,
        receivers: Ints,
        distances: Floats,
        *,
        sigma: float | None = None,
        threshold: float = 0.1,
    ) -> Graph:
        """Gaussian kernel W = exp(-dist^2 / sigma^2) without entries below the threshold.

        By default, sigma is the standard deviation of the distances, as in DCRNN.
        """
        if sigma is None:
            sigma = float(np.std(distances)) if len(distances) else 1.0
        largest = float(np.max(distances, initial=0.0))
        # Equal distances have a standard deviation of 0 or a rounding error: weigh all edges alike.
        if sigma <= 1e-9 * largest or sigma <= 0:
            sigma = largest or 1.0
        weights = np.exp(-np.square(distances / sigma))
        keep = weights >= threshold
        return cls(nodes, senders[keep], receivers[keep], weights[keep])

    @classmethod
    def nearest(cls, positions: Floats, k: int = 8, *, threshold: float = 0.1) -> Graph:
        """Each node receives from its k nearest neighbours by great-circle distance, and from itself.

        The width of the kernel is the mean distance to the k-th neighbour, so that weights depend neither on
        the unit nor on the density of the network.
        """
        n = len(positions)
        k = min(k, n - 1)
        if k < 1:
            return cls(n, np.arange(n), np.arange(n), np.ones(n))
        neighbours, metres = _nearest(positions, k)
        receivers = np.repeat(np.arange(n), k)
        width = float(metres[:, -1].mean()) or 1.0
        weights = np.exp(-np.square(metres.ravel() / width))
        keep = weights >= threshold
        loops = np.arange(n)
        return cls(
            n,
            np.concatenate([neighbours.ravel()[keep], loops]),
            np.concatenate([receivers[keep], loops]),
            np.concatenate([weights[keep], np.ones(n)]),
        )

    def subgraph(self, nodes: npt.ArrayLike) -> Graph:
        """The graph among some nodes, numbered in the order given."""
        kept = np.asarray(nodes, dtype=np.int64)
        place = np.full(self.nodes, -1, dtype=np.int64)
        place[kept] = np.arange(len(kept))
        inside = (place[self.senders] >= 0) & (place[self.receivers] >= 0)
        return Graph(
            len(kept), place[self.senders[inside]], place[self.receivers[inside]], self.weights[inside]
        )

    def extended(self, nodes: int, senders: Ints, receivers: Ints, weights: Floats) -> Graph:
        """The graph with so many nodes and further edges; those that there are stay as they are."""
        return Graph(
            nodes,
            np.concatenate([self.senders, senders]),
            np.concatenate([self.receivers, receivers]),
            np.concatenate([self.weights, weights]),
        )

    def reversed(self) -> Graph:
        """The graph with every edge reversed: the direction of the paper's text (Deviation D1)."""
        return Graph(self.nodes, self.receivers, self.senders, self.weights)


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """How `Graph.nearest` has connected some nodes, for a node that joins them later.

    width    of the kernel, in metres
    reaches  (n,)  metres from each node to the farthest of its neighbours
    """

    positions: Floats
    width: float
    reaches: Floats
    k: int
    threshold: float = 0.1

    @classmethod
    def of(cls, positions: Floats, k: int = 8) -> Neighbourhood:
        k = min(k, len(positions) - 1)
        if k < 1:
            return cls(positions, 1.0, np.zeros(len(positions)), max(k, 1))
        _, metres = _nearest(positions, k)
        return cls(positions, float(metres[:, -1].mean()) or 1.0, metres[:, -1], k)

    def edges_of(self, position: Floats) -> tuple[Ints, Floats, Ints, Floats]:
        """The nodes that a new node at this position receives from, and their weights; and the nodes that
        receive from it, with theirs. It receives from its k nearest nodes; those receive from it that are
        nearer to it than to the farthest of their neighbours. Their other edges stay as they are."""
        metres = great_circle(self.positions, position)
        weights = np.exp(-np.square(metres / self.width))
        near = np.argsort(metres, kind="stable")[: self.k]
        near = near[weights[near] >= self.threshold]
        reached = np.flatnonzero((metres < self.reaches) & (weights >= self.threshold))
        return near, weights[near], reached, weights[reached]

    def joined(self, position: Floats) -> Neighbourhood:
        """With a node at this position; the width of the kernel stays."""
        metres = np.sort(great_circle(self.positions, position))[: self.k]
        positions = np.concatenate([self.positions, position[None]])
        return replace(self, positions=positions, reaches=np.append(self.reaches, metres[-1:].sum()))


def great_circle(one: Floats, other: Floats) -> Floats:
    """Metres between points given as (..., 2) degrees of latitude and longitude (haversine)."""
    lat_1, lon_1 = np.radians(one[..., 0]), np.radians(one[..., 1])
    lat_2, lon_2 = np.radians(other[..., 0]), np.radians(other[..., 1])
    half = np.sin((lat_2 - lat_1) / 2) ** 2 + np.cos(lat_1) * np.cos(lat_2) * np.sin((lon_2 - lon_1) / 2) ** 2
    metres: Floats = 2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(np.clip(half, 0, 1)))
    return metres


def _nearest(positions: Floats, k: int) -> tuple[Ints, Floats]:
    """Indices and distances (n, k) of each node's k nearest others. Ties go to the lower number, so that the
    graph is the same on every platform.

    Space is cut into cubes. A node whose k nearest among its own cube and the 26 around it are nearer than
    the width of a cube has no nearer ones elsewhere; the others look again in cubes of twice the width.
    """
    n = len(positions)
    neighbours = np.empty((n, k), dtype=np.int64)
    metres = np.empty((n, k), dtype=np.float64)
    points = _on_sphere(positions)
    width = _fine_width(points, k)
    open_nodes = np.arange(n)
    while len(open_nodes):
        cubes = _Cubes(points, width)
        certain = 2 * EARTH_RADIUS_M * np.arcsin(width / 2) * (1 - 1e-9) if width < WHOLE else np.inf
        left = []
        for nodes in _blocks(open_nodes, cubes.candidates(open_nodes), PAIRS_AT_ONCE):
            found, distance, count = _best(positions, nodes, *cubes.pairs(nodes), k)
            done = (count >= k) & (distance[:, -1] < certain)
            neighbours[nodes[done]], metres[nodes[done]] = found[done], distance[done]
            left.append(nodes[~done])
        open_nodes, width = np.concatenate(left), 2 * width
    return neighbours, metres


def _on_sphere(positions: Floats) -> Floats:
    """(n 3): points of a sphere of radius 1; degrees would be wrong near the poles and at the date line."""
    latitude, longitude = np.radians(positions).T
    east = np.cos(latitude)
    points: Floats = np.stack([east * np.cos(longitude), east * np.sin(longitude), np.sin(latitude)], axis=1)
    return points


def _fine_width(points: Floats, k: int) -> float:
    """A width of cubes with which a node has about k others in its own cube, wherever nodes are dense."""
    width = float(np.ptp(points, axis=0).max())
    while width > NARROWEST:
        _, place, count = np.unique(_keys(points, width), return_inverse=True, return_counts=True)
        if count[place.ravel()].mean() <= 2 * k:
            break
        width /= 2
    return max(width, NARROWEST)


def _keys(points: Floats, width: float, shift: tuple[int, ...] = (0, 0, 0)) -> Ints:
    """(n,): a number for the cube of each point, or for one of the cubes around it."""
    x, y, z = (np.floor((points + 1) / width).astype(np.int64) + shift).T + 1
    across = int(2 / width) + 4
    keys: Ints = (x * across + y) * across + z
    return keys


class _Cubes:
    """The nodes in each cube, to find those near a node."""

    def __init__(self, points: Floats, width: float) -> None:
        self.points, self.width = points, width
        keys = _keys(points, width)
        self.order = np.argsort(keys, kind="stable")
        self.keys, self.first = np.unique(keys[self.order], return_index=True)
        self.count = np.diff(np.append(self.first, len(points)))

    def _around(self, nodes: Ints) -> tuple[Ints, Ints]:
        """(m 27) each: where the nodes of each cube around a node begin in the order, and their number."""
        shifts = [(x, y, z) for x in (-1, 0, 1) for y in (-1, 0, 1) for z in (-1, 0, 1)]
        wanted = np.stack([_keys(self.points[nodes], self.width, shift) for shift in shifts], axis=1)
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return self.first[place], np.where(self.keys[place] == wanted, self.count[place], 0)

    def candidates(self, nodes: Ints) -> Ints:
        """(m,): how many nodes there are around each of these."""
        total: Ints = self._around(nodes)[1].sum(axis=1)
        return total

    def pairs(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Each of these nodes (as its place among them) with each node around it."""
        first, count = (x.ravel() for x in self._around(nodes))
        before = np.cumsum(count) - count
        within = np.arange(int(count.sum())) - np.repeat(before, count)
        return np.repeat(np.arange(len(nodes)).repeat(27), count), self.order[
            np.repeat(first, count) + within
        ]


def _blocks(nodes: Ints, sizes: Ints, most: int) -> Iterator[Ints]:
    """The nodes in blocks of about so many pairs, to bound memory."""
    ends = np.flatnonzero(np.diff(np.cumsum(sizes) // most)) + 1
    return iter(np.split(nodes, ends))


def _best(positions: Floats, nodes: Ints, row: Ints, other: Ints, k: int) -> tuple[Ints, Floats, Ints]:
    """The k nearest of the pairs (row, other) of each node, their distances, and how many pairs it has."""
    apart = nodes[row] != other
    row, other = row[apart], other[apart]
    distance = great_circle(positions[nodes[row]], positions[other])
    order = np.lexsort((other, distance, row))
    row, other, distance = row[order], other[order], distance[order]
    count = np.bincount(row, minlength=len(nodes))
    rank = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    kept = rank < k
    found = np.full((len(nodes), k), -1, dtype=np.int64)
    metres = np.full((len(nodes), k), np.inf)
    found[row[kept], rank[kept]], metres[row[kept], rank[kept]] = other[kept], distance[kept]
    return found, metres, count
