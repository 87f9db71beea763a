"""Checks of readings that can be read but look wrong; each finding is one sentence for the user.

A reading that lies extremely far from all others of its sensor would set the scale of every sensor and
dominate all errors. `clean` treats such outliers as missing. Everything else is reported and left to the
user.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
Ints = npt.NDArray[np.int64]
Ranges = Mapping[str, tuple[float, float] | None]  # lowest and highest training reading by sensor

# Distances are multiples of the range of the sensor's other readings.
OUTLIER_DISTANCE = 50.0  # beyond it, a reading is treated as missing
CODE_DISTANCE = 5.0  # the same for a common code for "missing", such as 99999
SPIKE_DISTANCE = 20.0  # beyond it, a reading is reported
REPEATED_DISTANCE = 10.0  # beyond it, a number that recurs may be a code for "missing", even an uncommon one
MOST_BEYOND, ONE_BEYOND = 0.5, 5.0  # the newest readings outside the training range: their median, any one

MIN_READINGS = 20  # of a sensor; with fewer, nothing can be called far from the others
RARE = 1000  # at most one in so many readings of a sensor is an outlier ...
FEW = 3  # ... or so many in a short series
REPEATED = 3  # a code for "missing" occurs at least so many times
MIN_SPREAD = 0.1  # of the largest reading: the least range assumed for readings that hardly change
SAMPLED = 64  # readings of each sensor with which the quickest check begins
SENSORS_NAMED = 3  # in one sentence
POLAR, SOUTHERN = 72.0, -56.0  # degrees of latitude beyond which almost nobody lives
SAME_PLACE = 1e-5  # degrees, about a metre

_NINES = [-9, -99, -99.9, -99.99]
for _size in (999, 999.9, 999.99, 9999, 9999.9, *(10**digits - 1 for digits in range(5, 10))):
    _NINES += [_size, -_size]
CODES = np.unique(np.array([*_NINES, 32767, -32767, -32768, 65535, 2**31 - 1, -(2**31)], dtype=np.float32))
"""Numbers that people and devices often write for a missing reading."""


@dataclass(frozen=True)
class Finding:
    """One thing that a user should know about readings: a sentence, and the sensors that it is about."""

    kind: Kind
    message: str
    sensors: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.message


# ---- cleaning -------------------------------------------------------------------------------------------


def clean(readings: Readings, config: DataConfig) -> Readings:
    """The readings as a run uses them: codes for "missing" (`data.missing_value`) and outliers are missing.

    A reading is an outlier if it lies more than OUTLIER_DISTANCE times the range of the sensor's other
    readings outside that range (CODE_DISTANCE times for a common code such as 99999 or -999). At most one in
    RARE readings of a sensor, or FEW in a short series, can be outliers: heavy tails and recurring peaks are
    data. With `data.outliers=keep`, none are. Nothing else changes.
    """
    return mask_outliers(mask_codes(readings, config), config)


def mask_codes(readings: Readings, config: DataConfig) -> Readings:
    """The first half of `clean`: codes for "missing" are missing."""
    return _without_codes(readings, config.missing_value)


def mask_outliers(readings: Readings, config: DataConfig) -> Readings:
    """The second half of `clean`: outliers are missing, unless they are to be kept."""
    outliers = _far_readings(readings, OUTLIER_DISTANCE) if config.outliers == "missing" else {}
    if not outliers:
        return readings
    is_outlier = np.zeros_like(readings.missing)
    for column, rows in outliers.items():
        is_outlier[rows, column] = True
    return _with_missing(readings, is_outlier)


def clean_dataset(data: Dataset, config: DataConfig) -> Dataset:
    """A data set with its readings as a run uses them, see `clean`."""
    readings = clean(data.readings, config)
    return data if readings is data.readings else replace(data, readings=readings)


def _far_readings(readings: Readings, limit: float) -> dict[int, Ints]:
    """By column, the rows of readings that lie more than `limit` ranges of the sensor's others away."""
    found = {column: _far_rows(readings, column, limit) for column in _may_have_far(readings)}
    return {column: rows for column, rows in found.items() if len(rows)}


def _may_have_far(readings: Readings) -> Iterable[int]:
    """The columns that the check of `_close_together` does not clear even with a few of their readings.

    Few readings lie closer together than all of them, so that this clears no column that all would not. It
    looks at all columns at once: a live service does so with every new row.
    """
    few = max(FEW, len(readings.times) // RARE)
    some = slice(None, None, max(1, len(readings.times) // SAMPLED))
    values, missing = readings.values, readings.missing
    if len(values[some]) <= few:
        return range(len(readings.ids))
    least = np.where(missing, np.inf, values).min(axis=0)
    most = np.where(missing, -np.inf, values).max(axis=0)
    low = np.partition(np.where(missing[some], np.inf, values[some]), few, axis=0)[few]
    high = -np.partition(np.where(missing[some], np.inf, -values[some]), few, axis=0)[few]
    with np.errstate(invalid="ignore"):
        beyond = np.maximum(low - least, most - high)
        spread = np.maximum(high - low, MIN_SPREAD * np.maximum(np.abs(low), np.abs(high)))
        cleared = (low <= high) & np.isfinite(spread) & (beyond <= CODE_DISTANCE * spread)
    return np.flatnonzero(~cleared).tolist()


def _far_rows(readings: Readings, column: int, limit: float) -> Ints:
    rows = np.flatnonzero(~readings.missing[:, column])
    values = readings.values[rows, column]
    few = max(FEW, len(rows) // RARE)
    none: Ints = rows[:0]
    if len(rows) < MIN_READINGS or _close_together(values, few):
        return none
    order = np.argsort(values, kind="stable")
    ascending = values[order].astype(np.float64)
    limits = np.where(np.isin(values[order], CODES), CODE_DISTANCE, limit)
    # Start from the readings that cannot be outliers, and add those within reach until nothing changes.
    low, high = few, len(rows) - few - 1
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
    far: Ints = rows[outside]
    return far


def _close_together(values: npt.NDArray[np.float32], few: int) -> bool:
    """A quick check, without sorting, that no reading can be far from the others."""
    parted = np.partition(values, (few, len(values) - few - 1))
    low, high = float(parted[few]), float(parted[len(values) - few - 1])
    beyond = max(low - float(parted[:few].min()), float(parted[-few:].max()) - high)
    return beyond <= CODE_DISTANCE * _spread(low, high)


def _spread(low: float, high: float) -> float:
    """The range from low to high; for readings that hardly change, a share of their size."""
    return max(high - low, MIN_SPREAD * max(abs(low), abs(high)))


def _without_codes(readings: Readings, codes: Sequence[float]) -> Readings:
    if not codes:
        return readings
    is_code = np.isin(readings.values, np.array(codes, dtype=np.float32))
    return _with_missing(readings, is_code) if is_code.any() else readings


def _with_missing(readings: Readings, missing: npt.NDArray[np.bool_]) -> Readings:
    values = np.where(missing, np.float32(np.nan), readings.values)
    return replace(readings, values=values, missing=readings.missing | missing)


# ---- findings -------------------------------------------------------------------------------------------


def findings(data: Dataset, config: DataConfig | None = None) -> tuple[Finding, ...]:
    """Everything that a user should know about a data set before training on it with these settings."""
    config = config or DataConfig()
    return (*findings_in(data.readings, config), *_position_findings(data.readings))


def findings_in(readings: Readings, config: DataConfig, prefix: str = "data.") -> tuple[Finding, ...]:
    """The findings about readings alone; sentences name settings with `prefix`."""
    without_codes = _without_codes(readings, config.missing_value)
    used = clean(readings, config)
    found: list[Finding] = []
    if config.outliers == "missing":
        found += _outliers(without_codes, prefix)
    codes = _codes(used)
    found += [_code_finding(used, code, columns, prefix) for code, columns in codes.items()]
    found += _spikes(_without_codes(used, list(codes)), prefix)
    found += _constant(used, {column for columns in codes.values() for column in columns})
    found += _silent(used)
    found += _untrained(used, config)
    return tuple(found)


def _outliers(readings: Readings, prefix: str) -> Iterable[Finding]:
    """Readings that `clean` treats as missing."""
    far = _far_readings(readings, OUTLIER_DISTANCE)
    if not far:
        return
    one = _is_one(far)
    yield Finding(
        "outlier",
        f"{_listed(readings, far)} {'is' if one else 'are'} treated as missing, because"
        f" {'it lies' if one else 'they lie'} extremely far from all other readings of the sensor; set"
        f" {prefix}outliers=keep to train on {'it' if one else 'them'}",
        tuple(readings.ids[column] for column in far),
    )


def _spikes(readings: Readings, prefix: str) -> Iterable[Finding]:
    """Readings that are kept although they are far from the others."""
    far = _far_readings(readings, SPIKE_DISTANCE)
    if not far:
        return
    one = _is_one(far)
    column, rows = next(iter(far.items()))
    yield Finding(
        "spike",
        f"{_listed(readings, far)} {'lies' if one else 'lie'} far from all other readings of the sensor but"
        f" {'is' if one else 'are'} trained on; if wrong, empty the cell in the file or set"
        f" {prefix}missing_value={_number(readings.values[rows[0], column])}",
        tuple(readings.ids[column] for column in far),
    )


def _is_one(far: Mapping[int, Ints]) -> bool:
    return sum(len(rows) for rows in far.values()) == 1


def _listed(readings: Readings, far: Mapping[int, Ints]) -> str:
    """For example "sensor s1: 1 reading of 99999 at 2024-01-02T03:05:00"."""

    def shown(column: int, row: int) -> str:
        return f"{_number(readings.values[row, column])} at {readings.times[row]}"

    if len(far) == 1:
        ((column, rows),) = far.items()
        if len(rows) == 1:
            return f"sensor {readings.ids[column]}: 1 reading of {shown(column, rows[0])}"
        return f"sensor {readings.ids[column]}: {len(rows)} readings, the first {shown(column, rows[0])},"
    total = sum(len(rows) for rows in far.values())
    first = [f"{readings.ids[column]}: {shown(column, rows[0])}" for column, rows in far.items()]
    named = "; ".join(first[:SENSORS_NAMED])
    more = f"; and {len(far) - SENSORS_NAMED} more" if len(far) > SENSORS_NAMED else ""
    return f"{total} readings of {len(far)} sensors ({named}{more})"


def _codes(readings: Readings) -> dict[float, list[int]]:
    """Numbers that recur far from a sensor's other readings, with the columns in which they do."""
    found: dict[float, list[int]] = {}
    for column in range(len(readings.ids)):
        known = readings.values[~readings.missing[:, column], column]
        for code in _codes_of(known):
            found.setdefault(code, []).append(column)
    return found


def _codes_of(known: npt.NDArray[np.float32]) -> Iterable[float]:
    """The lowest and the highest reading of a sensor, each if it looks like a code for "missing"."""
    for lowest in (True, False):
        if len(known) < MIN_READINGS:
            return
        code = known.min() if lowest else known.max()
        others = known[known != code]
        is_common = bool(np.isin(code, CODES))
        if len(known) - len(others) < REPEATED or not (is_common or 2 * len(others) > len(known)):
            continue
        if len(others) == 0:
            if is_common:
                yield float(code)
            return
        low, high = float(others.min()), float(others.max())
        gap = low - float(code) if lowest else float(code) - high
        only_negative = is_common and code < 0 <= low
        spread = _spread(low, high)
        if only_negative or (spread > 0 and gap > (1.0 if is_common else REPEATED_DISTANCE) * spread):
            yield float(code)
            known = others


def _code_finding(readings: Readings, code: float, columns: Sequence[int], prefix: str) -> Finding:
    times = int((readings.values[:, columns] == np.float32(code)).sum())
    sensors = tuple(readings.ids[column] for column in columns)
    number = _number(np.float32(code))
    return Finding(
        "sentinel",
        f"{_sensors(sensors)}: {number} occurs {times} times, far from all other readings, and is trained"
        f" on; if it stands for a missing reading, set {prefix}missing_value={number}",
        sensors,
    )


def _constant(readings: Readings, explained: set[int]) -> Iterable[Finding]:
    """Sensors whose readings are all the same, grouped by that reading."""
    by_reading: dict[str, list[str]] = {}
    for column, sensor in enumerate(readings.ids):
        known = readings.values[~readings.missing[:, column], column]
        if len(known) >= MIN_READINGS and known.min() == known.max() and column not in explained:
            by_reading.setdefault(_number(known[0]), []).append(sensor)
    for number, sensors in by_reading.items():
        one = len(sensors) == 1
        yield Finding(
            "constant",
            f"{_sensors(sensors)}: every reading is {number}; {'it is' if one else 'they are'} trained on,"
            f" but there is nothing to forecast; if the {'sensor is' if one else 'sensors are'} broken,"
            f" remove the {'column' if one else 'columns'} from the file",
            tuple(sensors),
        )


def _silent(readings: Readings) -> Iterable[Finding]:
    """Sensors without any reading."""
    silent = readings.missing.all(axis=0)
    if not silent.any():
        return
    sensors = [readings.ids[column] for column in np.flatnonzero(silent)]
    one = len(sensors) == 1
    yield Finding(
        "silent",
        f"{_sensors(sensors)}: no reading in the whole file, so {'it gets' if one else 'they get'} no"
        f" forecasts; remove the {'column' if one else 'columns'}, or look for the readings under another"
        " name",
        tuple(sensors),
    )


def _untrained(readings: Readings, config: DataConfig) -> Iterable[Finding]:
    """Sensors whose first reading comes after the part that is trained on."""
    measured = ~readings.missing
    until = _training_rows(readings, config)
    late = ~measured[:until].any(axis=0) & measured.any(axis=0)
    if not late.any():
        return
    sensors = [readings.ids[column] for column in np.flatnonzero(late)]
    it = "it" if len(sensors) == 1 else "them"
    first = int(measured[:, late].any(axis=1).argmax())
    yield Finding(
        "untrained",
        f"{_sensors(sensors)}: no reading before {readings.times[first]}, and training ends at"
        f" {readings.times[until - 1]}, so nothing is learned about {it}; add more rows, remove {it} from the"
        " file, or change data.shares",
        tuple(sensors),
    )


def _training_rows(readings: Readings, config: DataConfig) -> int:
    """How many rows, from the first one, training windows cover; all if there are too few to train on."""
    rows = len(readings.times)
    try:
        windows = Windows.of(rows, config.history, config.horizon, config.shares, readings.source)
    except DataError:
        return rows
    return int(windows.starts["train"][-1]) + windows.length


def _position_findings(readings: Readings) -> Iterable[Finding]:
    """Positions that are probably mistakes."""
    if readings.positions is None:
        return
    latitude, longitude = readings.positions.T
    if len(latitude) > 1 and max(np.ptp(latitude), np.ptp(longitude)) < SAME_PLACE:
        yield Finding(
            "one-place",
            f"all {len(latitude)} sensors have the same position ({latitude[0]:g}, {longitude[0]:g}), so that"
            " distances between them mean nothing; give each sensor its own latitude and longitude in"
            " sensors.csv, or describe the graph in edges.csv",
            readings.ids,
        )
    middle = float(np.median(latitude))
    if not SOUTHERN < middle < POLAR and (np.abs(longitude) <= 90).all():
        yield Finding(
            "swapped",
            f"the sensors are at latitude {middle:g}, where almost nobody lives, and longitude"
            f" {float(np.median(longitude)):g}: are latitude and longitude swapped?"
            " They are used as they are; if so, correct sensors.csv",
            readings.ids,
        )


# ---- new readings compared with those of training -------------------------------------------------------


def training_ranges(readings: Readings, config: DataConfig) -> list[tuple[float, float] | None]:
    """The lowest and the highest reading of each sensor in the rows that training windows cover.

    Outliers do not count. Nothing else is left out: extreme readings may be a sensor's only traffic jams.
    """
    used = clean(readings, config)
    until = _training_rows(used, config)
    return value_ranges(used.values[:until].T, used.missing[:until].T)


def value_ranges(
    values: npt.NDArray[np.floating], missing: npt.NDArray[np.bool_]
) -> list[tuple[float, float] | None]:
    """The lowest and the highest reading of each sensor (n T); None for a sensor without readings."""
    ranges: list[tuple[float, float] | None] = []
    for own, absent in zip(values, missing, strict=True):
        known = own[~absent]
        ranges.append((float(known.min()), float(known.max())) if len(known) else None)
    return ranges


def out_of_range(newest: Readings, ranges: Ranges, std: float) -> tuple[Finding, ...]:
    """Report sensors whose newest readings lie far outside their training range; `std` is the run's scale.

    Either most of the readings lie half the range beyond it, or a single one five times the range.
    """
    unusual: list[tuple[str, float, tuple[float, float]]] = []
    compared = 0
    for column, sensor in enumerate(newest.ids):
        known = newest.values[~newest.missing[:, column], column].astype(np.float64)
        trained = ranges.get(sensor)
        if trained is None or len(known) == 0:
            continue
        compared += 1
        low, high = trained
        beyond = np.maximum(low - known, known - high)
        spread = max(high - low, 2 * std)
        if np.median(beyond) > MOST_BEYOND * spread or beyond.max() > ONE_BEYOND * spread:
            unusual.append((sensor, float(known[beyond.argmax()]), trained))
    if not unusual:
        return ()
    sensors = tuple(sensor for sensor, _, _ in unusual)
    sensor, value, (low, high) = unusual[0]
    cause = "another unit or a broken sensor" if 2 * len(unusual) > compared else "a broken sensor"
    return (
        Finding(
            "range",
            f"{_sensors(sensors)}: the newest readings lie far outside those of training"
            f" ({sensor}: {value:g}, and {low:g} to {high:g} in training), so the forecasts are unreliable;"
            f" check for {cause}",
            sensors,
        ),
    )


def _sensors(sensors: Sequence[str]) -> str:
    """For example "sensor s1" or "7 sensors (s1, s2, s3 and 4 more)"."""
    if len(sensors) == 1:
        return f"sensor {sensors[0]}"
    more = f" and {len(sensors) - SENSORS_NAMED} more" if len(sensors) > SENSORS_NAMED else ""
    return f"{len(sensors)} sensors ({', '.join(sensors[:SENSORS_NAMED])}{more})"


def _number(value: np.float32) -> str:
    """As it is written in a file: 99999, -99.9."""
    return str(int(value)) if value == int(value) else str(value)
