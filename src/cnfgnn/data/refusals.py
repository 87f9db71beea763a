"""Lines of files that a live service leaves out and names, because one bad line must not stop it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cnfgnn.errors import DataError


class FutureTime(DataError):
    """A row whose time has not come yet."""


class Refusal(NamedTuple):
    """Why something was left out, and the line, if it is one."""

    error: DataError
    line: bytes

    @property
    def key(self) -> tuple[Path, bytes]:
        """Identifies it, whatever number its line has by now."""
        return Path(self.error.source), self.line or str(self.error).encode()


@dataclass
class Refusals:
    """What a tolerant reader has left out so far. Training has none of these: it refuses the whole file.

    latest    the latest time that a reading may have, given the time step in seconds and whether times are
              UTC; None: any time
    phase     how many seconds after a full step readings are counted; None: as most of them are
    expected  sensors that get a column even if a file has no reading of them
    """

    latest: Callable[[int, bool], float] | None = None
    phase: int | None = None
    expected: Sequence[str] = ()
    found: list[Refusal] = field(default_factory=list)
    sensors: set[str] = field(default_factory=set)  # whose columns were left out

    def note(self, error: DataError, line: bytes = b"") -> None:
        self.found.append(Refusal(error, line))
