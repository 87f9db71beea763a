"""A site's own readings: what it says about them, and the series its nodes learn from. They stay here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cnfgnn.algorithm.series import Series
from cnfgnn.data.folder import load_readings
from cnfgnn.data.readings import DAY, Readings, weekday
from cnfgnn.errors import ConfigError, DataError
from cnfgnn.federation.project import SitePlan
from cnfgnn.transports.flare.answering import Terms


class OwnReadings:
    """The readings of a site's sensors, in the order of its plan."""

    def __init__(self, plan: SitePlan, kit: Path) -> None:
        if plan.readings is None:
            raise ConfigError(f"{kit / 'local' / 'site.toml'}: readings", "say where the readings are")
        self.readings: Readings = load_readings(kit / plan.readings, plan.reading).select(plan.sensors)

    @property
    def step(self) -> int:
        return int(self.readings.step.astype("timedelta64[s]").astype(int))

    @property
    def first(self) -> int:
        return int(self.readings.times[0].astype("datetime64[s]").astype(np.int64))

    @property
    def last(self) -> int:
        return int(self.readings.times[-1].astype("datetime64[s]").astype(np.int64))

    def about(self) -> Mapping[str, Any]:
        """What the server must know of them to number windows; no reading is in it."""
        return {"first": self.first, "last": self.last, "step": self.step, "utc": self.readings.utc}

    def series(self, terms: Terms) -> Series:
        """On the time steps that all sites share; what this site has not measured is missing."""
        if terms.step != self.step:
            problem = f"readings come every {self.step} s, and the others' every {terms.step} s"
            raise DataError(self.readings.source, problem)
        if (self.first - terms.first) % terms.step:
            raise DataError(
                self.readings.source,
                f"its times do not fall on the others' steps of {terms.step} s",
                row=str(self.readings.times[0]),
            )
        n, shift = len(self.readings.ids), (self.first - terms.first) // terms.step
        rows = np.arange(len(self.readings.times)) + shift
        within = (rows >= 0) & (rows < terms.rows)
        values = np.full((n, terms.rows), np.nan)
        missing = np.ones((n, terms.rows), dtype=np.bool_)
        values[:, rows[within]] = self.readings.values[within].T
        missing[:, rows[within]] = self.readings.missing[within].T
        seconds = terms.first + terms.step * np.arange(terms.rows)
        day = int(DAY.astype(int))
        return Series(values, missing, (seconds % day) / day, weekday(seconds))
