"""What a site's owner is told at the site, and that a full disk is named to everybody whom it concerns."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from cnfgnn.algorithm.methods import preset
from cnfgnn.cli import progress
from cnfgnn.cli.sites import SiteLines, sites_table
from cnfgnn.config.settings import Config
from cnfgnn.errors import StorageError
from cnfgnn.federation import kits
from cnfgnn.federation.flare.handshake import Answer
from cnfgnn.federation.project import read_project
from cnfgnn.federation.site_status import SiteStatus, copy_problem, read_site_status, standing_problem
from cnfgnn.federation.site_store import JOINED, SiteStore
from tests.commands import said
from tests.federation.living import ENGINE_WARNINGS, dealt, living
from tests.federation.parties import write_project

pytestmark = ENGINE_WARNINGS

SAVES = """
import resource, sys, torch
from pathlib import Path
from cnfgnn.errors import StorageError
from cnfgnn.federation.site_store import SiteStore
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    SiteStore(Path(sys.argv[1]), "run").write("round-1", {"w": torch.zeros(10_000)}, ())
except StorageError as problem:
    print(problem)
"""


def answered(**standing: Any) -> Answer:
    return Answer("server", "host:8002", 0.0, standing)


def test_the_file_is_the_owners_alone_and_every_writer_keeps_what_others_wrote(tmp_path: Path) -> None:
    status = SiteStatus(tmp_path)
    status.note_server("abc", answered(heard=1.0), "")
    status.note_forecast("forecasts/latest.csv", "2026-01-01", "2026-01-02")
    threads = [
        threading.Thread(target=SiteStatus(tmp_path).note_problem, args=("save", f"problem {number}"))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = read_site_status(tmp_path)
    assert known["server"]["process"] == "abc"
    assert known["forecast"]["from"] == "2026-01-01"
    assert len(known["problems"]) == 5
    assert (tmp_path / "site-status.json").stat().st_mode & 0o077 == 0
    (tmp_path / "site-status.json").write_text("[")
    assert read_site_status(tmp_path) == {}
    status.note_problem("save", "again")
    assert [item["problem"] for item in read_site_status(tmp_path)["problems"]] == ["again"]


def test_what_the_server_answers_is_said_in_the_owners_words() -> None:
    assert standing_problem(answered(heard=2.0, other=False, revoked=False)) == ""
    assert standing_problem(answered()) == ""  # a server without a doorkeeper
    assert "revoked this kit's certificate" in standing_problem(answered(revoked=True))
    held = standing_problem(answered(other=True, address="10.0.0.7", since=time.time()))
    assert "is connected from 10.0.0.7 since" in held
    ahead = Answer("server", "host:8002", -400.0)
    assert "clock is 400 s ahead of the server's" in standing_problem(ahead)
    refused = {"reason": "another process with the same certificate is connected", "address": "10.0.0.9"}
    assert "a copy of this kit from 10.0.0.9" in copy_problem({"refused": {**refused, "last": time.time()}})
    assert copy_problem({"refused": {**refused, "last": time.time() - 100_000}}) == ""
    assert copy_problem({"refused": None}) == ""


def test_an_owner_sees_forecasts_and_failures_also_without_a_server(tmp_path: Path) -> None:
    kit = kits.make_kits(read_project(write_project(tmp_path)), tmp_path / "kits")["north"]
    told = said("federation", "status", kit)
    for part in ("site north: does not run", "does not hear", "no forecast yet", "cannot be reached"):
        assert part in told
    SiteStatus(kit).note_forecast("forecasts/latest.csv", "2026-01-01", "2026-01-02")
    SiteStatus(kit).note_problem("save", "states/x: cannot be written (No space left on device)")
    told = said("federation", "status", kit)
    assert "last forecast: forecasts/latest.csv" in told
    assert "save: states/x: cannot be written (No space left on device)" in told
    assert json.loads(said("federation", "status", kit, "--json"))["failed"][0]["verb"] == "save"


def test_a_state_that_finds_no_space_is_named_to_the_owner(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SAVES, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert "round-1.safetensors: cannot be written (File too large)" in ended.stdout
    assert "a state could not be kept" in ended.stderr
    [problem] = read_site_status(tmp_path)["problems"]
    assert problem["verb"] == "save"
    assert "cannot be written (File too large)" in problem["problem"]


def test_a_folder_that_cannot_be_made_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "states").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        SiteStore(tmp_path, "run").write("round-1", {"w": torch.zeros(1)}, ())
    assert read_site_status(tmp_path)["problems"]


def test_lines_of_a_task_name_each_new_problem_once(capsys: pytest.CaptureFixture[str]) -> None:
    problem = "site 'north' failed at 'save': states/x: cannot be written (No space left on device)"
    site = {"reachable": True, "refused": 1, "problem": problem}
    lines = SiteLines()
    for refused in (1, 2, 3):
        lines(
            {
                "token": "t",
                "state": "running",
                "do": "train",
                "run": "r",
                "sites": {"north": site | {"refused": refused}},
            }
        )
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_a_status_that_was_written_long_ago_shows_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    then = time.time() - 5000
    site = {"sensors": 1, "present": False, "reachable": False, "last_seen": then, "latency": None}
    site |= {"windows": 0, "bytes": 0, "refused": 0, "problem": ""}
    progress.out().print(sites_table({"time": then, "sites": {"north": site}}))
    assert "500" in capsys.readouterr().out.replace("\n", "")


@contextmanager
def full_disk(states: Path) -> Iterator[None]:
    """A site's states lie on a disk of their own from now on, and it is full."""
    before = states.rename(states.with_name("states-before"))
    states.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(states)], check=False)
    if done.returncode != 0:
        pytest.skip("only root can mount a disk that fills up")
    try:
        for joined in before.rglob(JOINED):
            (states / joined.parent.name).mkdir()
            shutil.copy(joined, states / joined.parent.name)
        with suppress(OSError), (states / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"-" * 1024)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(states)], check=True)


@pytest.mark.slow
def test_a_training_names_a_site_whose_disk_is_full(tmp_path: Path) -> None:
    config = tiny()
    with (
        living(tmp_path, dealt(tmp_path / "data", sensors=4), {"north": [0, 1], "south": [2, 3]}) as running,
        ExitStack() as stack,
    ):
        running.begin_training(config)
        running.during(2)
        north = running.kits["north"]
        stack.enter_context(full_disk(north / "states"))
        running.until(lambda: bool(running.site("north")["refused"]), "a refused answer")
        assert "cannot be written" in running.site("north")["problem"]
        assert "cannot be written" in said("federation", "status", running.server).replace("\n", " ")
        assert "failed: " in (told := said("federation", "status", north))
        assert "cannot be written" in told
        assert any("a state could not be kept" in log.read_text() for log in north.glob("*-*/log.txt"))
        running.stop()


def tiny() -> Config:
    return preset("cnfgnn").with_changes(
        {
            "training.rounds": 50,
            "training.server_batch": 24,
            "model.hidden": 4,
            "model.embedding": 4,
            "model.gn_widths": (6, 5),
            "compute.device": "cpu",
        }
    )
