"""Part of a site's parent process: asks the server how it sees this site, and tells the owner."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext

from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.flare import handshake
from cnfgnn.federation.flare.admission import SITE_PROCESS
from cnfgnn.federation.site_status import SiteStatus, copy_problem, standing_problem

ASKS_EVERY = 60.0  # seconds
ASKS_AGAIN_AFTER = 10.0  # while something is wrong or the server has not heard this process yet
ALIKE = 60  # characters by which two problems are the same one: times and counts follow


class ConnectionMonitor(FLComponent):  # type: ignore[misc]
    """Begins before the site has joined: one that is not let in must learn why."""

    def __init__(self) -> None:
        super().__init__()
        self.process = secrets.token_hex(8)
        self.ended = threading.Event()
        self.said = ""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.BEFORE_CLIENT_REGISTER:
            fl_ctx.set_prop(SITE_PROCESS, self.process, private=False, sticky=False)
            kit = Path(fl_ctx.get_engine().args.workspace)
            threading.Thread(target=self._keep_asking, args=[kit], daemon=True).start()
        elif event_type == EventType.BEFORE_CLIENT_HEARTBEAT:
            fl_ctx.set_prop(SITE_PROCESS, self.process, private=False, sticky=False)
        elif event_type == EventType.SYSTEM_END:
            self.ended.set()

    def _keep_asking(self, kit: Path) -> None:
        status = SiteStatus(kit)
        status.note_server(self.process, None, "it is not connected yet")
        while True:
            answer, problem = None, ""
            try:
                answer = handshake.ask(kit, self.process)
                problem = standing_problem(answer) or copy_problem(answer.standing)
            except CnfgnnError as error:
                problem = str(error)
            except Exception as error:  # whatever it is, the next question may be answered
                problem = f"{type(error).__name__}: {error}"
            self._tell(problem)
            status.note_server(self.process, answer, problem)
            well = answer is not None and not problem and answer.standing.get("heard") is not None
            if self.ended.wait(ASKS_EVERY if well else ASKS_AGAIN_AFTER):
                return

    def _tell(self, problem: str) -> None:
        """Say once what is wrong, and once that it is over; errors are on the console too."""
        if problem and problem[:ALIKE] != self.said[:ALIKE]:
            self.logger.error(problem)
        elif self.said and not problem:
            self.logger.info("the server hears this site again")
        self.said = problem
