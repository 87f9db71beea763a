"""A site's own readings: what it says about them, and the series its nodes learn from. They stay here."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cnfgnn.data.folder import load_readings
from cnfgnn.data.quality import clean, findings_in
from cnfgnn.data.readings import DAY, Readings, weekday
from cnfgnn.data.series import Series
from cnfgnn.errors import ConfigError, DataError
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.spans import FURTHEST_ZONE, old_for, shown_time
from cnfgnn.transports.remote.endpoint import Terms

FEWEST_TOGETHER = 100  # rows that lie together: fewer, far from the rest, may be a mistake


class SiteData:
    """The readings of a site's sensors, in the order of its plan.

    Windows are numbered from the first to the last step at which any site has a reading, so one wrong row
    would concern everybody. When the site says from when to when it has readings, it leaves out

    - rows without any reading,
    - rows `ahead` of the clock by more than a step (for times without a zone: and the furthest zone),
    - `lone` rows: fewer than a hundred that lie further from the rest than the rest has rows.

    They are left out of what is agreed on only: those within the agreed steps are used like all others.
    """

    def __init__(self, plan: SitePlan, kit: Path) -> None:
        if plan.readings is None:
            raise ConfigError(f"{kit / 'local' / 'site.toml'}: readings", "say where the readings are")
        found: Readings = load_readings(kit / plan.readings, plan.reading).select(plan.sensors)
        self.readings: Readings = clean(found, plan.cleaning)
        self.findings = findings_in(found, plan.cleaning, prefix="")  # for the owner's eyes
        self.seconds: npt.NDArray[np.int64] = self.readings.times.astype("datetime64[s]").astype(np.int64)
        self.measured = self.seconds[~np.isnan(self.readings.values).all(axis=1)]
        if not len(self.measured):
            raise DataError(self.readings.source, "it has no reading of this site's sensors")
        latest = time.time() + self.step + (0 if self.readings.utc else FURTHEST_ZONE)
        past = self.measured[self.measured <= latest]
        if not len(past):
            problem = "all of its readings lie ahead of the clock"
            raise DataError(self.readings.source, problem, row=str(self.readings.times[0]))
        self.ahead, self.newest = self.measured[len(past) :], int(past[-1])
        apart = lone((past - past[0]) // self.step)
        self.lone, self.counted = past[apart], past[~apart]

    @property
    def step(self) -> int:
        return int(self.readings.step.astype("timedelta64[s]").astype(int))

    @property
    def first(self) -> int:
        return int(self.counted[0])

    @property
    def last(self) -> int:
        return int(self.counted[-1])

    def about(self) -> Mapping[str, Any]:
        """What the server must know of them to number windows; no reading is in it."""
        return {
            "first": self.first,
            "last": self.last,
            "step": self.step,
            "utc": self.readings.utc,
            "newest": self.newest,
            "measured": len(self.counted),
            "left_out": len(self.lone) + len(self.ahead),
        }

    def warnings(self) -> list[str]:
        """What its owner should look at; for the owner alone, because it names rows."""
        said, source = [], self.readings.source
        for seconds, what in ((self.lone, "far from the rest"), (self.ahead, "ahead of the clock")):
            if len(seconds):
                rows = "1 row lies" if len(seconds) == 1 else f"{len(seconds)} rows lie"
                times = ", ".join(map(shown_time, seconds[:3])) + (", ..." if len(seconds) > 3 else "")
                said.append(f"{rows} {what} in {source} and may be wrong: {times}")
        if age := old_for(self.newest, self.step, self.readings.utc, time.time()):
            said.append(f"the newest reading in {source} is {age} old ({shown_time(self.newest)})")
        return said

    def before(self, end: int, steps: int) -> Readings | None:
        """The readings of so many steps before a time, in seconds since 1970; None if there are none."""
        recent = (self.seconds >= end - steps * self.step) & (self.seconds < end)
        if not recent.any():
            return None
        r = self.readings
        return replace(r, times=r.times[recent], values=r.values[recent], missing=r.missing[recent])

    def series(self, terms: Terms) -> Series:
        """On the time steps that all sites share; what this site has not measured is missing."""
        if terms.step != self.step:
            problem = f"readings come every {self.step} s, and the others' every {terms.step} s"
            raise DataError(self.readings.source, problem)
        if (int(self.seconds[0]) - terms.first) % terms.step:
            raise DataError(
                self.readings.source,
                f"its times do not fall on the others' steps of {terms.step} s",
                row=str(self.readings.times[0]),
            )
        n, rows = len(self.readings.ids), (self.seconds - terms.first) // terms.step
        within = (rows >= 0) & (rows < terms.rows)
        values = np.full((n, terms.rows), np.nan)
        missing = np.ones((n, terms.rows), dtype=np.bool_)
        values[:, rows[within]] = self.readings.values[within].T
        missing[:, rows[within]] = self.readings.missing[within].T
        seconds = terms.first + terms.step * np.arange(terms.rows)
        day = int(DAY.astype(int))
        return Series(values, missing, (seconds % day) / day, weekday(seconds))


def reached(series: Series) -> int:
    """How many time steps there are up to the newest reading."""
    measured = np.flatnonzero(~np.isnan(series.values).all(axis=0))
    return int(measured[-1]) + 1 if len(measured) else 0


def up_to(series: Series, rows: int) -> Series:
    """The same without readings of later time steps."""
    if rows >= reached(series):
        return series
    values, missing = series.values.copy(), series.missing.copy()
    values[:, rows:], missing[:, rows:] = np.nan, True
    return Series(values, missing, series.time_of_day, series.weekday)


def ranges(series: Series) -> tuple[tuple[float, float] | None, ...]:
    """Each node's least and greatest reading; None for one without any."""
    known = (values[~missing] for values, missing in zip(series.values, series.missing, strict=True))
    return tuple((float(some.min()), float(some.max())) if len(some) else None for some in known)


def digest(series: Series, terms: Terms) -> str:
    """Of every reading, and of when they are from."""
    sha = hashlib.sha256(repr((terms.first, terms.step, series.values.shape)).encode())
    sha.update(np.where(np.isnan(series.values), np.nan, series.values).tobytes())  # one kind of NaN
    sha.update(series.missing.tobytes())
    return sha.hexdigest()


def lone(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of these rows, ascending, are too few and too far from the rest to be meant.

    Cut where the longest hole is, the smaller part is lone if it has fewer than a hundred rows and the hole
    is longer than the other part has rows; then the same is asked of the other part.
    """
    kept = np.arange(len(rows))
    while len(kept) > 1:
        holes = np.diff(rows[kept]) - 1
        place = int(np.argmax(holes)) + 1
        fewer, rest = kept[:place], kept[place:]
        if len(fewer) > len(rest):
            fewer, rest = rest, fewer
        if holes[place - 1] <= len(rest) or len(fewer) >= FEWEST_TOGETHER:
            break
        kept = rest
    alone = np.ones(len(rows), dtype=np.bool_)
    alone[kept] = False
    return alone
