"""Lines of files that a live service leaves out and names, because one bad line must not stop it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cnfgnn.config.settings import Dates
from cnfgnn.errors import DataError

if TYPE_CHECKING:
    import numpy as np


class FutureTime(DataError):
    """A row whose time has not come yet: its seconds since 1970, and whether they are UTC."""

    due: tuple[int, bool]


class LeftOutSensor(DataError):
    """A sensor of a file that is left out, for as long as the file has its column.

    where  what is wrong, if not the file
    """

    def __init__(self, file: str | Path, sensor: str, problem: str, where: str | Path = "") -> None:
        place = f"{self.prefix(file)}{sensor!r}"
        super().__init__(where or place, problem)
        self.source, self.sensor = place, sensor

    @staticmethod
    def prefix(file: str | Path) -> str:
        """What the sources of such errors begin with."""
        return f"{file}, sensor "


class Refusal(NamedTuple):
    """Why something was left out, and the line, if it is one."""

    error: DataError
    line: bytes

    @property
    def key(self) -> tuple[Path, bytes]:
        """Identifies it, whatever number its line has by now."""
        return Path(self.error.source), self.line or str(self.error).encode()


class KnownSteps(NamedTuple):
    """The time steps of readings, where the readings at hand must not decide on them.

    step   seconds from one to the next
    phase  how many seconds after a full step they are
    first  the time of the first one
    last   up to this time, in seconds since 1970, it makes no difference which of them have a reading
    """

    step: int
    phase: int
    first: int
    last: int


@dataclass
class Refusals:
    """What a tolerant reader has left out so far. Training has none of these: it refuses the whole file.

    latest     the latest time that a reading may have, given the time step in seconds and whether times are
               UTC; None: any time
    step       the time step in seconds if rows are too few to tell; None: as between most of them
    phase      how many seconds after a full step readings are counted; None: as most of them are
    expected   sensors that get a column even if a file has no reading of them
    refuse_at  by file: notes the row of a time, with what is wrong with it
    dates      the order of day and month, once the file has shown it; unless the year is first
    decisive   how many days have shown it
    """

    latest: Callable[[int, bool], float] | None = None
    step: int | None = None
    phase: int | None = None
    expected: Sequence[str] = ()
    refuse_at: dict[str, Callable[[np.datetime64, str], None]] = field(default_factory=dict)
    dates: Dates = "auto"
    decisive: int = 0
    found: list[Refusal] = field(default_factory=list)
    sensors: set[str] = field(default_factory=set)  # whose columns were left out

    def note(self, error: DataError, line: bytes = b"") -> None:
        self.found.append(Refusal(error, line))
