"""The manifest of a run, `manifest.json`: which data it is trained on and how far it has come."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cnfgnn.algorithm.messages.ledger import Bytes, Ledger
from cnfgnn.data.description import DataDescription
from cnfgnn.data.series import Scaler
from cnfgnn.errors import RunError
from cnfgnn.files import write_whole
from cnfgnn.runs.events import plain
from cnfgnn.runs.scores import Errors
from cnfgnn.runs.training_loop import Phase, Progress, Round
from cnfgnn.runs.warm_start import Origin

FORMAT = 1  # of the run folder; a higher number was written by a newer version
FILE = "manifest.json"


@dataclass
class Manifest:
    """The content of manifest.json.

    events    length in bytes of events.jsonl that belongs to completed work; 0 before training starts
    finished  whether training has ended and the best round was evaluated on the test split
    scaler    scale of the readings, known once training has started
    given     the settings that a person has set; the others may adapt to the data when training starts
    origin    the run that this one goes on from; None if it was trained from the beginning
    """

    data: DataDescription
    progress: Progress = field(default_factory=Progress)
    events: int = 0
    finished: bool = False
    scaler: Scaler | None = None
    given: tuple[str, ...] = ()
    origin: Origin | None = None

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read and check the manifest of a run folder; every entry is valid when this returns."""
        path = folder / FILE
        if not path.is_file():
            raise RunError(folder, f"is not a run: it has no {FILE}")
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            version = stored["format"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(path, "is damaged and cannot be read") from error
        if not isinstance(version, int) or version > FORMAT:
            problem = f"was written by a newer version (format {version}; this version reads {FORMAT})"
            raise RunError(folder, f"{problem}: upgrade cnfgnn")
        try:
            return cls._from_json(stored)
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration, OverflowError) as error:
            problem = "is damaged, or of an earlier version: an entry is missing or has the wrong type"
            raise RunError(path, f"{problem}; train it again") from error

    @classmethod
    def _from_json(cls, stored: Mapping[str, Any]) -> Manifest:
        data = DataDescription.from_json(stored["data"])
        progress = _progress(stored["progress"])
        events, finished = stored["events"], stored["finished"]
        if type(finished) is not bool or type(events) is not int:
            raise TypeError("finished, events")
        Ledger().load(progress.ledger)
        for per_sensor in (progress.best_errors, progress.missed):
            if len(per_sensor) != (len(data.sensors) if progress.history else 0):
                raise ValueError("best_errors, missed")
        scaler = None
        if "scaler" in stored:
            scaler = Scaler(float(stored["scaler"]["mean"]), float(stored["scaler"]["std"]))
        if progress.history:
            _ = progress.best  # raises StopIteration if no round is marked as the best one
            if scaler is None or not (math.isfinite(scaler.mean) and math.isfinite(scaler.std)):
                raise ValueError("scaler")
        elif finished:
            raise ValueError("finished without a round")
        given = tuple(str(key) for key in stored.get("given", ()))
        return cls(data, progress, events, finished, scaler, given, _origin(stored.get("from")))

    def write(self, folder: Path) -> None:
        """Replace the manifest of a run folder; a crash leaves the old one or the new one."""
        stored: dict[str, Any] = {
            "format": FORMAT,
            "data": self.data.as_json(),
            "progress": _progress_as_json(self.progress),
            "events": self.events,
            "finished": self.finished,
            "given": list(self.given),
        }
        if self.scaler is not None:
            stored["scaler"] = vars(self.scaler)
        if self.origin is not None:
            stored["from"] = vars(self.origin)
        write_whole(folder / FILE, json.dumps(stored, indent=1, allow_nan=False).encode())


def _origin(stored: Mapping[str, Any] | None) -> Origin | None:
    if stored is None:
        return None
    rounds_given = bool(stored["rounds_given"])
    return Origin(str(stored["run"]), int(stored["round"]), int(stored["cold_rounds"]), rounds_given)


def _progress(stored: Mapping[str, Any]) -> Progress:
    phase = stored["phase"]
    return Progress(
        history=[_round(item) for item in stored["history"]],
        ledger=stored["ledger"],
        phase=Phase(int(phase["r_g"]), int(phase["done"])) if phase else None,
        best_errors=[(float(error), float(forecasts)) for error, forecasts in stored["best_errors"]],
        missed=[int(count) for count in stored["missed"]],
    )


def _round(stored: Mapping[str, Any]) -> Round:
    return Round(
        r_g=int(stored["r_g"]),
        loss=float(stored["loss"]),
        validation=Errors.read(stored["validation"]),
        training_bytes=Bytes(**stored["training_bytes"]),
        best=bool(stored["best"]),
        compared=bool(stored["compared"]),
        left_out=tuple(int(row) for row in stored["without"]),
    )


def _progress_as_json(progress: Progress) -> dict[str, Any]:
    return {
        "history": [_round_as_json(done) for done in progress.history],
        "ledger": progress.ledger,
        "phase": plain(progress.phase),
        "best_errors": plain(progress.best_errors),
        "missed": progress.missed,
    }


def _round_as_json(done: Round) -> dict[str, Any]:
    """Keys are those of format 1, which do not all have the names of today's fields."""
    return {
        "r_g": done.r_g,
        "loss": plain(done.loss),
        "validation": plain(done.validation),
        "training_bytes": plain(done.training_bytes),
        "best": done.best,
        "compared": done.compared,
        "without": list(done.left_out),
    }
