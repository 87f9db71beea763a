"""A site's readings and their blurred copy: the description that the server gets, and the series of both.

The readings never leave the site. Whatever the server can notice comes from the copy: the nodes train on it,
and a refusal depends on it.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cnfgnn.data.files.folder import load_readings, zeros_are_missing
from cnfgnn.data.inputs import InputNames
from cnfgnn.data.quality import Finding, findings_in
from cnfgnn.data.readings import DAY, Readings, columns_of, isolated_rows, rows_of, weekday
from cnfgnn.data.refusals import KnownSteps, Refusals
from cnfgnn.data.series import Series
from cnfgnn.errors import ConfigError, DataError
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.site.copies import (
    blurring_of,
    check_least_blur,
    check_older_copies,
    known_steps,
    settled_phase,
    site_copies,
)
from cnfgnn.federation.site.settings import settings_file
from cnfgnn.federation.spans import FURTHEST_ZONE, age_if_old, format_time
from cnfgnn.live.intake.at_hand import with_stored
from cnfgnn.live.options import LIVE
from cnfgnn.privacy.copies import CopiesOfNewest
from cnfgnn.privacy.truth_and_copy import Blurring, TruthAndCopy
from cnfgnn.transports.remote.endpoint import Terms


class SiteData:
    """The readings of a site's sensors, in the order of its settings: `truth`, and their blurred `copy`.

    Which readings are missing is decided first, and the copy has the same gaps. Outliers are sought in each
    of the two by itself. Without blur both are the same object.

    Windows are numbered from the first to the last step at which any site has a reading, so one wrong
    timestamp would affect every site. When the site reports its time span, it therefore ignores

    - rows without any reading,
    - rows in the `future`, that is more than a step ahead of the clock (for timestamps without a time zone:
      a step and `FURTHEST_ZONE`),
    - `isolated` rows: fewer than `SMALLEST_CLUSTER` rows that lie further from the rest than the rest has
      rows.

    They are ignored for the time span only: rows that fall within the agreed span are used like all others.

    `more` are sensors that joined while the federation is live; the file may have no readings of them. With
    `live`, readings that the site's live service has received come on top of those in the file. With
    `refusals`, lines that cannot be read are noted there, as a live service does; otherwise they are errors.
    """

    def __init__(
        self,
        plan: SitePlan,
        kit: Path,
        more: Sequence[str] = (),
        live: bool = False,
        refusals: Refusals | None = None,
    ) -> None:
        check_least_blur(plan, kit)
        found = load_site(plan, kit, live, refusals, known_steps(plan, kit))
        if refusals is None:
            found.select(plan.sensors)  # a sensor that the file lacks is an error
        # A live service also begins if a sensor was silent for as long as its file reaches back.
        loaded = columns_of(found, (*plan.sensors, *more))
        self.inputs = InputNames.of(loaded.others)  # the names of other variables and of covariates
        self.copies = site_copies(loaded, plan, kit)
        known = None if self.copies is None else self.copies.steps
        both = TruthAndCopy(loaded, plan.cleaning, blurring_of(plan, self.copies))
        self.copy, self.truth, self.observed = both.copy, both.truth, both.observed
        self.sigmas = {} if self.copies is None else self.copies.sigmas
        self.retired = {} if self.copies is None else self.copies.store.retired
        self.copy_warnings = () if self.copies is None else self.copies.warnings
        self.blur = min([plan.blur, *self.sigmas])  # what holds for all readings: older copies may have less
        check_older_copies(self.blur, plan, kit)
        self._loaded, self._cleaning = loaded, plan.cleaning
        self.step = self.copy.step_seconds if known is None else known.step
        self.seconds: npt.NDArray[np.int64] = self.copy.seconds
        self.measured = self.seconds[~np.isnan(self.copy.values).all(axis=1)]
        if not len(self.measured):
            older = ", except for those that were retired when it was restored" if self.retired else ""
            raise DataError(self.source, f"it has no reading for any sensor of this site{older}")
        latest = time.time() + self.step + (0 if self.copy.utc else FURTHEST_ZONE)
        past = self.measured[self.measured <= latest]
        if not len(past):
            problem = "all readings are in the future: check this machine's clock and the file's time zone"
            raise DataError(self.source, problem, row=str(self.copy.times[0]))
        self.future, self.newest = self.measured[len(past) :], int(past[-1])
        is_isolated = isolated_rows((past - past[0]) // self.step)
        self.isolated, self.counted = past[is_isolated], past[~is_isolated]

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What looks wrong with the true readings; for the site's owner only."""
        return findings_in(self._loaded, self._cleaning, prefix="")

    @property
    def source(self) -> str:
        """Where the readings come from, for messages."""
        return self.truth.source

    @property
    def input_names(self) -> set[str]:
        """The names of its other variables and covariates."""
        return {*self.inputs.variables, *self.inputs.covariates}

    @property
    def first(self) -> int:
        return int(self.counted[0])

    @property
    def last(self) -> int:
        return int(self.counted[-1])

    def of_sensors(self, ids: Sequence[str]) -> SiteData:
        """The same for these sensors; those that there are no readings of are missing throughout."""
        if tuple(ids) == self.truth.ids:
            return self
        other = copy.copy(self)
        other.truth, other.observed = columns_of(self.truth, ids), columns_of(self.observed, ids)
        other.copy = other.truth if self.copy is self.truth else columns_of(self.copy, ids)
        return other

    def describe(self) -> Mapping[str, Any]:
        """What the server needs to number windows, and the blur; it contains no reading."""
        return {
            "first": self.first,
            "last": self.last,
            "step": self.step,
            "utc": self.copy.utc,
            "blur": self.blur,
            "newest": self.newest,
            "measured": len(self.counted),
            "ignored": len(self.isolated) + len(self.future),
            **{kind: list(names) for kind, names in self.inputs._asdict().items()},
        }

    def warnings(self) -> list[str]:
        """What the site's owner should look at; for the owner only, because it names rows."""
        warnings, source = list(self.copy_warnings), self.source
        for seconds, where in ((self.isolated, "far from all other rows"), (self.future, "in the future")):
            if len(seconds):
                rows = "1 row is" if len(seconds) == 1 else f"{len(seconds)} rows are"
                times = ", ".join(map(format_time, seconds[:3]))
                if len(seconds) > 3:
                    times += ", ..."
                warnings.append(f"{rows} {where} in {source}; check the timestamps: {times}")
        if age := age_if_old(self.newest, self.step, self.copy.utc, time.time()):
            warnings.append(f"the newest reading in {source} is {age} old ({format_time(self.newest)})")
        return warnings

    def live_blurring(self, plan: SitePlan) -> Blurring | None:
        """How readings that arrive from now on are blurred; None if a copy is the reading itself."""
        return blurring_of(plan, None if self.copies is None else CopiesOfNewest(self.copies))

    def readings_before(self, end: int, steps: int) -> Readings | None:
        """The true readings of the last `steps` steps before `end`, in seconds since 1970; None without
        any."""
        recent = (self.seconds >= end - steps * self.step) & (self.seconds < end)
        if not recent.any():
            return None
        return rows_of(self.truth, recent)

    def series(self, terms: Terms) -> Series:
        """The copy on the time steps that all sites agreed on; steps without a reading are missing."""
        if terms.step != self.step:
            problem = f"the readings are {self.step} s apart, and those of the other sites {terms.step} s"
            raise DataError(self.source, problem)
        if (self.first - terms.first) % terms.step:
            problem = f"the timestamps are shifted against the other sites' steps of {terms.step} s"
            raise DataError(self.source, problem, row=format_time(self.first))
        return self._on_steps(self.copy, terms)

    def true_series(self, terms: Terms, with_retired: bool = True) -> Series | None:
        """The readings on the same steps, for their owner; None if the copy is the readings."""
        if self.copy is self.truth:
            return None
        return self._on_steps(self.truth if with_retired else self._without_retired(), terms)

    def _without_retired(self) -> Readings:
        """The true readings without those up to the restore that have no copy, and so for further inputs."""
        observed, until = self.observed, max(self.retired.values(), default=-(1 << 62))

        def copied(one: Readings, copy: Readings) -> Readings:
            retired = np.isnan(copy.values) & (copy.seconds <= until)[:, None]
            return replace(one, values=np.where(retired, np.float32(np.nan), one.values))

        pairs = zip(observed.others, self.copy.others, strict=True)
        others = tuple(replace(one, readings=copied(one.readings, of.readings)) for one, of in pairs)
        kept = replace(copied(observed, self.copy), others=others)
        return TruthAndCopy(kept, self._cleaning, None).truth  # nor do they decide what is an outlier

    def _on_steps(self, readings: Readings, terms: Terms) -> Series:
        n, rows = len(readings.ids), (self.seconds - terms.first) // terms.step
        within = (rows >= 0) & (rows < terms.rows)
        values = np.full((n, terms.rows), np.nan)
        missing = np.ones((n, terms.rows), dtype=np.bool_)
        values[:, rows[within]] = readings.values[within].T
        missing[:, rows[within]] = readings.missing[within].T
        seconds = terms.first + terms.step * np.arange(terms.rows)
        day = int(DAY.astype(int))
        others = [one.at(seconds) for one in readings.others]
        return Series(values, missing, (seconds % day) / day, weekday(seconds), others, seconds)


def load_site(
    plan: SitePlan,
    kit: Path,
    live: bool,
    refusals: Refusals | None = None,
    known: KnownSteps | None = None,
) -> Readings:
    """All readings of a site's files, on its `known` steps if they are; with `live`, those that its live
    service has received, too. See `SiteData` for `refusals`."""
    if plan.readings is None:
        raise ConfigError(f"{settings_file(kit)}: readings", "set it to the path of the readings")
    if refusals is not None:
        refusals.phase = settled_phase(plan, kit)
    found = load_readings(kit / plan.readings, replace(plan.reading, refusals=refusals, known=known))
    return with_stored(found, kit / LIVE, zeros_are_missing(kit / plan.readings)) if live else found


def rows_with_readings(series: Series) -> int:
    """The number of time steps up to and including the newest reading."""
    measured = np.flatnonzero(~np.isnan(series.values).all(axis=0))
    return int(measured[-1]) + 1 if len(measured) else 0


def first_rows(series: Series, rows: int) -> Series:
    """The same series with all readings after the first `rows` time steps removed. Further inputs keep the
    values that they had by then: what is known of later times may still change."""
    if rows >= rows_with_readings(series) and not series.others:
        return series
    values, missing = series.values.copy(), series.missing.copy()
    values[:, rows:], missing[:, rows:] = np.nan, True
    others = [one.until(rows) for one in series.others]
    return Series(values, missing, series.time_of_day, series.weekday, others, series.seconds)


def digest(series: Series, terms: Terms) -> str:
    """A SHA-256 digest of all readings and their timestamps."""
    sha = hashlib.sha256(repr((terms.first, terms.step, series.values.shape)).encode())
    sha.update(np.where(np.isnan(series.values), np.nan, series.values).tobytes())  # all NaNs alike
    sha.update(series.missing.tobytes())
    for one in series.others:
        sha.update(repr((one.name, one.known_ahead, one.values.shape)).encode())
        sha.update(np.where(np.isnan(one.values), np.nan, one.values).tobytes())
    return sha.hexdigest()
