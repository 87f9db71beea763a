"""A live federation in this process: the real loop, protocol, services and HTTP, without the engine."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.federation.server.live import task as live_task
from cnfgnn.federation.server.live.task import GONE, NEVER_THERE
from cnfgnn.federation.server.task import serve
from cnfgnn.federation.site.copies import SiteCopies
from cnfgnn.federation.site.live import predictor as live_predictor
from cnfgnn.federation.site.live.nodes import LiveSiteNodes
from cnfgnn.federation.site.settings import read_site
from cnfgnn.federation.site_task import LiveTerms
from cnfgnn.federation.task import Task
from cnfgnn.live.options import LIVE as LIVE_FOLDER
from cnfgnn.live.start import ServiceProcess
from cnfgnn.transports.remote import live_transport
from cnfgnn.transports.remote.endpoint import Endpoint
from cnfgnn.transports.remote.messages import unpack
from tests.federation.in_memory_federation import InMemoryFederation
from tests.live.small_service import Client
from tests.waiting import wait_for

ABSENT = (GONE, NEVER_THERE)
LIVE = {"deadline": 30.0, "feed": True, "speed": 60.0}


class LiveFederation(InMemoryFederation):
    """The sites of a project, whose files have the first rows of the data; the others are sent to them live.

    row   the next row that is sent
    said  what each site has answered, by the step that it was about and by the request
    """

    def __init__(self, folder: Path, data: Dataset, known: int, **more: Any) -> None:
        self.data, self.row = data, known
        super().__init__(folder, replace(data, readings=first_rows(data.readings, known)), **more)
        for name in self.sites:
            let_play(self.kits[name])
        self.nodes: dict[str, LiveSiteNodes] = {}
        self.turn: dict[str, bytes] = {}  # the last turn that each site was asked for
        self.said: dict[str, dict[object, object]] = {name: {} for name in self.sites}
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
    def live(self) -> Iterator[None]:
        """Sites and server are live inside."""
        with self.sites_are_live(), self.server_is_live():
            for name in self.sites:
                self.wait_until_joined(name)
            yield

    def wait_until_joined(self, name: str) -> None:
        """Wait until the server counts on a site, and the site knows it."""

        def joined() -> bool:
            predictor, told = self.nodes[name].predictor, (self.live_status.get("sites") or {}).get(name, {})
            return predictor is not None and predictor.joined and told.get("quality") not in (None, *ABSENT)

        wait_for(joined, f"{name} to join")

    @contextmanager
    def sites_are_live(self) -> Iterator[None]:
        self.is_live = True
        for name in self.sites:
            self.restart(name)
        try:
            yield
        finally:
            for name in self.sites:
                self.end_site(name)
            self.is_live = False

    @contextmanager
    def server_is_live(self, dies: bool = False, run: str = "one") -> Iterator[None]:
        """The server's task runs inside; it is stopped at the end, or the server `dies` without a word."""
        stop = threading.Event()
        before = self.status.get("began")
        patience = pytest.MonkeyPatch()  # on a busy machine, seconds pass between the rows of two sites
        patience.setattr(live_task, "SLACK", 4.0)
        patience.setattr(live_transport, "LEFT_OUT_AFTER", 15.0)
        patience.setattr(live_predictor, "GRACE", 30.0)
        patience.setattr(live_predictor, "TOLD_WITHIN", 5.0)
        patience.setattr(live_predictor, "SILENT_AFTER", 12.0)
        task = Task("live", run, wait=20.0, live=LIVE)
        thread = threading.Thread(target=serve, args=[self.server, task, self, stop.is_set])
        thread.start()
        try:
            wait_for(lambda: self.status.get("began") != before and self.live_status, "the task to begin")
            yield
        finally:
            before_end, self.unreachable = self.unreachable, set(self.sites) if dies else self.unreachable
            stop.set()
            thread.join(240)
            self.unreachable = before_end
            patience.undo()
        assert not thread.is_alive()
        assert self.status["state"] == "stopped", self.status["problem"]

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        answer = super().ask(site, request, timeout)
        asked, note = unpack(request), unpack(answer)
        if asked.kind == "run" and note.kind == "done":
            calls = bytes(asked.payload)
            if b'"turn"' in calls:
                self.turn[site] = calls
            self.said[site][(self.turn.get(site, b""), calls)] = bytes(note.payload)
        elif asked.kind == "due" and note.fields["step"]:
            self.said[site][("due", note.fields["step"])] = dict(note.fields)
        return answer

    def client(self, name: str) -> Client:
        def process() -> ServiceProcess | None:
            service = self.nodes[name].service
            return None if service is None else service.process

        found = wait_for(process, f"the service of {name}")
        return Client(found.address, found.token)

    def send(self, *names: str) -> str:
        """Send the next row of readings to these sites, or to all; returns its time."""
        row, self.row = self.row, self.row + 1
        for name in names or self.sites:
            columns = self.sites[name]
            body = [row_of(self.data, row, columns), *rows_of_variables(self.data, row, columns)]
            answer = self.client(name).post(body)
            assert answer.status == 200, answer.body
        return str(self.data.readings.times[row])

    def forecasts(self, step: str, *names: str) -> dict[str, Mapping[str, Any]]:
        """The forecasts of these sites, or of all, once they have that of this step."""
        return {name: self.client(name).forecast_after(step) for name in names or self.sites}

    def next_forecasts(self, *names: str) -> dict[str, set[str]]:
        """Send the next row; the qualities of the forecasts after it, by site."""
        found = self.forecasts(self.send(*names), *names)
        return {name: qualities(forecast) for name, forecast in found.items()}

    def copy_everything(self) -> None:
        """Make the blurred copies of all rows, also of those that are still to be sent."""
        for name, columns in self.sites.items():
            plan = read_site(self.kits[name])
            readings = self.data.readings.select([self.data.readings.ids[k] for k in columns])
            copies = SiteCopies(readings, plan, self.kits[name])
            copies.blur(readings, plan.blur)
            for one in readings.others:
                if sigma := plan.input_blurs[one.name]:
                    copies.blur(one.readings, sigma, one.name)

    def begin_again(self, data: Dataset, known: int) -> None:
        """Forget what was sent, and go on with other readings after the first rows."""
        self.data, self.row, self.said = data, known, {name: {} for name in self.sites}
        for name in self.sites:
            shutil.rmtree(self.kits[name] / LIVE_FOLDER, ignore_errors=True)

    @property
    def live_status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.status.get("live") or {}
        return found


def let_play(kit: Path) -> None:
    """Have a site follow a recording, and serve its forecasts on any free port."""
    file = kit / "local" / "site.toml"
    file.write_text(file.read_text() + '\n[live]\nport = 0\nclock = "feed"\n')


def row_of(data: Dataset, row: int, columns: Any) -> dict[str, Any]:
    """The readings of some sensors at one time, as they are sent to a service."""
    readings = data.readings
    values = {
        readings.ids[k]: float(readings.values[row, k]) for k in columns if not readings.missing[row, k]
    }
    return {"time": str(readings.times[row]), "values": values}


def rows_of_variables(data: Dataset, row: int, columns: Any) -> list[dict[str, Any]]:
    """The other variables of some sensors at the time of a row of readings."""
    found = []
    for one in data.readings.others:
        if not one.known_ahead:
            values = replace(data, readings=one.readings)
            found.append({**row_of(values, row, columns), "variable": one.name})
    return found


def first_rows(readings: Readings, count: int) -> Readings:
    """The first rows of readings, and what their variables were by then; covariates are known ahead."""
    others = tuple(
        one if one.known_ahead else replace(one, readings=rows_of(one.readings, slice(0, count)))
        for one in readings.others
    )
    return replace(rows_of(readings, slice(0, count)), others=others)


def qualities(forecast: Mapping[str, Any]) -> set[str]:
    return {told["quality"] for told in forecast["sensors"].values()}
