"""A data set: readings, and the graph of their sensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings
from cnfgnn.errors import DataError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Readings of n sensors and a graph whose node i is the sensor readings.ids[i]."""

    name: str
    readings: Readings
    graph: Graph

    def __post_init__(self) -> None:
        if self.graph.nodes != len(self.readings.ids):
            raise DataError(
                self.name,
                f"the graph has {self.graph.nodes} nodes, but there are {len(self.readings.ids)} sensors",
            )

    def select(self, ids: Sequence[str]) -> Dataset:
        """Some of the sensors, with the edges among them."""
        place = {sensor: i for i, sensor in enumerate(self.readings.ids)}
        readings = self.readings.select(ids)
        return Dataset(self.name, readings, self.graph.subgraph(np.array([place[i] for i in ids])))
