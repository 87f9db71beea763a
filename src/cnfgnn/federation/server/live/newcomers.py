"""New sensors in a live federation, at the server: they get rows and edges, and their site is prepared again
beside the steps of the others."""

from __future__ import annotations

import logging
from typing import Any

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.errors import ConfigError
from cnfgnn.federation.newcomers import MOST_NEW, GrowingGraph, NewSensor
from cnfgnn.federation.server.task_context import TaskContext, strategy_of
from cnfgnn.models.graphnet import Edges
from cnfgnn.transports.remote.live_transport import LiveTransport
from cnfgnn.transports.remote.messages import legible
from cnfgnn.transports.remote.transport import Site

log = logging.getLogger(__name__)


class Newcomers:
    """The sensors that joined since the task began.

    joined  their ids, by site
    """

    def __init__(self, context: TaskContext, experiment: Experiment, transport: LiveTransport) -> None:
        self.context, self.transport = context, transport
        self.strategy, self.method = strategy_of(experiment), experiment.method.name
        self.reverses = experiment.config.graph.direction != "files"
        network = (context.ids, context.positions, context.graph)
        self.growing = GrowingGraph.of(*network, context.project.graph.edges)
        self.joined: dict[str, list[str]] = {}
        self._seen: dict[str, Any] = {}  # what each site told when it was last looked at
        self._refused: set[str] = set()

    def welcome(self) -> None:
        """Take in the sensors that sites have told of since the last look."""
        for site in self.transport.parties:
            told = self.transport.told.get(site.name)
            if not told or told == self._seen.get(site.name):
                continue
            if self.transport.is_being_prepared(site):
                continue  # look again: it does not know rows that are added now
            accepted: list[str] = []
            for sensor in self._checked(site, told):
                if sensor.id not in site.added and not self._refuses(site, self._problem_with(sensor)):
                    self.growing.add(sensor)
                    accepted.append(sensor.id)
            if accepted:
                self._add(site, accepted)
            self._seen[site.name] = told

    def _checked(self, site: Site, told: object) -> list[NewSensor]:
        """The new sensors that a site tells of; none if one of them is not as it must be."""
        try:
            if not isinstance(told, dict) or len(told) > MOST_NEW:
                raise ConfigError("new_sensors", "it is not a table of sensors")
            return [NewSensor.of(id, table) for id, table in told.items()]
        except ConfigError as error:
            self._refuses(site, f"its new sensors cannot be read ({legible(error)})")
            return []

    def _problem_with(self, sensor: NewSensor) -> str:
        if self.strategy.theta_bar is None:
            return (
                f"the new sensor {legible(sensor.id)} has no model: {self.method} trains one for each sensor"
            )
        return legible(self.growing.problem_with(sensor))

    def _refuses(self, site: Site, problem: str) -> bool:
        """Tell the operator once why a sensor is not taken in."""
        if problem and (sentence := f"site {site.name}: {problem}") not in self._refused:
            self._refused.add(sentence)
            self.context.warn([sentence])
        return bool(problem)

    def _add(self, site: Site, ids: list[str]) -> None:
        """Count on these sensors, which are in the graph, from the next step on."""
        self.transport.add(site, ids)
        graph = self.growing.graph.reversed() if self.reverses else self.growing.graph
        weights = self.strategy.whole_graph.weights
        edges = Edges.of(graph, weights.device, weights.dtype)
        self.strategy.graph = self.strategy.whole_graph = edges
        self.strategy.everyone.grow(site.rows)
        self.joined.setdefault(site.name, []).extend(ids)
        log.warning("site %s: new sensors %s", site.name, ", ".join(map(legible, ids)))
