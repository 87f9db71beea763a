"""Readings from a folder: its file that grows, and new files whose names begin with `readings`.

Files of further variables grow like it. A file of a covariate is read again as a whole when it changes.

A line counts when it has ended; `known_lines.py` says which ones are new. A line that cannot be read is
refused, and the others count; if its time has not come yet, it is read when it has. What new lines do not
tell by themselves, the lines before them do: which of two hours is meant when clocks are set back, or whether
days come before months. So a reading has the time that it has in the whole file. Lines of a file that cannot
be understood at all are read again when it changes.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import Literal, NamedTuple

import numpy as np

from cnfgnn.config.settings import Dates
from cnfgnn.data.files.formats import read_lines, read_variables
from cnfgnn.data.files.input_files import files_of_inputs, read_covariate
from cnfgnn.data.files.tables import NoReadings
from cnfgnn.data.files.text import Lines, is_utf_16
from cnfgnn.data.files.times import RepeatedHour, occur_twice
from cnfgnn.data.inputs import InputNames
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import Readings, last_of_each
from cnfgnn.data.refusals import FutureTime, LeftOutSensor, Refusal, Refusals
from cnfgnn.errors import DataError
from cnfgnn.live.intake.intake import MOST_REFUSED, Intake, UnknownSensor
from cnfgnn.live.intake.known_lines import (
    FUTURE,
    NO_LINES,
    UNREAD,
    Hashes,
    New,
    Stamp,
    beginning,
    compared,
    hashes_of,
    stamp_of,
)
from cnfgnn.live.intake.observations import by_variable, in_zone
from cnfgnn.live.intake.recent import Arrived, RecentReadings
from cnfgnn.live.intake.store import FileRead, FileState

SUFFIXES = (".csv", ".parquet", ".h5")
BEGINNING = "readings"  # of the names of files that appear beside the first one
SLOW = 1.0  # seconds; a look that takes longer is followed by a rest, ...
REST = 4.0  # ... so many times as long

Found = tuple[str, Readings]
"""Readings, and the name of their variable; what is forecast has none."""

Doubt = Literal["lines", "hour", "dates", "zone", "sensors"]


@dataclass(frozen=True)
class InputFile:
    """A file of a further input."""

    name: str
    file: Path
    known_ahead: bool

    @property
    def key(self) -> str:
        """What its state is stored under: file names of several folders may be the same."""
        return f"{self.file.parent.name}/{self.file.name}"

    @staticmethod
    def all_in(folder: Path, names: InputNames) -> list[InputFile]:
        """The files of a folder that hold these inputs."""
        found = files_of_inputs(folder, names)
        return [InputFile(name, file, name in names.covariates) for name, file in found.items()]


class Look(NamedTuple):
    """What a look at a file has found.

    state       how far the file is read now
    known       the hash of each line that is read
    first       how many of them are as they were before
    new         the hashes of the lines that were read in this look
    found       the readings of these lines
    refused     what of them could not be read
    present     the hash of each line that is in the file now
    loses       whether a line that was read is no longer there
    again       whether known lines were read for what the service does not know, or not any more
    understood  whether the file could be read at all
    """

    state: FileState
    known: Hashes
    first: int
    new: Hashes
    found: list[Found]
    refused: list[Refusal]
    present: Hashes
    loses: bool
    again: bool = False
    understood: bool = True


class FolderSource:
    """Looks at the files of a folder every `seconds`.

    begun_with  the name of the file that the service began with
    unknown     is told of sensors in the files that the service does not know, and returns those of which the
                owner has been told
    inputs      files of further inputs
    """

    def __init__(
        self,
        service: Intake,
        path: Path,
        options: ReadingOptions,
        begun_with: str,
        seconds: float = 1.0,
        inputs: Sequence[InputFile] = (),
    ) -> None:
        self.service, self.path, self.options, self.seconds = service, path, options, seconds
        self.begun_with = begun_with
        self.variables = [one for one in inputs if not one.known_ahead]
        self.covariates = [one for one in inputs if one.known_ahead]
        self.unknown: Callable[[set[str]], Awaitable[set[str]]] | None = None
        stored = service.store.files()
        self.states = {key: read.state for key, read in stored.items()}
        self._known = {key: np.frombuffer(read.hashes, np.int64) for key, read in stored.items()}
        # The earliest of the times that have not come, and whether it is UTC.
        self._due = {key: (-math.inf, True) for key, known in self._known.items() if (known & FUTURE).any()}
        self._dates: dict[Path, Dates] = {}  # the order of day and month that a file has shown
        self._sure: set[Path] = set()  # files all of whose times are of another kind than the service's
        self._rests: dict[str, float] = {}  # until when nobody looks at a file that takes long
        self._notes: dict[Path, set[tuple[Path, bytes]]] = {}  # what looks have said of files as a whole
        # Files whose known lines are read once more, and how a file was when that failed.
        self._anew: dict[str, Stamp | None] = {}
        self._kept = False  # whether the readings that were in the files at the start are stored

    def read_anew(self, refused: Sequence[Refusal]) -> None:
        """The files could not be read at the start. What was said of them then is forgotten once they can."""
        self.states = {}
        for one in refused:
            self._notes.setdefault(one.key[0], set()).add(one.key)
        self.fill_gaps()

    def fill_gaps(self) -> None:
        """Read also lines that are known: the service does not know all of their readings any more."""
        self._anew = dict.fromkeys(self._known)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            with self.service.surviving("folder"):  # it may come back, and the other ways in still work
                await self.look()
            await asyncio.sleep(self.seconds)

    async def look(self) -> None:
        """Take in what is new in the folder. A problem with one file is raised after the others."""
        files = await asyncio.to_thread(self._files)
        problems = list[Exception]()
        for looking in (
            *(partial(self._follow, covariate) for covariate in self.covariates),
            *(partial(self._take, file, file.name) for file in files),
            *(partial(self._take, one.file, one.key, one.name) for one in self.variables),
        ):
            try:
                await looking()
            except Exception as error:
                problems.append(error)
        if problems:
            raise problems[0]

    async def _take(self, file: Path, key: str, variable: str = "") -> None:
        """Take in what is new in a file, of a further variable if it is named."""
        begun, before = time.monotonic(), self.states.get(key)
        if begun < self._rests.get(key, begun):
            return
        try:
            look = await asyncio.to_thread(self._look_at, file, key, variable)
        except FileNotFoundError:
            return
        if look is None:
            return
        ended = time.monotonic()
        if ended - begun > SLOW and before is not None:
            self._rests[key] = ended + REST * (ended - begun)
        self._refuse(file, look, is_empty=not len(look.present) and file.suffix == ".csv")
        columns = self._known.get(key, look.known)[:1]
        if columns.tolist() != look.known[:1].tolist():
            of_sensors = LeftOutSensor.prefix(file)
            left_out = [found for found in self.service.refused if str(found[0]).startswith(of_sensors)]
            self.service.forget_refused(left_out)
        if look.loses and not self._kept:  # from now on, nothing is known from files alone
            await self.service.keep()
            self._kept = True
        arrived = [
            reading
            for name, readings in look.found
            for reading in differing(
                in_zone(readings, self.service.zone), self.service.recent, name, look.again
            )
        ]
        read = FileRead(look.state, look.first, look.known[look.first :].tobytes())
        await self.service.take(arrived, "folder", {key: read})
        self.states[key], self._known[key] = look.state, look.known
        if look.again and self._anew.get(key) is None:
            self._anew.pop(key, None)
        due: list[tuple[float, bool]] = [
            one.error.due for one in look.refused if isinstance(one.error, FutureTime)
        ]
        due += [self._due[key]] if key in self._due and look.first else []  # only what was added was read
        self._due.pop(key, None)
        if due:
            self._due[key] = min(due)
        unknown = {sensor for name, readings in look.found for sensor in readings.ids if not name}
        unknown -= set(self.service.recent.ids)
        if unknown and self.unknown is not None:
            unknown -= await self.unknown(unknown)
        self.service.refuse([Refusal(UnknownSensor(file, sensor), b"") for sensor in sorted(unknown)])

    async def _follow(self, covariate: InputFile) -> None:
        """Read a covariate again if its file has changed; if it cannot be read, the old values stay."""
        try:
            stamp = stamp_of(covariate.file.stat())
        except FileNotFoundError:
            return
        if stamp == self.states.get(covariate.key, UNREAD)[:3]:
            return
        recent, refusals = self.service.recent, Refusals()
        options = replace(self.options, refusals=refusals)
        with _noting(refusals):  # it may be in the middle of being written: look again when it changes
            recent.know_ahead(
                await asyncio.to_thread(read_covariate, covariate.name, covariate.file, recent.ids, options)
            )
        state = FileState(*stamp, 0, "")
        look = Look(state, NO_LINES, 0, NO_LINES, [], refusals.found, NO_LINES, False)
        self._refuse(covariate.file, look)
        self.states[covariate.key] = state

    def _refuse(self, file: Path, look: Look, is_empty: bool = False) -> None:
        """Name what was refused in a file, and forget what is no longer in it, or could be read now. Lines
        that are there and not new stay, unless they were refused because the file as a whole could not be
        read. So does what the start has said of the file as a whole, or of lines that a look takes for good
        ones; and whatever was said of the whole file while it is empty."""
        again, told = {one.key for one in look.refused}, self.service.refused
        before = [key for key in told if key[0] == file and key not in again]
        hashes = hashes_of([line for _, line in before])
        stays = np.isin(hashes, look.present & ~FUTURE)
        if file in self._notes:
            stays &= ~np.isin(hashes, look.new)
        of_looks = set() if is_empty else self._notes.get(file, set())
        stays &= np.array([key not in of_looks for key in before], dtype=np.bool_)
        notes = {key for key in before if told[key].encode() == key[1]} - of_looks
        gone = [key for key, is_there in zip(before, stays, strict=True) if not is_there]
        self.service.forget_refused([key for key in gone if key not in notes])
        if not is_empty:
            of_whole = {one.key for one in look.refused if not one.line or not look.understood}
            self._notes[file] = of_whole if look.understood else of_whole | of_looks
        self.service.refuse(look.refused)

    def _files(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        named = (file for file in self.path.iterdir() if file.suffix in SUFFIXES)
        ours = (file for file in named if file.name.startswith(BEGINNING) or file.name == self.begun_with)
        return sorted(file for file in ours if file.is_file())  # no folder, and no pipe, which would block

    def _look_at(self, file: Path, key: str, variable: str) -> Look | None:
        """What is new in a file; None if it is as it was."""
        before, known, about = self.states.get(key, UNREAD), self._known.get(key, NO_LINES), file.stat()
        if not S_ISREG(about.st_mode):  # opening a pipe would block
            raise DataError(file, "is not a file that can be followed")
        is_due, anew = self._is_due(key), self._anew.get(key, stamp_of(about)) != stamp_of(about)
        if stamp_of(about) == before[:3] and not is_due and not anew:
            return None
        with file.open("rb") as opened:
            stamp = stamp_of(os.fstat(opened.fileno()))
            first = beginning(opened)
            if file.suffix != ".csv" or is_utf_16(first) or (b"\r" in first and b"\n" not in first):
                return self._whole(file, key, stamp, variable)
            now = compared(opened, stamp, first, before, known, whole=is_due or anew)
            is_new, hashes = now.is_new, now.hashes
            if not now.appended and not now.stays[1:].any():
                self._forget(file)
            if anew:
                anew = not is_new[1:].all()
                # The rest of a file that is being written comes later; a rolling file loses its first lines.
                self._anew[key] = None if anew and now.stays[-1] else stamp
            these = New(now.lines, ~is_new if anew else is_new, now.skipped + 1, first, opened)
            found, refused, understood = self._read(file, these, variable)
        new, loses = hashes[these.is_new], not now.stays.all()
        present = np.concatenate([known[: now.skipped], hashes])
        if not understood:
            if anew:
                self._anew[key] = stamp
            state = FileState(*stamp, *before[3:])
            return Look(state, known, len(known), new, found, refused, present, loses, understood=False)
        if anew:  # the other lines are read next
            return Look(UNREAD, known, len(known), new, found, refused, present, False, again=True)
        if loses and not is_new.any():  # it may be in the middle of being written: what was read is known
            return Look(FileState(*stamp, 0, ""), known, len(known), new, found, refused, present, loses)
        future = hashes_of([one.line for one in refused if isinstance(one.error, FutureTime)])
        hashes[np.isin(hashes, future)] |= FUTURE
        known = np.concatenate([known[: now.skipped], hashes])
        return Look(now.state, known, now.skipped, new, found, refused, known, loses)

    def _forget(self, file: Path) -> None:
        """Another file is in its place."""
        self._dates.pop(file, None)
        self._sure.discard(file)

    def _is_due(self, key: str) -> bool:
        """Whether the time of a row has come that was from the future."""
        if key not in self._due:
            return False
        seconds, utc = self._due[key]
        return self._latest(0, utc) >= seconds

    def _whole(self, file: Path, key: str, stamp: Stamp, variable: str) -> Look:
        """All of a file whose lines cannot be told apart."""
        refusals, found = self._refusals(), list[Found]()
        with _noting(refusals):  # it may be in the middle of being written: look again when it changes
            content = read_variables(file, replace(self.options, refusals=refusals), regular=False)
            found = self._by_variable(file, content, variable)
        before = self.states.get(key, UNREAD)
        is_future = any(isinstance(one.error, FutureTime) for one in refusals.found)
        known = np.array([FUTURE] if is_future else [], dtype=np.int64)
        state, again = FileState(*stamp, 0, ""), stamp == before[:3] or key in self._anew
        loses = before != UNREAD
        return Look(state, known, 0, NO_LINES, found, refusals.found, NO_LINES, loses, again)

    def _read(self, file: Path, new: New, variable: str) -> tuple[list[Found], list[Refusal], bool]:
        """The readings of new lines, what could not be read, and whether the file is understood. In doubt,
        all lines before them help."""
        lines = new.with_context()
        if lines is None:
            return [], [], True
        chosen = lines.chosen or ()
        found, refusals = self._parsed(file, lines, variable)
        doubts = self._doubts(file, found, refusals)
        last = max(lines.numbers, default=1)
        if doubts and len(lines.numbers) < last - 1:
            new.opened.seek(0)
            every = Lines.of(b"".join(islice(new.opened, last)), chosen)
            settled = self._dates.pop(file, None) if "dates" in doubts else None
            found, refusals = self._parsed(file, every, variable)
            if settled is not None and refusals.decisive < 2:  # what showed the order has left the file
                self._dates[file] = settled
                found, refusals = self._parsed(file, every, variable)
            doubts = self._doubts(file, found, refusals)
        if "zone" in doubts:  # also by all lines
            self._sure.add(file)
        if refusals.decisive > 1:
            self._dates[file] = refusals.dates
        for one in refusals.found:
            if not one.line:
                pairs = zip(lines.numbers, lines.others, strict=True)
                # It may be the first line, if that is a row in the place of the names of columns.
                named = [(1, lines.header)] if one.error.line == 1 else []
                each = islice([*named, *(pair for pair in pairs if pair[0] in chosen)], MOST_REFUSED)
                problem = f"cannot be read: {one.error}"
                return [], [Refusal(DataError(file, problem, line=k), line) for k, line in each], False
        return found, refusals.found, True

    def _doubts(self, file: Path, found: Sequence[Found], refusals: Refusals) -> set[Doubt]:
        """Why the first lines of a file may not be enough to understand new ones: these could not be read at
        all, are in an hour that occurs twice, have a day and a month whose order these few lines decide, are
        in another time than that of the service, or of unknown sensors alone, as if a long table was taken
        for a wide one."""
        zone, known = self.options.zone, self.service.recent.column_of
        bad = [one for one in refusals.found if not isinstance(one.error, FutureTime)]
        doubts: dict[Doubt, bool] = {
            "lines": any(not one.line for one in bad),
            "hour": any(isinstance(one.error, RepeatedHour) for one in bad)
            or (zone is not None and any(occur_twice(one.times, zone).any() for _, one in found)),
            "dates": bool(bad) if file in self._dates else refusals.dates != "auto",
            "zone": file not in self._sure and any(one.utc != self.service.zone.utc for _, one in found),
            "sensors": any(known.keys().isdisjoint(one.ids) for _, one in found),
        }
        return {doubt for doubt, is_there in doubts.items() if is_there}

    def _parsed(self, file: Path, lines: Lines, variable: str) -> tuple[list[Found], Refusals]:
        refusals, found = self._refusals(), list[Found]()
        dates = self._dates.get(file, self.options.dates)
        with _noting(refusals):
            content = read_lines(file, lines, replace(self.options, dates=dates, refusals=refusals))
            found = self._by_variable(file, content, variable)
        return found, refusals

    def _by_variable(self, file: Path, content: dict[str, Readings], variable: str) -> list[Found]:
        return by_variable(file, content, self.options.target, self.service.recent.variables, variable)

    def _refusals(self) -> Refusals:
        return Refusals(self._latest)

    def _latest(self, _: int, utc: bool) -> float:
        """The latest time that a line may have."""
        latest, zone = self.service.clock.latest(self.service.recent.step), self.service.zone
        return zone.in_utc(latest) if utc else latest


@contextmanager
def _noting(refusals: Refusals) -> Iterator[None]:
    """Inside, a file that cannot be read at all is refused like a line; one without a reading is fine."""
    try:
        yield
    except NoReadings:
        pass
    except DataError as error:
        refusals.note(error)


def differing(
    readings: Readings, recent: RecentReadings, variable: str = "", only_new: bool = False
) -> list[Arrived]:
    """The readings of a file that are not known yet, or not as they are there unless `only_new`; those that
    are too old to matter are left out."""
    oldest, seconds, name = recent.newest - recent.step * recent.rows, readings.seconds, ""
    rows, values = np.flatnonzero(seconds > oldest), readings.values
    if variable and variable != recent.variable:
        name, of = variable, recent.variables[variable]
        at, values = seconds[rows], values[rows]
        known = of.values_at(at, [recent.column_of.get(sensor, -1) for sensor in readings.ids])
    else:  # of several readings of a step, the last counts
        steps = np.rint((seconds[rows] - recent.newest) / recent.step).astype(np.int64)
        steps, values, _ = last_of_each(steps, values[rows])
        at = recent.newest + recent.step * steps
        known = recent.values_at(readings.ids, at)
    other = np.isnan(known) if only_new else values != known
    return [
        Arrived(readings.ids[column], int(at[row]), float(values[row, column]), name)
        for row, column in np.argwhere(~np.isnan(values) & other).tolist()
    ]
