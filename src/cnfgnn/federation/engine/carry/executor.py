"""A site's part in a job: it holds the site's nodes in memory and answers the server's requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.engine.carry.cell import serve_requests
from cnfgnn.federation.kept_states import KeptStates
from cnfgnn.federation.site.live.relay import Relay
from cnfgnn.federation.site.nodes import SiteNodes
from cnfgnn.federation.site.old_states import remove_old_states
from cnfgnn.process_setup import collect_garbage_regularly, keep_freed_memory, make_way
from cnfgnn.transports.remote.endpoint import Endpoint

log = logging.getLogger(__name__)


class SiteExecutor(Executor):  # type: ignore[misc]
    """Exists as long as the job. Requests arrive as messages; the engine's own tasks are not used.

    live    how a live task runs; None for any other task
    beside  whether the task runs beside a live one, with its readings and at a lower priority
    states  which states of models that were trained like that are kept; None if nothing is removed
    """

    def __init__(
        self,
        live: Mapping[str, Any] | None = None,
        beside: bool = False,
        states: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.live, self.beside, self.states = live, beside, KeptStates.told(states)
        self.endpoint: Endpoint | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.START_RUN:
            return
        collect_garbage_regularly()
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        engine = fl_ctx.get_engine()
        serve_requests(engine.get_cell().core_cell, fl_ctx.get_job_id(), self._answers(kit))
        log.info("ready, %d threads, %s", torch.get_num_threads(), time.ctime())

    def _answers(self, kit: Path) -> Callable[[bytes], bytes]:
        """What answers the requests: this process, or the site's live service."""
        if self.live is not None:
            return Relay(kit, self.live).answer
        if self.beside:
            make_way()
            self._remove_old_states(kit)
        keep_freed_memory()
        nodes = SiteNodes(kit, self.beside)
        self.endpoint = Endpoint(nodes.join, nodes.describe)
        return self.endpoint.answer

    def _remove_old_states(self, kit: Path) -> None:
        try:
            if self.states is not None and (removed := remove_old_states(kit, self.states)):
                log.info("removed the states of models that are not kept: %s", ", ".join(removed))
        except (CnfgnnError, OSError) as error:  # the training does not need it
            log.error("old states could not be removed: %s", error)

    def execute(self, task: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        raise NotImplementedError("requests arrive as messages, not as engine tasks")
