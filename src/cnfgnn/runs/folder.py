"""A run on disk: its settings, its events, its states, and a manifest that says how far it came.

    config.toml     every setting, resolved
    events.jsonl    one line an event: what tables, figures and pages read
    manifest.json   the last finished round; replaced whole after every owner has kept its state of that round
    checkpoints/    an owner's folder each (server, site-0 ...), states as safetensors named by round
    tensorboard/    the same curves for TensorBoard

Whatever moment the process dies at, the manifest names states that are whole; its `events` is the length to
which events are cut back before going on: the run continues as if it had never stopped.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cnfgnn.config.toml as config_file
from cnfgnn.algorithm.ledger import Bytes, Ledger
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.series import Scaler
from cnfgnn.data.source import description, fingerprint
from cnfgnn.errors import CnfgnnError, DataError, RunError, StorageError
from cnfgnn.files import make_folder, write_whole
from cnfgnn.runs.checkpoints import FolderStore
from cnfgnn.runs.scores import Errors
from cnfgnn.runs.training_loop import Phase, Progress, Round

# what a run did that was begun before there was a setting for it
BEFORE: Mapping[str, Any] = {"data.outliers": "keep"}
FORMAT = 1  # of the folder; a run of a higher one was written by a newer version


class Run:
    """One run folder."""

    def __init__(
        self, folder: Path, config: Config, manifest: dict[str, Any], made: tuple[Path, ...] | None = None
    ) -> None:
        self.folder, self.config, self.manifest = folder, config, manifest
        self._made = made  # the folders that came with it, if it was begun by this process

    # ---- begin and come back ------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, config: Config, data: Dataset) -> Run:
        """A new run on these data."""
        return cls.begin(folder, config, description(data))

    @classmethod
    def begin(cls, folder: Path, config: Config, about: dict[str, Any]) -> Run:
        """A new run on data that are described; a folder that is there, unless empty, is never touched."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(folder, "is there already; a run never overwrites another")
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "data": about,
            "progress": {"history": [], "ledger": []},
            "events": 0,
            "finished": False,
        }
        made = tuple(path for path in (folder, *folder.absolute().parents) if not path.exists())
        make_folder(folder)
        write_whole(folder / "config.toml", config_file.dump(config).encode())
        run = cls(folder, config, manifest, made)
        run._write_manifest()  # last: a folder without one is no run
        return run

    @classmethod
    def open(cls, folder: Path) -> Run:
        """A run that is there."""
        path = folder / "manifest.json"
        if not path.is_file():
            raise RunError(folder, "is not a run: it has no manifest.json")
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            form = manifest["format"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(path, "is damaged and cannot be read") from error
        if not isinstance(form, int) or form > FORMAT:
            raise RunError(folder, f"was written by a newer version (format {form}, this one reads {FORMAT})")
        try:
            settings = {**BEFORE, **config_file.read_changes(folder / "config.toml")}
            config = Config().with_changes(settings).with_given(())
        except CnfgnnError as error:
            raise RunError(folder, f"its settings cannot be used ({error})") from error
        run = cls(folder, config, manifest)
        try:
            run._check()
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
            raise RunError(path, "is damaged: an entry is missing or of the wrong kind") from error
        return run

    def _check(self) -> None:
        """Look at every entry of the manifest, so that whoever uses it later need not."""
        data, progress = self.data, self.progress
        kinds = {"name": str, "fingerprint": str, "sensors": list, "rows": int, "step_seconds": int}
        if any(type(data[name]) is not kind for name, kind in kinds.items()):
            raise TypeError("data")
        if not all(isinstance(sensor, str) for sensor in data["sensors"]) or data["step_seconds"] < 1:
            raise TypeError("data")
        if type(self.manifest["finished"]) is not bool or type(self.manifest["events"]) is not int:
            raise TypeError("finished, events")
        Ledger().load(progress.ledger)
        if any(
            kept and len(kept) != len(data["sensors"]) for kept in (progress.best_errors, progress.missed)
        ):
            raise ValueError("best_errors, missed")
        if progress.history:
            _ = progress.best
            if not all(math.isfinite(v) for v in (self.scaler.mean, self.scaler.std)):
                raise ValueError("scaler")
        elif self.finished:
            raise ValueError("finished without a round")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run alone; another process gets a sentence instead."""
        path = self.folder / "lock"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StorageError(path, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise RunError(self.folder, f"is in use by process {owner}") from error
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(handle)  # releases the lock, as the end of the process would

    # ---- what is known ------------------------------------------------------------------------------

    @property
    def data(self) -> dict[str, Any]:
        known: dict[str, Any] = self.manifest["data"]
        return known

    @property
    def finished(self) -> bool:
        return bool(self.manifest["finished"])

    @property
    def progress(self) -> Progress:
        stored = self.manifest["progress"]
        phase = stored.get("phase")
        history = [_round(item) for item in stored["history"]]
        return Progress(
            history,
            stored["ledger"],
            phase and Phase(int(phase["r_g"]), int(phase["done"])),
            [[float(error), float(count)] for error, count in stored.get("best_errors", ())],
            [int(count) for count in stored.get("missed", ())],
        )

    @property
    def scaler(self) -> Scaler:
        if "scaler" not in self.manifest:
            raise RunError(self.folder, "has no finished round yet")
        stored = self.manifest["scaler"]
        return Scaler(float(stored["mean"]), float(stored["std"]))

    def store(self, owner: str) -> FolderStore:
        return FolderStore(self.folder / "checkpoints" / owner)

    def check_same_sensors(self, data: Dataset) -> None:
        """Refuse data of other sensors than the run's."""
        known, ids = self.data, list(data.readings.ids)
        if ids != known["sensors"]:
            other = next((i for i in ids if i not in known["sensors"]), None)
            other = other or next((i for i in known["sensors"] if i not in ids), ids[0])
            raise DataError(data.readings.source, f"its sensors are not those of {self.folder}", column=other)

    def check_same_data(self, data: Dataset) -> None:
        """Refuse to go on with other data than the run began with."""
        self.check_same_sensors(data)
        if fingerprint(data) != self.data["fingerprint"]:
            raise DataError(
                data.readings.source, f"its readings or graph are not those {self.folder} began with"
            )

    # ---- what happens -------------------------------------------------------------------------------

    def append(self, event: str, **fields: Any) -> None:
        """One line in events.jsonl, on disk before we go on."""
        path = self.folder / "events.jsonl"
        line = json.dumps(plain({"event": event, "time": round(time.time(), 3), **fields}), allow_nan=False)
        try:
            with path.open("ab") as file:
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(path, error) from error

    def rewind(self) -> None:
        """Cut events back to what the manifest knows of: the rest will happen again."""
        path, known = self.folder / "events.jsonl", self.manifest["events"]
        there = path.stat().st_size if path.exists() else 0
        if there < known:
            raise RunError(path, "is damaged: events that the run had written are gone")
        if there > known:
            try:
                os.truncate(path, known)
            except OSError as error:
                raise StorageError(path, error) from error
        if known:
            self.events()  # says so if a line is not what we wrote

    def commit(self, progress: Progress, scaler: Scaler, finished: bool = False) -> None:
        """From here on the run goes on after this round; states and events of it are on disk already."""
        path = self.folder / "events.jsonl"
        self.manifest |= {
            "progress": plain(progress),
            "scaler": vars(scaler),
            "events": path.stat().st_size if path.exists() else 0,
            "finished": finished,
        }
        self._write_manifest()

    def settle(self, config: Config) -> None:
        """Keep the settings that the data allow: a default minibatch may have been too large for them."""
        if config != self.config:
            write_whole(self.folder / "config.toml", config_file.dump(config).encode())
        self.config = config

    def discard_if_unused(self) -> None:
        """A run begun in this process that came to nothing leaves nothing; what was there before it stays."""
        if self.manifest["events"] > 0 or self._made is None:
            return
        for inside in self.folder.iterdir():  # it was empty when the run began
            shutil.rmtree(inside, ignore_errors=True) if inside.is_dir() else inside.unlink(missing_ok=True)
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()  # refuses unless it is empty

    def events(self) -> list[dict[str, Any]]:
        """All events that the manifest knows of, in order: a process may be writing the next one now."""
        path, known = self.folder / "events.jsonl", self.manifest["events"]
        try:
            with path.open("rb") as file:
                content = file.read(known)
            if len(content) < known:
                raise RunError(path, "is damaged: events that the run had written are gone")
            return [json.loads(line) for line in content.decode().splitlines()]
        except OSError as error:
            raise RunError(path, f"cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise RunError(path, "is damaged: a line is not JSON") from error

    def test(self) -> dict[str, Any]:
        """The event that a finished run ends with."""
        event = self.events()[-1]
        if event.get("event") != "test":
            raise RunError(self.folder, "has not been judged on its test split yet")
        try:
            for errors in (event["overall"], *event["per_step"], event["seen"], event["unseen"]):
                _ = None if errors is None else Errors.read(errors)
        except (KeyError, TypeError, AttributeError) as error:
            path = self.folder / "events.jsonl"
            raise RunError(path, "is damaged: an entry is missing or of the wrong kind") from error
        return event

    def extend(self, rounds: int, patience: int) -> None:
        """Let a finished run go on from its last state: what it was judged at its end is taken back."""
        with self.locked():
            known = (self.folder / "events.jsonl").read_bytes()[: self.manifest["events"]]
            self.config = self.config.with_changes({"training.rounds": rounds, "training.patience": patience})
            write_whole(self.folder / "config.toml", config_file.dump(self.config).encode())
            self.manifest |= {"events": known.rstrip(b"\n").rfind(b"\n") + 1, "finished": False}
            self._write_manifest()

    def _write_manifest(self) -> None:
        write_whole(
            self.folder / "manifest.json", json.dumps(self.manifest, indent=1, allow_nan=False).encode()
        )


def plain(value: Any) -> Any:
    """Dataclasses as dicts and NaN as null, so that any JSON reader can read it."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _round(item: dict[str, Any]) -> Round:
    return Round(
        int(item["r_g"]),
        float(item["loss"]),
        Errors.read(item["validation"]),
        Bytes(**item["training_bytes"]),
        bool(item["best"]),
        int(item.get("judged", 0)),
        bool(item.get("compared", True)),
        tuple(int(row) for row in item.get("without", ())),
    )
