"""Freeway traffic as kinematic waves: the cell transmission model (Daganzo, 1994, 1995).

A road is a row of cells. In a step, a cell sends at most what leaves it at free speed, and receives at most
what the backward wave of a queue leaves room for; its capacity bounds both. Queues therefore grow against the
direction of travel, and no vehicle is ever lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MPH = 0.44704  # metres per second
LANES = 4
STEP_S = 20.0
CELL_M = 600.0  # longer than a step at free speed, for stability (CFL condition)
WAVE_MPH = 12.0
CAPACITY_VPH = 2000.0  # vehicles per hour and lane
FREE_MPH = 65.0

CAPACITY = CAPACITY_VPH * LANES * STEP_S / 3600  # vehicles per step
# The triangular diagram's two branches meet at capacity: q = v k = w (k_jam - k).
JAM = CAPACITY_VPH * LANES * (1 / FREE_MPH + 1 / WAVE_MPH) * CELL_M / (MPH * 3600)  # vehicles per cell


@dataclass(frozen=True, eq=False)
class Roads:
    """Cells of all roads in one row, each road in driving direction; c cells, x interchanges.

    exit_share  (c,)  share of a cell's outflow that leaves the road there; 1 in a road's last cell
    free_mph    (c,)  speed on an empty road, at most FREE_MPH
    priority    (c,)  share of a full cell's space that its on-ramp may claim
    leave, join (x,)  vehicles that leave the road at cell leave[k] join the on-ramp of cell join[k]
    """

    exit_share: Floats
    free_mph: Floats
    priority: Floats
    leave: Ints
    join: Ints


class Traffic:
    """Vehicles in every cell and waiting at every on-ramp, moved one step at a time.

    vehicles  (c,)  vehicles in the cell
    waiting   (c,)  vehicles waiting on its on-ramp
    outflow   (c,)  vehicles that left the cell in the last step
    exits     (c,)  those of them that left the road
    """

    def __init__(self, roads: Roads) -> None:
        self.roads = roads
        cells = len(roads.exit_share)
        self.vehicles, self.waiting, self.outflow, self.exits = np.zeros((4, cells))
        self._free_share = roads.free_mph * MPH * STEP_S / CELL_M  # of a cell's vehicles, in a step
        self._wave_share = WAVE_MPH * MPH * STEP_S / CELL_M
        self._main_priority = 1 - roads.priority
        self._last = (roads.exit_share == 1).astype(np.float64)
        self._stay_share = 1 - roads.exit_share
        self._per_stay = (1 - self._last) / (self._stay_share + self._last)
        self._buffers = np.zeros((6, cells + 1))  # reused, so that a step allocates nothing large

    def slow_down(self, share: float) -> None:
        """Drivers leave out this share of their free speed, from now on."""
        self._free_share = self.roads.free_mph * MPH * STEP_S / CELL_M * (1 - share)

    @property
    def stock(self) -> float:
        """All vehicles on the roads and on the ramps."""
        return float(self.vehicles.sum() + self.waiting.sum())

    def step(self, demand: Floats, capacity: Floats) -> None:
        """Move all vehicles on by STEP_S; demand (c,) arrive at the on-ramps, capacity (c,) per step.

        Merges follow Daganzo's rule: a branch gets the median of what it sends, what the other branch leaves
        free, and its priority share. Exits are first in, first out: a blocked road also blocks vehicles about
        to leave it. Vehicles that change roads wait at the other road's ramp, which has room for all.
        """
        sending, receiving, ramp, scratch = self._buffers[:4, :-1]
        through, main = self._buffers[4:6]  # into cell i from cell i - 1; entries 0 and c stay 0

        np.minimum(np.multiply(self.vehicles, self._free_share, out=sending), capacity, out=sending)
        np.multiply(np.subtract(JAM, self.vehicles, out=receiving), self._wave_share, out=receiving)
        np.minimum(receiving, capacity, out=receiving)
        np.multiply(sending, self._stay_share, out=through[1:])
        np.minimum(np.add(self.waiting, demand, out=self.waiting), capacity, out=ramp)

        np.multiply(receiving, self._main_priority, out=scratch)
        np.maximum(scratch, np.subtract(receiving, ramp, out=main[:-1]), out=scratch)
        np.minimum(through[:-1], scratch, out=main[:-1])
        merged = np.minimum(np.add(ramp, through[:-1], out=ramp), receiving, out=ramp)
        joined = np.subtract(merged, main[:-1], out=scratch)

        self.waiting -= joined
        np.multiply(main[1:], self._per_stay, out=self.outflow)
        self.outflow += np.multiply(sending, self._last, out=sending)  # a road's end is never blocked
        self.vehicles += merged
        self.vehicles -= self.outflow
        np.subtract(self.outflow, main[1:], out=self.exits)
        self.waiting[self.roads.join] += self.exits[self.roads.leave]


def mean_speed_mph(outflow: Floats, vehicles: Floats, free_mph: Floats) -> Floats:
    """Distance driven over time spent in a cell, from its outflow and vehicles summed over some steps."""
    cells_per_step: Floats = outflow / np.maximum(vehicles, 1e-9)
    return np.where(vehicles > 1e-6, cells_per_step * (CELL_M / STEP_S / MPH), free_mph)
