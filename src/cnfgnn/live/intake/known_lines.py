"""Which lines of a file that is written to are new: those whose hashes are not known.

If a file was only appended to, the lines after the mark are new. If it was replaced, or changed anywhere
else, those are new that it did not have when it was last read, also before a restart; so rows may roll out
of a file, and be corrected in its middle.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from cnfgnn.data.files.text import Lines
from cnfgnn.live.intake.store import FileState

COMPARED = 4 << 20  # bytes before the mark that must be the same if a file was only appended to
COMPARED_FIRST = 64 << 10  # bytes at the beginning of which the same holds
CONTEXT = 20  # lines at the beginning that tell the format of new ones; in doubt, all lines do
UNREAD = FileState(0, 0, 0, 0, "")

Stamp = tuple[int, int, int]
Hashes = npt.NDArray[np.int64]
NO_LINES: Hashes = np.empty(0, dtype=np.int64)
FUTURE = 1  # the bit that marks the hash of a line whose time has not come yet: it is read again


class Compared(NamedTuple):
    """The lines of a file, from the mark or from its beginning on, and how they compare with known ones.

    state     of the file once these lines are read
    appended  whether the file was only appended to since it was last read
    skipped   how many known lines stand before them
    lines     without those that have not ended
    hashes    of these lines
    is_new    which of them are not known
    stays     which of the known lines are still there
    """

    state: FileState
    appended: bool
    skipped: int
    lines: list[bytes]
    hashes: Hashes
    is_new: npt.NDArray[np.bool_]
    stays: npt.NDArray[np.bool_]


class New(NamedTuple):
    """Lines of a file of which some are new.

    number  of the first of them
    first   the beginning of the file
    opened  the file
    """

    lines: list[bytes]
    is_new: npt.NDArray[np.bool_]
    number: int
    first: bytes
    opened: BinaryIO

    def with_context(self) -> Lines | None:
        """The new lines, and the first ones of the file, which tell their format; None if nothing is new."""
        rows = np.flatnonzero(self.is_new).tolist()
        if not any(self.lines[row].strip() for row in rows):
            return None
        new = {self.number + row: self.lines[row] for row in rows if self.number + row > 1}
        header, *context = self.first.split(b"\n")[: CONTEXT + 1]
        lines = dict(enumerate(context[: self.first.count(b"\n") - 1], 2)) | new
        numbers = sorted(lines)
        return Lines(header, [lines[number] for number in numbers], numbers, new.keys())


def compared(
    opened: BinaryIO, stamp: Stamp, first: bytes, before: FileState, known: Hashes, whole: bool
) -> Compared:
    """The lines of a file beside those that were known `before`; with `whole`, from its beginning on."""
    opened.seek(max(0, before.read - COMPARED))
    last = opened.read(min(before.read, COMPARED))
    appended = before.read > 0 and before.digest == _digest(first, last, before.read)
    if whole or stamp[0] != before.inode or stamp[1] == before.size:
        appended = False  # it was replaced; or something in it was changed, if it is as long
    skipped, begun, last = (len(known), before.read, last) if appended else (0, 0, b"")
    opened.seek(begun)
    added = opened.read()
    added = added[: added.rfind(b"\n") + 1]
    read, lines = begun + len(added), added.split(b"\n")[:-1]
    state = FileState(*stamp, read, _digest(first, (last + added)[-COMPARED:], read))
    hashes = hashes_of(lines)
    is_new, stays = (np.ones(len(some), dtype=np.bool_) for some in (lines, known))
    if not appended:
        stays = pd.Index(known & ~FUTURE).isin(hashes)
        if known[:1].tolist() == hashes[:1].tolist():  # the same columns
            is_new = ~pd.Index(hashes).isin(known)
    return Compared(state, appended, skipped, lines, hashes, is_new, stays)


def stamp_of(found: os.stat_result) -> Stamp:
    """What changes whenever a file does."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def beginning(opened: BinaryIO) -> bytes:
    """The first bytes of a file, and at least its first line."""
    opened.seek(0)
    first = opened.read(COMPARED_FIRST)
    return first if b"\n" in first else first + opened.readline()


def hashes_of(lines: Sequence[bytes]) -> Hashes:
    """Hashes of lines that are the same in every process; the bit `FUTURE` is not set."""
    found = pd.util.hash_array(np.array(lines, dtype=object), categorize=False)
    return found.view(np.int64) & ~FUTURE


def _digest(first: bytes, last: bytes, read: int) -> str:
    """Identifies the beginning of a file, and the end of what was read of it."""
    return blake2b(first[:read] + last, digest_size=16).hexdigest()
