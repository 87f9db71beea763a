"""The blurred copy of an owner's readings: drawn once and kept forever. Whatever is sent is computed from it.

A second copy of the same reading, with fresh noise or with the same noise at another sigma, would reveal the
reading. So the first copy is final: it is on disk before anybody uses it, and a correction of the
reading, a change of its unit or another sigma does not change it. A new sigma applies to readings that have
no copy yet.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cnfgnn.data.readings import Readings
from cnfgnn.errors import RunError, StorageError
from cnfgnn.files import make_folder, write_whole
from cnfgnn.privacy.noise import KEY_BYTES, blurred, key_from_seed, new_key, standard_normal

KEY_FILE = "key"
COPIES_FILE = "copies.sqlite"
WAITS_FOR = 60.0  # seconds, while another process of the owner writes copies
SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS copies (
    sensor TEXT NOT NULL, time INTEGER NOT NULL,
    reading REAL NOT NULL, sigma REAL NOT NULL, copy REAL NOT NULL,
    PRIMARY KEY (sensor, time)
) WITHOUT ROWID;
"""

Values = npt.NDArray[np.float32]
Times = npt.NDArray[np.int64]


class Copies(Protocol):
    """Where an owner's copies come from."""

    def blur(self, readings: Readings, sigma: float) -> Readings:
        """The copy of these readings; `sigma` is for those that have none yet."""


class SimulatedCopies:
    """Copies of a simulation: drawn again each time, always the same, because the key follows from a seed."""

    def __init__(self, seed: int) -> None:
        self.key = key_from_seed(seed)

    def blur(self, readings: Readings, sigma: float) -> Readings:
        values = np.empty_like(readings.values)
        for column, sensor in enumerate(readings.ids):
            values[:, column] = _public_gaps(readings, column)
            observed = ~readings.missing[:, column]
            if observed.any():
                draws = standard_normal(self.key, sensor, readings.times[observed])
                values[observed, column] = blurred(readings.values[observed, column], draws, sigma)
        return replace(readings, values=values)


class CopyStore:
    """Copies on an owner's disk: a folder with the owner's key and a database of the copies.

    The key is made here, by the owner, and never leaves this folder. Several processes of the owner may use
    the folder at the same time: the database keeps whichever copy of a reading was first.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = self._open()

    def blur(self, readings: Readings, sigma: float) -> Readings:
        values = np.empty_like(readings.values)
        seconds = readings.times.astype("datetime64[s]").astype(np.int64)
        with self._database() as database:
            for column, sensor in enumerate(readings.ids):
                values[:, column] = _public_gaps(readings, column)
                observed = ~readings.missing[:, column]
                if observed.any():
                    copies = self._copies(
                        database, sensor, seconds[observed], readings.values[observed, column], sigma
                    )
                    values[observed, column] = copies
        return replace(readings, values=values)

    def _copies(
        self, database: sqlite3.Connection, sensor: str, times: Times, values: Values, sigma: float
    ) -> Values:
        """The copies of a sensor's readings; readings that have none yet get one first."""
        new = np.isnan(_known(database, sensor, times))
        if new.any():
            draws = standard_normal(self.key, sensor, times[new].astype("datetime64[s]"))
            drawn = blurred(values[new], draws, sigma)
            rows = zip(times[new].tolist(), values[new].tolist(), drawn.tolist(), strict=True)
            with database:  # a transaction: on disk when it ends
                database.executemany(
                    "INSERT OR IGNORE INTO copies VALUES (?, ?, ?, ?, ?)",
                    ((sensor, time, reading, sigma, copy) for time, reading, copy in rows),
                )
        return _known(database, sensor, times)  # another process may have been first

    # ---- the folder ---------------------------------------------------------------------------------

    def _open(self) -> bytes:
        """The key: made if this folder is new, refused if a part of the folder is lost."""
        key_file, copies_file = self.folder / KEY_FILE, self.folder / COPIES_FILE
        if not key_file.exists() and not copies_file.exists():
            make_folder(self.folder)
            self.folder.chmod(0o700)
            _create(copies_file)  # before the key: a key without copies means that they are lost
            key = new_key()
            with self._database() as database, database:
                database.execute("INSERT OR IGNORE INTO about VALUES ('key', ?)", (_fingerprint(key),))
            write_private(key_file, key.hex().encode() + b"\n")
        if not key_file.exists():
            raise RunError(key_file, _lost("the key of this owner's blurred copies"))
        if not copies_file.exists():
            raise RunError(copies_file, _lost("the blurred copies that were made with the key beside it"))
        try:
            key = bytes.fromhex(key_file.read_text(encoding="ascii").strip())
        except OSError as error:
            raise RunError(
                key_file, f"the key of the blurred copies cannot be read ({error.strerror})"
            ) from error
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise RunError(key_file, _lost("the key of this owner's blurred copies", "damaged"))
        with self._database() as database:
            known = database.execute("SELECT value FROM about WHERE name = 'key'").fetchone()
        if known is None or known[0] != _fingerprint(key):
            raise RunError(key_file, "this is not the key that the blurred copies beside it were made with")
        return key

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        path = self.folder / COPIES_FILE
        try:
            database = sqlite3.connect(path, timeout=WAITS_FOR)
        except sqlite3.Error as error:
            raise StorageError(path, str(error)) from error
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")  # a copy that was used survives a power cut
            database.executescript(SCHEMA)
            yield database
        except sqlite3.OperationalError as error:
            raise StorageError(path, str(error)) from error
        except sqlite3.DatabaseError as error:
            raise RunError(path, _lost("the file of the blurred copies", "damaged")) from error
        finally:
            database.close()


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    before = os.umask(0o077)
    try:
        write_whole(path, content)
    finally:
        os.umask(before)


def _create(path: Path) -> None:
    try:
        path.touch(mode=0o600)
    except OSError as error:
        raise StorageError(path, error) from error


def _known(database: sqlite3.Connection, sensor: str, times: Times) -> Values:
    """The copies that there are at these times; NaN where there is none."""
    found = np.array(
        database.execute(
            "SELECT time, copy FROM copies WHERE sensor = ? AND time BETWEEN ? AND ? ORDER BY time",
            (sensor, int(times[0]), int(times[-1])),
        ).fetchall(),
        dtype=np.float64,
    ).reshape(-1, 2)
    copies = np.full(len(times), np.nan, dtype=np.float32)
    _, here, there = np.intersect1d(times, found[:, 0].astype(np.int64), return_indices=True)
    copies[here] = found[there, 1].astype(np.float32)
    return copies


def _public_gaps(readings: Readings, column: int) -> Values:
    """The copy where there is no reading: that a reading is missing is public, and nothing else is."""
    values = readings.values[:, column]
    return np.where(np.isnan(values), np.float32("nan"), np.float32(0))


def _fingerprint(key: bytes) -> str:
    return hashlib.blake2b(b"", key=key, digest_size=16, person=b"cnfgnn key 1").hexdigest()


def _lost(what: str, state: str = "missing") -> str:
    return (
        f"{what} is {state}: restore this folder from a backup. Copies must not be made again: two copies"
        " of a reading reveal it"
    )
