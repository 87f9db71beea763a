"""A site's part in a job: its nodes, kept in memory between the server's questions."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
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
from torch import Tensor

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute import Compute
from cnfgnn.algorithm.memory_plan import SHARE
from cnfgnn.config.settings import ComputeConfig, Missing
from cnfgnn.data.quality import out_of_range
from cnfgnn.data.series import Series
from cnfgnn.errors import CnfgnnError, ConfigError, DataError
from cnfgnn.federation.flare.cell import serve_notes
from cnfgnn.federation.kits import read_site
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.site_data import SiteData, digest, ranges, reached, up_to
from cnfgnn.federation.site_status import SiteStatus
from cnfgnn.federation.site_store import Joined, SiteStore
from cnfgnn.federation.spans import shown_time
from cnfgnn.files import make_folder, write_whole
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.transports.remote.endpoint import Endpoint, Terms
from cnfgnn.version import __version__

FORECASTS = "forecasts"
CHANGED = (
    "its readings are not those that this run began with: put those back at the site and start it again, or"
    " begin a new run"
)


class SiteNodes:
    """What `Endpoint` needs of a site: its plan, its readings once they are read, its nodes."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit
        self.plan: SitePlan | None = None
        self.own: SiteData | None = None
        self.problem = "it is still reading its data"
        self.room = 0  # bytes that hidden states and embeddings may take
        self.terms: Terms | None = None
        threading.Thread(target=self._read, daemon=True).start()  # hours of readings must not block a hello

    def _read(self) -> None:
        try:
            self.plan = read_site(self.kit)
            compute = Compute.of(ComputeConfig(device=self.plan.device))
            self.room = self.plan.memory or int(SHARE * compute.memory())
            self.own = SiteData(self.plan, self.kit)
            for warning in self.own.warnings():
                logging.getLogger(__name__).warning(warning)
            self.problem = ""
            for finding in self.own.findings:
                logging.getLogger(__name__).warning("%s", finding)  # in the site's own log
        except ConfigError as problem:
            self.problem = str(problem)
        except Exception as problem:  # it may quote what is in a file of readings, and that stays here
            logging.getLogger(__name__).error("the readings cannot be used: %s", problem)
            SiteStatus(self.kit).note_problem("readings", str(problem))
            self.problem = "its readings cannot be used; at the site, cnfgnn federation check says why"

    def about(self) -> Mapping[str, Any]:
        if self.own is None or self.plan is None or self.problem:
            return {"ready": False, "problem": self.problem, "version": __version__}
        said = {"ready": True, "sensors": list(self.plan.sensors), "version": __version__}
        said["memory"] = self.room
        return said | dict(self.own.about())

    def join(self, terms: Terms) -> Clients:
        if self.own is None or self.plan is None or self.problem:
            raise ConfigError("readings", self.problem)
        self.terms = terms
        keep_freed_memory()
        compute = Compute.of(ComputeConfig(device=self.plan.device, precision=terms.precision))  # type: ignore[arg-type]
        store, now = SiteStore(self.kit, terms.run), self.own.series(terms)
        joined = partial(self._joined_with, terms, store, now)
        return SiteClients(now, joined, compute, store, self.plan.name, self.room)

    def _joined_with(self, terms: Terms, store: SiteStore, now: Series) -> Series:
        """The readings of a run, as they were when this site joined it; newer ones do not belong to it.

        If they are others now, the site says so instead of taking part, until it is started again: training
        that goes on with other readings, or with another scale, would be neither run.
        """
        assert self.own is not None
        if self.problem:
            raise CnfgnnError(self.problem)
        joined = store.joined()
        rows = reached(now) if joined is None else joined.rows
        series = up_to(now, rows)
        if joined is None:
            store.note_joined(Joined(rows, digest(series, terms), ranges(series)))
        elif joined.sha256 != digest(series, terms):
            said = "the readings in %s are not those with which this site joined run %s"
            logging.getLogger(__name__).error(said, self.own.readings.source, terms.run)
            self.problem = CHANGED
            raise CnfgnnError(CHANGED)
        return series

    def after(self, clients: Clients, verb: str) -> None:
        if verb == "forecast":
            self._warn_of_doubts(clients)
            self._write_forecasts(clients)

    def _warn_of_doubts(self, clients: Clients) -> None:
        """In the site's own log alone: a model knows nothing of readings unlike those that it was trained on,
        and a change of unit or a broken sensor looks like that."""
        assert self.terms is not None
        assert self.own is not None
        store, data = clients.store, clients.data
        joined = store.joined() if isinstance(store, SiteStore) else None
        if joined is None or len(joined.ranges) != clients.series.nodes:
            return
        end = self.terms.first + (self.terms.rows - data.horizon) * self.terms.step
        newest = self.own.before(end, data.history)
        if newest is None:
            return
        ranges = dict(zip(newest.ids, joined.ranges, strict=True))
        for finding in out_of_range(newest, ranges, data.scaler.std):
            logging.getLogger(__name__).warning("%s", finding)

    def _write_forecasts(self, clients: Clients) -> None:
        """Into the owner's folder: a row per time ahead, a column per sensor, empty for a sensor without a
        reading in the history. Where that is all of them, the files of before stay as they are."""
        assert self.terms is not None
        assert self.own is not None
        assert clients.forecasts is not None
        log, history = logging.getLogger(__name__), clients.data.history
        has = clients.data.available["test"]
        if has is not None and not has.any():
            log.warning(
                "no forecast: no sensor has a reading in the %d steps before it (the newest is of %s);"
                " the forecasts of before are kept",
                history,
                shown_time(self.own.newest),
            )
            return
        if not torch.isfinite(clients.forecasts).any():
            raise DataError(self.kit / FORECASTS, "the forecast came out as no numbers and is not written")
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
        SiteStatus(self.kit).note_forecast(f"{FORECASTS}/latest.csv", str(times[0]), str(times[-1]))


class SiteClients(Clients):
    """A site's nodes: a training and its evaluation get the readings with which the site joined the run, a
    forecast those of now."""

    def __init__(
        self,
        now: Series,
        of_the_run: Callable[[], Series],
        compute: Compute,
        store: SiteStore,
        name: str,
        room: int,
    ) -> None:
        super().__init__(now, compute, store, name, room=room)
        self.now, self.of_the_run = now, of_the_run

    def census(self, missing: Missing, **plan: Any) -> dict[str, Tensor]:
        self.series = self.now if plan["ahead"] else self.of_the_run()
        return super().census(missing, **plan)

    def prepare(self, mean: float, std: float, **more: Any) -> None:
        self.series = self.now if more["ahead"] else self.of_the_run()
        super().prepare(mean, std, **more)


class SiteExecutor(Executor):  # type: ignore[misc]
    """Lives as long as the job; the engine's tasks play no part."""

    def __init__(self) -> None:
        super().__init__()
        self.endpoint: Endpoint | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.START_RUN:
            return
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        nodes = SiteNodes(kit)
        self.endpoint = Endpoint(nodes.join, nodes.about, nodes.after)
        engine = fl_ctx.get_engine()
        serve_notes(engine.get_cell().core_cell, fl_ctx.get_job_id(), self.endpoint.answer)
        logging.getLogger(__name__).info("ready, %d threads, %s", torch.get_num_threads(), time.ctime())

    def execute(self, task: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        raise NotImplementedError("everything goes through notes")
