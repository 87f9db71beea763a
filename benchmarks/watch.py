"""Alarms of the live service: false ones on readings as they are, and how soon planted faults are named.

A run is trained on the first half of the readings, and the second half is played to the watch, with the run's
forecasts and their adapting ranges: once as it is, and then with faults. A quarter of the sensors falls
silent for six hours, another quarter repeats one reading for six hours (both for 36 steps if that is longer),
a third one drifts over a day to an offset and keeps it, and the others stay as they are.

    python benchmarks/watch.py                                       # the synthetic city, 24 sensors, 4 weeks
    python benchmarks/watch.py --data metr-la/metr-la-29.h5 --rounds 1
    python benchmarks/watch.py --seed 1 --days 21                    # another city
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cnfgnn.algorithm.methods import preset
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.folder import load
from cnfgnn.data.quality import clean
from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.data.synthetic.city import city
from cnfgnn.data.windows import Windows
from cnfgnn.errors import CnfgnnError
from cnfgnn.forecasters.intervals import Intervals
from cnfgnn.live.forecasting.journal import Journal
from cnfgnn.live.forecasting.predictor import KEPT_ROWS
from cnfgnn.live.forecasting.tracking import Tracking
from cnfgnn.live.forecasting.watch import KINDS, Step, Watch
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.evaluate import restore_best
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Unwatched, train_run

if __package__:  # imported by tests
    from benchmarks.shapes import OneSentence
else:
    from shapes import OneSentence

METHOD = "cnfgnn-plus"
HOUR = 3600
LEAST_STEPS = 36  # that a silent or frozen sensor stays so: longer than a history
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fault:
    """A planted fault: its sensor, its kind, and the rows in which it is there."""

    column: int
    kind: str
    begin: int
    end: int


def planted(readings: Readings, first: int, step: int, offset: float) -> tuple[Readings, list[Fault]]:
    """The readings with faults from a row on, and the faults."""
    values, faults = readings.values.astype(np.float64).copy(), []
    rows, n = values.shape
    hour = max(1, HOUR // step)
    spread = np.nanstd(np.where(readings.missing, np.nan, values)[:first], axis=0)
    chance = np.random.default_rng(0)
    for column in range(n):
        kind = ("silent", "frozen", "drift", None)[column % 4]
        if kind is None:
            continue
        begin = first + hour * 72 + int(chance.integers(0, hour * 24))
        end = rows if kind == "drift" else begin + max(6 * hour, LEAST_STEPS)
        if kind == "silent":
            values[begin:end, column] = np.nan
        elif kind == "frozen":
            known = values[:begin, column]
            values[begin:end, column] = known[np.isfinite(known)][-1]
        else:
            ramp = np.minimum(1.0, np.arange(end - begin) / (24 * hour))
            values[begin:end, column] += offset * spread[column] * ramp * (-1) ** (column // 4)
        faults.append(Fault(column, kind, begin, end))
    missing = np.isnan(values) | readings.missing
    for fault in faults:  # a frozen sensor sends also what would have been missing
        if fault.kind == "frozen":
            missing[fault.begin : fault.end, fault.column] = False
    return replace(readings, values=values.astype(np.float32), missing=missing), faults


def forecasts(run: Run, data: Dataset, first: int) -> tuple[Floats, Intervals]:
    """(n b t): what the run forecasts after each row from `first` on, and its intervals."""
    d, rows = run.config.data, len(data.readings.times)
    windows = Windows.next(rows - d.horizon, d.history, d.horizon)
    starts = np.arange(first - d.history + 1, rows - d.history - d.horizon + 1, dtype=np.int64)
    past = restore_best(run, data, replace(windows, starts={**windows.starts, "test": starts}))
    past.strategy.ready("test")
    [(_, owner)] = past.owners
    found = [
        owner.data.unscaled(owner.forecasts_of("test", chunk)).cpu().numpy()
        for chunk in owner.data.chunks("test")
    ]
    assert owner.intervals is not None
    return np.concatenate(found, axis=1), owner.intervals


def played(run: Run, data: Dataset, first: int) -> list[tuple[int, int, str]]:
    """Play the readings from a row on; each alarm that begins: its row, its column (-1: all) and its kind."""
    readings = clean(data.readings, run.config.data)
    step = int(readings.step.astype("timedelta64[s]").astype(np.int64))
    offset = int(readings.times[0].astype("datetime64[s]").astype(np.int64)) // step
    values = np.where(readings.missing, np.nan, readings.values).astype(np.float64)
    made, intervals = forecasts(run, data, first)
    watch = Watch(readings.ids, run.config.data.horizon, step, run.config.data.history, True)
    begun = max(0, first - KEPT_ROWS)
    watch.begin(range(offset + begun, offset + first), values[begun:first])
    last, last_row = np.full(len(readings.ids), np.nan), np.full(len(readings.ids), -1)
    for row in range(first):
        last = np.where(np.isfinite(values[row]), values[row], last)
    found: list[tuple[int, int, str]] = []
    before: set[tuple[str | None, str]] = set()
    with tempfile.TemporaryDirectory() as place, closing(_journal(place, made)) as journal:
        tracking = Tracking(intervals, watch, journal)
        for number in range(made.shape[1]):
            row = first + number
            there = np.isfinite(values[row])
            last = np.where(there, values[row], last)
            last_row = np.where(there, offset + row, last_row)
            tracking.take(Step(offset + row, values[row], last, last_row, made[:, number]))
            now = {(alarm.sensor, alarm.kind) for alarm in watch.report(str).alarms}
            for sensor, kind in sorted(now - before, key=str):
                column = -1 if sensor is None else readings.ids.index(sensor)
                found.append((row, column, kind))
            before = now
    return found


def _journal(place: str, made: Floats) -> Journal:
    return Journal(Path(place) / "journal", "", sensors=made.shape[0], horizon=made.shape[2])


def measured(options: argparse.Namespace) -> dict[str, Any]:
    if options.data is None:
        data = city(options.sensors, options.days, seed=options.seed)
    else:
        data = load(options.data)
    data = replace(data, readings=data.readings.on_grid())
    if options.rows:
        data = replace(data, readings=rows_of(data.readings, slice(0, options.rows)))
    rows = len(data.readings.times)
    first, step = rows // 2, int(data.readings.step.astype("timedelta64[s]").astype(np.int64))
    config = preset(METHOD).with_changes({"training.rounds": options.rounds, "compute.device": "cpu"})
    trained_on = replace(data, readings=rows_of(data.readings, slice(0, first)))
    with tempfile.TemporaryDirectory() as place:
        run = Run.create(Path(place) / "run", config, trained_on)
        train_run(run, trained_on, Unwatched())
        run = Run.open(run.folder)
        as_it_is = played(run, data, first)
        faulty, faults = planted(data.readings, first, step, options.offset)
        with_faults = played(run, replace(data, readings=faulty), first)
    silent = _silent(data.readings, config.data.history)
    sensor_days = len(data.readings.ids) * (rows - first) * step / 86_400
    # An alarm about a sensor that really sent nothing is true, whoever planted it.
    false = [a for a in as_it_is if not (a[2] == "silent" and (a[1] < 0 or silent[a[0], a[1]]))]
    hours: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for fault in faults:
        named = [r for r, column, kind in with_faults if (column, kind) == (fault.column, fault.kind)]
        soon = [row for row in named if row >= fault.begin]
        hours[fault.kind].append((soon[0] - fault.begin) * step / HOUR if soon else np.inf)
    touched = {fault.column for fault in faults}
    others = [a for a in with_faults if a[1] >= 0 and a[1] not in touched and a[2] != "silent"]
    return {
        "sensor_days": sensor_days,
        "false": dict(Counter(kind for _, column, kind in false if column >= 0)),
        "overall": dict(Counter(kind for _, column, kind in false if column < 0)),
        "silent": sum(kind == "silent" for _, _, kind in as_it_is),
        "others": dict(Counter(kind for _, _, kind in others)),
        "faults": {
            kind: {
                "planted": len(found),
                "named": sum(hours < np.inf for hours in found),
                "median_hours": _median(found),
            }
            for kind, found in hours.items()
        },
    }


def _silent(readings: Readings, history: int) -> npt.NDArray[np.bool_]:
    """(rows, n): where a sensor has had no reading in the whole history."""
    silent = np.zeros_like(readings.missing)
    for row in range(history, len(readings.times)):
        silent[row] = readings.missing[row - history + 1 : row + 1].all(axis=0)
    return silent


def _median(found: list[float]) -> float | None:
    known = [hours for hours in found if np.isfinite(hours)]
    return float(np.median(known)) if known else None


def main() -> None:
    keep_freed_memory()
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder or file of readings; default the synthetic city")
    parser.add_argument("--sensors", type=int, default=24, help="of the city")
    parser.add_argument("--days", type=float, default=28, help="of the city")
    parser.add_argument("--seed", type=int, default=0, help="of the city")
    parser.add_argument("--rows", type=int, default=0, help="of the readings; 0 takes all")
    parser.add_argument("--rounds", type=int, default=3, help="of training")
    parser.add_argument("--offset", type=float, default=1.5, help="of a drift, in standard deviations")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args()
    try:
        results = measured(options)
    except CnfgnnError as problem:
        print(f"watch.py: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
    print(f"{results['sensor_days']:.0f} sensor-days as they were recorded:", end=" ")
    print(f"{results['silent']} true alarms of silent sensors; false alarms: {results['false'] or 'none'}")
    print(f"alarms about all sensors: {results['overall'] or 'none'}")
    print("\n| planted fault | sensors | named | hours until then, median |\n|---|---|---|---|")
    for kind, found in results["faults"].items():
        hours = "" if found["median_hours"] is None else f"{found['median_hours']:.1f}"
        print(f"| {kind} | {found['planted']} | {found['named']} | {hours} |")
    print(f"\nfalse alarms of sensors without a fault meanwhile: {results['others'] or 'none'}")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
