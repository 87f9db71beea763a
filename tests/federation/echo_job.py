"""A job for tests: the server keeps asking every site for its process id until a stop file exists."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message

from cnfgnn.federation.engine.guard.allowed import CHANNEL, TOPIC


class EchoController(Controller):
    """Logs a line per round: the process id of each site, or the return code if it did not answer."""

    def __init__(self, log: str, sites: list[str]) -> None:
        super().__init__()
        self.log, self.sites = Path(log), sites

    def start_controller(self, fl_ctx: FLContext) -> None: ...

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def process_result_of_unknown_task(self, *args: object) -> None: ...

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        cell = fl_ctx.get_engine().get_cell().core_cell
        stop = self.log.with_suffix(".stop")
        while not abort_signal.triggered and not stop.exists():
            answers = {}
            for site in self.sites:
                target = FQCN.join([site, fl_ctx.get_job_id()])
                reply = cell.send_request(
                    CHANNEL, TOPIC, target, Message(payload=b"who"), timeout=1.0, optional=True
                )
                code = reply.get_header(MessageHeaderKey.RETURN_CODE)
                answers[site] = int(bytes(reply.payload)) if code == ReturnCode.OK else code
            with self.log.open("a") as file:
                file.write(json.dumps(answers) + "\n")
            time.sleep(0.05)


class EchoExecutor(Executor):
    """Answers with its process id."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            cell = fl_ctx.get_engine().get_cell().core_cell
            cell.register_request_cb(channel=CHANNEL, topic=TOPIC, cb=self.answer)

    def answer(self, message: Message) -> Message:
        return make_reply(ReturnCode.OK, "", str(os.getpid()).encode())

    def execute(self, task: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        raise NotImplementedError
