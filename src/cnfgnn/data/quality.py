"""What is wrong with readings although they can be read: each finding is one sentence.

A reading that lies absurdly far from all others of its sensor would set the scale of every sensor and drown
all errors; such readings count as missing (`treated`). Everything else is named and left to the person.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from cnfgnn.config.settings import DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.readings import Readings
from cnfgnn.data.windows import Windows
from cnfgnn.errors import DataError

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


# ---- what is found --------------------------------------------------------------------------------------


def findings(data: Dataset, config: DataConfig | None = None) -> tuple[Finding, ...]:
    """Everything that a person should know about a data set before training on it with these settings."""
    config = config or DataConfig()
    return (*findings_in(data.readings, config), *_places(data.readings))


def findings_in(readings: Readings, config: DataConfig, prefix: str = "data.") -> tuple[Finding, ...]:
    """The same of readings alone, wherever the sensors are; settings are named with the prefix."""
    named = _without(readings, config.missing_value)
    used = treated(readings, config)
    found: list[Finding] = []
    if config.outliers == "missing":
        found += _outliers(named, _all_apart(named, ABSURD), prefix)
    codes = _codes(used)
    found += [_code_finding(used, code, columns, prefix) for code, columns in codes.items()]
    found += _spikes(_without(used, list(codes)), prefix)
    found += _unchanging(used, {column for columns in codes.values() for column in columns})
    found += _silent(used, config)
    return tuple(found)


def _outliers(readings: Readings, absurd: dict[int, _Apart], prefix: str) -> Iterable[Finding]:
    if absurd:
        many = _many(absurd)
        yield Finding(
            "outlier",
            f"{_listed(readings, absurd)} treated as missing, because {'they lie' if many else 'it lies'}"
            f" absurdly far from all other readings of the sensor; {prefix}outliers=keep keeps"
            f" {'them' if many else 'it'}",
            tuple(readings.ids[column] for column in absurd),
        )


def _spikes(readings: Readings, prefix: str) -> Iterable[Finding]:
    """Readings far enough from the others to be doubted."""
    if apart := _all_apart(readings, SPIKE):
        first = readings.values[next(iter(apart.values())).rows[0], next(iter(apart))]
        yield Finding(
            "spike",
            f"{_listed(readings, apart)} far from all other readings of the sensor, and"
            f" {'are' if _many(apart) else 'is'} trained on; if wrong, empty the cell in the file or set"
            f" {prefix}missing_value={_number(first)}",
            tuple(readings.ids[column] for column in apart),
        )


def _many(apart: dict[int, _Apart]) -> bool:
    return sum(len(found.rows) for found in apart.values()) > 1


def _listed(readings: Readings, apart: dict[int, _Apart]) -> str:
    """sensor s1: 1 reading of 99999 at 2024-01-02T03:05:00 is ..."""
    if len(apart) == 1:
        ((column, found),) = apart.items()
        first = found.rows[0]
        shown = f"{_number(readings.values[first, column])} at {readings.times[first]}"
        if len(found.rows) == 1:
            return f"sensor {readings.ids[column]}: 1 reading of {shown} is"
        return f"sensor {readings.ids[column]}: {len(found.rows)} readings, the first {shown}, are"
    total = sum(len(found.rows) for found in apart.values())
    some = [
        f"{readings.ids[column]}: {_number(readings.values[found.rows[0], column])}"
        f" at {readings.times[found.rows[0]]}"
        for column, found in list(apart.items())[:NAMED]
    ]
    more = f"; and {len(apart) - NAMED} more" if len(apart) > NAMED else ""
    return f"{total} readings of {len(apart)} sensors ({'; '.join(some)}{more}) are"


def _codes(readings: Readings) -> dict[float, list[int]]:
    """Numbers that recur far from a sensor's other readings, with the columns in which they do."""
    found: dict[float, list[int]] = {}
    for column in range(len(readings.ids)):
        known = readings.values[~readings.missing[:, column], column]
        for code in _codes_of(known):
            found.setdefault(code, []).append(column)
    return found


def _codes_of(known: npt.NDArray[np.float32]) -> Iterable[float]:
    """The lowest and the highest number of a sensor, if each is one that stands for "missing"."""
    for lowest in (True, False):
        if len(known) < FEWEST:
            return
        code = known.min() if lowest else known.max()
        others = known[known != code]
        usual = bool(np.isin(code, CODES))
        if len(known) - len(others) < REPEATED or not (usual or 2 * len(others) > len(known)):
            continue
        if len(others) == 0:
            if usual:
                yield float(code)
            return
        low, high = float(others.min()), float(others.max())
        gap = low - float(code) if lowest else float(code) - high
        impossible = usual and code < 0 <= low  # the only negative number
        spread = _spread(low, high)
        if impossible or (spread > 0 and gap > (1.0 if usual else STANDS_APART) * spread):
            yield float(code)
            known = others


def _code_finding(readings: Readings, code: float, columns: Sequence[int], prefix: str) -> Finding:
    times = int((readings.values[:, columns] == np.float32(code)).sum())
    sensors = tuple(readings.ids[column] for column in columns)
    number = _number(np.float32(code))
    return Finding(
        "sentinel",
        f"{_sensors(sensors)}: {number} occurs {times} times, far from all other readings; if it stands for a"
        f" missing reading, set {prefix}missing_value={number}",
        sensors,
    )


def _unchanging(readings: Readings, explained: set[int]) -> Iterable[Finding]:
    """Sensors that never read anything else, by what they read."""
    stuck: dict[str, list[str]] = {}
    for column, sensor in enumerate(readings.ids):
        known = readings.values[~readings.missing[:, column], column]
        if len(known) >= FEWEST and known.min() == known.max() and column not in explained:
            stuck.setdefault(_number(known[0]), []).append(sensor)
    for number, sensors in stuck.items():
        yield Finding(
            "constant",
            f"{_sensors(sensors)}: every reading is {number}, so there is nothing to forecast; leave the"
            f" column{'s' if len(sensors) > 1 else ''} out of the file if the sensor"
            f"{'s are' if len(sensors) > 1 else ' is'} broken",
            tuple(sensors),
        )


def _silent(readings: Readings, config: DataConfig) -> Iterable[Finding]:
    """Sensors without a reading, in the whole file or in the part that is trained on."""
    measured = ~readings.missing
    silent = ~measured.any(axis=0)
    if silent.any():
        sensors = [readings.ids[column] for column in np.flatnonzero(silent)]
        yield Finding(
            "silent",
            f"{_sensors(sensors)}: no reading in the whole file; leave the"
            f" column{'s' if len(sensors) > 1 else ''} out, or look for readings under another name",
            tuple(sensors),
        )
    until = _training_rows(readings, config)
    late = ~measured[:until].any(axis=0) & ~silent
    if late.any():
        sensors = [readings.ids[column] for column in np.flatnonzero(late)]
        first = int(measured[:, late].any(axis=1).argmax())
        yield Finding(
            "untrained",
            f"{_sensors(sensors)}: no reading before {readings.times[first]}, and training ends at"
            f" {readings.times[until - 1]}, so nothing is learned of"
            f" {'them' if len(sensors) > 1 else 'it'}; give more rows, leave"
            f" {'them' if len(sensors) > 1 else 'it'} out, or change data.shares",
            tuple(sensors),
        )


def _training_rows(readings: Readings, config: DataConfig) -> int:
    """How many rows from the first one training windows take in; all, where there are too few to train on."""
    rows = len(readings.times)
    try:
        windows = Windows.of(rows, config.history, config.horizon, config.shares, readings.source)
    except DataError:
        return rows
    return int(windows.starts["train"][-1]) + windows.length


def _places(readings: Readings) -> Iterable[Finding]:
    """Positions that cannot be meant."""
    if readings.positions is None:
        return
    latitude, longitude = readings.positions.T
    if len(latitude) > 1 and max(np.ptp(latitude), np.ptp(longitude)) < ONE_PLACE:
        yield Finding(
            "one-place",
            f"all {len(latitude)} sensors are at one place ({latitude[0]:g}, {longitude[0]:g}), so the graph"
            " says nothing; give each sensor its own latitude and longitude, or add edges.csv",
            readings.ids,
        )
    middle = float(np.median(latitude))
    if not SOUTHERN < middle < POLAR and (np.abs(longitude) <= 90).all():
        yield Finding(
            "swapped",
            f"the sensors are at latitude {middle:g}, where next to nobody lives, and longitude"
            f" {float(np.median(longitude)):g}: are the columns latitude and longitude swapped?",
            readings.ids,
        )


# ---- new readings against those of training -------------------------------------------------------------


def training_ranges(readings: Readings, config: DataConfig) -> list[tuple[float, float] | None]:
    """The lowest and the highest reading of each sensor in the rows that training takes in.

    Absurd readings are not among them; more may not be left out, or a sensor's only traffic jams would be.
    """
    used = treated(readings, config)
    until = _training_rows(used, config)
    ranges: list[tuple[float, float] | None] = []
    for column in range(len(used.ids)):
        known = used.values[:until, column][~used.missing[:until, column]]
        ranges.append((float(known.min()), float(known.max())) if len(known) else None)
    return ranges


def out_of_range(
    newest: Readings, ranges: dict[str, tuple[float, float] | None], std: float
) -> tuple[Finding, ...]:
    """Sensors whose newest readings lie far outside what they read in training; `std` is the run's scale.

    Most of the readings have to lie half the range beyond it, or a single one five times the range.
    """
    strange: list[tuple[str, float, tuple[float, float]]] = []
    compared = 0
    for column, sensor in enumerate(newest.ids):
        known = newest.values[~newest.missing[:, column], column].astype(np.float64)
        usual = ranges.get(sensor)
        if usual is None or len(known) == 0:
            continue
        compared += 1
        low, high = usual
        beyond = np.maximum(low - known, known - high)
        spread = max(high - low, 2 * std)
        if np.median(beyond) > BEYOND * spread or beyond.max() > FAR_BEYOND * spread:
            strange.append((sensor, float(known[beyond.argmax()]), usual))
    if not strange:
        return ()
    sensors = tuple(sensor for sensor, _, _ in strange)
    sensor, seen, (low, high) = strange[0]
    unit = "another unit, or " if 2 * len(strange) > compared else ""
    return (
        Finding(
            "range",
            f"{_sensors(sensors)}: the newest readings lie far outside those of training ({sensor}:"
            f" {seen:g}, and {low:g} to {high:g} in training), so the forecasts are not to be trusted; is it"
            f" {unit}a broken sensor?",
            sensors,
        ),
    )


def _sensors(sensors: Sequence[str]) -> str:
    """sensor s1; or 7 sensors (s1, s2, s3 and 4 more)."""
    if len(sensors) == 1:
        return f"sensor {sensors[0]}"
    more = f" and {len(sensors) - NAMED} more" if len(sensors) > NAMED else ""
    return f"{len(sensors)} sensors ({', '.join(sensors[:NAMED])}{more})"


def _number(value: np.float32) -> str:
    """As it stands in a file: 99999, -99.9."""
    return str(int(value)) if value == int(value) else str(value)
