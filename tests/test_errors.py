"""Messages name what went wrong and where, and can be printed whatever a path is called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cnfgnn.errors import DataError, NodeError, NoSiteAnswered, RunError, StorageError
from tests.commands import COMMAND, ENVIRONMENT

NOT_UTF_8 = b"caf\xe9"  # as Latin-1 writes it


def test_a_site_that_failed_is_told_from_no_site_at_all() -> None:
    assert str(NodeError("north", "weights", "no space")) == "site 'north' failed at 'weights': no space"
    assert str(NoSiteAnswered("weights")) == "no site answered 'weights': every site is absent or failed"


@pytest.mark.parametrize(
    "error", [RunError(os.fsdecode(NOT_UTF_8), "x"), StorageError(Path(os.fsdecode(NOT_UTF_8)), "x")]
)
def test_a_path_that_is_not_utf_8_can_be_printed(error: Exception) -> None:
    assert str(error).encode().startswith(b"caf?: ")


def test_a_data_error_of_such_a_path_keeps_its_place() -> None:
    assert str(DataError(os.fsdecode(NOT_UTF_8), "x", line=3, column="a")) == "caf?, line 3, column 'a': x"


@pytest.mark.slow
def test_runs_in_folders_that_are_not_utf_8_are_listed(run_folders: list[Path], tmp_path: Path) -> None:
    good, bad = (tmp_path / os.fsdecode(kind + NOT_UTF_8) for kind in (b"good-", b"bad-"))
    shutil.copytree(run_folders[0], good)
    bad.mkdir()
    (bad / "manifest.json").write_text("{")
    strict = ENVIRONMENT | {"PYTHONIOENCODING": "utf-8:strict", "COLUMNS": "300"}
    listed = subprocess.run([*COMMAND, "runs", str(tmp_path)], capture_output=True, env=strict, check=True)
    assert "good-caf?" in listed.stdout.decode()
    assert "bad-caf?" in listed.stdout.decode()
    empty = tmp_path / os.fsdecode(NOT_UTF_8)
    empty.mkdir()
    listed = subprocess.run([*COMMAND, "runs", str(empty)], capture_output=True, env=strict, check=True)
    assert listed.stdout.decode() == f"no runs in {tmp_path}/caf?\n"
