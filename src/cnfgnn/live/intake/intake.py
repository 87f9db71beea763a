"""Readings in: each is judged, written to disk, and counts from then on.

The disk has a thread of its own; everything else runs in one event loop. Readings that arrive together
share a transaction.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client import Counter as Counts

from cnfgnn.data.refusals import FutureTime, LeftOutSensor, Refusal
from cnfgnn.errors import CnfgnnError
from cnfgnn.live.intake.clock import Clock, Zone
from cnfgnn.live.intake.recent import Arrived, Cell, RecentReadings, Verdict, cells_in
from cnfgnn.live.intake.store import FileRead, ReadingStore

PREFIX = "cnfgnn_live"  # of the names of metrics
LINES_LOGGED = 3  # of those that are refused together
MOST_REFUSED = 1000  # lines that are remembered, to name each of them once
REFUSALS_NAMED = 20  # in an answer; the others are only counted
AT_A_TIME = 2000  # readings that are looked at without a pause
MOST_WAITING = 2_000_000  # readings that wait for the disk: more are refused

log = logging.getLogger(__name__)


class UnknownSensor(LeftOutSensor):
    """A sensor of a file that the service does not know; its readings are counted when they are judged."""

    def __init__(self, file: Path, sensor: str) -> None:
        super().__init__(file, sensor, "the service does not know it, so that its readings are left out")


class Busy(Exception):
    """More readings are waiting for the disk than the service may hold."""


@dataclass
class Receipt:
    """What became of readings that arrived together; those that were refused are named, up to a number."""

    counts: Counter[Verdict] = field(default_factory=Counter)
    refusals: list[tuple[Arrived, Verdict]] = field(default_factory=list)

    @property
    def stored(self) -> int:
        return sum(count for verdict, count in self.counts.items() if verdict.is_stored)

    @property
    def refused(self) -> int:
        return sum(count for verdict, count in self.counts.items() if verdict.is_refused)


class Batch(NamedTuple):
    """Readings that wait for the disk."""

    cells: list[Cell]
    files: Mapping[str, FileRead]
    done: asyncio.Future[None]


class IntakeMetrics:
    """What is counted, for Prometheus; each service has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        text = "Readings that arrived, by source and by what became of them."
        self.readings = self._counter("readings", text, "source", "verdict")
        text = "Failures that the service survived, by part."
        self.failures = self._counter("failures", text, "part")
        for verdict in Verdict:
            self.readings.labels("http", verdict.value)

    def _counter(self, name: str, text: str, *labels: str) -> Counts:
        return Counts(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, labels, registry=self.registry)


class Intake:
    """Takes readings in.

    problems  what does not work at the moment, in a sentence for each part
    refused   what is refused in files as they are now, in a sentence for each line, and unknown sensors
    """

    def __init__(
        self, recent: RecentReadings, store: ReadingStore, clock: Clock, zone: Zone, metrics: IntakeMetrics
    ) -> None:
        self.recent, self.store, self.clock, self.zone, self.metrics = recent, store, clock, zone, metrics
        self.problems: dict[str, str] = {}
        self.refused: dict[tuple[Path, bytes], str] = {}
        self._arrived = asyncio.Event()
        self._last_arrival = time.perf_counter()
        self._waiting: list[Batch] = []
        self._to_write = asyncio.Event()
        self._disk = ThreadPoolExecutor(1, "disk")  # of the database: readings wait for nothing else

    async def take(
        self, arrived: Sequence[Arrived], source: str, files: Mapping[str, FileRead] | None = None
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
                receipt.refusals.append((reading, verdict))
        if cells or files:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(Batch(cells, files or {}, done))
            self._to_write.set()
            await done
        for verdict, count in receipt.counts.items():  # once, however often they are tried again
            self.metrics.readings.labels(source, verdict.value).inc(count)
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
            waiting = [batch.done for batch in batches]
            try:
                await loop.run_in_executor(self._disk, self.store.write, self.recent.ids, cells, files)
            except Exception as error:
                self.failed("disk", error)
                for done in waiting:
                    if not done.done():
                        done.set_exception(error)
                continue
            self.problems.pop("disk", None)
            self._count(cells)
            for done in waiting:
                if not done.done():  # the sender may have hung up
                    done.set_result(None)

    async def keep(self) -> None:
        """Store all that is known: the files that it came from are about to lose it."""
        known, loop = self.recent.until(self.recent.newest), asyncio.get_running_loop()
        cells = await asyncio.to_thread(cells_in, known)
        # A correction may have been stored in the meantime: it stays.
        await loop.run_in_executor(self._disk, self.store.write, self.recent.ids, cells, {}, True)

    def _count(self, cells: Sequence[Cell]) -> None:
        """Let readings count that are on disk."""
        for cell in cells:
            self.recent.put(cell)
        if cells:
            self.clock.heard(max(cell.seconds for cell in cells))
            self._last_arrival = time.perf_counter()
            self._arrived.set()

    def refuse(self, found: Sequence[Refusal]) -> None:
        """Count and name what was refused in files, each line once; the first of them are in the log."""
        new = []
        for one in found:
            if one.key in self.refused:
                continue
            if len(self.refused) < MOST_REFUSED:
                self.refused[one.key] = str(one.error)
            if not isinstance(one.error, UnknownSensor):
                verdict = Verdict.FUTURE if isinstance(one.error, FutureTime) else Verdict.UNREADABLE
                self.metrics.readings.labels("folder", verdict.value).inc()
            new.append(str(one.error))
        for sentence in new[:LINES_LOGGED]:
            log.warning("folder: %s", sentence)
        if len(new) > LINES_LOGGED:
            log.warning("folder: %d more lines were refused", len(new) - LINES_LOGGED)

    def forget_refused(self, keys: Sequence[tuple[Path, bytes]]) -> None:
        """What was refused is no longer in a file."""
        for key in keys:
            del self.refused[key]

    def failed(self, part: str, error: Exception) -> None:
        """Note that a part failed; a sentence in /health, a count in /metrics, a line in the log."""
        self.metrics.failures.labels(part).inc()
        sentence = str(error) if isinstance(error, CnfgnnError) else f"{type(error).__name__}: {error}"
        if self.problems.get(part) != sentence:
            log.warning("%s: %s", part, sentence)
        self.problems[part] = sentence

    @contextmanager
    def surviving(self, part: str) -> Iterator[None]:
        """Inside, an error is noted and goes no further; without one, the part works again."""
        try:
            yield
        except Exception as error:
            self.failed(part, error)
        else:
            self.problems.pop(part, None)
