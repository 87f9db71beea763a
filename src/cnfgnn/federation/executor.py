"""A site's part in a job: its nodes, kept in memory between the server's questions."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute import Compute
from cnfgnn.config import ComputeConfig
from cnfgnn.errors import ConfigError
from cnfgnn.federation.cell import serve_notes
from cnfgnn.federation.kits import read_site
from cnfgnn.federation.own_readings import OwnReadings
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.site_store import SiteStore
from cnfgnn.storage import make_folder, write_whole
from cnfgnn.transports.flare.answering import Answering, Terms
from cnfgnn.version import __version__

FORECASTS = "forecasts"


class SiteNodes:
    """What `Answering` needs of a site: its plan, its readings once they are read, its nodes."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit
        self.plan: SitePlan | None = None
        self.own: OwnReadings | None = None
        self.problem = "it is still reading its data"
        self.terms: Terms | None = None
        threading.Thread(target=self._read, daemon=True).start()  # hours of readings must not block a hello

    def _read(self) -> None:
        try:
            self.plan = read_site(self.kit)
            self.own = OwnReadings(self.plan, self.kit)
            self.problem = ""
            for finding in self.own.findings:
                logging.getLogger(__name__).warning("%s", finding)  # in the site's own log
        except ConfigError as problem:
            self.problem = str(problem)
        except Exception as problem:  # it may quote what is in a file of readings, and that stays here
            logging.getLogger(__name__).error("the readings cannot be used: %s", problem)
            self.problem = "its readings cannot be used; at the site, cnfgnn federation check says why"

    def about(self) -> Mapping[str, Any]:
        if self.own is None or self.plan is None:
            return {"ready": False, "problem": self.problem, "version": __version__}
        said = {"ready": True, "sensors": list(self.plan.sensors), "version": __version__}
        return said | dict(self.own.about())

    def join(self, terms: Terms) -> Clients:
        if self.own is None or self.plan is None:
            raise ConfigError("readings", self.problem)
        self.terms = terms
        compute = Compute.of(ComputeConfig(device=self.plan.device, precision=terms.precision))  # type: ignore[arg-type]
        return Clients(self.own.series(terms), compute, SiteStore(self.kit, terms.run), self.plan.name)

    def after(self, clients: Clients, verb: str) -> None:
        if verb == "forecast":
            self._write_forecasts(clients)

    def _write_forecasts(self, clients: Clients) -> None:
        """Into the owner's folder: a row per time ahead, a column per sensor."""
        assert self.terms is not None
        assert self.own is not None
        assert clients.forecasts is not None
        horizon = clients.forecasts.shape[1]
        ahead = self.terms.first + self.terms.step * np.arange(self.terms.rows - horizon, self.terms.rows)
        times = pd.DatetimeIndex(ahead.astype("datetime64[s]"), name="time")
        frame = pd.DataFrame(
            clients.forecasts.T.double().cpu().numpy(),
            index=times.tz_localize("UTC") if self.own.readings.utc else times,
            columns=list(self.own.readings.ids),
        )
        folder = make_folder(self.kit / FORECASTS)
        folder.chmod(0o700)
        for name in (f"{self.terms.run}-{times[0]:%Y%m%dT%H%M%S}.csv", "latest.csv"):
            write_whole(folder / name, frame.to_csv(float_format="%.4f").encode())
            (folder / name).chmod(0o600)


class SiteExecutor(Executor):  # type: ignore[misc]
    """Lives as long as the job; the engine's tasks play no part."""

    def __init__(self) -> None:
        super().__init__()
        self.answering: Answering | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.START_RUN:
            return
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        nodes = SiteNodes(kit)
        self.answering = Answering(nodes.join, nodes.about, nodes.after)
        engine = fl_ctx.get_engine()
        serve_notes(engine.get_cell().core_cell, fl_ctx.get_job_id(), self.answering.answer)
        logging.getLogger(__name__).info("ready, %d threads, %s", torch.get_num_threads(), time.ctime())

    def execute(self, task: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        raise NotImplementedError("everything goes through notes")
