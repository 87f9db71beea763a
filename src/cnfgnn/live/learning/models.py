"""The models of a live service: the run that it was started with, and those that were trained beside it.

The file `models.json` in the service's folder says which model is live. Whoever replaces it (a retraining, or
`cnfgnn live rollback`) does so as a whole, and the service follows within a second; a service that starts
begins with the model that is live. So a process that is killed at any moment leaves either the old model or
the new one live. `switches.jsonl` beside it has every switch, one per line.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from cnfgnn.errors import CnfgnnError, RunError, StorageError
from cnfgnn.files import make_folder, read_json, stamp_of, waiting_for_lock, write_whole
from cnfgnn.runs.events import EventLog
from cnfgnn.runs.folder import Run

FILE, LOCK, FOLDER, LOG = "models.json", "models.lock", "models", "switches.jsonl"
FORMAT = 1
KEPT = 5  # models that can be gone back to, the live one included; the first run is kept besides
REMEMBERED = 50  # switches and trainings; the log has all switches

log = logging.getLogger(__name__)
Loaded = TypeVar("Loaded")
Outcome = Literal["better", "not better", "too few readings"]


@dataclass(frozen=True)
class Switch:
    """From one model to another, and why; `time` is in seconds since 1970."""

    time: float
    before: str
    after: str
    why: str

    def json(self) -> dict[str, str]:
        """As a service tells it."""
        return {"time": written(self.time), "from": self.before, "to": self.after, "why": self.why}


@dataclass(frozen=True)
class Training:
    """A retraining that came to its end: the errors of both models on the days that were held out, in the
    readings' unit; None if it was not worth training."""

    time: float
    outcome: Outcome
    model: str
    old_error: float | None
    new_error: float | None
    text: str

    def json(self) -> dict[str, Any]:
        """As a service tells it."""
        errors = {"oldError": self.old_error, "newError": self.new_error}
        told = {"time": written(self.time), "outcome": self.outcome, "model": self.model}
        return {**told, **errors, "text": self.text}


@dataclass(frozen=True)
class Record:
    """The content of models.json.

    line       the models that went live, in this order; the last one is live, and a rollback removes it
    switches   the last ones
    trainings  the last ones
    tried      when the last retraining began, or the first period; by the clock that periods are counted with
    """

    line: tuple[str, ...]
    switches: tuple[Switch, ...] = ()
    trainings: tuple[Training, ...] = ()
    tried: float | None = None

    @property
    def live(self) -> str:
        return self.line[-1]


class Models:
    """The models of the service of a run, whose folder is `state`."""

    def __init__(self, run: Path, state: Path) -> None:
        self.run, self.state = run, make_folder(state, 0o700)
        self.first = run.absolute().name  # the name of the run that the service was started with
        self.file = state / FILE
        self.record = Record((self.first,))  # what was known when `live` last looked
        self.report: Callable[[Exception], None] = lambda error: log.warning("%s", error)
        self._seen: tuple[int, int, int] | None = None

    def folder(self, model: str) -> Path:
        """The run folder of a model."""
        return self.run if model == self.first else self.state / FOLDER / model

    def read(self) -> Record:
        """What is known now; the run itself is live until something is recorded.

        Raises:
            RunError: The file is damaged.
        """
        stored = read_json(self.file)
        if stored is None:
            return Record((self.first,))
        try:
            return _record(stored)
        except (KeyError, TypeError, ValueError) as error:
            problem = "is damaged: remove it, and the service begins with the run's own model"
            raise RunError(self.file, problem) from error

    def live(self) -> str:
        """The model that is live; the record is read again when it has changed. If it is damaged, the model
        that is live stays so."""
        now = stamp_of(self.file)
        if now is not None and now != self._seen:
            self._seen = now
            try:
                self.record = self.read()
            except RunError as error:
                self.report(error)
        return self.record.live

    def usable(
        self, load: Callable[[str], Loaded], problems: type[CnfgnnError] = RunError
    ) -> tuple[str, Loaded]:
        """The live model, and what `load` makes of it; if that fails with one of these problems, the one
        before it is live from now on."""
        while True:
            record = self.read()
            try:
                return record.live, load(record.live)
            except problems as error:
                if len(record.line) == 1:
                    raise
                self.report(error)
                self.rollback(f"{record.live} cannot be loaded ({error})")

    # ---- changes ------------------------------------------------------------------------------------

    def switch(self, model: str, why: str) -> Record:
        """Make a model live."""
        with self._changing() as record:
            return self._switched(record, (*record.line, model), why)

    def rollback(self, why: str) -> Record:
        """Make the model live that was live before the present one.

        Raises:
            RunError: There is none.
        """
        with self._changing() as record:
            if len(record.line) < 2:
                raise RunError(self.run, f"no model was live before {record.live}: nothing to go back to")
            return self._switched(record, record.line[:-1], why)

    def note_try(self, moment: float | None = None) -> None:
        """Record when a retraining begins; now, unless another clock counts the periods."""
        with self._changing() as record:
            self._write(replace(record, tried=time.time() if moment is None else moment))

    def note_training(self, training: Training) -> None:
        """Record how a retraining has ended."""
        with self._changing() as record:
            self._write(replace(record, trainings=(*record.trainings, training)[-REMEMBERED:]))

    def remove_others(self) -> None:
        """Delete the folders of models that are not in the line: rolled back, not better, or unfinished."""
        kept = set(self.read().line)
        place = self.state / FOLDER
        for folder in list(place.iterdir()) if place.is_dir() else []:
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _switched(self, record: Record, line: tuple[str, ...], why: str) -> Record:
        if len(line) > KEPT:
            line = (self.first, *line[1 - KEPT :])
        switch = Switch(round(time.time(), 3), record.live, line[-1], why)
        changed = replace(record, line=line, switches=(*record.switches, switch)[-REMEMBERED:])
        self._write(changed)
        fields = {"from": switch.before, "to": switch.after, "why": why}
        EventLog(self.state / LOG).append("switch", **fields)
        return changed

    def _write(self, record: Record) -> None:
        stored = {"format": FORMAT, **asdict(record)}
        write_whole(self.file, json.dumps(stored, indent=1, allow_nan=False).encode())

    @contextmanager
    def _changing(self) -> Iterator[Record]:
        """Hold the lock of the file while it is read and replaced: two changes at once would lose one."""
        try:
            with waiting_for_lock(self.state / LOCK):  # for the time it takes to write a small file
                yield self.read()
        except OSError as error:
            raise StorageError(self.state / LOCK, error) from error


def trained_at(run: Run) -> float:
    """When the best round of a run was done, in seconds since 1970; when it was saved if that is unknown."""
    for event in run.events():
        if event.get("event") == "round" and event.get("round") == run.progress.best.r_g:
            return float(event["time"])
    return (run.folder / "manifest.json").stat().st_mtime


def written(seconds: float) -> str:
    """A time in seconds since 1970 as JSON has it: in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _record(stored: Mapping[str, Any]) -> Record:
    if not isinstance(stored["format"], int) or stored["format"] > FORMAT:
        raise ValueError("format")
    line = tuple(str(model) for model in stored["line"])
    if not line or any("/" in model or model in (".", "..") for model in line):
        raise ValueError("line")
    tried = stored["tried"]
    return Record(
        line,
        tuple(Switch(**switch) for switch in stored["switches"]),
        tuple(Training(**training) for training in stored["trainings"]),
        None if tried is None else float(tried),
    )
