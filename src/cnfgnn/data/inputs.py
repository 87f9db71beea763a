"""Further inputs beside the readings: other variables of the sensors, and covariates that are known ahead.

A variable is measured like the readings, such as the flow beside the speed: a forecast sees its past. A
covariate is known for the forecast times, too, such as a holiday or a weather forecast: a forecast sees its
values ahead. Both have times of their own, and at any time an input has its newest value from then or before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from cnfgnn.config.declarations import Declaration
from cnfgnn.config.settings import Config
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import Readings
from cnfgnn.errors import ConfigError, DataError

MOST_INPUTS = 64  # of a data set
Count = Annotated[int, Declaration(at_most=MOST_INPUTS)]
INPUT_SCALES = "input_scales"  # the name of the inputs' scales in checkpoints

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Input:
    """One further input of all sensors.

    name         a variable's or a covariate's; unique in a data set
    known_ahead  whether it is a covariate, known at the forecast times
    readings     its values at times of its own: a column per sensor of the data set, or a single one
    for_all      whether a single column holds for all sensors
    """

    name: str
    known_ahead: bool
    readings: Readings
    for_all: bool = False

    def select(self, ids: Sequence[str]) -> Input:
        """The same input of some sensors."""
        return self if self.for_all else replace(self, readings=self.readings.select(ids))

    def at(self, seconds: Ints, rows: Ints | None = None) -> InputSeries:
        """Its values at these times, in seconds since 1970: of some sensors, or of all."""
        kept = slice(None) if rows is None or self.for_all else rows
        values, missing = self.readings.values[:, kept], self.readings.missing[:, kept]
        own = np.arange(len(values))[:, None]
        newest = np.maximum.accumulate(np.where(missing, -1, own), axis=0)  # (T k): the newest known row
        place = np.searchsorted(self.readings.seconds, seconds, side="right") - 1
        found = np.where(place[:, None] < 0, -1, newest[place.clip(min=0)])
        taken = np.take_along_axis(values.astype(np.float64), found.clip(min=0), axis=0)
        at_times = np.ascontiguousarray(np.where(found < 0, np.nan, taken).T)
        return InputSeries(self.name, self.known_ahead, at_times)

    @property
    def known_until(self) -> int | None:
        """Until when it is known, in seconds since 1970: a step of its own after its last value. None if it
        has no value."""
        known = np.flatnonzero(~self.readings.missing.all(axis=1))
        if not len(known):
            return None
        seconds = self.readings.seconds
        step = int(self.readings.step.astype(np.int64)) if len(seconds) > 1 else 0
        return int(seconds[known[-1]]) + step


class InputSeries(NamedTuple):
    """An input on the time steps of a series: values (n T), or (1 T) if they hold for all nodes; NaN before
    its first value."""

    name: str
    known_ahead: bool
    values: Floats

    def until(self, rows: int) -> InputSeries:
        """The same input as it was known after the first `rows` time steps: later on, its last value."""
        values = self.values.copy()
        values[:, rows:] = values[:, rows - 1 : rows] if rows else np.nan
        return self._replace(values=values)


class InputCounts(NamedTuple):
    """How many further inputs there are of each kind: with the windows, they tell how wide they are."""

    variables: Count = 0
    covariates: Count = 0

    @classmethod
    def of(cls, inputs: Iterable[Input | InputSeries]) -> InputCounts:
        ahead = [one.known_ahead for one in inputs]
        return cls(ahead.count(False), ahead.count(True))

    def width(self, history: int, horizon: int) -> int:
        """The numbers in a window: of a variable its past, of a covariate its values now and ahead."""
        return self.variables * history + self.covariates * (1 + horizon)


NO_INPUTS = InputCounts()


class InputNames(NamedTuple):
    """The names of the further inputs of a data set, each kind in alphabetical order."""

    variables: tuple[str, ...] = ()
    covariates: tuple[str, ...] = ()

    @classmethod
    def of(cls, inputs: Iterable[Input]) -> InputNames:
        known = list(inputs)
        variables = sorted(one.name for one in known if not one.known_ahead)
        return cls(tuple(variables), tuple(sorted(one.name for one in known if one.known_ahead)))

    @property
    def counts(self) -> InputCounts:
        return InputCounts(len(self.variables), len(self.covariates))

    def __str__(self) -> str:
        """For example "variables: flow; covariates: holiday, rain"."""
        parts = [
            f"{kind}: {', '.join(names)}"
            for kind, names in (("variables", self.variables), ("covariates", self.covariates))
            if names
        ]
        return "; ".join(parts) or "none"


NO_NAMES = InputNames()


def in_order(inputs: Iterable[Input]) -> tuple[Input, ...]:
    """Variables before covariates, each by name: the order in which models see them."""
    return tuple(sorted(inputs, key=lambda one: (one.known_ahead, one.name)))


def with_inputs(readings: Readings, wanted: InputNames, trained: str) -> Readings:
    """The readings with exactly these inputs; refused if one is not there. `trained` is what needs them."""
    there = InputNames.of(readings.others)
    for kind, names, found in zip(("variable", "covariate"), wanted, there, strict=True):
        if missing := [name for name in names if name not in found]:
            problem = f"has no {kind} {missing[0]!r}, which {trained} was trained with"
            raise DataError(readings.source, f"{problem}: add it, see docs/data.md")
    kept = {*wanted.variables, *wanted.covariates}
    return replace(readings, others=tuple(one for one in readings.others if one.name in kept))


def check_wanted(there: Collection[str], options: ReadingOptions) -> None:
    """Refuse names in data.inputs that are not there."""
    for name in options.wanted:
        if name not in there:
            problem = f"there is no variable or covariate {name!r}"
            raise ConfigError(options.key("inputs"), problem, ["all", "none", *there])


def used_inputs(readings: Readings, config: Config) -> Readings:
    """The readings with the further inputs that data.inputs asks for; with none if the method takes none."""
    options, others = ReadingOptions(inputs=config.data.inputs), readings.others
    check_wanted([one.name for one in others], options)
    kept = tuple(one for one in others if config.model.takes_inputs and options.wants(one.name))
    return readings if kept == others else replace(readings, others=kept)


def ending_covariates(readings: Readings, end: int) -> list[str]:
    """A sentence for each covariate that is not known until `end`, in seconds since 1970: its last value is
    used instead."""
    sentences = []
    for one in readings.others:
        until = one.known_until if one.known_ahead else end
        if until is None:
            sentences.append(f"covariate {one.name} has no value, so that it is not used")
        elif until < end:
            last = str(np.datetime64(until, "s")).replace("T", " ")
            sentences.append(f"covariate {one.name} is not known from {last} on, so its last value is used")
    return sentences
