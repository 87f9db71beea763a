"""The server's part in a job: the engine starts it, and `server_task` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal

from cnfgnn.federation.engine.carry.cell import CellChannel
from cnfgnn.federation.server.task import serve
from cnfgnn.federation.task import Task
from cnfgnn.process_setup import collect_garbage_regularly, make_way


class FederationController(Controller):  # type: ignore[misc]
    """Runs one task: train, evaluate or forecast."""

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__()
        self.task = Task(**task)

    def start_controller(self, fl_ctx: FLContext) -> None: ...

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def process_result_of_unknown_task(self, *args: object) -> None: ...

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        collect_garbage_regularly()
        if self.task.do == "retrain":
            make_way()
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        channel = CellChannel(fl_ctx.get_engine().get_cell().core_cell, fl_ctx.get_job_id())
        serve(kit, self.task, channel, lambda: bool(abort_signal.triggered))
