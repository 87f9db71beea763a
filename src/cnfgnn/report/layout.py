"""Where to draw sensors: at their positions or, if those are unknown, by a force-directed layout."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
MOST_SENSORS = 1500  # for the force-directed layout, which compares all pairs


def map_points(positions: npt.NDArray[np.float64]) -> Points:
    """(n, 2) latitude and longitude -> (n, 2) x and y with true proportions, x still in degrees."""
    shrink = max(0.1, float(np.cos(np.radians(positions[:, 0].mean()))))
    return np.stack([positions[:, 1], positions[:, 0] / shrink], axis=1)


def force_layout(sensors: int, edges: npt.NDArray[np.int64], steps: int = 120) -> Points:
    """(n, 2) A deterministic force-directed layout (Fruchterman and Reingold 1991), from a circle on."""
    angle = 2 * np.pi * np.arange(sensors) / sensors
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if not len(edges) or sensors > MOST_SENSORS:
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
