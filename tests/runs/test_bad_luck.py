"""A full disk, a folder that cannot be written: one sentence, an exit code, and nothing lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cnfgnn.cli.main import app
from cnfgnn.errors import StorageError
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Unwatched, train_run
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
