"""The service: takes readings in, makes a forecast at every step, and hands it to whoever listens.

Everything runs in one event loop, except what would hold it up, which has threads of its own: the model, the
database of readings, and other files.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch

from cnfgnn.data.inputs import ending_covariates
from cnfgnn.data.readings import Readings
from cnfgnn.files import write_whole
from cnfgnn.forecasters.intervals import Intervals
from cnfgnn.live.forecasting.forecasts import QUALITIES, Floats, Forecast, fallback, last_readings
from cnfgnn.live.forecasting.metrics import Metrics
from cnfgnn.live.forecasting.predictor import Predictor
from cnfgnn.live.forecasting.schedule import Schedule
from cnfgnn.live.forecasting.tracking import Tracking
from cnfgnn.live.forecasting.watch import Alarm, Report
from cnfgnn.live.intake.clock import Clock, SystemClock, Zone
from cnfgnn.live.intake.intake import Intake
from cnfgnn.live.intake.recent import Cell, RecentReadings
from cnfgnn.live.intake.store import ReadingStore

HOUR = 3600
LONGEST_SLEEP = 60.0  # seconds; the machine's clock may be set in the meantime

log = logging.getLogger(__name__)


class LiveService(Intake):
    """One run on one machine, from the first reading to the last.

    listeners         called in the event loop with every new forecast
    alarm_listeners   called in the event loop with all alarms whenever one begins or ends
    switch_listeners  called in the event loop when another model is in use: time, from, to and why
    """

    metrics: Metrics

    def __init__(
        self,
        predictor: Predictor,
        recent: RecentReadings,
        store: ReadingStore,
        clock: Clock,
        zone: Zone,
        schedule: Schedule,
        latest_file: Path | None = None,
        tracking: Tracking | None = None,
    ) -> None:
        super().__init__(recent, store, clock, zone, Metrics(clock.now, lambda: self.is_stale))
        self.predictor, self.schedule = predictor, schedule
        self.latest_file, self.tracking = latest_file, tracking
        self.latest: Forecast | None = None
        self._lacked = False  # whether readings of its step came after it was made
        # The clock's time when it was last looked at, and that of a clock that nobody sets.
        self._looked_at = clock.now(), time.monotonic()
        self.fill_gaps: Callable[[], None] = lambda: None  # asks for what the files have
        self.report: Report | None = None if tracking is None else tracking.watch.report(zone.write)
        self.listeners: list[Callable[[Forecast], None]] = []
        self.alarm_listeners: list[Callable[[Sequence[Alarm]], None]] = []
        self.switch_listeners: list[Callable[[Mapping[str, str]], None]] = []
        self.stopping = asyncio.Event()
        self._model = ThreadPoolExecutor(1, "model", initializer=lambda: torch.set_num_threads(1))
        self._files = ThreadPoolExecutor(1, "files")

    @property
    def is_stale(self) -> bool:
        """Whether there is no forecast that may still be used."""
        return self.latest is None or self.latest.is_stale(self.clock.now())

    def pass_time(self, seconds: int) -> None:
        """It is this late elsewhere: the clock of a recording goes on, also without a reading."""
        self.clock.told(seconds)
        self._arrived.set()

    async def run(self) -> None:
        """Serve until `stopping` is set."""
        tasks = [asyncio.create_task(work()) for work in (self._write, self._forecast)]
        stopped = asyncio.create_task(self.stopping.wait())
        try:
            done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()  # none of them ends unless it failed
        finally:
            self.stopping.set()
            for task in [*tasks, stopped]:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        for threads in (self._model, self._disk, self._files):
            threads.shutdown()
        if self.tracking is not None:
            self.tracking.journal.close()
        self.store.close()

    async def _forecast(self) -> None:
        """Make a forecast whenever one is due."""
        while True:
            self._arrived.clear()
            now = self.clock.now()
            await self._leave_future(now)
            if self._was_set_forward(now):
                await self._recall(now)
            step = self.schedule.due(self.recent, now)
            until = self.schedule.next_deadline(self.recent, now)
            if step is None and (again := self._again_at()) is not None:
                step, until = (self.recent.made if now >= again else None), min(until, again)
            if step is None:
                wait = (until - now) / self.clock.speed
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), min(max(wait, 0.01), LONGEST_SLEEP))
                continue
            begun = self._last_arrival if step == self.recent.newest else time.perf_counter()
            with self.surviving("forecast"):  # the next step is another chance
                await self._make(step, begun)

    async def _leave_future(self, now: float) -> None:
        """Begin again if the clock was ahead: no forecast would be due before that time has come. So does
        the watch, unless it is an hour: that passes in autumn, where clocks are set back."""
        recent, write = self.recent, self.zone.write
        if recent.newest > now + recent.step:
            told = "clock: it is %s, but there are readings or forecasts of %s: forecasts begin again without"
            log.warning(f"{told} what is from the future", write(now), write(recent.newest))
            ahead = recent.newest - now
            recent.go_back(now)
            await self._recall(now)
            if self.tracking is not None and ahead > HOUR + recent.step:
                known = recent.until(recent.newest)
                await asyncio.get_running_loop().run_in_executor(self._model, self._watch_again, known)

    def _was_set_forward(self, now: float) -> bool:
        """Whether the machine's clock has gone ahead of itself: what was from the future may not be any
        more."""
        before, self._looked_at = self._looked_at, (now, time.monotonic())
        passed = self._looked_at[1] - before[1]
        return isinstance(self.clock, SystemClock) and now - before[0] - passed > 2 * self.recent.step

    async def _recall(self, now: float) -> None:
        """The clock was wrong: take in again what is stored, and what the files have."""
        recent = self.recent
        since = int(now) - recent.rows * recent.step
        reading = partial(self.store.stored, since, now)
        with self.surviving("disk"):
            stored = await asyncio.get_running_loop().run_in_executor(self._disk, reading)
            recent.put_stored(stored, since)
        self.fill_gaps()

    def _watch_again(self, readings: Readings) -> None:
        with self.surviving("watch"):
            if self.tracking is not None:
                self.tracking.go_back(self.predictor.cleaned(readings))

    def _count(self, cells: Sequence[Cell]) -> None:
        self._lacked |= any(cell.seconds == self.recent.made and not cell.variable for cell in cells)
        super()._count(cells)

    def _again_at(self) -> float | None:
        """When the newest step should be forecast again, because some of its readings came too late."""
        made = self.latest
        if made is None or made.step != self.recent.newest or not self.predictor.repeats:
            return None
        return self.schedule.again(made.made) if self._lacked else None

    async def _make(self, step: int, begun: float) -> None:
        recent = self.recent
        self._lacked = False
        if recent.made is not None and step > recent.made:
            self.metrics.skipped.inc((step - recent.made) // recent.step - 1)
        recent.advance(step)
        readings = recent.for_forecast(step)
        self._check_covariates(readings, step)
        recent.made = step
        loop = asyncio.get_running_loop()
        made, report = await loop.run_in_executor(self._model, self._compute, step, readings)
        self.latest = made
        self.metrics.forecast_made(made, time.perf_counter() - begun)
        for listener in self.listeners:
            listener(made)
        if report is not None:
            self._tell_alarms(report)
        self._write_later(made)
        self._watch_age(made)

    def _check_covariates(self, readings: Readings, step: int) -> None:
        """Say if a covariate ends before the forecast does: forecasts go on with its last value."""
        ending = ending_covariates(readings, step + self.predictor.horizon * self.recent.step)
        before, told = self.problems.pop("covariates", None), "; ".join(ending)
        if told:
            self.problems["covariates"] = told
            if before is None:
                log.warning("covariates: %s", told)

    async def use(self, predictor: Predictor, intervals: Intervals | None = None) -> None:
        """Make the next forecast, and those after it, with another model and its intervals. The one that is
        being made is made with the old model; no step is missed."""

        def switch() -> None:
            self.predictor = predictor
            if self.tracking is not None:
                with self.surviving("watch"):  # a full disk does not keep a better model away
                    self.tracking.use(predictor, intervals)

        await asyncio.get_running_loop().run_in_executor(self._model, switch)

    def tell_switch(self, switch: Mapping[str, str]) -> None:
        """Log that another model is live, and tell whoever listens: when it was, from, to and why."""
        log.warning("model: %s instead of %s: %s", switch["to"], switch["from"], switch["why"])
        self.metrics.switches.inc()
        for listener in self.switch_listeners:
            listener(switch)

    def _tell_alarms(self, report: Report) -> None:
        """Log which alarms have begun and ended, and tell whoever listens."""
        before = {} if self.report is None else _by_kind(self.report)
        now = _by_kind(report)
        self.report = report
        self.metrics.watched(report)
        for key, alarm in now.items():
            if key not in before:
                log.warning("alarm: %s%s", "" if alarm.sensor is None else f"{alarm.sensor}: ", alarm.text)
        for sensor, kind in before.keys() - now.keys():
            log.warning("over: %s%s", "" if sensor is None else f"{sensor}: ", kind)
        if before.keys() != now.keys():
            for listener in self.alarm_listeners:
                listener(report.alarms)

    def _compute(self, step: int, readings: Readings) -> tuple[Forecast, Report | None]:
        """In the model's thread: the forecast after a step, and what the watch has seen. If the model fails,
        there is still a fallback."""
        predictor, recent = self.predictor, self.recent
        times = [step + recent.step * ahead for ahead in range(1, predictor.horizon + 1)]
        values = np.full((len(recent.ids), predictor.horizon), np.nan)
        # First of all: a site's predictor tells the server that the step is due, whatever else fails. The
        # service goes on, whatever the readings did to the model.
        with self.surviving("model"):
            values = predictor.forecast(readings)
        simple = fallback(readings, predictor.weekly_profiles, times)
        lacking = np.asarray(~np.isfinite(values).all(axis=1))
        by_model = np.where(lacking[:, None], np.nan, values)
        values = np.where(lacking[:, None], simple, values)
        ranges, report = self._track(readings, by_model)
        _, last = last_readings(readings.values, ~readings.missing)
        forecast = Forecast(
            ids=recent.ids,
            zone=self.zone,
            step_seconds=recent.step,
            step=step,
            made=self.clock.now(),
            valid_until=self.schedule.valid_until(step),
            values=values,
            quality=np.where(lacking, QUALITIES.index("fallback"), predictor.quality(readings)),
            last_reading=np.where(last < 0, -1, readings.seconds[last]),
            ranges=ranges,
        )
        _ = forecast.sensors_json  # every request needs it: not in the event loop
        return forecast, report

    def _track(self, readings: Readings, by_model: Floats) -> tuple[Mapping[int, Floats], Report | None]:
        """Learn from a step: the ranges of its forecasts, and what the watch has seen."""
        ranges: Mapping[int, Floats] = {}
        report = None
        if self.tracking is not None:
            row = int(readings.seconds[-1]) // self.recent.step
            with self.surviving("watch"):  # forecasts are worth more than their ranges
                ranges = self.tracking.step(row, self.predictor.cleaned(readings), by_model)
                report = self.tracking.watch.report(self.zone.write)
                self.tracking.write()
        return ranges, report

    def _write_latest(self, made: Forecast) -> None:
        """In a thread of its own: write latest.csv, and tidy up behind the journal."""
        with self.surviving("files"):  # a full disk does not end the service
            if self.latest_file is not None:
                write_whole(self.latest_file, made.csv(self.clock.now()))
            if self.tracking is not None:
                self.tracking.tidy()

    def _write_later(self, made: Forecast) -> None:
        asyncio.get_running_loop().run_in_executor(self._files, self._write_latest, made)

    def _watch_age(self, made: Forecast) -> None:
        """When a forecast has become stale, say so in latest.csv: its readers may not compare times."""
        if self.latest is not made or self.stopping.is_set():
            return
        now = self.clock.now()
        if not made.is_stale(now):
            left = (made.valid_until - now) / self.clock.speed
            asyncio.get_running_loop().call_later(min(left + 0.01, 1.0), self._watch_age, made)
        else:
            self._write_later(made)


def _by_kind(report: Report) -> dict[tuple[str | None, str], Alarm]:
    return {(alarm.sensor, alarm.kind): alarm for alarm in report.alarms}
