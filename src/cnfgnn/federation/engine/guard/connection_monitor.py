"""Part of a site's processes: guards what other parties send them.

In the parent process it also sees that the site logs in, asks the server about it, and tells the owner.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.f3.cellnet.defs import ReturnCode

from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.engine.guard import handshake, message_checks, site_commands
from cnfgnn.federation.engine.guard.handshake import (
    SITE_PROCESS,
    ServerAnswer,
    connection_problem,
    copied_kit_warning,
)
from cnfgnn.federation.engine.repairs.shared_sockets import share_sockets
from cnfgnn.federation.kits.engine_files import CONNECTION_FILE, KNOWN_AS
from cnfgnn.files import write_whole

ASK_INTERVAL = 60.0  # seconds
ASK_AGAIN_AFTER = 10.0  # seconds, while something is wrong or the server has not heard this process yet
LOGIN_UNANSWERED = 75  # exit code
UNANSWERED = f"failed to challenge server: {ReturnCode.TIMEOUT}"  # how the engine says that nobody answered
SAME_PROBLEM = 60  # two problems that agree in this many characters are the same: times and counts follow


class ConnectionMonitor(FLComponent):  # type: ignore[misc]
    """Starts before the site has joined, so that a site that is refused learns why."""

    def __init__(self) -> None:
        super().__init__()
        share_sockets()
        message_checks.install()
        site_commands.install()
        self.process = os.environ.get(KNOWN_AS) or secrets.token_hex(8)
        self.ended = threading.Event()
        self.logged_problem = ""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.BEFORE_CLIENT_REGISTER:
            fl_ctx.set_prop(SITE_PROCESS, self.process, private=False, sticky=False)
            self._log_in_again(fl_ctx.get_prop(FLContextKey.SITE_OBJ).communicator)
            kit = Path(fl_ctx.get_engine().args.workspace)
            threading.Thread(target=self._keep_asking, args=[kit], daemon=True).start()
        elif event_type == EventType.BEFORE_CLIENT_HEARTBEAT:
            fl_ctx.set_prop(SITE_PROCESS, self.process, private=False, sticky=False)
        elif event_type == EventType.SYSTEM_END:
            self.ended.set()

    def _log_in_again(self, communicator: Any) -> None:
        """End the process if the server does not answer its login: the site starts it again.

        A server that has just started, or is busy, may lose the first message of a connection, and then it
        answers none of them.
        """
        log_in = communicator.client_registration

        def client_registration(*args: Any) -> Any:
            try:
                return log_in(*args)
            except FLCommunicationError as error:
                if UNANSWERED in str(error):
                    self.logger.error("the server does not answer the login of this site: beginning again")
                    os._exit(LOGIN_UNANSWERED)
                raise

        communicator.client_registration = client_registration

    def _keep_asking(self, kit: Path) -> None:
        self._record(kit, None, "this site is not connected yet")
        while True:
            answer, problem = None, ""
            try:
                answer = handshake.ask_server(kit, self.process)
                problem = connection_problem(answer) or copied_kit_warning(answer.connection)
            except CnfgnnError as error:
                problem = str(error)
            except Exception as error:  # whatever it is, the next attempt may succeed
                problem = f"{type(error).__name__}: {error}"
            self._log(problem)
            self._record(kit, answer, problem)
            healthy = answer is not None and not problem and answer.connection.get("heard") is not None
            if self.ended.wait(ASK_INTERVAL if healthy else ASK_AGAIN_AFTER):
                return

    def _record(self, workspace: Path, answer: ServerAnswer | None, problem: str) -> None:
        """Write down for the owner how the server sees this site's connection."""
        found: dict[str, Any] = {"time": time.time(), "process": self.process, "problem": problem}
        if answer is not None:
            found |= {"address": answer.address, "ahead": answer.clock_ahead}
            found["connection"] = dict(answer.connection)
        with suppress(CnfgnnError):  # a full disk does not end a connection
            write_whole(workspace / CONNECTION_FILE, json.dumps(found).encode())

    def _log(self, problem: str) -> None:
        """Log a problem once, and once that it is over; errors also appear on the console."""
        if problem and problem[:SAME_PROBLEM] != self.logged_problem[:SAME_PROBLEM]:
            self.logger.error(problem)
        elif self.logged_problem and not problem:
            self.logger.info("the connection to the server works again")
        self.logged_problem = problem
