"""Sensors that join a federation while it is live: what their site tells about them, and where they are in
the server's graph.

The site's owner writes a table for each of them into local/site.toml, with a position or with edges. That is
all that the server is told. A wrong table can only affect the edges of its own sensor: those of the run stay
as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cnfgnn.config.declarations import is_number
from cnfgnn.data.files.adjacency import LARGEST, Kind, kernel_width, read_edges
from cnfgnn.data.files.text import shown
from cnfgnn.data.graph import Floats, Graph, Ints, Neighbourhood
from cnfgnn.errors import ConfigError

KEYS = ("latitude", "longitude", "from", "to")
LONGEST_ID = 200  # characters
MOST_NEW = 200  # new sensors of a site; more need new kits
MOST_BYTES = 1 << 15  # of everything that a site tells about them: it is part of a small message


@dataclass(frozen=True)
class NewSensor:
    """A sensor that the project does not know.

    position  latitude and longitude in degrees; None if it is not told
    incoming  the sensors that it receives from, each with a weight, or with a distance if the project's
              edges have distances
    outgoing  the sensors that receive from it
    """

    id: str
    position: tuple[float, float] | None = None
    incoming: Mapping[str, float] = field(default_factory=dict)
    outgoing: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, id: str, table: Any) -> NewSensor:
        """From its table, in a file or in a message; ConfigError names the key that is wrong."""
        if not isinstance(table, dict):
            raise ConfigError("", "it must be a table with a position or edges", KEYS)
        for key in table:
            if key not in KEYS:
                raise ConfigError(str(key)[:40], "unknown key", KEYS)
        if not id or len(id) > LONGEST_ID or not id.isprintable():
            raise ConfigError("", f"a sensor's id has 1 to {LONGEST_ID} printable characters")
        return cls(id, _position(table), _edges(table, "from"), _edges(table, "to"))

    def told(self) -> dict[str, Any]:
        """What the server is told, besides the id."""
        place = {} if self.position is None else dict(zip(KEYS[:2], self.position, strict=True))
        edges = {"from": dict(self.incoming), "to": dict(self.outgoing)}
        return place | {key: table for key, table in edges.items() if table}


def new_sensors(tables: Any, known: Sequence[str]) -> tuple[NewSensor, ...]:
    """The sensors of the tables `[new_sensors.ID]`, without those that the kit lists by now."""
    if not isinstance(tables, dict):
        raise ConfigError("new_sensors", "there must be a table for each sensor, [new_sensors.ID]")
    if len(tables) > MOST_NEW:
        raise ConfigError("new_sensors", f"there are more than {MOST_NEW}: make new kits")
    found = []
    for id, table in tables.items():
        try:
            found.append(NewSensor.of(id, table))
        except ConfigError as error:
            raise ConfigError(f"new_sensors.{id}.{error.key}".rstrip("."), error.problem) from None
    new = tuple(sensor for sensor in found if sensor.id not in known)
    if len(json.dumps({sensor.id: sensor.told() for sensor in new})) > MOST_BYTES:
        raise ConfigError("new_sensors", f"they take more than {MOST_BYTES} bytes: make new kits")
    return new


def _position(table: Mapping[str, Any]) -> tuple[float, float] | None:
    if "latitude" not in table and "longitude" not in table:
        return None
    return _number(table, "latitude", -90, 90), _number(table, "longitude", -180, 180)


def _edges(table: Mapping[str, Any], key: str) -> dict[str, float]:
    edges = table.get(key, {})
    if not isinstance(edges, dict):
        raise ConfigError(key, "it must be a table of sensors, each with a weight or a distance")
    return {str(sensor): _number(edges, sensor, 0, LARGEST) for sensor in edges}


def _number(table: Mapping[str, Any], key: str, least: float, most: float) -> float:
    value = table.get(key)
    if not is_number(value) or not least <= value <= most:
        raise ConfigError(str(key)[:40], f"it must be a number from {least:g} to {most:g}")
    return float(value)


class GrowingGraph:
    """The graph of a run, and the sensors that have joined it since.

    A new sensor with edges has those, by the rule of the project's edges. Otherwise, if the project connects
    neighbours by their positions, its position decides. With neither it is alone.
    """

    def __init__(
        self, ids: Sequence[str], positions: Floats, graph: Graph, kind: Kind | None, width: float
    ) -> None:
        """`kind` is that of the project's edges, None if positions decide; `width` is for distances."""
        self.ids, self.graph, self.kind, self.width = list(ids), graph, kind, width
        self.neighbourhood = Neighbourhood.of(positions) if kind is None else None
        self.places = list(range(len(self.ids)))  # the nodes whose positions the neighbourhood has

    @classmethod
    def of(cls, ids: Sequence[str], positions: Floats, graph: Graph, edges: Path | None) -> GrowingGraph:
        if edges is None:
            return cls(ids, positions, graph, None, 1.0)
        listed, kind = read_edges(edges)
        among = set(ids)
        lengths = [edge.value for edge in listed if {edge.sender, edge.receiver} <= among]
        return cls(ids, positions, graph, kind, kernel_width(np.array(lengths)))

    def problem_with(self, sensor: NewSensor) -> str:
        """Why a sensor cannot join; empty if it can."""
        if sensor.id in self.ids:
            return f"the sensor {shown(sensor.id)} is known already: choose another id"
        for other in (*sensor.incoming, *sensor.outgoing):
            if other not in self.ids and other != sensor.id:
                return f"the new sensor {shown(sensor.id)} has an edge with {shown(other)}, which is unknown"
        return ""

    def add(self, sensor: NewSensor) -> None:
        """Let a sensor join, with a self-loop of weight 1 as every sensor has."""
        node = len(self.ids)
        senders, receivers, weights = self._own_edges(sensor, node)
        if sensor.position is not None and self.neighbourhood is not None:
            if not sensor.incoming and not sensor.outgoing:
                senders, receivers, weights = self._nearest_edges(sensor.position, node)
            self._locate(sensor.position, node)
        loop = np.array([node])
        self.ids.append(sensor.id)
        self.graph = self.graph.extended(
            node + 1,
            np.concatenate([senders, loop]),
            np.concatenate([receivers, loop]),
            np.concatenate([weights, np.ones(1)]),
        )

    def _own_edges(self, sensor: NewSensor, node: int) -> tuple[Ints, Ints, Floats]:
        row = {id: k for k, id in enumerate(self.ids)}
        edges = [(row[id], node, value) for id, value in sensor.incoming.items() if id in row]
        edges += [(node, row[id], value) for id, value in sensor.outgoing.items() if id in row]
        values = np.array([value for _, _, value in edges])
        weights = np.exp(-np.square(values / self.width)) if self.kind == "distance" else values
        kept = [k for k in range(len(edges)) if weights[k] > 0]
        ends = np.array([edges[k][:2] for k in kept], dtype=np.int64).reshape(-1, 2)
        return ends[:, 0], ends[:, 1], weights[kept].astype(np.float64)

    def _nearest_edges(self, position: tuple[float, float], node: int) -> tuple[Ints, Ints, Floats]:
        assert self.neighbourhood is not None
        near, of_near, reached, of_reached = self.neighbourhood.edges_of(np.array(position))
        places = np.array(self.places)
        senders = np.concatenate([places[near], np.full(len(reached), node)])
        receivers = np.concatenate([np.full(len(near), node), places[reached]])
        return senders, receivers, np.concatenate([of_near, of_reached])

    def _locate(self, position: tuple[float, float], node: int) -> None:
        """Let sensors that join later be neighbours of this one."""
        assert self.neighbourhood is not None
        self.neighbourhood = self.neighbourhood.joined(np.array(position))
        self.places.append(node)
