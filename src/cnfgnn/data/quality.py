"""What is wrong with readings although they can be read: each finding is one sentence.

A reading that lies absurdly far from all others of its sensor would set the scale of every sensor and drown
all errors; such readings count as missing (`treated`). Everything else is named and left to the person.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from cnfgnn.config import DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.readings import Readings

Kind = Literal[
    "outlier", "spike", "sentinel", "constant", "silent", "untrained", "swapped", "one-place", "range"
]
Floats = npt.NDArray[np.float64]

FEWEST = 20  # readings of a sensor, below which nothing can be called far from the others
ABSURD = 50.0  # times the range of the sensor's other readings: counts as missing
SPIKE = 20.0  # times that range: named
CODE_APART = 5.0  # times that range: a number such as 99999 that people write for "missing" counts as missing
RARE = 1000  # one in so many readings of a sensor may count as missing, and FEW in a short series
FEW = 3
REPEATED = 3  # times that a number has to occur to be taken for one that stands for "missing"
STANDS_APART = 10.0  # times the range, for a repeated number that is no usual code
LEAST_SPREAD = 0.1  # of the largest reading: readings that hardly ever change have next to no range
NAMED = 3  # sensors in a sentence
POLAR, SOUTHERN = 72.0, -56.0  # degrees of latitude beyond which next to nobody lives
ONE_PLACE = 1e-5  # degrees, about a metre
INNER = (
    0.005  # share of the lowest and of the highest training readings that a sensor's usual range leaves out
)
BEYOND, FAR_BEYOND = 0.5, 5.0  # times that range: for most of the newest readings, for a single one

_NINES = [-9, -99, -99.9, -99.99] + [s * v for v in (999, 999.9, 999.99, 9999, 9999.9) for s in (1, -1)]
_NINES += [s * (10**digits - 1) for digits in range(5, 10) for s in (1, -1)]
CODES = np.unique(np.array([*_NINES, 32767, -32767, -32768, 65535, 2**31 - 1, -(2**31)], dtype=np.float32))


@dataclass(frozen=True)
class Finding:
    """One thing that a person should know about readings: a sentence, and the sensors it is about."""

    kind: Kind
    message: str
    sensors: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class _Apart:
    """The readings of one sensor that lie apart from all its others: rows, and how far in ranges of those."""

    rows: npt.NDArray[np.int64]
    distance: Floats


# ---- what is done about it ------------------------------------------------------------------------------


def treated(readings: Readings, config: DataConfig) -> Readings:
    """The readings as a run takes them: numbers that stand for "missing" are missing, and so are absurd ones.

    A reading is absurd if it lies more than ABSURD times the range of the sensor's other readings outside
    that range (CODE_APART times for a number such as 99999 or -999). At most one in RARE readings of a sensor
    can be absurd, FEW of a short series: heavy tails and peaks that recur are data. Nothing else changes.
    """
    readings = _without(readings, config.missing_value)
    absurd = _all_apart(readings, ABSURD) if config.outliers == "missing" else {}
    if not absurd:
        return readings
    away = np.zeros_like(readings.missing)
    for column, apart in absurd.items():
        away[apart.rows, column] = True
    return _blanked(readings, away)


def treated_data(data: Dataset, config: DataConfig) -> Dataset:
    """A data set with its readings as a run takes them."""
    readings = treated(data.readings, config)
    return data if readings is data.readings else replace(data, readings=readings)


def _all_apart(readings: Readings, limit: float) -> dict[int, _Apart]:
    """By column, the readings that lie more than `limit` ranges of the sensor's others away from those."""
    found = {column: _apart(readings, column, limit) for column in range(len(readings.ids))}
    return {column: apart for column, apart in found.items() if len(apart.rows)}


def _apart(readings: Readings, column: int, limit: float) -> _Apart:
    rows = np.flatnonzero(~readings.missing[:, column])
    values = readings.values[rows, column]
    few = max(FEW, len(rows) // RARE)
    none = _Apart(rows[:0], np.zeros(0))
    if len(rows) < FEWEST or _close_together(values, few):
        return none
    order = np.argsort(values, kind="stable")
    ascending = values[order].astype(np.float64)
    limits = np.where(np.isin(values[order], CODES), CODE_APART, limit)
    low, high = few, len(rows) - few - 1  # what lies between is surely among "the others"
    while True:
        spread = _spread(ascending[low], ascending[high])
        distance = np.maximum(ascending[low] - ascending, ascending - ascending[high])
        near = np.flatnonzero(distance <= limits * spread)
        if spread == 0 or (near[0] == low and near[-1] == high):
            break
        low, high = int(near[0]), int(near[-1])
    outside = np.sort(np.concatenate([order[:low], order[high + 1 :]]))
    if spread == 0 or len(outside) > few:
        return none
    place = np.argsort(order)  # of each reading in ascending order
    return _Apart(rows[outside], distance[place[outside]] / spread)


def _close_together(values: npt.NDArray[np.float32], few: int) -> bool:
    """Whether nothing can lie apart, found without putting all readings in order."""
    parted = np.partition(values, (few, len(values) - few - 1))
    low, high = float(parted[few]), float(parted[len(values) - few - 1])
    beyond = max(low - float(parted[:few].min()), float(parted[-few:].max()) - high)
    return beyond <= CODE_APART * _spread(low, high)


def _spread(low: float, high: float) -> float:
    """The range from low to high; of readings that hardly change, a share of their size."""
    return max(high - low, LEAST_SPREAD * max(abs(low), abs(high)))


def _without(readings: Readings, numbers: Sequence[float]) -> Readings:
    if not numbers:
        return readings
    standing_in = np.isin(readings.values, np.array(numbers, dtype=np.float32))
    return _blanked(readings, standing_in) if standing_in.any() else readings


def _blanked(readings: Readings, away: npt.NDArray[np.bool_]) -> Readings:
    values = np.where(away, np.float32(np.nan), readings.values)
    return replace(readings, values=values, missing=readings.missing | away)
