"""A job that measures communication only: payloads go to the sites and come back, and nothing is computed."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from cnfgnn.federation.engine.carry.cell import CellChannel, serve_requests
from cnfgnn.transports.remote.endpoint import Endpoint, Terms, _Work
from cnfgnn.transports.remote.link import Link, Lost
from cnfgnn.transports.remote.messages import Unreachable

TERMS = Terms(0, 300, 1000, "fp32", "echo")
SECONDS = 3.0  # spent on each size, with at least three exchanges


class EchoServer(Controller):
    """Write a file that maps the bytes of a payload to the median seconds of an exchange with all sites."""

    def __init__(self, file: str, sites: list[str], sizes: list[int]) -> None:
        super().__init__()
        self.file, self.sites, self.sizes = Path(file), sites, sizes

    def start_controller(self, fl_ctx: FLContext) -> None: ...

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def process_result_of_unknown_task(self, *args: object) -> None: ...

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        channel = CellChannel(fl_ctx.get_engine().get_cell().core_cell, fl_ctx.get_job_id())
        links = [Link(site, channel, "echo") for site in self.sites]
        with ThreadPoolExecutor(len(links)) as pool:
            for link in links:
                _until_there(link, abort_signal)
            measured = {size: _measured(pool, links, size) for size in self.sizes}
        aside = self.file.with_suffix(".partial")
        aside.write_text(json.dumps(measured))
        aside.rename(self.file)


def _until_there(link: Link, abort_signal: Signal) -> None:
    while not abort_signal.triggered:
        try:
            link.carry(b"there?", 100, **TERMS._asdict())
            return
        except (Unreachable, Lost):
            time.sleep(0.1)


def _measured(pool: ThreadPoolExecutor, links: list[Link], size: int) -> float:
    seconds: list[float] = []
    payloads = [bytes([k]) * size for k, _ in enumerate(links)]
    while len(seconds) < 4 or (sum(seconds) < SECONDS and len(seconds) < 200):
        begun = time.perf_counter()
        list(
            pool.map(
                lambda one: one[0].carry(one[1], size, **TERMS._asdict()), zip(links, payloads, strict=True)
            )
        )
        seconds.append(time.perf_counter() - begun)
    return sorted(seconds[1:])[len(seconds[1:]) // 2]


class EchoEndpoint(Endpoint):
    """Send every payload back."""

    def _carry_out(self, work: _Work, terms: Terms) -> None:
        work.answer = bytes(work.request)
        work.done.set()


class EchoSite(Executor):
    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            endpoint = EchoEndpoint(self.joined, dict)
            serve_requests(fl_ctx.get_engine().get_cell().core_cell, fl_ctx.get_job_id(), endpoint.answer)

    def joined(self, terms: Terms) -> Any:
        raise NotImplementedError

    def execute(self, task: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        raise NotImplementedError
