"""A site's part in a job: it holds the site's nodes in memory and answers the server's requests."""

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
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.settings import NodeSettings
from cnfgnn.algorithm.store import Store
from cnfgnn.config.settings import ComputeConfig, Missing
from cnfgnn.data.quality import out_of_range
from cnfgnn.data.series import Series
from cnfgnn.data.windows import Split, Windows
from cnfgnn.errors import CnfgnnError, ConfigError, DataError
from cnfgnn.federation.flare.cell import serve_requests
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.site_data import SiteData, digest, first_rows, rows_with_readings, value_ranges
from cnfgnn.federation.site_errors import for_server
from cnfgnn.federation.site_settings import read_site
from cnfgnn.federation.site_status import SiteStatus
from cnfgnn.federation.site_store import JoinRecord, SiteStore
from cnfgnn.federation.spans import format_time
from cnfgnn.files import make_folder, write_whole
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.transports.remote.endpoint import Endpoint, Terms
from cnfgnn.version import __version__

FORECASTS = "forecasts"
NOT_READ_YET = "it is still reading its data"
UNUSABLE = "its readings cannot be used; run cnfgnn federation check at the site to see why"
CHANGED = (
    "its readings have changed since it joined this run: restore them at the site and restart it, or start a"
    " new run"
)
log = logging.getLogger(__name__)


class SiteNodes:
    """What `Endpoint` needs of a site: its description for the server, and its nodes.

    Readings are loaded in the background: a site with a long history must answer hellos meanwhile.
    """

    def __init__(self, kit: Path) -> None:
        self.kit = kit
        self.plan: SitePlan | None = None
        self.data: SiteData | None = None
        self.problem = NOT_READ_YET  # why the site cannot take part, as the server may see it
        self.memory = 0  # bytes that hidden states and embeddings may use
        self.terms: Terms | None = None
        threading.Thread(target=self._load, daemon=True).start()

    def _load(self) -> None:
        try:
            self.plan = read_site(self.kit)
            compute = Compute.of(ComputeConfig(device=self.plan.device))
            self.memory = self.plan.memory or int(SHARE * compute.memory())
            self.data = SiteData(self.plan, self.kit)
            for warning in self.data.warnings():
                log.warning("%s", warning)
            self.problem = ""
            for finding in self.data.findings:
                log.warning("%s", finding)
        except ConfigError as error:
            self._report("settings", error)
            self.problem = str(for_server(error, self.kit))
        except Exception as error:  # it may quote readings, which must not reach the server
            self._report("readings", error)
            self.problem = UNUSABLE

    def _report(self, verb: str, error: Exception) -> None:
        """Tell the site's owner what went wrong: in the log, and in `federation status`."""
        log.error("%r failed: %s", verb, error)
        SiteStatus(self.kit).record_problem(verb, str(error))

    def describe(self) -> Mapping[str, Any]:
        """The answer to a hello of the server."""
        if self.data is None or self.plan is None or self.problem:
            return {"ready": False, "problem": self.problem, "version": __version__}
        about = {"ready": True, "sensors": list(self.plan.sensors), "version": __version__}
        about["memory"] = self.memory
        return about | dict(self.data.describe())

    def join(self, terms: Terms) -> Owner:
        """Make the nodes of a run; errors go to the server without local paths."""
        if self.data is None or self.plan is None or self.problem:
            raise ConfigError("readings", self.problem)
        self.terms = terms
        keep_freed_memory()
        compute = Compute.of(ComputeConfig(device=self.plan.device, precision=terms.precision))  # type: ignore[arg-type]
        try:
            store, current = SiteStore(self.kit, terms.run), self.data.series(terms)
        except CnfgnnError as error:
            self._report("join", error)
            raise for_server(error, self.kit, str(self.data.readings.source)) from None
        run_series = partial(self._series_of_run, terms, store, current)
        nodes = SiteClients(current, run_series, compute, store, self.plan.name, self.memory)
        return SiteOwner(nodes, store.of_owner(), self._forecast_made)

    def _series_of_run(self, terms: Terms, store: SiteStore, current: Series) -> Series:
        """The readings with which this site joined the run; newer ones do not belong to it.

        If they have changed, the site refuses to take part until it is restarted: training that continues on
        other readings, or on another scale, would match neither run.
        """
        assert self.data is not None
        if self.problem:
            raise CnfgnnError(self.problem)
        record = store.read_join_record()
        rows = rows_with_readings(current) if record is None else record.rows
        series = first_rows(current, rows)
        if record is None:
            store.write_join_record(JoinRecord(rows, digest(series, terms), value_ranges(series)))
        elif record.sha256 != digest(series, terms):
            problem = "the readings in %s have changed since this site joined run %s"
            log.error(problem, self.data.readings.source, terms.run)
            self.problem = CHANGED
            raise CnfgnnError(CHANGED)
        return series

    def _forecast_made(self, owner: Owner) -> None:
        """Write a forecast at the site."""
        try:
            self._warn_of_unusual_readings(owner)
            self._write_forecasts(owner)
        except CnfgnnError as error:
            self._report("forecast", error)
            raise for_server(error, self.kit) from None

    def _warn_of_unusual_readings(self, owner: Owner) -> None:
        """Log readings far outside of the training's range.

        A changed unit or a broken sensor looks like that, and the model was never trained on such values.
        """
        assert self.terms is not None
        assert self.data is not None
        store, data = owner.nodes.store, owner.data
        record = store.read_join_record() if isinstance(store, SiteStore) else None
        if record is None or len(record.ranges) != owner.truth.nodes:
            return
        end = self.terms.first + (self.terms.rows - data.horizon) * self.terms.step
        newest = self.data.readings_before(end, data.history)
        if newest is None:
            return
        ranges = dict(zip(newest.ids, record.ranges, strict=True))
        for finding in out_of_range(newest, ranges, data.scaler.std):
            log.warning("%s", finding)

    def _write_forecasts(self, owner: Owner) -> None:
        """Write a row per step ahead and a column per sensor into the kit.

        The column of a sensor without a reading in the history is empty. If no sensor has one, the previous
        files are kept.
        """
        assert self.terms is not None
        assert self.data is not None
        assert owner.forecasts is not None
        has = owner.data.available["test"]
        if has is not None and not has.any():
            log.warning(
                "no forecast: no sensor has a reading in the last %d steps before it (the newest reading is"
                " from %s); the previous forecasts are kept",
                owner.data.history,
                format_time(self.data.newest),
            )
            return
        if not torch.isfinite(owner.forecasts).any():
            raise DataError(self.kit / FORECASTS, "the forecast contains no finite number and is not written")
        horizon = owner.forecasts.shape[1]
        ahead = self.terms.first + self.terms.step * np.arange(self.terms.rows - horizon, self.terms.rows)
        times = pd.DatetimeIndex(ahead.astype("datetime64[s]"), name="time")
        frame = pd.DataFrame(
            owner.forecasts.T.double().cpu().numpy(),
            index=times.tz_localize("UTC") if self.data.readings.utc else times,
            columns=list(self.data.readings.ids),
        )
        folder = make_folder(self.kit / FORECASTS)
        folder.chmod(0o700)
        for name in (f"{self.terms.run}-{times[0]:%Y%m%dT%H%M%S}.csv", "latest.csv"):
            write_whole(folder / name, frame.to_csv(float_format="%.4f").encode())
            (folder / name).chmod(0o600)
        SiteStatus(self.kit).record_forecast(f"{FORECASTS}/latest.csv", str(times[0]), str(times[-1]))


class SiteClients(Clients):
    """A site's nodes. Training and evaluation use the readings with which the site joined the run, and a
    forecast uses the current ones."""

    def __init__(
        self,
        current: Series,
        run_series: Callable[[], Series],
        compute: Compute,
        store: SiteStore,
        name: str,
        memory_limit: int,
    ) -> None:
        super().__init__(current, compute, store, name, memory_limit=memory_limit)
        self.current, self.run_series = current, run_series

    def census(self, windows: Windows, missing: Missing) -> tuple[Tensor, dict[Split, Tensor]]:
        self.series = self.current if windows.ahead else self.run_series()
        return super().census(windows, missing)

    def prepare(self, settings: NodeSettings, mean: float, std: float, windows: Windows) -> None:
        self.series = self.current if windows.ahead else self.run_series()
        super().prepare(settings, mean, std, windows)


class SiteOwner(Owner):
    """The owner of a site's nodes: it writes each forecast into the kit."""

    def __init__(self, nodes: SiteClients, store: Store, forecast_made: Callable[[Owner], None]) -> None:
        super().__init__(nodes, nodes.series, store)
        self.forecast_made = forecast_made

    def prepare(self) -> None:
        self.truth = self.nodes.series
        super().prepare()

    def forecast(self) -> None:
        super().forecast()
        self.forecast_made(self)


class SiteExecutor(Executor):  # type: ignore[misc]
    """Exists as long as the job. Requests arrive as messages; the engine's own tasks are not used."""

    def __init__(self) -> None:
        super().__init__()
        self.endpoint: Endpoint | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.START_RUN:
            return
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        nodes = SiteNodes(kit)
        self.endpoint = Endpoint(nodes.join, nodes.describe)
        engine = fl_ctx.get_engine()
        serve_requests(engine.get_cell().core_cell, fl_ctx.get_job_id(), self.endpoint.answer)
        log.info("ready, %d threads, %s", torch.get_num_threads(), time.ctime())

    def execute(self, task: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        raise NotImplementedError("requests arrive as messages, not as engine tasks")
