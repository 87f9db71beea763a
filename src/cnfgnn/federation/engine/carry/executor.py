"""A site's part in a job of the engine: it passes requests on to the site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from cnfgnn.federation.engine.carry.cell import serve_requests
from cnfgnn.federation.engine.carry.control import connection_of_job
from cnfgnn.federation.engine.carry.relay import Relay
from cnfgnn.process_setup import collect_garbage_regularly


class SiteExecutor(Executor):  # type: ignore[misc]
    """Exists as long as the job. Requests arrive as messages; the engine's own tasks are not used.

    task  what the site is told of the task
    """

    def __init__(self, task: Mapping[str, Any]) -> None:
        super().__init__()
        self.task = dict(task)
        self.relay: Relay | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            collect_garbage_regularly()
            # The engine would ask the server for tasks of its own twice a second. There are none, and a site
            # that was restarted since the job began would be refused each time, and log it.
            fl_ctx.get_engine().get_task_assignment = no_task
            job = fl_ctx.get_job_id()
            self.relay = Relay(connection_of_job(), {**self.task, "id": job})
            serve_requests(fl_ctx.get_engine().get_cell().core_cell, job, self.relay.answer)
        elif event_type == EventType.END_RUN and self.relay is not None:
            self.relay.end()

    def execute(self, task: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        raise NotImplementedError("requests arrive as messages, not as engine tasks")


def no_task(*args: object) -> None:
    """What the engine is told when it asks for its next task."""
