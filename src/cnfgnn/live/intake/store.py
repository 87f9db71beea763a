"""The service's memory on disk: every reading that was acknowledged.

A SQLite database with a write-ahead log. `synchronous = FULL` flushes the log with every transaction, so that
an acknowledged reading survives kill -9 and a power cut; readings that arrive together share a flush.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError

from cnfgnn.errors import RunError, StorageError
from cnfgnn.files import hold_lock, make_folder
from cnfgnn.live.intake.recent import Cell, Stored

FILE = "live.sqlite"
FORMAT = "1"
MOST_BYTES = 2 << 30  # of the database; then the oldest day is deleted
DAY_SECONDS = 86_400
TABLES = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS readings (time INTEGER NOT NULL, sensor TEXT NOT NULL, value REAL NOT NULL,"
    " PRIMARY KEY (time, sensor)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS variables (time INTEGER NOT NULL, variable TEXT NOT NULL,"
    " sensor TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (time, variable, sensor)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, state TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS lines (name TEXT NOT NULL, first INTEGER NOT NULL, hashes BLOB NOT NULL,"
    " PRIMARY KEY (name, first)) WITHOUT ROWID",
)


class FileState(NamedTuple):
    """How far a file of the folder has been read, and what tells whether it is still the same.

    modified  nanoseconds
    read      bytes, to the end of a line
    digest    of the beginning of the file and of what is before `read`
    """

    inode: int
    size: int
    modified: int
    read: int
    digest: str


class FileRead(NamedTuple):
    """How far a file has been read, and the hashes of its lines from number `first` on, counted from 0."""

    state: FileState
    first: int
    hashes: bytes


def remove_database(folder: Path, *others: str) -> None:
    """Forget all readings of a service, and remove other files of its folder; refused while it runs."""
    handle = _held(make_folder(folder, 0o700))
    try:
        for file in [*folder.glob(f"{FILE}*"), *(folder / name for name in others)]:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(folder, error) from error
    finally:
        os.close(handle)


def _held(folder: Path) -> int:
    return hold_lock(folder / "lock", folder, "the live service of process")


class ReadingStore:
    """The database in a folder; one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.path = make_folder(folder, 0o700) / FILE
        self._lock = _held(folder)
        try:
            self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> None:
        with explained(self.path):
            self.path.touch(0o600)
            self._database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            # The journal moves the log into the database now and then; this is for when it cannot.
            self._database.execute("PRAGMA wal_autocheckpoint = 10000")
            for table in TABLES:
                self._database.execute(table)
            self._database.execute("INSERT OR IGNORE INTO about VALUES ('format', ?)", (FORMAT,))
            [found] = self._database.execute("SELECT value FROM about WHERE name = 'format'").fetchone()
        if found != FORMAT:
            self._database.close()
            raise RunError(self.path, f"was written by a newer version (format {found}): upgrade cnfgnn")

    def close(self) -> None:
        self._database.close()
        os.close(self._lock)  # releases the lock, as the end of the process would

    # ---- readings -----------------------------------------------------------------------------------

    def write(
        self,
        ids: Sequence[str],
        cells: Iterable[Cell],
        files: Mapping[str, FileRead],
        only_new: bool = False,
    ) -> None:
        """Store readings, and how far their files have been read; all of it is on disk when this returns.
        They replace what is stored, unless only new ones count."""
        kept, insert = list(cells), f"INSERT OR {'IGNORE' if only_new else 'REPLACE'} INTO"
        readings = [(c.seconds, ids[c.column], c.value) for c in kept if not c.variable]
        variables = [(c.seconds, c.variable, ids[c.column], c.value) for c in kept if c.variable]
        states = [(name, json.dumps(read.state)) for name, read in files.items()]
        replaced = [(name, read.first) for name, read in files.items()]
        lines = [(name, read.first, read.hashes) for name, read in files.items() if read.hashes]
        with explained(self.path), transaction(self._database):
            self._database.executemany(f"{insert} readings VALUES (?, ?, ?)", readings)
            self._database.executemany(f"{insert} variables VALUES (?, ?, ?, ?)", variables)
            self._database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?)", states)
            self._database.executemany("DELETE FROM lines WHERE name = ? AND first >= ?", replaced)
            self._database.executemany("INSERT INTO lines VALUES (?, ?, ?)", lines)

    def stored(self, since: float, until: float = math.inf) -> Stored:
        """What was stored with a time from one to another, both included."""
        with explained(self.path):
            return _stored(self._database, since, until)

    def newest(self, until: float = math.inf) -> int | None:
        """The time of the newest reading up to a time."""
        chosen = "SELECT MAX(time) FROM readings WHERE time <= ?"
        with explained(self.path):
            [newest] = self._database.execute(chosen, (until,)).fetchone()
        return None if newest is None else int(newest)

    def files(self) -> dict[str, FileRead]:
        """How far each file of the folder has been read, and the hashes of all its lines."""
        chosen = "SELECT hashes FROM lines WHERE name = ? ORDER BY first"
        found = {}
        with explained(self.path):
            for name, state in self._database.execute("SELECT name, state FROM files").fetchall():
                with suppress(TypeError, ValueError):  # of an earlier version: the file is read again
                    hashes = b"".join(piece for [piece] in self._database.execute(chosen, (name,)))
                    found[name] = FileRead(FileState(*json.loads(state)), 0, hashes)
        return found


def drop_oldest(database: sqlite3.Connection, most: int = MOST_BYTES) -> None:
    """Delete the oldest day of readings and variables if the database is larger than it may be; so it stays
    below, since days are added one by one. Its size decides and no clock, which may be wrong."""
    pages, free, size = (
        database.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    if (pages - free) * size <= most:
        return
    with transaction(database):
        for table in ("readings", "variables"):
            oldest = f"SELECT MIN(time) + {DAY_SECONDS} FROM {table}"
            database.execute(f"DELETE FROM {table} WHERE time < ({oldest})")


def stored_readings(database: Path) -> Stored:
    """All that a service has stored; it may be running."""
    if not database.exists():
        return Stored((), ())
    place = f"file:{database}?mode=ro"
    with explained(database), closing(sqlite3.connect(place, uri=True, timeout=30)) as opened:
        return _stored(opened)


def _stored(database: sqlite3.Connection, since: float = -math.inf, until: float = math.inf) -> Stored:
    chosen = "WHERE time BETWEEN ? AND ? ORDER BY time"
    readings = f"SELECT time, sensor, value FROM readings {chosen}"
    variables = f"SELECT time, variable, sensor, value FROM variables {chosen}"
    return Stored(*(database.execute(text, (since, until)).fetchall() for text in (readings, variables)))


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Errors of SQLite as errors that name the file."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise StorageError(path, str(error)) from error
    except (sqlite3.DatabaseError, SafetensorError, ValueError) as error:
        raise RunError(path, f"is damaged ({error}): move it away to begin without it") from error


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Inside, everything is written, or nothing is."""
    database.execute("BEGIN IMMEDIATE")
    with database:
        yield
