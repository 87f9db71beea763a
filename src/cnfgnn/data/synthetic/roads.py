"""The map of a synthetic city: a lattice of freeways with ramps, interchanges and sensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cnfgnn.data.graph import Graph
from cnfgnn.data.synthetic.traffic import CELL_M, FREE_MPH, Floats, Ints, Roads

BLOCK = 12  # sensors between two crossings
LEAD = 5  # cells before a road's first sensor
TAIL = 18  # cells after its last sensor: queues may also come from beyond it
GAPS = (4, 5, 6)  # cells from a sensor to the next: 2.4 to 3.6 km
RAMP_EVERY = 4  # cells from an exit to the next, each followed by an on-ramp
EXIT_SHARE = 0.15
INTERCHANGE_SHARE = 0.20
RAMP_PRIORITY = 0.2
SLOWEST_FREE_MPH = 58.0

KERNEL_KM = 6.5  # width of the graph's Gaussian kernel
TURN_KM = 0.8  # to leave the freeway, turn round and come back
HOPS = 4  # sensors along a road that may lie within the kernel's reach
CENTRE = (34.05, -118.25)
KM_PER_DEGREE = 111.195


@dataclass(frozen=True, eq=False)
class City:
    """Roads in driving direction, one after the other; n sensors, c cells, g roads, x interchanges.

    Half of the roads run east-west, half north-south, in alternating directions; each is measured in one
    direction only, because opposite carriageways do not exchange vehicles.

    first        (g + 1,)  first cell of each road, and the number of cells
    sensors      (n,)      cell of each sensor, ascending
    crossings    (x, 2)    cells where one leaves a road, and where one joins the crossing road
    free_mph     (c,)      speed on an empty road
    """

    first: Ints
    sensors: Ints
    crossings: Ints
    free_mph: Floats

    @cached_property
    def road(self) -> Ints:
        """(c,) road of each cell."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    @cached_property
    def place(self) -> Ints:
        """(c,) number of each cell within its road."""
        return np.arange(self.first[-1]) - self.first[self.road]

    @cached_property
    def on_ramps(self) -> Ints:
        """Cells where vehicles enter from outside: starts of roads and ordinary ramps, not interchanges."""
        ramp = self.place % RAMP_EVERY == 0
        ramp[self.crossings[:, 1]] = False
        return np.flatnonzero(ramp)

    @cached_property
    def roads(self) -> Roads:
        """The map as the traffic model needs it."""
        exit_share = np.where(self.place % RAMP_EVERY == RAMP_EVERY - 2, EXIT_SHARE, 0.0)
        exit_share[self.crossings[:, 0]] = INTERCHANGE_SHARE
        exit_share[self.first[1:] - 1] = 1.0
        priority = np.full(len(exit_share), RAMP_PRIORITY)
        priority[self.first[:-1]] = 1.0
        return Roads(exit_share, self.free_mph, priority, *self.crossings.T.copy())

    def positions(self) -> Floats:
        """(n, 2) latitude and longitude of the sensors."""
        roads = len(self.first) - 1
        side = CELL_M / 1000 * self.first[-1] / roads
        along, across = _lattice_point(roads, self.road, self._share_driven())
        east_west = self.road % 2 == 0
        km = np.where(east_west, [across, along], [along, across]) * side - side / 2
        degrees = km / [[KM_PER_DEGREE], [KM_PER_DEGREE * np.cos(np.radians(CENTRE[0]))]]
        everywhere: Floats = degrees.T + CENTRE
        return everywhere[self.sensors]

    def _share_driven(self) -> Floats:
        share: Floats = (self.place + 0.5) / np.diff(self.first)[self.road]
        return share

    def graph(self) -> Graph:
        """Gaussian kernel of directed driving distances, from sender to receiver.

        Congestion travels upstream, so that every sensor also receives from those downstream of it. Their
        distance is longer by one turn, so that a model can tell the two directions apart by weight.
        """
        up, down, km = (
            np.concatenate(parts) for parts in zip(self._pairs_along(), self._pairs_across(), strict=True)
        )
        n = len(self.sensors)
        loops = np.arange(n)
        return Graph.from_distances(
            n,
            np.concatenate([up, down, loops]),
            np.concatenate([down, up, loops]),
            np.concatenate([km, km + TURN_KM, np.zeros(n)]),
            sigma=KERNEL_KM,
        )

    def _pairs_along(self) -> tuple[Ints, Ints, Floats]:
        """Sensors on one road: upstream, downstream, kilometres."""
        n = len(self.sensors)
        up = np.concatenate([np.arange(max(n - hop, 0)) for hop in range(1, HOPS + 1)])
        down = np.concatenate([np.arange(hop, max(n, hop)) for hop in range(1, HOPS + 1)])
        same = self.road[self.sensors[up]] == self.road[self.sensors[down]]
        up, down = up[same], down[same]
        return up, down, (self.sensors[down] - self.sensors[up]) * (CELL_M / 1000)

    def _pairs_across(self) -> tuple[Ints, Ints, Floats]:
        """The last two sensors before an interchange and the first two after it, on the other road."""
        leave, join = self.crossings.T[:, :, None, None]
        up = np.searchsorted(self.sensors, leave, side="right") - np.array([1, 2])[None, :, None]
        down = np.searchsorted(self.sensors, join) + np.array([0, 1])[None, None, :]
        up, down, leave, join = (a.ravel() for a in np.broadcast_arrays(up, down, leave, join))
        inside = (up >= 0) & (down < len(self.sensors))
        up, down, leave, join = up[inside], down[inside], leave[inside], join[inside]
        up_cell, down_cell = self.sensors[up], self.sensors[down]
        same = (self.road[up_cell] == self.road[leave]) & (self.road[down_cell] == self.road[join])
        cells = leave - up_cell + 1 + down_cell - join
        return up[same], down[same], cells[same] * (CELL_M / 1000)


def _lattice_point(roads: int, road: Ints, driven: Floats) -> tuple[Floats, Floats]:
    """A point's place along and across its road's axis, as shares of the city's side."""
    lines = max(roads // 2, 1)
    line = road // 2
    along = np.where(line % 2 == 0, driven, 1 - driven)
    return along, (line + 0.5) / lines


def _crossings(first: Ints) -> Ints:
    """(x, 2) Every east-west road crosses every north-south road; drivers may change in both directions."""
    roads = len(first) - 1
    if roads == 1:
        return np.empty((0, 2), dtype=np.int64)
    lines = roads // 2
    one, other = (a.ravel() for a in np.meshgrid(np.arange(0, roads, 2), np.arange(1, roads, 2)))

    def cell(road: Ints, crossed: Ints) -> Ints:
        share = (crossed // 2 + 0.5) / lines
        share = np.where(road // 2 % 2 == 0, share, 1 - share)
        return first[road] + (np.diff(first)[road] * share).astype(np.int64)

    here, there = cell(one, other), cell(other, one)
    return np.concatenate([np.stack([here, there + 1], 1), np.stack([there, here + 1], 1)])


def lay_out(sensors: int, rng: np.random.Generator) -> City:
    """A city with that many sensors: one road for very few, otherwise a square lattice of roads."""
    roads = 1 if sensors < 8 else 2 * max(1, round((sensors / (2 * BLOCK)) ** 0.5))
    on_road = np.full(roads, sensors // roads)
    on_road[: sensors % roads] += 1
    starts = np.cumsum(on_road) - on_road
    gaps = rng.choice(GAPS, size=sensors)
    gaps[starts] = TAIL + LEAD + 1
    gaps[0] = LEAD
    cells = np.cumsum(gaps)
    first = np.append(cells[starts] - LEAD, cells[-1] + TAIL + 1)
    free_mph = rng.uniform(SLOWEST_FREE_MPH, FREE_MPH, size=int(first[-1]))
    return City(first, cells, _crossings(first), free_mph)
