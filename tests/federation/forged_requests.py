"""A job for tests: the server sends requests to north, and site south tries to send requests to north too."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from cnfgnn.federation.engine.carry.cell import CellChannel, serve_requests
from cnfgnn.federation.engine.guard.allowed import CHANNEL, TOPIC
from cnfgnn.transports.remote.messages import Unreachable

RECEIVED = "received.txt"
ATTEMPTS = "attempts.txt"


class RequestingController(Controller):
    """Sends requests to north until a stop file exists."""

    def __init__(self, stop: str) -> None:
        super().__init__()
        self.stop = Path(stop)

    def start_controller(self, fl_ctx: FLContext) -> None: ...

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def process_result_of_unknown_task(self, *args: object) -> None: ...

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        channel = CellChannel(fl_ctx.get_engine().get_cell().core_cell, fl_ctx.get_job_id())
        while not abort_signal.triggered and not self.stop.exists():
            try:
                channel.ask("north", b"request of the server", 1.0)
            except Unreachable:
                continue
            finally:
                time.sleep(0.05)


class ForgingExecutor(Executor):
    """Records the requests that arrive; at south it also sends some, first under its own name."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.START_RUN:
            return
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        cell, job_id = fl_ctx.get_engine().get_cell().core_cell, fl_ctx.get_job_id()
        serve_requests(cell, job_id, lambda request: self.answer(kit / RECEIVED, request))
        if fl_ctx.get_identity_name() == "south":
            threading.Thread(target=self.forge, args=(cell, job_id, kit / ATTEMPTS), daemon=True).start()

    def answer(self, file: Path, request: bytes) -> bytes:
        with file.open("ab") as received:
            received.write(request + b"\n")
        return b"answered"

    def forge(self, cell: Any, job_id: str, file: Path) -> None:
        channel = CellChannel(cell, job_id)
        server = FQCN.join([FQCN.ROOT_SERVER, job_id])
        filters = cell.out_req_filter_reg.find(CHANNEL, TOPIC)  # the engine adds the site's token

        def in_the_servers_name(message: Message) -> None:
            for installed in filters:
                installed.cb(message, *installed.args, **installed.kwargs)
            message.set_header(MessageHeaderKey.ORIGIN, server)

        for request in (b"request of south", b"request of south in the server's name"):
            for _ in range(2):
                try:
                    answer = bytes(channel.ask("north", request, 0.5))
                except Unreachable as problem:
                    answer = str(problem).encode()
                with file.open("ab") as attempts:
                    attempts.write(request + b": " + answer + b"\n")
            cell.add_outgoing_request_filter(CHANNEL, TOPIC, in_the_servers_name)

    def execute(self, task: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        raise NotImplementedError
