"""What is learned while the service runs: how wide ranges must be, and how good forecasts are.

Both learn from the same steps, and both are kept in the journal, so that a restarted service goes on with
the ranges, errors and alarms that an undisturbed one would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.readings import Readings, last_rows
from cnfgnn.errors import DataError
from cnfgnn.forecasters.intervals import Intervals, bounds_of
from cnfgnn.live.forecasting.forecasts import last_readings
from cnfgnn.live.forecasting.journal import Journal, State
from cnfgnn.live.forecasting.predictor import Predictor, RunPredictor
from cnfgnn.live.forecasting.watch import LEVELS, Floats, Step, Watch
from cnfgnn.live.intake.store import ReadingStore
from cnfgnn.runs.forecast import adapt_intervals, adapting_steps, with_rows_ahead

STEPS_BETWEEN_STATES = 288  # a restart takes at most so many steps again
STEPS_BETWEEN_TIDYING = 48
INTERVALS, WATCH = "intervals.", "watch."  # before the names of arrays in the journal
ISSUED = "issued"


class Tracking:
    """The ranges, if the run has them, and the watch.

    issued  the row of the last forecast that counts; a restarted service may make it again
    """

    def __init__(self, intervals: Intervals | None, watch: Watch, journal: Journal) -> None:
        self.intervals, self.watch, self.journal = intervals, watch, journal
        self.issued = -1
        self._since_state = 0
        self._unwritten: list[Step] = []
        self._due: tuple[State, int] | None = None  # a state that waits to be written, and its row

    def step(self, row: int, readings: Readings, forecasts: Floats) -> dict[int, Floats]:
        """The ranges (2 n t) of the forecasts (n t) after a row, by level, after everything has learned from
        the readings up to it.

        readings   as the model uses them; the last row is `row`
        forecasts  by the model; NaN where it has none, and then there are no ranges either
        """
        if row <= self.issued:  # made again after a restart: it was learned from before
            return {} if self.intervals is None else _of_levels(self.intervals.ranges(forecasts))
        steps = self._steps_until(row, readings, forecasts)
        ranges: dict[int, Floats] = {}
        for step in steps:
            ranges = self.take(step)
        self._since_state += len(steps)
        if self._since_state >= STEPS_BETWEEN_STATES:
            self._due, self._since_state = (self.state(), self.issued), 0
        self._unwritten = [*self._unwritten, *steps][-STEPS_BETWEEN_STATES:]
        return ranges

    def write(self) -> None:
        """Write the steps that have been taken; those that cannot be written are tried again."""
        if self._unwritten:
            self.journal.add(self._unwritten)
            self._unwritten = []

    def take(self, step: Step) -> dict[int, Floats]:
        """Learn from one step."""
        if step.row > self.watch.row:
            self.watch.observe(step)
        ranges = {} if self.intervals is None else _moved(self.intervals, step)
        self.watch.issue(step, ranges)
        self.issued = step.row
        return ranges

    def tidy(self) -> None:
        """Keep the whole state if it is time to, and the log of the database short. In any thread: forecasts
        need not wait for it."""
        due, self._due = self._due, None
        if due is not None:
            self.journal.write_state(*due)
        if due is not None or self.issued % STEPS_BETWEEN_TIDYING == 0:
            self.journal.tidy()

    def use(self, predictor: Predictor, intervals: Intervals | None) -> None:
        """Go on with another model of the same sensors: with its ranges, and with the same watch."""
        self.intervals, self.watch.has_ranges = intervals, intervals is not None
        self.journal.of = predictor.key
        self._begin_journal()

    def _steps_until(self, row: int, readings: Readings, forecasts: Floats) -> list[Step]:
        """This step, and before it those that passed without a forecast: their readings may be known now."""
        values = np.where(readings.missing, np.nan, readings.values).astype(np.float64)
        first = row - len(values) + 1
        known = max(self.watch.row, self.issued)
        last, place = last_readings(values, np.isfinite(values))
        last_row = np.where(place < 0, -1, first + place)
        none = np.full_like(forecasts, np.nan)
        skipped = range(max(known + 1, first), row)
        passed = [
            Step(number, values[number - first], np.full_like(last, np.nan), last_row.clip(max=number), none)
            for number in skipped
        ]
        return [*passed, Step(row, values[-1], last, last_row, forecasts)]

    def go_back(self, readings: Readings) -> None:
        """Begin again with these readings, because the clock was ahead: nothing would be learned before that
        time has come. Ranges stay as wide as they are."""
        watch = self.watch
        fixed = watch.ids, len(watch.made), watch.step, watch.silent_after
        self.watch, self.issued = Watch(*fixed, watch.has_ranges), -1
        if self.intervals is not None:
            self.intervals = self.intervals.without_rows()
        self.begin(readings)

    def begin(self, readings: Readings) -> None:
        """Show the watch all rows but the newest, which may be incomplete."""
        rows = (readings.seconds // self.watch.step).tolist()
        values = np.where(readings.missing, np.nan, readings.values).astype(np.float64)
        with_any = np.flatnonzero(np.isfinite(values).any(axis=1))
        begun = int(with_any[0]) if len(with_any) else len(rows) - 1
        self.watch.begin(rows[begun:-1], values[begun:-1])
        if self.intervals is not None:  # readings that the database has and the files do not
            observed = np.isfinite(values).T
            self.intervals.catch_up(rows[-2], values.T, observed, first=rows[0])
        self._begin_journal()

    def _begin_journal(self) -> None:
        self.journal.begin(self.state())
        self._due, self._since_state, self._unwritten = None, 0, []

    # ---- keeping ------------------------------------------------------------------------------------

    def state(self) -> State:
        """Everything that was learned."""
        kept = {WATCH + name: array for name, array in self.watch.state().items()}
        if self.intervals is not None:
            kept |= {INTERVALS + name: tensor.numpy() for name, tensor in self.intervals.state().items()}
        return kept | {ISSUED: np.array(self.issued)}

    def resume(self, state: State, steps: list[Step]) -> None:
        """Go on from a state and the steps that were taken after it."""
        self.intervals = _intervals_in(state)
        self.watch.has_ranges = self.intervals is not None
        of_watch = {k.removeprefix(WATCH): v for k, v in state.items() if k.startswith(WATCH)}
        self.watch.load(of_watch)
        self.issued = int(state[ISSUED])
        for step in steps:
            self.take(step)
        self._since_state = len(steps)


def open_tracking(
    predictor: Predictor,
    intervals: Callable[[], Intervals | None],
    readings: Readings,
    store: ReadingStore,
    latest: float = math.inf,
) -> Tracking:
    """What was learned before, or a beginning.

    intervals  finds the first ones of the model, if it has any
    readings   the newest ones that the service holds, as they arrived
    latest     the time of the last step that can have been; what was learned later is of no use
    """
    step = readings.step_seconds
    watch = Watch(predictor.ids, predictor.horizon, step, predictor.history, has_ranges=False)
    journal = Journal(store.path, predictor.key, len(predictor.ids), predictor.horizon)
    tracking = Tracking(None, watch, journal)
    try:
        kept = journal.read()
        if kept is None:
            tracking.intervals = intervals()
            watch.has_ranges = tracking.intervals is not None
            tracking.begin(predictor.cleaned(readings))
        else:
            tracking.resume(*kept)
            if max(tracking.issued, tracking.watch.row) * step > latest:
                tracking.go_back(predictor.cleaned(readings))
    except BaseException:
        journal.close()
        raise
    return tracking


def learned_intervals(path: Path, of: str, sensors: int, horizon: int) -> Intervals | None:
    """The intervals that a service has left in its database; None if there are none of this model, which `of`
    names. The service may be running."""
    if not path.exists():
        return None
    with closing(Journal(path, of, sensors, horizon)) as journal:
        kept = journal.read()
    intervals = None if kept is None else _intervals_in(kept[0])
    if kept is None or intervals is None:
        return None
    for step in kept[1]:
        _moved(intervals, step)
    return intervals


def _intervals_in(state: State) -> Intervals | None:
    """The intervals of a state; None if the model has none."""
    kept = {
        name.removeprefix(INTERVALS): torch.from_numpy(np.array(array))
        for name, array in state.items()
        if name.startswith(INTERVALS)
    }
    return Intervals.of(kept) if kept else None


def _moved(intervals: Intervals, step: Step) -> dict[int, Floats]:
    """The ranges of a step's forecasts, after the intervals have learned from its readings."""
    if intervals.row is None or step.row > intervals.row:
        intervals.observe(step.row, step.readings, np.isfinite(step.readings))
    return _of_levels(intervals.issue(step.row, step.forecasts))


def adapted_intervals(predictor: RunPredictor, data: Dataset) -> Intervals | None:
    """The run's intervals, if it has any, after all errors in the data since its validation split, at most
    those of the latest `adapting_steps`."""
    if predictor.intervals is None:
        return None
    history, horizon = predictor.history, predictor.horizon
    readings = data.readings
    step = readings.step_seconds
    if set(predictor.ids) <= set(predictor.run.data.sensors):  # nothing is computed from older readings
        readings = last_rows(readings, adapting_steps(len(predictor.ids)) + 2 * history)
    rows = len(readings.times)
    extended = replace(data, readings=with_rows_ahead(readings, horizon))
    try:
        adapt_intervals(predictor.run, extended, rows, predictor.experiment)
    except DataError:  # there is no reading before the newest ones: they are as they were calibrated
        return Intervals.of(predictor.intervals.state())
    intervals, predictor.owner.intervals = predictor.owner.intervals, None
    assert intervals is not None
    intervals.renumber(int(readings.seconds[0]) // step)
    return intervals


def _of_levels(bounds: Floats) -> dict[int, Floats]:
    return {level: bounds_of(bounds, level) for level in LEVELS}
