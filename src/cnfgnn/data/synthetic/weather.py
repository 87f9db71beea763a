"""Rain over the synthetic city: showers slow the traffic down, and a forecast of them is known ahead."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnfgnn.data.inputs import Input
from cnfgnn.data.readings import Readings
from cnfgnn.data.synthetic.traffic import Floats

SHOWERS = 2.0  # per day
SHOWER_HOURS = (1, 4)
SHOWER_MM = (1.5, 4.0)  # per hour
HEAVY_MM = 4.0
SLOWER, NARROWER = 0.15, 0.25  # what heavy rain takes from the free speed and from the capacity
FORECAST_ERROR = 0.15  # standard deviation, as a share of the rain
DAYS_AHEAD = 1  # for which rain is forecast after the last reading

HOUR = np.timedelta64(3600, "s")


class Rain:
    """The rain of each hour in mm: the same everywhere in the city."""

    def __init__(self, begin: np.datetime64, end: np.datetime64, rng: np.random.Generator) -> None:
        self.first = begin.astype("datetime64[h]").astype("datetime64[s]")
        hours = int((end - self.first) / HOUR) + 1 + 24 * DAYS_AHEAD
        self.mm = np.zeros(hours)
        for _ in range(rng.poisson(SHOWERS * hours / 24)):
            start, length = rng.integers(hours), rng.integers(SHOWER_HOURS[0], SHOWER_HOURS[1] + 1)
            shower = self.mm[start : start + length]
            np.maximum(shower, rng.uniform(*SHOWER_MM), out=shower)
        self._errors = rng.standard_normal(hours)

    def heaviness(self, clock: npt.NDArray[np.datetime64]) -> Floats:
        """From 0 (dry) to 1, at each of these times."""
        heavy: Floats = self.mm[((clock - self.first) // HOUR).astype(np.int64)] / HEAVY_MM
        return heavy

    def forecast(self, begin: np.datetime64) -> Input:
        """The forecast of rain for each hour from `begin` on, as one column for all sensors."""
        times = self.first + np.arange(len(self.mm)) * HOUR
        forecast = np.maximum(self.mm * (1 + FORECAST_ERROR * self._errors), 0.0).astype(np.float32)
        kept = times >= begin.astype("datetime64[h]")
        values = forecast[kept, None]
        readings = Readings(times[kept], ("rain",), values, np.isnan(values), source="synthetic city: rain")
        return Input("rain", True, readings, for_all=True)
