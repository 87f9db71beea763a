"""The blurred copy of an owner's readings: drawn once and kept forever. Whatever is sent is computed from it.

A second copy of the same reading would tell more than the blur allows; with the same noise at another sigma
it would reveal the reading. So the first copy is final: it is on disk before anybody uses it, and a
correction of the reading, a change of its unit or another sigma does not change it. A new sigma applies to
readings that have no copy yet.

If copies are lost, nobody knows which readings were corrected after they were copied, and the same noise on
another value reveals the correction. So what has no copy in the backup is retired: it never gets one.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.errors import RunError, StorageError
from cnfgnn.files import make_folder, write_whole
from cnfgnn.privacy.noise import KEY_BYTES, blurred, key_from_seed, key_of_input, new_key, standard_normal

KEY_FILE = "key"
UNNAMED_KEY_FILE = "key.new"  # a key that the database may not know yet
COPIES_FILE = "copies.sqlite"
LAST_FILE = "copies.sqlite.last"  # which copies were added last: an older database does not know them
KEY, COUNT, RETIRED = "key", "count", "retired"  # names in the table `about`
TWO_COPIES = "two copies of a reading tell more than the blur allows"
WAITS_FOR = 60.0  # seconds, while another process of the owner writes copies
# Readings are stored in blocks: reading millions of rows, one for each of them, would take a minute.
BLOCK = 1 << 18  # seconds, about three days
READING = np.dtype([("time", "<i8"), ("reading", "<f4"), ("sigma", "<f8"), ("copy", "<f4")])
ALL_TIMES = np.array([-(1 << 62), 1 << 62])
SENSORS_AT_ONCE = 64  # whose copies are written together: bounds the memory, and how long others wait
TABLES = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS copies (sensor TEXT NOT NULL, block INTEGER NOT NULL, readings BLOB NOT NULL,"
    " PRIMARY KEY (sensor, block))",
    "CREATE TABLE IF NOT EXISTS copies_of_inputs (input TEXT NOT NULL, sensor TEXT NOT NULL,"
    " block INTEGER NOT NULL, readings BLOB NOT NULL, PRIMARY KEY (input, sensor, block))",
    "CREATE TABLE IF NOT EXISTS additions (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE)",
)

Values = npt.NDArray[np.float32]
Times = npt.NDArray[np.int64]
Known = npt.NDArray[np.void]  # of type READING, sorted by time
Series = tuple[str, str]  # the name of a further input, or nothing for the readings, and the sensor


class Copies(Protocol):
    """Where an owner's copies come from."""

    def blur(self, readings: Readings, sigma: float, name: str = "") -> Readings:
        """The copy of these readings; `sigma` is for those that have none yet. `name` is that of a further
        input; the readings that are forecast have none."""


class SimulatedCopies:
    """Copies of a simulation: drawn again each time, always the same, because the key follows from a seed."""

    def __init__(self, seed: int) -> None:
        self.key = key_from_seed(seed)

    def blur(self, readings: Readings, sigma: float, name: str = "") -> Readings:
        values, key = np.empty_like(readings.values), _key_of(self.key, name)
        for column, sensor in enumerate(readings.ids):
            values[:, column] = _public_gaps(readings, column)
            observed = ~readings.missing[:, column]
            if observed.any():
                draws = standard_normal(key, sensor, readings.times[observed])
                values[observed, column] = blurred(readings.values[observed, column], draws, sigma)
        return replace(readings, values=values)


class CopiesOfNewest:
    """Copies of the newest readings, which come again with every new row: only rows that are new or have
    changed are drawn; the others are remembered."""

    def __init__(self, copies: Copies) -> None:
        self.copies = copies
        self._last: dict[str, tuple[Readings, Readings]] = {}  # readings and their copy, by name

    def blur(self, readings: Readings, sigma: float, name: str = "") -> Readings:
        values = np.full_like(readings.values, np.nan)
        changed = np.ones(len(readings.times), dtype=np.bool_)
        if name in self._last:
            before, copy = self._last[name]
            _, now, then = np.intersect1d(readings.times, before.times, return_indices=True)
            same = _same_rows(readings, now, before, then)
            changed[now[same]] = False
            values[now[same]] = copy.values[then[same]]
        if changed.any():
            rows = np.flatnonzero(changed)
            values[rows] = self.copies.blur(rows_of(readings, rows), sigma, name).values
        self._last[name] = readings, replace(readings, values=values)
        return self._last[name][1]


def _same_rows(one: Readings, rows: Times, other: Readings, others: Times) -> npt.NDArray[np.bool_]:
    """Which of these rows are the same in both."""
    values, before = one.values[rows], other.values[others]
    equal = (values == before) | (np.isnan(values) & np.isnan(before))
    same: npt.NDArray[np.bool_] = (equal & (one.missing[rows] == other.missing[others])).all(axis=1)
    return same


class CopyStore:
    """Copies on an owner's disk: a folder with the owner's key and a database of the copies.

    The key is made here, by the owner, and never leaves this folder. Several processes of the owner may use
    the folder at the same time: the database keeps whichever copy of a reading was first.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = self._open()

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether there is a key or a copy in this folder, or what is left of them."""
        return (folder / KEY_FILE).exists() or (folder / COPIES_FILE).exists()

    @property
    def fingerprint(self) -> str:
        """Identifies the key and tells nothing about it."""
        return fingerprint_of(self.key)

    def count(self) -> int:
        """How many readings have a copy. It only grows: fewer than before means that copies are lost."""
        with self._database() as database:
            return int(_about(database, COUNT) or 0)

    @property
    def last(self) -> str | None:
        """Identifies the last addition of copies; None if there was none."""
        with self._database() as database:
            found = database.execute("SELECT id FROM additions ORDER BY number DESC LIMIT 1").fetchone()
        return None if found is None else str(found[0])

    def has_all(self, last: str | None = None) -> bool:
        """Whether this addition is among those here, and the one that whoever used this folder made last."""
        try:
            used = {last, (self.folder / LAST_FILE).read_text(encoding="ascii").strip()} - {None}
        except FileNotFoundError:
            used = {last} - {None}
        except (OSError, ValueError) as error:
            raise RunError(self.folder / LAST_FILE, f"cannot be read ({error})") from error
        with self._database() as database:
            known = "SELECT 1 FROM additions WHERE id = ?"
            return all(database.execute(known, (one,)).fetchone() is not None for one in used)

    def oldest(self) -> int | None:
        """The time of the oldest reading that has a copy."""
        return min((int(known["time"][0]) for (name, _), known in self.each() if not name), default=None)

    def newest(self, latest: float) -> int | None:
        """The time of the newest reading that has a copy, of those that are not later than this."""
        found = [known["time"][known["time"] <= latest] for (name, _), known in self.each() if not name]
        return max((int(times[-1]) for times in found if len(times)), default=None)

    @property
    def retired(self) -> Mapping[str, int]:
        """The time up to which readings without a copy never get one, by the name of the further input; that
        of the readings counts for inputs that are not named. Empty if no copies were ever lost."""
        with self._database() as database:
            return _retired(database)

    def retire(self, until: Mapping[str, int]) -> None:
        """Let readings up to these times have no copy for ever, unless they have one now. What was retired
        before stays so."""
        with self._database() as database, _alone(database):
            before = _retired(database)
            latest = {name: max(time, _retired_until(before, name)) for name, time in until.items()}
            database.execute(
                "INSERT OR REPLACE INTO about VALUES (?, ?)", (RETIRED, json.dumps({**before, **latest}))
            )

    def snapshot(self, folder: Path) -> None:
        """Copy the key and all copies into a new folder, also while other processes add some."""
        _make_private(folder)
        path = folder / COPIES_FILE
        _create(path)
        with self._database() as database:
            try:
                with closing(sqlite3.connect(path)) as snapshot:
                    database.backup(snapshot)
            except sqlite3.OperationalError as error:  # the disk is full
                raise StorageError(path, str(error)) from error
        write_private(folder / KEY_FILE, self.key.hex().encode() + b"\n")

    def has_copies_of(self, name: str) -> bool:
        """Whether any reading has a copy: of the further input of this name, or of what has none."""
        table, values = ("copies_of_inputs WHERE input = ?", (name,)) if name else ("copies", ())
        with self._database() as database:
            return database.execute(f"SELECT 1 FROM {table} LIMIT 1", values).fetchone() is not None

    def each(self) -> Iterator[tuple[Series, Known]]:
        """All copies of each series, one after the other."""
        with self._database() as database:
            found = database.execute(
                "SELECT DISTINCT '', sensor FROM copies UNION ALL"
                " SELECT DISTINCT input, sensor FROM copies_of_inputs"
            ).fetchall()
            for series in found:
                yield series, _read(database, series, ALL_TIMES)

    def settle(self, name: str, value: str) -> str:
        """A property that all copies share: the first value counts, and it is returned ever after."""
        with self._database() as database, _alone(database):
            database.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (name, value))
            [settled] = database.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        return str(settled)

    @staticmethod
    def settled(folder: Path, name: str) -> str | None:
        """What was settled in a folder of copies; None if nothing was, or the copies cannot be read."""
        place = f"{(folder / COPIES_FILE).absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(place, uri=True, timeout=WAITS_FOR)) as database:
                return _about(database, name)
        except sqlite3.Error:  # whoever opens the copies says what is wrong
            return None

    def changed(self, readings: Readings, name: str = "") -> int:
        """How many of these readings are not those that their copies were made of."""
        seconds, changed = readings.seconds, 0
        with self._database() as database:
            for column, sensor in enumerate(readings.ids):
                known = _read(database, (name, sensor), seconds)
                copied = ~readings.missing[:, column] & _is_in(seconds, known["time"])
                before = _at(known, seconds[copied])["reading"]
                changed += int((before != readings.values[copied, column]).sum())
        return changed

    def blur(self, readings: Readings, sigma: float, name: str = "") -> Readings:
        return self.blur_with_sigmas(readings, sigma, name)[0]

    def blur_with_sigmas(
        self, readings: Readings, sigma: float, name: str = ""
    ) -> tuple[Readings, dict[float, int]]:
        """The copy, and how many of its readings were blurred with each sigma. Readings that are retired are
        missing in it."""
        values, sigmas = np.empty_like(readings.values), Counter[float]()
        seconds = readings.seconds
        with self._database() as database:
            until = _retired_until(_retired(database), name)
            for first in range(0, len(readings.ids), SENSORS_AT_ONCE):
                columns = range(first, min(first + SENSORS_AT_ONCE, len(readings.ids)))
                self._draw_missing(database, readings, columns, seconds, sigma, name)
                for column in columns:
                    known = _read(database, (name, readings.ids[column]), seconds)
                    observed = ~readings.missing[:, column]
                    copied = observed & _is_in(seconds, known["time"])
                    known = _at(known, seconds[copied])
                    values[:, column] = _public_gaps(readings, column)
                    # Without a copy it is retired, whatever stands there now: also a number for "missing".
                    values[observed | (seconds <= until), column] = np.nan
                    values[copied, column] = known["copy"]
                    used, counts = np.unique(known["sigma"], return_counts=True)
                    sigmas.update(dict(zip(used.tolist(), counts.tolist(), strict=True)))
        return replace(readings, values=values), dict(sigmas)

    def _draw_missing(
        self,
        database: sqlite3.Connection,
        readings: Readings,
        columns: Iterable[int],
        seconds: Times,
        sigma: float,
        name: str,
    ) -> None:
        """Make copies of all readings of some sensors that have none."""
        drawn: dict[str, Known] = {}
        key, later = _key_of(self.key, name), seconds > _retired_until(_retired(database), name)
        for column in columns:
            sensor, observed = readings.ids[column], ~readings.missing[:, column]
            new = observed & later & ~_is_in(seconds, _read(database, (name, sensor), seconds)["time"])
            if new.any():
                draws = standard_normal(key, sensor, readings.times[new])
                drawn[sensor] = made = np.empty(int(new.sum()), dtype=READING)
                made["time"], made["reading"], made["sigma"] = (
                    seconds[new],
                    readings.values[new, column],
                    sigma,
                )
                made["copy"] = blurred(made["reading"], draws, sigma)
        if not drawn:
            return
        with _alone(database):
            added = sum(_add(database, (name, sensor), made) for sensor, made in drawn.items())
            database.execute("UPDATE about SET value = value + ? WHERE name = ?", (added, COUNT))
            last = secrets.token_hex(8)
            database.execute("INSERT INTO additions (id) VALUES (?)", (last,))
        write_private(self.folder / LAST_FILE, last.encode())

    # ---- the folder ---------------------------------------------------------------------------------

    def _open(self) -> bytes:
        """The key: made if this folder is new, refused if a part of the folder is lost."""
        key_file, copies_file = self.folder / KEY_FILE, self.folder / COPIES_FILE
        if not key_file.exists() and not copies_file.exists():
            _make_private(self.folder)
            _create(copies_file)  # before the key: a key without copies means that they are lost
        self._make_key_once()
        if not key_file.exists():
            raise RunError(key_file, _lost("the key of this owner's blurred copies"))
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
            known = _about(database, KEY)
        if known != fingerprint_of(key):
            raise RunError(key_file, "this is not the key that the blurred copies beside it were made with")
        return key

    def _make_key_once(self) -> None:
        """Make the key unless the database knows one, also if several processes or a crash interfere.

        The key counts once the database knows it, and only then it gets its name: a process that dies in
        between leaves a folder with which the next one goes on.
        """
        key_file, unnamed = self.folder / KEY_FILE, self.folder / UNNAMED_KEY_FILE
        with self._database() as database:
            with _alone(database):
                for table in TABLES:
                    database.execute(table)
                if _about(database, COUNT) is None:
                    database.execute("INSERT INTO about VALUES (?, ?)", (COUNT, _counted(database)))
                if _about(database, KEY) is None:
                    if key_file.exists():
                        problem = _lost("the file of the blurred copies", "empty")
                        raise RunError(self.folder / COPIES_FILE, problem)
                    key = new_key()
                    write_private(unnamed, key.hex().encode() + b"\n")
                    database.execute("INSERT INTO about VALUES (?, ?)", (KEY, fingerprint_of(key)))
            with _alone(database):
                if unnamed.exists() and not key_file.exists():
                    _rename(unnamed, key_file)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        path = self.folder / COPIES_FILE
        if not path.exists():
            raise RunError(path, _lost("the blurred copies that were made with the key beside it"))
        place = f"{path.absolute().as_uri()}?mode=rw"  # never makes a new one
        try:
            database = sqlite3.connect(place, timeout=WAITS_FOR, isolation_level=None, uri=True)
        except sqlite3.Error as error:
            raise StorageError(path, str(error)) from error
        try:
            database.execute("PRAGMA synchronous = FULL")  # a copy that was used survives a power cut
            yield database
        except sqlite3.OperationalError as error:
            raise StorageError(path, str(error)) from error
        except sqlite3.DatabaseError as error:
            raise RunError(path, _lost("the file of the blurred copies", "damaged")) from error
        finally:
            database.close()


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    write_whole(path, content, 0o600)


@contextmanager
def _alone(database: sqlite3.Connection) -> Iterator[None]:
    """A transaction during which no other process writes; it is on disk when it ends."""
    database.execute("BEGIN IMMEDIATE")
    with database:
        yield


def _about(database: sqlite3.Connection, name: str) -> str | None:
    """What is known of all copies, such as the fingerprint of their key; None if it is not."""
    found = database.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
    return None if found is None else str(found[0])


def _counted(database: sqlite3.Connection) -> int:
    """How many readings have a copy, in a database that does not keep count yet."""
    sizes = [
        database.execute(f"SELECT TOTAL(LENGTH(readings)) FROM {table}").fetchone()[0]
        for table in ("copies", "copies_of_inputs")
    ]
    return int(sum(sizes)) // READING.itemsize


def _retired(database: sqlite3.Connection) -> dict[str, int]:
    found: dict[str, int] = json.loads(_about(database, RETIRED) or "{}")
    return found


def _retired_until(retired: Mapping[str, int], name: str) -> int:
    """The time up to which readings, or values of a further input, without a copy never get one."""
    return max(retired.get(one, -(1 << 62)) for one in (name, ""))


def _rename(path: Path, new: Path) -> None:
    try:
        path.replace(new)
    except OSError as error:
        raise StorageError(new, error) from error


def _make_private(folder: Path) -> None:
    """Make a folder that only its owner may enter; one that holds other files is not ours to change."""
    make_folder(folder)
    try:
        others = [path.name for path in folder.iterdir() if not _is_ours(path)]
        if others:
            problem = (
                f"no key and no copies are here, but other files are ({min(others)}): choose a new or an"
                " empty folder for them"
            )
            raise RunError(folder, problem)
        folder.chmod(0o700)
    except OSError as error:
        raise StorageError(folder, error) from error


def _is_ours(path: Path) -> bool:
    """Another process may be making the same folder."""
    return path.name.lstrip(".").startswith((KEY_FILE, COPIES_FILE))


def _create(path: Path) -> None:
    try:
        path.touch(mode=0o600)
    except OSError as error:
        raise StorageError(path, error) from error


def _read(database: sqlite3.Connection, series: Series, times: Times) -> Known:
    """The readings of a series that have a copy, from the first of these times to the last, or some more."""
    first, last = int(times[0]) // BLOCK, int(times[-1]) // BLOCK
    if series[0]:
        rows = database.execute(
            "SELECT readings FROM copies_of_inputs WHERE input = ? AND sensor = ?"
            " AND block BETWEEN ? AND ? ORDER BY block",
            (*series, first, last),
        )
    else:
        rows = database.execute(
            "SELECT readings FROM copies WHERE sensor = ? AND block BETWEEN ? AND ? ORDER BY block",
            (series[1], first, last),
        )
    return np.frombuffer(b"".join(row[0] for row in rows), dtype=READING)


def _add(database: sqlite3.Connection, series: Series, made: Known) -> int:
    """Add copies, except of readings that have one by now: another process may have been first. Returns how
    many were added."""
    known = _read(database, series, made["time"])
    made = made[~_is_in(made["time"], known["time"])]
    merged = np.concatenate([known, made])
    merged = merged[np.argsort(merged["time"], kind="stable")]
    changed = np.unique(made["time"] // BLOCK)
    blocks = merged["time"] // BLOCK
    key = series if series[0] else series[1:]
    table = "copies_of_inputs VALUES (?, ?, ?, ?)" if series[0] else "copies VALUES (?, ?, ?)"
    database.executemany(
        f"INSERT OR REPLACE INTO {table}",
        ((*key, block, merged[blocks == block].tobytes()) for block in changed.tolist()),
    )
    return len(made)


def _at(known: Known, times: Times) -> Known:
    """What is known of a sensor's readings at these times; there is a copy of each."""
    found: Known = known[np.searchsorted(known["time"], times)]
    return found


def _is_in(times: Times, ascending: Times) -> npt.NDArray[np.bool_]:
    """Which of these times are among the others."""
    if not len(ascending):
        return np.zeros(len(times), dtype=np.bool_)
    places = np.searchsorted(ascending, times).clip(max=len(ascending) - 1)
    found: npt.NDArray[np.bool_] = ascending[places] == times
    return found


def _public_gaps(readings: Readings, column: int) -> Values:
    """The copy where there is no reading: that a reading is missing is public, and nothing else is."""
    values = readings.values[:, column]
    return np.where(np.isnan(values), np.float32("nan"), np.float32(0))


def _key_of(key: bytes, name: str) -> bytes:
    """The key of the draws for a further input; that of the owner for the readings."""
    return key_of_input(key, name) if name else key


def fingerprint_of(key: bytes) -> str:
    return hashlib.blake2b(b"", key=key, digest_size=16, person=b"cnfgnn key 1").hexdigest()


def _lost(what: str, state: str = "missing") -> str:
    return (
        f"{what} is {state}: restore this folder from a backup, as cnfgnn federation restore does. Copies"
        f" must not be made again: {TWO_COPIES}"
    )
