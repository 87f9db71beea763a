"""A site's nodes and their owner: which readings each of them uses, and what the owner writes into the kit.

The nodes have the blurred copy of the readings and answer the server. The owner has the true readings; it
writes forecasts and true errors, and what goes wrong with it is reported at the site alone.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.messages import verbs
from cnfgnn.algorithm.messages.settings import NodeSettings
from cnfgnn.algorithm.messages.verb import Verb
from cnfgnn.algorithm.owner import Owner, may_be_told
from cnfgnn.config.settings import Missing
from cnfgnn.data.inputs import ending_covariates
from cnfgnn.data.prepared_series import SUMS
from cnfgnn.data.quality import out_of_range, value_ranges
from cnfgnn.data.series import Series
from cnfgnn.data.windows import Split, Windows
from cnfgnn.errors import CnfgnnError, DataError, RunError, StorageError
from cnfgnn.federation.site.ranges import live_intervals
from cnfgnn.federation.site.readings import SiteData, first_rows
from cnfgnn.federation.site.run_readings import RunReadings
from cnfgnn.federation.site.status import SiteStatus
from cnfgnn.federation.site.store import OwnerStore, SiteStore
from cnfgnn.federation.spans import format_time
from cnfgnn.files import make_folder, write_whole
from cnfgnn.forecasters.intervals import Intervals
from cnfgnn.models.params import Params
from cnfgnn.runs.events import plain
from cnfgnn.runs.forecast import forecast_frame
from cnfgnn.runs.scores import IntervalScores, Scores, scores_as_dict
from cnfgnn.transports.remote.endpoint import Terms

FORECASTS = "forecasts"
EVALUATIONS = "evaluations"
log = logging.getLogger(__name__)


class SiteClients(Clients):
    """A site's nodes. Training and evaluation use the copy with which the site joined the run, and a forecast
    uses the current one."""

    def __init__(
        self,
        readings: RunReadings,
        compute: Compute,
        store: SiteStore,
        name: str,
        memory_limit: int,
    ) -> None:
        super().__init__(readings.current, compute, store, name, memory_limit=memory_limit)
        self.readings = readings

    def census(self, windows: Windows, missing: Missing) -> tuple[Tensor, dict[Split, Tensor]]:
        self.series = self.readings.current if windows.ahead else self.readings.of_run()
        return super().census(windows, missing)

    def prepare(self, settings: NodeSettings, mean: float, std: float, windows: Windows) -> None:
        self.series = self.readings.current if windows.ahead else self.readings.of_run()
        super().prepare(settings, mean, std, windows)


class SiteOwner(Owner):
    """The owner of a site's nodes: it writes forecasts and true errors into the kit.

    The server may notice that a state cannot be saved. Whatever else fails here may depend on true readings:
    it is logged, and `federation status` at the site shows it.
    """

    def __init__(
        self, nodes: SiteClients, data: SiteData, terms: Terms, joined: RunReadings, kit: Path, tells: bool
    ) -> None:
        self.site_data, self.terms, self.kit, self.joined = data, terms, kit, joined
        self.status = SiteStatus(kit)
        self.own_store = OwnerStore(kit, terms.run, data.truth.ids, len(terms.added))
        self.restored = ""  # the tag of the state that was restored last
        self.current = data.true_series(terms)  # None if nothing is blurred
        # What is retired is missing in the sums of true errors, and in all that these depend on.
        self.of_run = data.true_series(terms, with_retired=False) if tells and data.retired else self.current
        truth = nodes.series if self.current is None else self.current
        super().__init__(nodes, truth, self.own_store, tells)

    def follow(self, request: Verb, arrays: Params, answer: Params) -> Params:
        try:
            added = super().follow(request, arrays, answer)
            self.status.works(request.name)
            return added
        except (StorageError, RunError) as error:  # it has been reported
            if may_be_told(request, error):
                raise
            return {}
        except Exception as error:
            log.debug("the owner's part of %r failed", request.name, exc_info=True)
            self._report(request.name, str(error) or type(error).__name__)
            return {}

    def _report(self, verb: str, problem: str) -> None:
        log.error("%r failed: %s", verb, problem)
        self.status.record_problem(verb, problem)

    # ---- which readings ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.truth = self._readings_to_use()
        super().prepare()
        if not self.nodes.windows.ahead and not self.own_store.read_ranges():
            found = value_ranges(self.truth.values, self.truth.missing)
            self.own_store.write_ranges(dict(zip(self.site_data.truth.ids, found, strict=True)))

    def _readings_to_use(self) -> Series:
        """The true readings at the times at which the nodes use the copy."""
        if self.current is None or self.of_run is None:
            return self.nodes.series
        if self.nodes.windows.ahead:
            return self.current
        rows = self.joined.rows()
        return self.of_run if rows is None else first_rows(self.of_run, rows)

    # ---- true errors ---------------------------------------------------------------------------------------

    def evaluate(self, split: Split, of_copy: Tensor) -> None:
        super().evaluate(split, of_copy)
        with suppress(StorageError):  # it is reported, and the server need not know
            self._write_errors(split)
            if split == "test":
                self._keep_intervals()

    def _write_errors(self, split: Split) -> None:
        """Write the true errors of a split into the kit."""
        assert self.errors is not None
        sums, ids = self.errors.cpu(), self.site_data.truth.ids
        intervals = None if self.interval_sums is None else IntervalScores(self.interval_sums)
        scores = Scores(sums, intervals=intervals)
        content: dict[str, Any] = {"run": self.terms.run, "split": split, "time": time.time()}
        content |= scores_as_dict(scores, ids)
        content["sums"] = {
            sensor: dict(zip(SUMS, row.sum(0).tolist(), strict=True))
            for sensor, row in zip(ids, sums, strict=True)
        }
        name = f"{self.terms.run}-{split}.json"
        self._write(EVALUATIONS, name, json.dumps(plain(content), indent=1).encode())
        overall, masked = scores.overall, self.nodes.settings.missing == "masked"
        errors = (overall.masked_rmse, overall.masked_mae) if masked else (overall.rmse, overall.mae)
        self.status.record_evaluation(f"{EVALUATIONS}/{name}", split, *errors)

    # ---- intervals -----------------------------------------------------------------------------------------

    def evaluate_intervals(self, split: Split) -> None:
        try:
            super().evaluate_intervals(split)
            self.status.works("intervals")
        except Exception as error:  # an owner who tells errors still does: the server must not notice
            self.intervals, self.interval_sums = None, None
            self._report("intervals", str(error) or type(error).__name__)

    def _restore(self, request: verbs.Restore) -> None:
        super()._restore(request)
        self.restored = request.tag
        if self.nodes.windows.ahead:
            self._load_adapted_intervals()

    def _load_adapted_intervals(self) -> None:
        """Go on from where the last evaluation or forecast left the intervals, or the live service if it got
        further. Forecasts that were made since then adapt them as soon as their readings are there."""
        kept = self.own_store.read_intervals(self.restored)
        found = [Intervals.of(kept)] if kept else []
        try:
            found += filter(None, [self._live_intervals()])
            self.status.works("intervals")
        except CnfgnnError as error:  # the other ones are good enough, and the server must not notice
            self._report("intervals", str(error))
        if found:
            self.intervals = max(found, key=lambda one: -1 if one.row is None else one.row)
            self.intervals.renumber(-self._first_row)
            newest = self.terms.rows - self.data.horizon - 1
            self.intervals.catch_up(newest, self.truth.values, ~self.truth.missing)

    def _live_intervals(self) -> Intervals | None:
        """The intervals as this site's live service has left them."""
        sensors, horizon = self.site_data.truth.ids, self.data.horizon
        return live_intervals(self.kit, self.terms.run, self.restored, sensors, horizon)

    @property
    def _first_row(self) -> int:
        """The number of the first row of this task, counted from 1970: the same in every task."""
        return self.terms.first // self.terms.step

    def _keep_intervals(self) -> None:
        """Keep the intervals as they are now, for the next forecast."""
        if self.intervals is not None and self.restored:
            self.intervals.renumber(self._first_row)
            self.own_store.write_intervals(self.restored, self.intervals.state())
            self.intervals.renumber(-self._first_row)

    # ---- forecasts -----------------------------------------------------------------------------------------

    def forecast(self, levels: Sequence[int] = ()) -> None:
        super().forecast(levels)
        self._warn_of_unusual_readings()
        self._warn_of_unknown_covariates()
        self._write_forecasts(levels)
        newest = self.terms.rows - self.data.horizon - 1
        if self.intervals is not None and (self.intervals.row is None or self.intervals.row <= newest):
            assert self.forecasts is not None
            self.intervals.issue(newest, self.forecasts.cpu().numpy())
            self._keep_intervals()

    def _warn_of_unusual_readings(self) -> None:
        """Log readings far outside of the training's range.

        A changed unit or a broken sensor looks like that, and the model was never trained on such values.
        """
        ranges = self.own_store.read_ranges()
        end = self.terms.first + (self.terms.rows - self.data.horizon) * self.terms.step
        newest = self.site_data.readings_before(end, self.data.history)
        if newest is not None and ranges:
            for finding in out_of_range(newest, ranges, self.data.scaler.std):
                log.warning("%s", finding)

    def _warn_of_unknown_covariates(self) -> None:
        """Log covariates that are not known for all times of the forecast."""
        if self.data.others is not None:
            last = self.terms.first + (self.terms.rows - 1) * self.terms.step
            for sentence in ending_covariates(self.site_data.truth, last):
                log.warning("%s", sentence)

    def _write_forecasts(self, levels: Sequence[int]) -> None:
        """Write a row per step ahead and a column per sensor into the kit, and its bounds for each level.

        The column of a sensor of which nothing is known is empty. If that is all of them, the previous files
        are kept.
        """
        assert self.forecasts is not None
        if self.data.unknown.all():
            log.warning("no forecast: no sensor has ever had a reading; the previous forecasts are kept")
            return
        heard = self.data.heard["test"]
        if heard is not None and not heard.any():
            log.warning(
                "no reading in the last %d steps: forecasts rest on older ones, the newest from %s",
                self.data.history,
                format_time(self.site_data.newest),
            )
        if not torch.isfinite(self.forecasts).any():
            raise DataError(self.kit / FORECASTS, "the forecast contains no finite number and is not written")
        horizon, terms = self.forecasts.shape[1], self.terms
        ahead = terms.first + terms.step * np.arange(terms.rows - horizon, terms.rows)
        times = pd.DatetimeIndex(ahead.astype("datetime64[s]"), name="time")
        if levels and self.bounds is None:
            log.warning("no intervals: the validation split had no reading to learn them from")
        frame = forecast_frame(
            times.tz_localize("UTC") if self.site_data.truth.utc else times,
            self.site_data.truth.ids,
            self.forecasts.double().cpu().numpy(),
            self.bounds,
            levels,
        )
        content = frame.to_csv(float_format="%.4f").encode()
        for name in (f"{terms.run}-{times[0]:%Y%m%dT%H%M%S}.csv", "latest.csv"):
            self._write(FORECASTS, name, content)
        self.status.record_forecast(f"{FORECASTS}/latest.csv", str(times[0]), str(times[-1]))

    def _write(self, folder: str, name: str, content: bytes) -> None:
        """Write a file into the kit that only the owner can read."""
        place = self.kit / folder
        try:
            make_folder(place).chmod(0o700)
            write_whole(place / name, content, 0o600)
            self.status.works(folder)
        except (StorageError, OSError) as error:
            problem = error if isinstance(error, StorageError) else StorageError(place / name, error)
            self._report(folder, str(problem))
            raise problem from None
