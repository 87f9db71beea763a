"""A run on disk.

    config.toml     every setting, resolved
    events.jsonl    one event per line: what tables, figures and pages read
    manifest.json   the last completed round; replaced atomically once every owner has saved its checkpoint
    checkpoints/    one folder per owner (server, site-0 ...) of safetensors files named by round
    record.json     errors, bytes, version and machine of a finished run, for tables
    tensorboard/    the same curves for TensorBoard
    lock            held by the process that trains the run
    recording.safetensors  what the server of a federation received, if it was told to record that

The manifest is written last, so that it always names complete checkpoints, and it records the length of
events.jsonl at that time. A process that dies at any moment therefore loses nothing but the unfinished round:
when the run resumes, events beyond the recorded length are cut off and training continues bit for bit as if
it had never stopped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import cnfgnn.config.toml as config_file
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.description import DataDescription, describe, fingerprint
from cnfgnn.data.inputs import used_inputs
from cnfgnn.data.series import Scaler
from cnfgnn.data.windows import Windows
from cnfgnn.errors import CnfgnnError, DataError, RunError
from cnfgnn.files import holding_lock, make_folder, write_whole
from cnfgnn.runs.checkpoints import FolderStore
from cnfgnn.runs.events import EventLog
from cnfgnn.runs.manifest import Manifest
from cnfgnn.runs.scores import Errors
from cnfgnn.runs.training_loop import Progress
from cnfgnn.runs.warm_start import Origin


class Run:
    """One run folder."""

    def __init__(
        self, folder: Path, config: Config, manifest: Manifest, created: tuple[Path, ...] | None = None
    ) -> None:
        self.folder, self.config, self.manifest = folder, config, manifest
        self._log = EventLog(folder / "events.jsonl")
        self._created = created  # folders made for a run that this process began; None if it was opened

    # ---- begin and open -----------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, config: Config, data: Dataset, origin: Origin | None = None) -> Run:
        """Begin a run on a data set; with `origin`, it goes on from another run."""
        return cls.begin(folder, config, describe(_used(data, config)), origin)

    @classmethod
    def begin(cls, folder: Path, config: Config, data: DataDescription, origin: Origin | None = None) -> Run:
        """Begin a run on data that may be elsewhere; a folder that exists and is not empty is refused."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(folder, "already exists; a run never overwrites another, so choose another folder")
        created = tuple(path for path in (folder, *folder.absolute().parents) if not path.exists())
        make_folder(folder)
        manifest = Manifest(data, given=tuple(sorted(config.given)), origin=origin)
        run = cls(folder, config, manifest, created)
        run._write_config()
        run.manifest.write(folder)  # last: a folder without a manifest is not a run
        return run

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Open an existing run."""
        manifest = Manifest.read(folder)
        try:
            written = config_file.read_changes(folder / "config.toml")
            if "method" not in written:
                raise RunError(folder / "config.toml", "names no method")
            # Once training has started, no setting may change any more.
            config = Config().with_changes(written)
            config = config.with_given(config.keys if manifest.events else manifest.given)
        except CnfgnnError as error:
            raise RunError(folder, f"its settings cannot be used ({error})") from error
        return cls(folder, config, manifest)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run exclusively, as it is now; a second process gets a RunError that names the first."""
        with holding_lock(self.folder / "lock", self.folder):
            now = Run.open(self.folder)  # another process may have trained it on since it was opened here
            self.config, self.manifest = now.config, now.manifest
            yield

    # ---- what is known ------------------------------------------------------------------------------

    @property
    def data(self) -> DataDescription:
        """The data that the run is trained on."""
        return self.manifest.data

    @property
    def windows(self) -> Windows:
        """All windows of the data that the run is trained on."""
        d = self.config.data
        return Windows.of(self.data.rows, d.history, d.horizon, d.shares, self.data.name)

    @property
    def started(self) -> bool:
        """Whether training has begun: the first event is written and the scale of the readings is known."""
        return self.manifest.events > 0

    @property
    def finished(self) -> bool:
        """Whether training has ended and the best round was evaluated on the test split."""
        return self.manifest.finished

    @property
    def origin(self) -> Origin | None:
        """The run that this one goes on from, if any."""
        return self.manifest.origin

    @property
    def progress(self) -> Progress:
        """How far training has come, as of the manifest."""
        return self.manifest.progress.snapshot()

    @property
    def scaler(self) -> Scaler:
        """The scale of the readings."""
        if self.manifest.scaler is None:
            raise RunError(self.folder, "has no finished round yet")
        return self.manifest.scaler

    def store(self, owner: str) -> FolderStore:
        """Where an owner (server, site-0 ...) saves its checkpoints."""
        return FolderStore(self.folder / "checkpoints" / owner)

    def check_same_sensors(self, data: Dataset) -> None:
        """Refuse data of other sensors than the run's."""
        expected, found = self.data.sensors, list(data.readings.ids)
        if found == expected:
            return
        differing = [sensor for sensor in found if sensor not in expected]
        differing += [sensor for sensor in expected if sensor not in found]
        column = differing[0] if differing else found[0]  # the same sensors in another order
        raise DataError(data.readings.source, f"its sensors are not those of {self.folder}", column=column)

    def check_same_times(self, data: Dataset) -> None:
        """Refuse readings at another pace than the run was trained on, or by another clock."""
        readings = data.readings
        if problem := self.data.other_times(str(self.folder), readings.step_seconds, readings.utc):
            raise DataError(readings.source, problem)

    def began_with(self, data: Dataset) -> bool:
        """Whether these are the readings and the graph that the run was begun with."""
        return fingerprint(_used(data, self.config)) == self.data.fingerprint

    def check_same_data(self, data: Dataset) -> None:
        """Refuse other data than the run was begun with."""
        self.check_same_sensors(data)
        self.check_same_times(data)
        if not self.began_with(data):
            problem = f"its readings or graph are not those {self.folder} began with"
            raise DataError(data.readings.source, problem)

    # ---- events -------------------------------------------------------------------------------------

    def append(self, event: str, **fields: Any) -> None:
        """Write one event to events.jsonl; it counts once the manifest is committed."""
        self._log.append(event, **fields)

    def events(self) -> list[dict[str, Any]]:
        """All events up to the last commit, in order."""
        return self._log.read(self.manifest.events)

    @contextmanager
    def reading_events(self) -> Iterator[None]:
        """Inside, an event that lacks what is looked up in it, or has it in another type, is damaged."""
        try:
            yield
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise RunError(self._log.path, "is damaged: an entry is missing or has the wrong type") from error

    def test(self) -> dict[str, Any]:
        """The last event of a finished run: its errors on the test split."""
        event = self.events()[-1]
        if event.get("event") != "test":
            raise RunError(self.folder, "has not been evaluated on its test split yet: resume it")
        with self.reading_events():
            for errors in (event["overall"], *event["per_step"], event["seen"], event["unseen"]):
                if errors is not None:
                    Errors.read(errors)
        return event

    # ---- changes ------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Cut off events that were written after the last commit: they will happen again."""
        self._log.rewind(self.manifest.events)

    def commit(self, progress: Progress, scaler: Scaler, finished: bool = False) -> None:
        """Make this the point to resume from; checkpoints and events up to here must be on disk already."""
        self.manifest.progress = progress.snapshot()
        self.manifest.scaler = scaler
        self.manifest.events = self._log.length
        self.manifest.finished = finished
        self.manifest.write(self.folder)

    def save_config(self, config: Config) -> None:
        """Save the settings in use; setting up may have reduced a default minibatch to fit the data."""
        changed = config != self.config
        self.config = config
        if changed:
            self._write_config()

    def extend(self, rounds: int, patience: int) -> None:
        """Reopen a finished run for more rounds: its test event is removed, and training resumes from the
        last checkpoint."""
        with self.locked():
            self.config = self.config.with_changes({"training.rounds": rounds, "training.patience": patience})
            self._write_config()
            self.manifest.events = self._log.length_without_last(self.manifest.events)
            self.manifest.finished = False
            self.manifest.write(self.folder)

    def discard_if_unused(self) -> None:
        """Remove a run that this process began and that never started, with the folders made for it."""
        if self.started or self._created is None:
            return
        for inside in self.folder.iterdir():  # the folder was empty when the run began
            if inside.is_dir():
                shutil.rmtree(inside, ignore_errors=True)
            else:
                inside.unlink(missing_ok=True)
        for folder in self._created:
            with suppress(OSError):
                folder.rmdir()  # fails if the folder is not empty: then it is not ours alone

    def _write_config(self) -> None:
        write_whole(self.folder / "config.toml", config_file.dump(self.config).encode())


def _used(data: Dataset, config: Config) -> Dataset:
    """The data with those further inputs that a run with these settings uses."""
    return replace(data, readings=used_inputs(data.readings, config))
