"""A site's part in a job: it holds the site's nodes in memory and answers the server's requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from cnfgnn.federation.flare.cell import serve_requests
from cnfgnn.federation.site_nodes import SiteNodes as SiteNodes
from cnfgnn.transports.remote.endpoint import Endpoint

log = logging.getLogger(__name__)


class SiteExecutor(Executor):  # type: ignore[misc]
    """Exists as long as the job. Requests arrive as messages; the engine's own tasks are not used.

    live  how a live task runs; None for any other task
    """

    def __init__(self, live: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.live = live
        self.endpoint: Endpoint | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.START_RUN:
            return
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        self.endpoint = endpoint_of(kit, self.live)
        engine = fl_ctx.get_engine()
        serve_requests(engine.get_cell().core_cell, fl_ctx.get_job_id(), self.endpoint.answer)
        log.info("ready, %d threads, %s", torch.get_num_threads(), time.ctime())

    def execute(self, task: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        raise NotImplementedError("requests arrive as messages, not as engine tasks")


def endpoint_of(kit: Path, live: Mapping[str, Any] | None) -> Endpoint:
    """What answers the server's requests at a site."""
    if live is None:
        nodes = SiteNodes(kit)
        return Endpoint(nodes.join, nodes.describe)
    from cnfgnn.federation.live_site import LiveSiteNodes, LiveTerms  # needs the extra `live`

    site = LiveSiteNodes(kit, LiveTerms.of(live))
    return Endpoint(site.join, site.describe, due=site.due)
