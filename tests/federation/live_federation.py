"""A live federation in this process: the real loop, protocol, services and HTTP, without the engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cnfgnn.data.dataset import Dataset
from cnfgnn.federation.live_site import LiveSiteNodes, LiveTerms
from cnfgnn.federation.server_task import Task, serve
from cnfgnn.transports.remote.endpoint import Endpoint
from tests.federation.in_memory_federation import SITES, InMemoryFederation
from tests.live.small_service import Client, wait_for

LIVE = {"deadline": 60.0, "feed": True, "speed": 60.0}  # a missing site holds up a step for a second or two


class LiveFederation(InMemoryFederation):
    """The sites of a project while they are live; `rows` are those that the sites' files do not have yet."""

    def __init__(self, folder: Path, data: Dataset, known: int, **more: Any) -> None:
        from dataclasses import replace

        from cnfgnn.live.engine import rows_of

        self.data = data
        begun = replace(data, readings=rows_of(data.readings, slice(0, known)))
        super().__init__(folder, begun, **more)
        for name in self.sites:
            file = self.kits[name] / "local" / "site.toml"
            file.write_text(file.read_text() + "\n[live]\nport = 0\n")
        self.nodes: dict[str, LiveSiteNodes] = {}
        self.is_live = False

    def restart(self, name: str) -> None:
        if not self.is_live:
            super().restart(name)
            return
        self.end_site(name)
        nodes = self.nodes[name] = LiveSiteNodes(self.kits[name], LiveTerms.of(LIVE))
        self.ends[name] = Endpoint(nodes.join, nodes.describe, due=nodes.due)

    def end_site(self, name: str) -> None:
        if name in self.nodes:
            self.nodes.pop(name).close()

    @contextmanager
    def live(self, run: str = "one") -> Iterator[None]:
        self.is_live, stop = True, threading.Event()
        self.stop = stop.is_set
        for name in self.sites:
            self.restart(name)
        task = Task("live", run, token="live", wait=20.0, live=LIVE)
        thread = threading.Thread(target=serve, args=[self.server, task, self, stop.is_set])
        thread.start()
        try:
            wait_for(lambda: self.status.get("live"), "the task to begin")
            yield
        finally:
            stop.set()
            thread.join(60)
            for name in self.sites:
                self.end_site(name)
            self.is_live, self.stop = False, lambda: False
        assert not thread.is_alive()

    def client(self, name: str) -> Client:
        def address() -> str | None:
            service = self.nodes[name].service
            process = None if service is None else service.process
            return None if process is None else process.address

        return Client(wait_for(address, f"the service of {name}"))

    def send(self, row: int, *names: str) -> str:
        """Send a row of readings to these sites, or to all; returns its time."""
        readings = self.data.readings
        for name in names or self.sites:
            values = {readings.ids[k]: float(readings.values[row, k]) for k in self.sites[name]}
            answer = self.client(name).post({"time": str(readings.times[row]), "values": values})
            assert answer.status == 200, answer.body
        return str(readings.times[row])

    def forecasts(self, step: str, *names: str) -> dict[str, Mapping[str, Any]]:
        """The forecasts of these sites, or of all, once they have that of this step."""
        return {name: self.client(name).forecast_after(step) for name in names or self.sites}

    @property
    def live_status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.status.get("live") or {}
        return found


def qualities(forecast: Mapping[str, Any]) -> set[str]:
    return {told["quality"] for told in forecast["sensors"].values()}


def as_json(forecast: Mapping[str, Any]) -> str:
    return json.dumps(forecast)


__all__ = ["LIVE", "SITES", "LiveFederation", "qualities"]
