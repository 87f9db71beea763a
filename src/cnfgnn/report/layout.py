"""Where sensors stand on a drawing: where they are, or, if nobody knows, where their edges pull them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.float64]
MOST_TO_PULL = 1500  # sensors: all pairs push each other


def on_the_map(positions: npt.NDArray[np.float64]) -> Places:
    """(n, 2) latitude and longitude -> (n, 2) x and y with true proportions, x still in degrees."""
    shrink = max(0.1, float(np.cos(np.radians(positions[:, 0].mean()))))
    return np.stack([positions[:, 1], positions[:, 0] / shrink], axis=1)


def by_edges(sensors: int, edges: npt.NDArray[np.int64], turns: int = 120) -> Places:
    """(n, 2): edges pull, sensors push (Fruchterman and Reingold 1991), from a circle; always the same."""
    angle = 2 * np.pi * np.arange(sensors) / sensors
    places = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if not len(edges) or sensors > MOST_TO_PULL:
        return places
    near = sensors**-0.5 * 2
    for heat in np.linspace(0.2, 0.005, turns):
        apart = places[:, None] - places[None]
        distance = np.maximum(np.linalg.norm(apart, axis=-1), 1e-3)
        force = (apart * (near**2 / distance**2)[..., None]).sum(axis=1)
        pull = places[edges[:, 0]] - places[edges[:, 1]]
        pull *= np.linalg.norm(pull, axis=1, keepdims=True) / near
        np.add.at(force, edges[:, 0], -pull)
        np.add.at(force, edges[:, 1], pull)
        length = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-9)
        places = places + force / length * np.minimum(length, heat)
    return places
