"""What ranges and the watch have learned, on disk: a state, and every step since then.

A state is megabytes, a step some kilobytes. So each step is written when it happens, and the whole state once
in a while; a restarted service reads the state and takes the steps again. They are in the database of the
readings. A step is written before its forecast goes out, without waiting for the disk to confirm it: it
survives kill -9, and a power cut may take the last ones, after which the watch goes on from what it has.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from cnfgnn.live.forecasting.watch import Step
from cnfgnn.live.intake.store import drop_oldest, explained, transaction

TABLES = (
    "CREATE TABLE IF NOT EXISTS learned (one INTEGER PRIMARY KEY CHECK (one = 1), of TEXT NOT NULL,"
    " state BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS steps (row INTEGER PRIMARY KEY, step BLOB NOT NULL)",
)
PATIENCE = 10.0  # seconds that a step waits while readings are being written

State = Mapping[str, npt.NDArray[Any]]


class Journal:
    """The state and the steps of one model, named by `of`; those of another one are not used."""

    def __init__(self, path: Path, of: str, sensors: int, horizon: int) -> None:
        self.path, self.of, self._shape = path, of, (sensors, 3 + horizon)
        with explained(path):
            self._database = self._connected()
            for table in TABLES:
                self._database.execute(table)

    def close(self) -> None:
        self._database.close()

    def read(self) -> tuple[State, list[Step]] | None:
        """The last state and the steps since then; None if there is none of this model."""
        with explained(self.path):
            found = self._database.execute("SELECT of, state FROM learned").fetchone()
            if found is None or found[0] != self.of:
                return None
            steps = self._database.execute("SELECT row, step FROM steps ORDER BY row").fetchall()
            return load(found[1]), [self._step(row, step) for row, step in steps]

    def write_state(self, state: State, row: int) -> None:
        """Keep a state; the steps up to its row are no longer needed. Any thread may do so."""
        plain = save({name: np.array(array, order="C") for name, array in state.items()})
        with explained(self.path), closing(self._connected()) as another, transaction(another):
            another.execute("INSERT OR REPLACE INTO learned VALUES (1, ?, ?)", (self.of, plain))
            another.execute("DELETE FROM steps WHERE row <= ?", (row,))

    def begin(self, state: State) -> None:
        """Keep the first state of a model; nothing of another one is needed any more."""
        with explained(self.path), transaction(self._database):
            self._database.execute("DELETE FROM steps")
        self.write_state(state, -1)

    def add(self, steps: Sequence[Step]) -> None:
        """Keep steps that have been taken since the last state."""
        numbers = [np.column_stack([s.readings, s.last, s.last_row, s.forecasts]) for s in steps]
        rows = [(s.row, of.astype("<f8").tobytes()) for s, of in zip(steps, numbers, strict=True)]
        with explained(self.path), transaction(self._database):
            self._database.executemany("INSERT OR REPLACE INTO steps VALUES (?, ?)", rows)

    def tidy(self) -> None:
        """Move what was written from the log into the database, and keep that bounded; nobody waits for
        it."""
        with explained(self.path), closing(self._connected()) as another:
            drop_oldest(another)
            another.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _connected(self) -> sqlite3.Connection:
        found = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        found.execute("PRAGMA synchronous = NORMAL")
        found.execute("PRAGMA wal_autocheckpoint = 0")  # a forecast does not wait: see `tidy`
        return found

    def _step(self, row: int, stored: bytes) -> Step:
        numbers = np.frombuffer(stored, dtype="<f8").reshape(self._shape)
        last_row = numbers[:, 2].astype(np.int64)
        return Step(row, numbers[:, 0].copy(), numbers[:, 1].copy(), last_row, numbers[:, 3:].copy())
