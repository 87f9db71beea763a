"""A job for tests: the server asks north, and south, a site like any other, tries to ask north as well."""

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

from cnfgnn.federation.flare.cell import CHANNEL, TOPIC, CellChannel, serve_notes
from cnfgnn.transports.remote.messages import Unreachable

HEARD = "heard.txt"
TRIED = "tried.txt"


class AskingController(Controller):
    """Asks north until a file says stop."""

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
                channel.ask("north", b"the server asks", 1.0)
            except Unreachable:
                continue
            finally:
                time.sleep(0.05)


class ForgingExecutor(Executor):
    """Writes down the notes that are let in; at south it writes notes of its own, first honestly."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.START_RUN:
            return
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        cell, job_id = fl_ctx.get_engine().get_cell().core_cell, fl_ctx.get_job_id()
        serve_notes(cell, job_id, lambda note: self.answer(kit / HEARD, note))
        if fl_ctx.get_identity_name() == "south":
            threading.Thread(target=self.forge, args=(cell, job_id, kit / TRIED), daemon=True).start()

    def answer(self, file: Path, note: bytes) -> bytes:
        with file.open("ab") as heard:
            heard.write(note + b"\n")
        return b"answered"

    def forge(self, cell: Any, job_id: str, file: Path) -> None:
        channel = CellChannel(cell, job_id)
        server = FQCN.join([FQCN.ROOT_SERVER, job_id])
        usual = cell.out_req_filter_reg.find(CHANNEL, TOPIC)  # the engine adds the site's token

        def in_the_servers_name(message: Message) -> None:
            for one in usual:
                one.cb(message, *one.args, **one.kwargs)
            message.set_header(MessageHeaderKey.ORIGIN, server)

        for note in (b"south asks", b"south asks in the server's name"):
            for _ in range(2):
                try:
                    said = bytes(channel.ask("north", note, 0.5))
                except Unreachable as problem:
                    said = str(problem).encode()
                with file.open("ab") as tried:
                    tried.write(note + b": " + said + b"\n")
            cell.add_outgoing_request_filter(CHANNEL, TOPIC, in_the_servers_name)

    def execute(self, task: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        raise NotImplementedError
