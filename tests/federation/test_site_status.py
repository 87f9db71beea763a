"""What a site's owner learns at the site; a full disk is reported to the owner and to the operator."""

from __future__ import annotations

import json
import re
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
from cnfgnn.federation.engine.guard.handshake import (
    ServerAnswer,
    checked_status,
    connection_problem,
    copied_kit_warning,
)
from cnfgnn.federation.kits.retention import TASKS
from cnfgnn.federation.objections import OBJECTIONS
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.operator.status import status_of
from cnfgnn.federation.project import read_project
from cnfgnn.federation.server.status import task_status
from cnfgnn.federation.site.copies import RECORD
from cnfgnn.federation.site.losses import note_losses
from cnfgnn.federation.site.settings import read_site
from cnfgnn.federation.site.status import MODEL, SiteStatus, read_site_status
from cnfgnn.federation.site.store import JOINED, SiteStore
from cnfgnn.live.options import LIVE
from cnfgnn.privacy.copies import KEY_FILE, CopyStore
from cnfgnn.version import __version__
from tests.commands import said
from tests.federation.running_federation import ENGINE_WARNINGS, city_on_disk, running_federation
from tests.federation.two_site_federation import write_project

pytestmark = ENGINE_WARNINGS

SAVES = """
import resource, sys, torch
from pathlib import Path
from cnfgnn.errors import StorageError
from cnfgnn.federation.site.store import SiteStore
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    SiteStore(Path(sys.argv[1]), "run").write("round-1", {"w": torch.zeros(10_000)}, ())
except StorageError as problem:
    print(problem)
"""


def answered(**connection: Any) -> ServerAnswer:
    return ServerAnswer("server", "host:8002", 0.0, connection)


def test_the_status_file_is_private_and_concurrent_writers_keep_each_others_parts(tmp_path: Path) -> None:
    status = SiteStatus(tmp_path)
    status.record_live("http://127.0.0.1:1", tmp_path / "token")
    status.record_forecast("forecasts/latest.csv", "2026-01-01", "2026-01-02")
    threads = [
        threading.Thread(target=SiteStatus(tmp_path).record_problem, args=(f"part {number}", "problem"))
        for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = read_site_status(tmp_path)
    assert known["live"]["address"] == "http://127.0.0.1:1"
    assert known["forecast"]["from"] == "2026-01-01"
    assert len(known["problems"]) == 10
    assert (tmp_path / "site-status.json").stat().st_mode & 0o077 == 0
    (tmp_path / "site-status.json").write_text("[")
    assert read_site_status(tmp_path) == {}
    status.record_problem("save", "again")
    assert [item["problem"] for item in read_site_status(tmp_path)["problems"]] == ["again"]


def test_the_servers_answer_is_explained_to_the_owner() -> None:
    assert connection_problem(answered(heard=2.0, other_process=False, revoked=False)) == ""
    assert connection_problem(answered()) == ""  # a server that is starting
    assert "the server's kit does not list this site" in connection_problem(answered(unknown=True))
    assert "revoked this kit's certificate" in connection_problem(answered(revoked=True))
    held = connection_problem(answered(other_process=True, address="10.0.0.7", since=time.time()))
    assert "has been connected from 10.0.0.7 since" in held
    ahead = ServerAnswer("server", "host:8002", -400.0)
    assert "clock is 400 s ahead of the server's" in connection_problem(ahead)
    refused = {"reason": "another process with the same certificate is connected", "address": "10.0.0.9"}
    assert "a copy of this kit from 10.0.0.9" in copied_kit_warning(
        {"refused": {**refused, "last": time.time()}}
    )
    assert copied_kit_warning({"refused": {**refused, "last": time.time() - 100_000}}) == ""
    assert copied_kit_warning({"refused": None}) == ""


def test_an_owner_is_told_why_the_server_leaves_the_site_out() -> None:
    other = connection_problem(answered(version="0.1"))
    assert other == f"this site runs cnfgnn {__version__}, and the server 0.1: install the same version"
    for code, sentence in OBJECTIONS.items():
        found = connection_problem(answered(version=__version__, objection=code))
        assert found == f"the server's task goes on without this site: {sentence}"


JUNK = [None, "x" * 10_000, "\x1b[31m", [[]], {}, float("nan"), float("inf"), -1, 2**80, True]


@pytest.mark.parametrize("junk", JUNK)
def test_whatever_a_server_answers_the_owner_reads_a_few_printable_words(junk: Any) -> None:
    keys = (
        "version",
        "unknown",
        "revoked",
        "connected",
        "other_process",
        "heard",
        "address",
        "since",
        "objection",
    )
    refused = {"reason": f"same certificate {junk}", "address": junk, "last": junk}
    several = {"other_process": True, "since": junk, "address": junk, "refused": refused}
    for status in (junk, *({key: junk} for key in (*keys, "refused")), several):
        found = checked_status(status)
        answer = ServerAnswer("server", "host:8002", 0.0, found)
        told = connection_problem(answer) + copied_kit_warning(found) + f"{found.get('heard') or 0.0:.0f}"
        assert told.isprintable()
        assert len(told) < 500


def test_an_owner_sees_forecasts_and_failures_even_without_a_server(tmp_path: Path) -> None:
    kit = make_kits(read_project(write_project(tmp_path)), tmp_path / "kits")["north"]
    told = said("federation", "status", kit)
    for part in (
        "site north: does not run",
        "receives no heartbeats",
        "no forecast yet",
        "cannot be reached",
    ):
        assert part in told
    SiteStatus(kit).record_forecast("forecasts/latest.csv", "2026-01-01", "2026-01-02")
    SiteStatus(kit).record_evaluation("evaluations/one-test.json", "test", 4.25, float("nan"))
    SiteStatus(kit).record_problem("save", "states/x: cannot be written (No space left on device)")
    told = said("federation", "status", kit)
    assert "last evaluation (test): RMSE 4.250, MAE -; evaluations/one-test.json, made 20" in told
    assert "last forecast: forecasts/latest.csv" in told
    assert "save: states/x: cannot be written (No space left on device)" in told
    [problem, *_] = json.loads(said("federation", "status", kit, "--json"))["problems"]
    assert problem["what"].startswith("save: states/x: cannot be written")
    assert problem["since"] <= time.time()


def test_a_status_has_the_present_problem_since_it_began_and_nothing_that_works_again(tmp_path: Path) -> None:
    def problems() -> list[tuple[str, str]]:
        return [(item["part"], item["problem"]) for item in read_site_status(tmp_path).get("problems", [])]

    status, of_another_process = SiteStatus(tmp_path), SiteStatus(tmp_path)
    status.works("copies")
    assert not (tmp_path / "site-status.json").exists()
    status.record_problem("copies", "lost", "restore them")
    [first] = read_site_status(tmp_path)["problems"]
    status.record_problem("copies", "lost", "restore them")
    assert read_site_status(tmp_path)["problems"] == [first]  # it began then
    status.record_problem("save", "the disk is full")
    status.record_problem("copies", "damaged")
    assert problems() == [("save", "the disk is full"), ("copies", "damaged")]
    of_another_process.works("settings", "copies")
    assert problems() == [("save", "the disk is full")]
    status.works("save")
    assert problems() == []


def test_lost_states_key_and_copies_are_told_since_when_and_with_what_to_do(tmp_path: Path) -> None:
    kit = make_kits(read_project(write_project(tmp_path)), tmp_path / "kits")["north"]
    file = kit / "local" / "site.toml"
    file.write_text(f'private = "{tmp_path / "own"}"\n' + file.read_text())
    plan = read_site(kit)

    def told() -> list[str]:
        found = status_of(kit).problems
        assert all(one.since and one.to_do for one in found if one.since)
        return [one.what for one in found if one.since]

    SiteStore(kit, "one").write("best", {"w": torch.zeros(1)}, ())
    SiteStore(kit, "two").write("best", {"w": torch.zeros(1)}, ())
    CopyStore(tmp_path / "own")
    (kit / "local" / RECORD).write_text("{}")
    (kit / LIVE).mkdir()
    (kit / LIVE / MODEL).write_text(json.dumps({"run": "two"}))
    note_losses(kit, plan)
    shutil.rmtree(kit / "states" / "one")
    assert told() == []  # an owner may remove the states of a run
    states = (kit / "states").rename(kit / "aside")
    [lost] = told()
    assert lost.startswith(f"states: the states of two are gone from {kit / 'states'}: ")
    key = (tmp_path / "own" / KEY_FILE).rename(tmp_path / "key")
    assert told() == [lost, f"key and copies: key is gone from {tmp_path / 'own'}"]
    shown = said("federation", "status", kit)
    assert re.search(r"problem since 20.*: states: .*: stop the site and restore them \(cnfgnn", shown)
    key.rename(tmp_path / "own" / KEY_FILE)
    states.rename(kit / "states")
    assert told() == []


@pytest.mark.slow
def test_a_state_that_does_not_fit_on_the_disk_is_reported_to_the_owner(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SAVES, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    # what is raised goes to the server: without the kit's path
    assert ended.stdout == "states/run/round-1.safetensors: cannot be written (File too large)\n"
    assert f"'save' failed: {tmp_path}/states/run/round-1.safetensors" in ended.stderr
    [problem] = read_site_status(tmp_path)["problems"]
    assert problem["part"] == "save"
    assert problem["problem"] == f"{tmp_path}/{ended.stdout.strip()}"


def test_a_folder_that_cannot_be_created_is_reported_too(tmp_path: Path) -> None:
    (tmp_path / "states").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        SiteStore(tmp_path, "run").write("round-1", {"w": torch.zeros(1)}, ())
    assert read_site_status(tmp_path)["problems"]


def test_lines_of_a_task_mention_each_new_problem_once(capsys: pytest.CaptureFixture[str]) -> None:
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
    lines.end()
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_an_old_status_shows_how_old_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    then = time.time() - 5000
    site = {"sensors": 1, "present": False, "reachable": False, "last_seen": then, "latency": None}
    site |= {"windows": 0, "bytes": 0, "refused": 0, "problem": ""}
    progress.out().print(sites_table(task_status({"time": then, "sites": {"north": site}})))
    assert "500" in capsys.readouterr().out.replace("\n", "")


@contextmanager
def full_disk(states: Path) -> Iterator[None]:
    """Mount a full disk where the site keeps its states."""
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


@pytest.mark.chaos
def test_training_reports_a_site_whose_disk_is_full(tmp_path: Path) -> None:
    config = tiny()
    with (
        running_federation(
            tmp_path, city_on_disk(tmp_path / "data", sensors=4), {"north": [0, 1], "south": [2, 3]}
        ) as running,
        ExitStack() as stack,
    ):
        running.begin_training(config)
        running.during(2)
        north = running.kits["north"]
        stack.enter_context(full_disk(north / "states"))
        running.until(lambda: bool(running.site("north")["refused"]), "a refused answer")
        assert "cannot be written" in running.site("north")["problem"]
        assert "cannot be written" in said("federation", "status", running.server).replace("\n", " ")
        assert "problem since " in (told := said("federation", "status", north))
        assert "cannot be written" in told
        assert any("'save' failed" in log.read_text() for log in (north / TASKS).iterdir())
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
