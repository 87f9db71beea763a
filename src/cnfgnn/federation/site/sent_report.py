"""What a site has sent, for its owner: who asked for what, how many copies are out, and what that means."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cnfgnn.federation.site.permissions import Permissions
from cnfgnn.federation.site.sent_entries import FILE, Book, Counts, Entry, Key, Span, Spans
from cnfgnn.federation.site.settings import private_folder, read_site
from cnfgnn.privacy.copies import CopyStore
from cnfgnn.privacy.explanation import Guarantee, Measures, as_json, default_durations, explain

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SeriesOut:
    """The copies of one sensor, or of a further input of it, that are out."""

    sensor: str
    name: str  # of the further input; nothing for the readings
    out: int  # copies within the times that tasks were about
    copies: int  # that there are
    sigmas: Mapping[float, int]  # how many of those that are out have each blur


@dataclass(frozen=True)
class SentReport:
    """What the owner of a site is told.

    tasks       the entries of the days that were asked for, oldest first, with the copies in their times
    total       of all time
    series      None if nothing is blurred: what was sent was computed from the readings then
    guarantees  of the copies of readings that are out; none if there are none
    """

    site: str
    tasks: Sequence[tuple[Key, Entry, int]]
    total: Counts
    rounds: int
    series: Sequence[SeriesOut] | None
    measures: Measures
    guarantees: Sequence[Guarantee]
    damaged: int

    @property
    def most_out(self) -> int:
        """Of the readings of a single sensor."""
        return max((one.out for one in self.series or () if not one.name), default=0)

    def as_json(self) -> dict[str, Any]:
        sensors: dict[str, dict[str, Any]] = {}
        for one in self.series or ():
            told = {"out": one.out, "copies": one.copies, "blurs": {str(s): n for s, n in one.sigmas.items()}}
            sensors.setdefault(one.sensor, {})[one.name or "readings"] = told
        return {
            "site": self.site,
            "tasks": [_task_as_json(*item) for item in self.tasks],
            "total": {"rounds": self.rounds, **asdict(self.total)},
            "blurred": self.series is not None,
            "sensors": sensors,
            "guarantee": as_json(self.guarantees, self.measures),
            "damaged": self.damaged,
        }


def sent_report(kit: Path, days: int, now: float | None = None) -> SentReport:
    """What was sent, in detail of the last days."""
    plan, book = read_site(kit), Book.read(kit / FILE)
    today = date.fromisoformat(Permissions(kit).day(time.time() if now is None else now))
    first = (today - timedelta(min(days, today.toordinal()) - 1)).isoformat()
    # The day of an old entry is a month.
    chosen = [item for item in sorted(book.entries.items()) if item[0].day >= first[: len(item[0].day)]]
    folder = private_folder(plan, kit)
    found, within = None, [0] * len(chosen)
    if CopyStore.exists(folder):
        found, within = _counted(CopyStore(folder), plan.sensors, book.out, [e.spans for _, e in chosen])
    measures = Measures(step=float(book.step) or None)
    return SentReport(
        plan.name,
        [(*item, copies) for item, copies in zip(chosen, within, strict=True)],
        book.total,
        sum(entry.rounds for entry in book.entries.values()),
        found,
        measures,
        _guarantees(found, measures, bool(book.out)),
        book.damaged,
    )


def _counted(
    store: CopyStore, sensors: Sequence[str], out: Spans, tasks: Sequence[Spans]
) -> tuple[list[SeriesOut], list[int]]:
    """The copies of each series that are out, and how many of all copies each task was about."""
    found, within = [], [0] * len(tasks)
    for (name, sensor), known in store.each():
        times: Times = known["time"]

        def spans_of(spans: Spans, sensor: str = sensor, name: str = name) -> list[Span]:
            own = spans.get("", []) if name or sensor in sensors else []
            return [*own, *spans.get(sensor, [])]

        used = known["sigma"][_are_in(times, spans_of(out))]
        sigmas, counts = np.unique(used, return_counts=True)
        by_sigma = dict(zip(sigmas.tolist(), counts.tolist(), strict=True))
        found.append(SeriesOut(sensor, name, len(used), len(times), by_sigma))
        for k, spans in enumerate(tasks):
            within[k] += int(_are_in(times, spans_of(spans)).sum())
    place = {sensor: k for k, sensor in enumerate(sensors)}
    return sorted(found, key=lambda one: (one.name, place.get(one.sensor, len(place)), one.sensor)), within


def _are_in(times: Times, spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(times), dtype=np.bool_)
    for first, until in spans:
        found[np.searchsorted(times, first) : np.searchsorted(times, until)] = True
    return found


def _guarantees(series: Sequence[SeriesOut] | None, measures: Measures, sent: bool) -> list[Guarantee]:
    """What the copies of readings that are out guarantee. An event cannot change more of them than there
    are."""
    if series is None:
        return explain({"": 0.0}, measures) if sent else []
    out = [one for one in series if not one.name and one.out]
    if not out:
        return []
    most, usual = max(one.out for one in out), default_durations(measures.step)
    lengths = [length for length in usual if length < most] + [most] * (most <= usual[-1])
    sigmas = sorted({sigma for one in out for sigma in one.sigmas})
    names = {sigma: f"copies with a blur of {sigma:g}" if len(sigmas) > 1 else "" for sigma in sigmas}
    return explain({names[sigma]: sigma for sigma in sigmas}, measures, durations=lengths)


def _task_as_json(key: Key, entry: Entry, copies: int) -> dict[str, Any]:
    verbs = {verb: asdict(counts) for verb, counts in entry.verbs.items() if counts}
    about = {**key._asdict(), "run": entry.run, "method": entry.method, "rounds": entry.rounds}
    return {**about, "copies": copies, "verbs": verbs}
