"""A full disk, a folder that cannot be written: one sentence, an exit code, and nothing lost."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cnfgnn.cli.main import app
from cnfgnn.errors import StorageError
from cnfgnn.files import hold_lock
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Unwatched, train_run
from tests.commands import said
from tests.conftest import network, small
from tests.runs.test_killed import assert_same_run

DATA = network(rows=110)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for very little."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("a file system of its own takes the right to mount one")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_stops_a_run_that_goes_on_when_there_is_room(tiny_disk: Path, tmp_path: Path) -> None:
    config = small("at-fedavg", **{"training.rounds": 3})
    straight = tmp_path / "straight"
    train_run(Run.create(straight, config, DATA), DATA, Unwatched())

    class Filler(Unwatched):
        """Fills the disk after the first round."""

        def round_done(self, *_: Any) -> None:
            free = os.statvfs(tiny_disk).f_bavail * os.statvfs(tiny_disk).f_frsize
            (tiny_disk / "filler").write_bytes(b"x" * max(0, free - 4096))

    run = Run.create(tiny_disk / "run", config, DATA)
    with pytest.raises(StorageError, match=r"cannot be written \(No space left on device\)") as told:
        train_run(run, DATA, Filler())
    assert told.value.exit_code == 5
    assert len(Run.open(run.folder).progress.history) == 1
    assert not list(run.folder.rglob("*.partial"))
    (tiny_disk / "filler").unlink()
    train_run(Run.open(run.folder), DATA, Unwatched())
    assert_same_run(run.folder, straight)


def test_a_disk_that_is_full_from_the_start_is_named(tiny_disk: Path) -> None:
    free = os.statvfs(tiny_disk).f_bavail * os.statvfs(tiny_disk).f_frsize
    (tiny_disk / "filler").write_bytes(b"x" * free)
    with pytest.raises(StorageError, match="No space left"):
        Run.create(tiny_disk / "run", small("at"), DATA)


def test_a_disk_that_is_full_when_curves_are_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorBoard writes in a thread of its own."""
    record_writer = pytest.importorskip("tensorboard.summary.writer.record_writer")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class FullFromTheFirstRound(Unwatched):
        def begin(self, *_: Any) -> None:
            monkeypatch.setattr(record_writer.RecordWriter, "write", full)

    run = Run.create(tmp_path / "run", small("gru-fedavg"), DATA)
    with pytest.raises(StorageError, match=r"tensorboard: cannot be written \(No space left on device\)"):
        train_run(run, DATA, FullFromTheFirstRound())
    assert "Traceback" not in capsys.readouterr().err
    assert len(Run.open(run.folder).progress.history) == 1


@pytest.mark.slow
def test_a_city_that_does_not_fit_leaves_no_part_of_it(tiny_disk: Path) -> None:
    city = tiny_disk / "city"
    problem = said("data", "synthesize", city, "--sensors", 30, "--days", 8, fails=True)
    part = tiny_disk / ".city.partial" / "readings.csv"
    assert problem == f"{part}: cannot be written (No space left on device)"
    assert not city.exists()


def test_a_lock_that_cannot_be_written_is_named(tiny_disk: Path) -> None:
    free = os.statvfs(tiny_disk).f_bavail * os.statvfs(tiny_disk).f_frsize
    (tiny_disk / "filler").write_bytes(b"x" * free)
    with pytest.raises(StorageError, match=r"lock: cannot be written \(No space left on device\)"):
        hold_lock(tiny_disk / "lock", tiny_disk)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "read-only"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        place.chmod(0o500)
        if os.access(place, os.W_OK):
            pytest.skip("nothing is read-only for this user")
    yield place
    if mounted.returncode == 0:
        subprocess.run(["umount", str(place)], check=True)


def test_a_read_only_folder_is_named_with_exit_code_five(read_only: Path) -> None:
    small_city = ["--set=city.sensors=2", "--set=city.days=1"]
    told = CliRunner().invoke(app, ["train", "--out", str(read_only / "run"), *small_city]).exception
    assert isinstance(told, StorageError)
    assert told.exit_code == 5
    assert f"{read_only}/run: cannot be written" in str(told)
