"""The readings that a service knows: those of its files, and on top of them those in its database.

While a service runs, its files may become empty, half-written or wrong, or be gone. It starts again all the
same: what it began with last is in a file of its folder, the readings that it received are in the database,
and whatever can be read of the files later on counts then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.folder import load_readings, readings_file, zeros_are_missing_in
from cnfgnn.data.files.input_files import expected_files, files_of_inputs
from cnfgnn.data.graph import Graph
from cnfgnn.data.inputs import NO_NAMES, Input, InputNames, in_order, with_inputs
from cnfgnn.data.readings import Readings, columns_of, with_rows_before
from cnfgnn.data.refusals import Refusals
from cnfgnn.data.source import open_data, reading_options
from cnfgnn.errors import ConfigError, DataError, StorageError
from cnfgnn.files import read_json_or_empty, write_whole
from cnfgnn.live.intake.clock import FeedClock, SystemClock, Zone
from cnfgnn.live.intake.recent import RecentReadings
from cnfgnn.live.intake.store import FILE as DATABASE
from cnfgnn.live.intake.store import stored_readings
from cnfgnn.live.options import LiveSettings
from cnfgnn.runs.evaluate import data_of
from cnfgnn.runs.folder import Run

BEGUN = "begun.json"  # what the service began with last, in its folder
PROBLEMS = (ConfigError, DataError, OSError)  # with files
LONGEST_PAUSE = 366 * 86_400  # seconds between readings of a service whose clock is not known

log = logging.getLogger(__name__)


class AtHand(NamedTuple):
    """What a service knows when it starts.

    data      the readings, on the grid of its time steps, and the graph
    file      that holds the readings; None if the run has none
    unread    whether the files could not be read: the readings are those of the database
    refusals  what was refused in the files
    inputs    the files of further inputs
    """

    data: Dataset
    file: Path | None
    unread: bool
    refusals: Refusals
    inputs: Mapping[str, Path]

    def remember(self, state: Path, data: Dataset, settings: LiveSettings) -> None:
        """Keep what the service begins with, all but the readings, for a start without its files."""
        readings, graph = data.readings, data.graph
        if self.file is None or self.unread:
            return
        content = {
            "file": str(self.file.absolute()),
            "changes": _written(settings),
            "name": data.name,
            "sensors": readings.ids,
            "positions": None if readings.positions is None else readings.positions.tolist(),
            "edges": [graph.senders.tolist(), graph.receivers.tolist(), graph.weights.tolist()],
            "utc": readings.utc,
            "variable": readings.variable,
            "newest": int(readings.seconds[-1]),
        }
        try:
            write_whole(state / BEGUN, json.dumps(content).encode())
        except StorageError as error:  # a full disk does not keep the service from starting
            log.warning("%s", error)


def at_hand(run: Run, settings: LiveSettings, state: Path, all_stored: bool = False) -> AtHand:
    """The readings of the files. Those of the database come on top if all are asked for, or if there are few
    others: rows may have rolled out of a file.

    Raises:
        DataError: The files cannot be read, and no service has begun with them.
    """
    config = run.config.with_changes(settings.changes)
    path, step = settings.data or Path(config.data.path), run.data.step_seconds
    refusals = Refusals(step=step)
    if not settings.feed:
        refusals.latest = lambda step, utc: SystemClock(Zone(utc, settings.zone).zone).latest(step)
    if str(path) == "city" and settings.data is None:
        found = AtHand(data_of(run, config), None, False, refusals, {})
    else:
        found = _of_files(run, config, path, settings, state, refusals)
    readings = found.data.readings.on_nearest_grid(refusals)
    if all_stored or np.sum(~readings.missing.all(axis=1)) < config.data.history:
        zeros_missing = found.file is not None and zeros_are_missing_in(found.file)
        latest = latest_of(settings, readings.utc, step)
        readings = with_stored(readings, state, zeros_missing, latest)
    readings = with_rows_before(readings, 2 * config.data.history, step)
    return found._replace(data=replace(found.data, readings=readings))


def _of_files(
    run: Run, config: Config, path: Path, settings: LiveSettings, state: Path, refusals: Refusals
) -> AtHand:
    names, begun = inputs_of(run), _begun(state, path, settings)
    known = run.data.sensors if begun is None else begun[1].readings.ids
    refusals.expected = known
    if begun is not None:
        refusals.phase = int(begun[1].readings.seconds[-1])

    def usable(file: Path, data: Dataset) -> AtHand:
        with_inputs(data.readings, names, str(run.folder))  # refused if one is not there
        run.check_same_times(data)
        if begun is not None and {*data.readings.ids} == {*known}:  # what was learned is in their order
            data = data.select(known)
        return AtHand(data, file, False, refusals, files_of_inputs(file.parent, run.data.inputs))

    try:
        return usable(readings_file(path, live=True), open_data(config, settings.data, refusals))
    except PROBLEMS as error:
        if begun is None:
            raise
        file, data = begun
        if not isinstance(error, DataError) or not file.exists():
            place = path if file.exists() else file  # what is refused in a file is forgotten when it is back
            error = DataError(place, f"cannot be read ({error})")
        refusals.note(error)
    with suppress(*PROBLEMS):  # only sensors.csv or edges.csv may be wrong
        readings = columns_of(load_readings(path, reading_options(config, refusals)), known)
        return usable(file, replace(data, readings=replace(readings, positions=data.readings.positions)))
    others = in_order(Input(name, name in names.covariates, data.readings) for name in chain(*names))
    data = replace(data, readings=replace(data.readings, others=others))
    return AtHand(data, file, True, refusals, expected_files(file.parent, run.data.inputs))


def inputs_of(run: Run) -> InputNames:
    """The further inputs of a run."""
    return run.data.inputs if run.config.model.takes_inputs else NO_NAMES


def _written(settings: LiveSettings) -> dict[str, str]:
    """How files are read, as it is kept."""
    return {key: str(value) for key, value in settings.changes.items()}


def _begun(state: Path, path: Path, settings: LiveSettings) -> tuple[Path, Dataset] | None:
    """The file and the sensors that a service with this path and these settings began with, without a
    reading; None if it has not begun yet."""
    stored = read_json_or_empty(state / BEGUN)
    try:
        file, newest = Path(stored["file"]), np.array([stored["newest"]]).astype("datetime64[s]")
        is_known = path.exists() or path.absolute() in (file, file.parent)  # not mistyped
        if not is_known or stored["changes"] != _written(settings):
            return None
        file = path / file.name if path.is_dir() or path.absolute() == file.parent else path
        ids, positions = tuple(stored["sensors"]), stored["positions"]
        places = None if positions is None else np.array(positions, dtype=np.float64)
        values = np.full((1, len(ids)), np.nan, dtype=np.float32)
        about = {"source": str(path), "utc": stored["utc"], "variable": stored["variable"]}
        readings = Readings(newest, ids, values, np.isnan(values), places, **about)
        senders, receivers, weights = stored["edges"]
        ends = np.array([senders, receivers], dtype=np.int64)
        graph = Graph(len(ids), ends[0], ends[1], np.array(weights, dtype=np.float64))
        return file, Dataset(stored["name"], readings, graph)
    except (DataError, KeyError, TypeError, ValueError):  # no such file, or not a whole one
        return None


def latest_of(settings: LiveSettings, utc: bool, step: int) -> Callable[[int], float]:
    """The time up to which readings can follow those of another time. Later ones were stored while the clock
    was wrong, or not that of the recording; one of them would push all others out."""
    if settings.feed:
        return FeedClock.latest_after
    clock = SystemClock(Zone(utc, settings.zone).zone)
    return lambda _: clock.now() + step


def with_stored(
    readings: Readings,
    state: Path,
    zeros_missing: bool,
    latest: Callable[[int], float] = lambda newest: newest + LONGEST_PAUSE,
) -> Readings:
    """Readings of files, and on top of them those that a service has stored in its folder: also of times that
    have rolled out of a file; but not those after the `latest` time, see `latest_of`."""
    stored = stored_readings(state / DATABASE)
    newest = int(readings.seconds[-1])
    for count, (seconds, _, _) in enumerate(stored.readings):
        if seconds > latest(newest):
            stored = stored._replace(readings=stored.readings[:count])
            break
        newest = max(newest, seconds)
    if not stored.readings:
        return readings
    first, step = int(readings.seconds[0]), readings.step_seconds
    first -= max(0, -((stored.readings[0][0] - first) // step)) * step
    recent = RecentReadings(readings, (newest - first) // step + 1, zeros_missing)
    recent.put_stored(stored, first)
    return recent.until(recent.newest)
