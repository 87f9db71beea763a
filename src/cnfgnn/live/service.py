"""The service: takes readings in, makes a forecast at every step, and hands it to whoever listens.

Everything runs in one event loop, except two kinds of work that would hold it up, each in its own thread:
the model, and the disk. Readings are acknowledged once they are on disk; only then they count.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from cnfgnn.algorithm.intervals import Intervals
from cnfgnn.data.inputs import ending_covariates
from cnfgnn.data.readings import Readings
from cnfgnn.errors import CnfgnnError
from cnfgnn.files import write_whole
from cnfgnn.live.clock import Clock, Zone
from cnfgnn.live.forecasts import (
    QUALITIES,
    Floats,
    Forecast,
    fallback,
    last_reading_times,
)
from cnfgnn.live.metrics import Metrics
from cnfgnn.live.predictor import Predictor
from cnfgnn.live.recent import Arrived, Cell, RecentReadings, Verdict
from cnfgnn.live.schedule import Schedule
from cnfgnn.live.store import FileState, ReadingStore
from cnfgnn.live.tracking import Tracking
from cnfgnn.live.watch import Alarm, Report

REFUSALS_NAMED = 20  # in an answer; the others are only counted
LONGEST_SLEEP = 60.0  # seconds; the machine's clock may be set in the meantime
AT_A_TIME = 2000  # readings that are looked at without a pause
MOST_WAITING = 2_000_000  # readings that wait for the disk: more are refused

log = logging.getLogger(__name__)


class Refusal(NamedTuple):
    """A reading that was not taken, and why."""

    reading: Arrived
    verdict: Verdict


class Busy(Exception):
    """More readings are waiting for the disk than the service may hold."""


@dataclass
class Receipt:
    """What became of readings that arrived together."""

    counts: Counter[Verdict] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def stored(self) -> int:
        return sum(count for verdict, count in self.counts.items() if verdict.is_stored)

    @property
    def refused(self) -> int:
        return sum(count for verdict, count in self.counts.items() if verdict.is_refused)


class Batch(NamedTuple):
    """Readings that wait for the disk."""

    cells: list[Cell]
    files: dict[str, FileState]
    done: asyncio.Future[None]


class LiveService:
    """One run on one machine, from the first reading to the last.

    listeners         called in the event loop with every new forecast
    alarm_listeners   called in the event loop with all alarms whenever one begins or ends
    switch_listeners  called in the event loop when another model is in use: time, from, to and why
    problems          what does not work at the moment, in a sentence for each part
    """

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
        self.predictor, self.recent, self.store, self.clock, self.zone = predictor, recent, store, clock, zone
        self.schedule, self.latest_file, self.tracking = schedule, latest_file, tracking
        self.latest: Forecast | None = None
        self.report: Report | None = None if tracking is None else tracking.report(zone.write)
        self.alarm_listeners: list[Callable[[Sequence[Alarm]], None]] = []
        self.switch_listeners: list[Callable[[Mapping[str, str]], None]] = []
        self.started = clock.now()
        self.listeners: list[Callable[[Forecast], None]] = []
        self.problems: dict[str, str] = {}
        self.metrics = Metrics(clock.now, lambda: self.is_stale)
        self.stopping = asyncio.Event()
        self._arrived = asyncio.Event()
        self._last_arrival = time.perf_counter()
        self._waiting: list[Batch] = []
        self._to_write = asyncio.Event()
        self._model = ThreadPoolExecutor(1, "model", initializer=lambda: torch.set_num_threads(1))
        self._disk = ThreadPoolExecutor(1, "disk")  # of the database: readings wait for nothing else
        self._files = ThreadPoolExecutor(1, "files")

    @property
    def is_stale(self) -> bool:
        """Whether there is no forecast that may still be used."""
        return self.latest is None or self.clock.now() > self.latest.valid_until

    # ---- readings in --------------------------------------------------------------------------------

    async def take(
        self, arrived: Sequence[Arrived], source: str, files: Mapping[str, FileState] | None = None
    ) -> Receipt:
        """Take readings in; they are on disk when this returns.

        Raises:
            Busy: Too many readings are waiting for the disk.
            StorageError: They cannot be written; none of them is taken.
        """
        if sum(len(batch.cells) for batch in self._waiting) > MOST_WAITING:
            raise Busy
        receipt, cells = Receipt(), []
        for number, reading in enumerate(arrived, start=1):
            if number % AT_A_TIME == 0:
                await asyncio.sleep(0)  # let others go on during a large upload
            verdict, cell = self.recent.judge(reading, self.clock)
            receipt.counts[verdict] += 1
            if verdict.is_stored and cell is not None:
                cells.append(cell)
            elif verdict.is_refused and len(receipt.refusals) < REFUSALS_NAMED:
                receipt.refusals.append(Refusal(reading, verdict))
        for verdict, count in receipt.counts.items():
            self.metrics.readings.labels(source, verdict.value).inc(count)
        if cells or files:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(Batch(cells, dict(files or {}), done))
            self._to_write.set()
            await done
        return receipt

    async def _write(self) -> None:
        """Write what waits, all at once, and let it count."""
        loop = asyncio.get_running_loop()
        while True:
            await self._to_write.wait()
            self._to_write.clear()
            batches, self._waiting = self._waiting, []
            cells = [cell for batch in batches for cell in batch.cells]
            files = {name: state for batch in batches for name, state in batch.files.items()}
            try:
                await loop.run_in_executor(self._disk, self.store.write, self.recent.ids, cells, files)
            except Exception as error:
                self.failed("disk", error)
                for batch in batches:
                    if not batch.done.done():
                        batch.done.set_exception(error)
                continue
            self.problems.pop("disk", None)
            self._count(cells)
            for batch in batches:
                if not batch.done.done():  # the sender may have hung up
                    batch.done.set_result(None)

    def _count(self, cells: Sequence[Cell]) -> None:
        """Let readings count that are on disk."""
        for cell in cells:
            self.recent.put(cell)
        if cells:
            self.clock.heard(max(cell.seconds for cell in cells))
            self._last_arrival = time.perf_counter()
            self._arrived.set()

    def pass_time(self, seconds: int) -> None:
        """It is this late elsewhere: the clock of a recording goes on, also without a reading."""
        self.clock.told(seconds)
        self._arrived.set()

    # ---- forecasts out ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until `stopping` is set."""
        tasks = [asyncio.create_task(work()) for work in (self._write, self._forecast, self._watch_age)]
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
            self.tracking.close()
        self.store.close()

    async def _forecast(self) -> None:
        """Make a forecast whenever one is due."""
        while True:
            self._arrived.clear()
            now = self.clock.now()
            step = self.schedule.due(self.recent, now)
            if step is None:
                wait = (self.schedule.next_deadline(self.recent, now) - now) / self.clock.speed
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), min(max(wait, 0.01), LONGEST_SLEEP))
                continue
            begun = self._last_arrival if step == self.recent.newest else time.perf_counter()
            try:
                await self._make(step, begun)
                self.problems.pop("forecast", None)
            except Exception as error:  # the next step is another chance
                self.failed("forecast", error)

    async def _make(self, step: int, begun: float) -> None:
        recent = self.recent
        if recent.made is not None:
            self.metrics.skipped.inc((step - recent.made) // recent.step - 1)
        recent.advance(step)
        readings = recent.until(step)
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
        loop.run_in_executor(self._files, self._write_latest, made)

    def _check_covariates(self, readings: Readings, step: int) -> None:
        """Say if a covariate ends before the forecast does: forecasts go on with its last value."""
        ending = ending_covariates(readings, step + self.predictor.horizon * self.recent.step)
        if not ending:
            self.problems.pop("covariates", None)
        elif self.problems.get("covariates") != (told := "; ".join(ending)):
            if "covariates" not in self.problems:
                log.warning("covariates: %s", told)
            self.problems["covariates"] = told

    async def use(self, predictor: Predictor, intervals: Intervals | None = None) -> None:
        """Make the next forecast, and those after it, with another model and its intervals. The one that is
        being made is made with the old model; no step is missed."""

        def switch() -> None:
            self.predictor = predictor
            if self.tracking is not None:
                try:
                    self.tracking.use(predictor, intervals)
                except Exception as error:  # a full disk does not keep a better model away
                    self.failed("watch", error)

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
        try:  # first of all: a site's predictor tells the server that the step is due, whatever else fails
            values = predictor.forecast(readings)
            self.problems.pop("model", None)
        except Exception as error:  # the service goes on, whatever the readings did to the model
            self.failed("model", error)
            values = np.full((len(recent.ids), predictor.horizon), np.nan)
        simple = fallback(readings, predictor.weekly_profiles, times)
        lacking = np.asarray(~np.isfinite(values).all(axis=1))
        by_model = np.where(lacking[:, None], np.nan, values)
        values = np.where(lacking[:, None], simple, values)
        ranges, report = self._track(readings, by_model)
        forecast = Forecast(
            ids=recent.ids,
            zone=self.zone,
            step_seconds=recent.step,
            step=step,
            made=self.clock.now(),
            valid_until=self.schedule.valid_until(step),
            values=values,
            quality=np.where(lacking, QUALITIES.index("fallback"), predictor.quality(readings)),
            last_reading=last_reading_times(readings),
            ranges=ranges,
        )
        _ = forecast.sensors_json  # every request needs it: not in the event loop
        return forecast, report

    def _track(self, readings: Readings, by_model: Floats) -> tuple[Mapping[int, Floats], Report | None]:
        """Learn from a step: the ranges of its forecasts, and what the watch has seen."""
        if self.tracking is None:
            return {}, None
        row = int(readings.seconds[-1]) // self.recent.step
        try:
            ranges = self.tracking.step(row, self.predictor.cleaned(readings), by_model)
            report = self.tracking.report(self.zone.write)
        except Exception as error:  # forecasts are worth more than their ranges
            self.failed("watch", error)
            return {}, None
        try:
            self.tracking.write()
            self.problems.pop("watch", None)
        except Exception as error:  # a full disk does not end the service
            self.failed("watch", error)
        return ranges, report

    def _write_latest(self, made: Forecast) -> None:
        """In a thread of its own: write latest.csv, and tidy up behind the journal."""
        try:
            if self.latest_file is not None:
                write_whole(self.latest_file, made.csv(self.clock.now()))
            if self.tracking is not None:
                self.tracking.tidy()
        except Exception as error:  # a full disk does not end the service
            self.failed("files", error)
        else:
            self.problems.pop("files", None)

    async def _watch_age(self) -> None:
        """When a forecast has become too old, say so in latest.csv: its readers may not compare times."""
        told: Forecast | None = None
        while True:
            made = self.latest
            if made is None or made is told:
                await asyncio.sleep(1 / max(1.0, self.clock.speed))
                continue
            left = (made.valid_until - self.clock.now()) / self.clock.speed
            if left > 0:
                await asyncio.sleep(min(left + 0.01, 1.0))
                continue
            told = made
            await asyncio.get_running_loop().run_in_executor(self._files, self._write_latest, made)

    def failed(self, part: str, error: Exception) -> None:
        """Note that a part failed; a sentence in /health, a count in /metrics, a line in the log."""
        self.metrics.failures.labels(part).inc()
        sentence = str(error) if isinstance(error, CnfgnnError) else f"{type(error).__name__}: {error}"
        if self.problems.get(part) != sentence:
            log.warning("%s: %s", part, sentence)
        self.problems[part] = sentence


def _by_kind(report: Report) -> dict[tuple[str | None, str], Alarm]:
    return {(alarm.sensor, alarm.kind): alarm for alarm in report.alarms}
