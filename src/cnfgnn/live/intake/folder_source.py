"""Readings from a folder: its file that grows, and new files whose names begin with `readings`.

Files of further variables grow like it. A file of a covariate is read again as a whole when it changes.

Only whole lines are read, so that a line in the middle of being written is never taken for a reading; a last
line without an end counts once its file has not changed for a moment. A line that cannot be read is refused,
and the lines after it count. What new lines do not tell by themselves, the lines before them do: which of two
hours is meant when clocks are set back. So a reading has the time that it has in the whole file.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np

from cnfgnn.data.input_files import files_of_inputs, read_covariate
from cnfgnn.data.inputs import InputNames
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import Readings
from cnfgnn.data.times import RepeatedHour, occur_twice
from cnfgnn.errors import DataError
from cnfgnn.live.intake.intake import Intake
from cnfgnn.live.intake.observations import by_variable, cells_of
from cnfgnn.live.intake.recent import Arrived, RecentReadings
from cnfgnn.live.intake.store import FileState

SUFFIXES = (".csv", ".parquet", ".h5")
BEGINNING = "readings"  # of the names of files that appear beside the first one
QUIET = 2.0  # seconds without a change after which a last line without an end counts
LINES_ALONE = 2000  # lines that are tried one by one if they cannot be read together
UNREAD = FileState(0, 0, 0)

Found = tuple[str, Readings]
"""Readings, and the name of their variable; what is forecast has none."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InputFile:
    """A file of a further input, and its state when the service read it first."""

    name: str
    file: Path
    known_ahead: bool
    state: FileState

    @property
    def key(self) -> str:
        """What its state is stored under: file names of several folders may be the same."""
        return f"{self.file.parent.name}/{self.file.name}"

    @staticmethod
    def all_in(folder: Path, names: InputNames) -> list[InputFile]:
        """The files of a folder that hold these inputs, as they are now."""
        return [
            InputFile(name, file, name in names.covariates, state_of(file))
            for name, file in files_of_inputs(folder, names).items()
        ]


class FolderSource:
    """Looks at the files of a folder every `seconds`.

    begun_with  the file that the service began with, and how far it was read then
    unknown     is told of sensors in the files that the service does not know
    inputs      files of further inputs that it began with
    """

    def __init__(
        self,
        service: Intake,
        path: Path,
        options: ReadingOptions,
        begun_with: tuple[str, FileState],
        seconds: float = 1.0,
        inputs: Sequence[InputFile] = (),
    ) -> None:
        self.service, self.path, self.options, self.seconds = service, path, options, seconds
        self.begun_with, state = begun_with
        self.variables = [one for one in inputs if not one.known_ahead]
        self.covariates = [one for one in inputs if one.known_ahead]
        self.unknown: Callable[[set[str]], Awaitable[None]] | None = None
        self.states = service.store.files() | {one.key: one.state for one in inputs}
        self.states[self.begun_with] = state
        self._headers: dict[str, bytes] = {}  # the first line of each CSV file when it was last looked at
        file = path / self.begun_with if path.is_dir() else path
        if file.suffix == ".csv" and file.is_file():
            with file.open("rb") as opened:
                self._headers[file.name] = opened.readline()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            with self.service.surviving("folder"):  # it may come back, and the other ways in still work
                await self.look()
            await asyncio.sleep(self.seconds)

    async def look(self) -> None:
        """Take in what is new in the folder."""
        for covariate in self.covariates:
            await self._follow(covariate)
        for file in await asyncio.to_thread(self._files):
            await self._take(file, file.name)
        for variable in self.variables:
            await self._take(variable.file, variable.key, variable.name)

    async def _take(self, file: Path, key: str, variable: str = "") -> None:
        """Take in what is new in a file, of a further variable if it is named."""
        try:
            state, found, refused = await asyncio.to_thread(self._new, file, key, variable)
        except FileNotFoundError:
            return
        if state == self.states.get(key, UNREAD):
            return
        self._refuse(refused)
        arrived = [
            reading for name, readings in found for reading in differing(readings, self.service.recent, name)
        ]
        await self.service.take(arrived, "folder", {key: state})
        self.states[key] = state
        unknown = {sensor for name, readings in found for sensor in readings.ids if not name}
        unknown -= set(self.service.recent.ids)
        if unknown and self.unknown is not None:
            await self.unknown(unknown)

    async def _follow(self, covariate: InputFile) -> None:
        """Read a covariate again if its file has changed; if it cannot be read, the old values stay."""
        try:
            found = covariate.file.stat()
        except FileNotFoundError:
            return
        before = self.states[covariate.key]
        if (found.st_size, found.st_mtime_ns) == (before.size, before.modified):
            return
        ids, recent = self.service.recent.ids, self.service.recent
        try:
            recent.know_ahead(
                await asyncio.to_thread(read_covariate, covariate.name, covariate.file, ids, self.options)
            )
        except DataError as error:  # it may be in the middle of being written: look again when it changes
            self._refuse([str(error)])
        self.states[covariate.key] = FileState(found.st_size, found.st_mtime_ns, found.st_size)

    def _refuse(self, refused: Sequence[str]) -> None:
        for sentence in refused[:3]:
            log.warning("folder: %s", sentence)
        if refused:
            self.service.metrics.failures.labels("folder").inc(len(refused))

    def _files(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        named = (file for file in self.path.iterdir() if file.suffix in SUFFIXES)
        return sorted(
            file for file in named if file.name.startswith(BEGINNING) or file.name == self.begun_with
        )

    def _new(self, file: Path, key: str, variable: str) -> tuple[FileState, list[Found], list[str]]:
        """How far a file is read now, the readings in its new part, and what could not be read."""
        before, now = self.states.get(key, UNREAD), file.stat()
        size, modified = now.st_size, now.st_mtime_ns
        if file.suffix != ".csv":
            if (size, modified) == (before.size, before.modified):
                return before, [], []
            return self._whole(file, FileState(size, modified, size), variable)
        start = before.read
        if size < start or (size == before.size and modified != before.modified):
            start = 0  # it was replaced, or changed somewhere
        if size == start:
            return before, [], []
        with file.open("rb") as opened:
            header = opened.readline()
            if self._headers.setdefault(key, header) != header:  # it has other columns than before
                self._headers[key], start = header, 0
            opened.seek(max(start, len(header)))
            added = opened.read(max(0, size - opened.tell()))
        is_quiet = time.time() - modified / 1e9 > QUIET
        if not is_quiet:
            added = added[: added.rfind(b"\n") + 1]
        state = FileState(size, modified, max(start, len(header)) + len(added))
        if not added.strip() or not header.endswith(b"\n"):
            return (state if added else before), [], []
        return state, *self._lines(file, header, added, state.read, variable)

    def _whole(self, file: Path, state: FileState, variable: str) -> tuple[FileState, list[Found], list[str]]:
        try:
            return state, by_variable(file, self.options, self.service.recent.variables, variable), []
        except DataError as error:  # it may be in the middle of being written: look again when it changes
            return state, [], [str(error)]

    def _lines(
        self, file: Path, header: bytes, added: bytes, end: int, variable: str
    ) -> tuple[list[Found], list[str]]:
        """The readings of the lines that were added before byte `end`, and what could not be read."""
        try:
            return self._read_added(file, header, added, end, variable), []
        except DataError as error:
            lines = added.splitlines(keepends=True)
            if len(lines) > LINES_ALONE:
                return [], [str(error)]
        found: list[Found] = []
        refused: list[str] = []
        for line in lines:
            try:
                if line.strip():
                    found += self._read(file, header + line, variable)
            except DataError as error:
                refused.append(f"{error}, in {line[:80]!r}")
        return found, refused

    def _read_added(self, file: Path, header: bytes, added: bytes, end: int, variable: str) -> list[Found]:
        """Read the lines of a file that were added before byte `end`, together with those before them if some
        are in an hour that occurs twice."""
        zone = self.options.zone
        with suppress(RepeatedHour):
            found = self._read(file, header + added, variable)
            if zone is None or not any(occur_twice(one.times, zone).any() for _, one in found):
                return found
        whole, begun = self._read(file, _first_bytes(file, end), variable), end - len(added)
        if begun <= len(header):
            return whole
        # What the lines before tell is known, and may have been corrected since by other ways.
        before = dict(self._read(file, _first_bytes(file, begun), variable))
        return [(name, added_to(before[name], one) if name in before else one) for name, one in whole]

    def _read(self, file: Path, content: bytes, variable: str) -> list[Found]:
        """Read a part of a file; messages name the file."""
        with tempfile.TemporaryDirectory(prefix="cnfgnn-") as folder:
            part = Path(folder) / file.name
            part.write_bytes(content)
            try:
                return by_variable(part, self.options, self.service.recent.variables, variable)
            except DataError as error:
                raise type(error)(file, str(error).partition(": ")[2]) from None


def _first_bytes(file: Path, count: int) -> bytes:
    with file.open("rb") as opened:
        return opened.read(count)


def added_to(before: Readings, after: Readings) -> Readings:
    """The readings after lines were added to a file, without those that it had before."""
    _, rows, known_rows = np.intersect1d(after.times, before.times, return_indices=True)
    _, columns, known_columns = np.intersect1d(after.ids, before.ids, return_indices=True)
    values, there = after.values.copy(), np.ix_(rows, columns)
    is_known = values[there] == before.values[np.ix_(known_rows, known_columns)]
    values[there] = np.where(is_known, np.nan, values[there])
    return replace(after, values=values, missing=np.isnan(values))


def state_of(file: Path) -> FileState:
    """The state of a file of which everything is read, except a last line that has no end yet."""
    found, read = file.stat(), 0
    if file.suffix == ".csv" and found.st_size:
        with file.open("rb") as opened, mmap(opened.fileno(), found.st_size, access=ACCESS_READ) as content:
            read = content.rfind(b"\n") + 1
    return FileState(found.st_size, found.st_mtime_ns, read)


def differing(readings: Readings, recent: RecentReadings, variable: str = "") -> list[Arrived]:
    """The readings of a file that are not known yet; those that are too old to matter are left out."""
    if variable and variable != recent.variable:
        oldest = recent.newest - recent.step * recent.rows
        return [
            reading
            for reading in cells_of(readings, variable)
            if reading.seconds is not None and reading.seconds > oldest
        ]
    seconds = readings.seconds
    rows = np.flatnonzero(seconds > recent.newest - recent.step * recent.rows)
    known = recent.values_at(readings.ids, seconds[rows])
    values = readings.values[rows]
    return [
        Arrived(readings.ids[column], int(seconds[rows[row]]), float(values[row, column]))
        for row, column in np.argwhere(~np.isnan(values) & (values != known)).tolist()
    ]
