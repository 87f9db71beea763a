"""Where to draw sensors: at their positions or, if those are unknown, by a layout of the graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
MOST_SENSORS = 1500  # for the force-directed layout, which compares all pairs
PIVOTS = 16  # sensors whose distances to all others lay out a larger graph


def map_points(positions: npt.NDArray[np.float64]) -> Points:
    """(n, 2) latitude and longitude -> (n, 2) x and y with true proportions, x still in degrees."""
    shrink = max(0.1, float(np.cos(np.radians(positions[:, 0].mean()))))
    return np.stack([positions[:, 1], positions[:, 0] / shrink], axis=1)


def graph_layout(sensors: int, edges: npt.NDArray[np.int64]) -> Points:
    """(n, 2) Connected sensors close together, whatever their number."""
    if sensors > MOST_SENSORS and len(edges):
        return pivot_layout(sensors, edges)
    return force_layout(sensors, edges)


def force_layout(sensors: int, edges: npt.NDArray[np.int64], steps: int = 120) -> Points:
    """(n, 2) A deterministic force-directed layout (Fruchterman and Reingold 1991), from a circle on."""
    angle = 2 * np.pi * np.arange(sensors) / sensors
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if not len(edges):
        return points
    near = sensors**-0.5 * 2
    for heat in np.linspace(0.2, 0.005, steps):
        apart = points[:, None] - points[None]
        distance = np.maximum(np.linalg.norm(apart, axis=-1), 1e-3)
        force = (apart * (near**2 / distance**2)[..., None]).sum(axis=1)
        pull = points[edges[:, 0]] - points[edges[:, 1]]
        pull *= np.linalg.norm(pull, axis=1, keepdims=True) / near
        np.add.at(force, edges[:, 0], -pull)
        np.add.at(force, edges[:, 1], pull)
        length = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-9)
        points = points + force / length * np.minimum(length, heat)
    return points


def pivot_layout(sensors: int, edges: npt.NDArray[np.int64]) -> Points:
    """(n, 2) A layout in which distances resemble numbers of hops: pivot multidimensional scaling (Brandes
    and Pich 2007). Each pivot is the sensor farthest from those before it."""
    ends = np.concatenate([edges, edges[:, ::-1]])
    ends = ends[np.argsort(ends[:, 0], kind="stable")]
    first = np.searchsorted(ends[:, 0], np.arange(sensors + 1))
    nearest, hops, pivot = np.full(sensors, np.inf), [], int(ends[0, 0])
    for _ in range(min(PIVOTS, sensors)):
        hops.append(_hops_from(pivot, first, ends[:, 1]))
        nearest = np.minimum(nearest, hops[-1])
        pivot = int(nearest.argmax())
    squares = np.square(np.stack(hops, axis=1))  # (n, pivots)
    centred = squares.mean(axis=0) + squares.mean(axis=1, keepdims=True) - squares - squares.mean()
    _, axes = np.linalg.eigh(centred.T @ centred)
    points: Points = centred @ axes[:, :-3:-1]
    return points / max(float(np.abs(points).max()), 1e-9)


def _hops_from(start: int, first: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> Points:
    """(n,) The number of edges from a sensor to every other; those that it does not reach are a little
    farther than all that it does. The neighbours of sensor i are other[first[i] : first[i + 1]]."""
    hops = np.full(len(first) - 1, -1.0)
    hops[start], reached, hop = 0, np.array([start]), 0
    while len(reached):
        hop += 1
        count = first[reached + 1] - first[reached]
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        around = np.unique(other[np.repeat(first[reached], count) + within])
        reached = around[hops[around] < 0]
        hops[reached] = hop
    hops[hops < 0] = hop + 1
    return hops
