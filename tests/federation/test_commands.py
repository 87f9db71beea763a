"""The commands of `cnfgnn federation`, as an operator and a site's owner use them, with real processes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd
import pytest

from cnfgnn.data.synthetic.city import city
from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.example import write_example
from cnfgnn.federation.kits import processes
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.project import read_project
from cnfgnn.federation.server.status import read_status
from tests.commands import COMMAND, ENVIRONMENT, said
from tests.federation.running_federation import ENGINE_WARNINGS
from tests.waiting import wait_for

pytestmark = ENGINE_WARNINGS

SITES = {"north": [0, 1], "south": [2, 3]}
TINY = [
    *(f"--set=model.{name}=4" for name in ("hidden", "embedding")),
    "--set=model.gn_widths=[6, 5]",
    "--set=training.server_batch=24",
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example(tmp_path_factory.mktemp("project"), city(4, 2, seed=1), SITES)


@pytest.fixture(scope="module")
def kits(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Path]]:
    """Kits made by the command; their processes are stopped at the end."""
    out = tmp_path_factory.mktemp("federation") / "kits"
    assert "next: give each site its folder" in said("federation", "init", project, "--out", out)
    made = {name: out / name for name in ("server", *SITES)}
    yield made
    for kit in made.values():
        processes.down(kit)


def refused(*arguments: object) -> str:
    return said("federation", *arguments, fails=True)


@pytest.mark.slow
def test_a_site_is_checked_before_it_joins(kits: Mapping[str, Path], project: Path, tmp_path: Path) -> None:
    assert "cannot be reached" in refused("check", kits["north"])
    said("federation", "up", kits["server"])
    wait_for(lambda: _passes(kits["north"]), "the server answers")
    told = said("federation", "check", kits["north"])
    for part in (
        "all 2 of site north",
        "step: 300 s",
        "missing: ",
        "clock: ",
        "certificates match",
        "can join",
    ):
        assert part in told
    assert "this is the server's kit" in refused("check", kits["server"])
    stranger = make_kits(read_project(project), tmp_path / "others")["north"]
    assert "do not match" in refused("check", stranger)
    authority = kits["server"].parent / "authority"
    said("federation", "init", project, "--out", tmp_path / "renewed", "--authority", authority)
    assert "certificates match" in said("federation", "check", tmp_path / "renewed" / "north")
    assert "does not contain the authority" in refused(
        "init", project, "--out", tmp_path / "x", "--authority", tmp_path
    )

    toml = kits["south"] / "local" / "site.toml"
    right = toml.read_text()
    table = pd.read_csv(
        project.parent / "data" / "south" / "readings.csv", index_col="time", parse_dates=True
    )
    for name, change, problem in (
        ("ahead", table.set_index(table.index + pd.Timedelta(days=9000)), "in the future"),
        ("short", table.head(20), "20 time steps are too few"),
        ("silent", table.assign(**{table.columns[1]: float("nan")}), "100% of its readings are missing"),
        ("other", table[[table.columns[0]]], "there is no sensor of that name"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        change.to_csv(folder / "readings.csv")
        toml.write_text(right.replace(str(project.parent / "data" / "south"), str(folder)))
        assert problem in refused("check", kits["south"]), name
    toml.write_text(right)


def _passes(kit: Path) -> bool:
    try:
        said("federation", "check", kit)
    except AssertionError:
        return False
    return True


@pytest.mark.slow
def test_an_operator_starts_trains_stops_resumes_and_forecasts(kits: Mapping[str, Path]) -> None:
    """How a recorded evaluation is printed is in test_same_result.py."""
    server = kits["server"]
    processes.down(server)
    assert "the server does not run" in refused("train", server)
    assert "does not run" in said("federation", "status", server)
    for kit in kits.values():
        assert "is up" in said("federation", "up", kit)
    assert "is already running" in said("federation", "up", server)
    wait_for(
        lambda: len(json.loads(said("federation", "status", server, "--json"))["connected"]) == 2,
        "both sites are connected",
    )
    assert "south: 2 sensors, connected" in said("federation", "status", server)
    assert "site north: process" in said("federation", "status", kits["north"])

    assert "pools all readings" in refused("train", server, "--method", "gru-central")
    assert "this is a site's kit" in refused("train", kits["north"])
    assert "sends no hidden states" in refused("train", server, "--record", "--method", "gru-fedavg")

    arguments = ["federation", "train", str(server), "--name", "first", "--set=training.rounds=300", *TINY]
    with subprocess.Popen(
        [*COMMAND, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as command:
        try:
            wait_for(lambda: (read_status(server) or {}).get("done", 0) >= 2, "two rounds")
            assert "busy with another task" in refused("train", server, *TINY)
        finally:
            command.send_signal(signal.SIGINT)
            output, _ = command.communicate(timeout=300)
    assert command.returncode == 130, output
    assert "--resume first" in output
    assert re.search(r"running, round \d+/300", output)  # a round that is over soon may not be shown
    assert "Traceback" not in output

    done = (read_status(server) or {})["done"]
    config = server / "runs" / "first" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 300", f"rounds = {done + 2}"))
    assert "best round" in said("federation", "train", server, "--resume", "first")
    assert "are at sites north, south" in said("federation", "forecast", server, "first")
    for name in SITES:
        assert len(pd.read_csv(kits[name] / "forecasts" / "latest.csv")) == 12
    assert "keeps the settings it began with" in refused("train", server, "--resume", "first", "--seed", 2)
    for kit in kits.values():
        assert "is stopped" in said("federation", "down", kit)


def test_a_folder_that_is_not_a_kit_and_a_bad_project_file_are_refused_with_their_names(
    project: Path, tmp_path: Path
) -> None:
    assert "not the kit of a server or a site" in refused("up", tmp_path)
    broken = tmp_path / "broken.toml"
    broken.write_text(project.read_text().replace("min_sites = 1", "min_sites = 7"))
    for file in ("sensors.csv", "edges.csv"):
        (tmp_path / file).write_text((project.parent / file).read_text())
    assert f"{broken}: min_sites" in refused("init", broken, "--out", tmp_path / "kits")
    empty = tmp_path / "empty.toml"
    empty.touch()
    assert f"{empty}: name: it is missing" in refused("init", empty, "--out", tmp_path / "kits")
    with pytest.raises(CnfgnnError, match="never overwritten"):
        make_kits(read_project(project), tmp_path)


@pytest.mark.parametrize("wait", ["nan", "inf", "-1"])
def test_a_time_to_wait_that_cannot_be_is_refused(wait: str, tmp_path: Path) -> None:
    problem = said("federation", "forecast", tmp_path, "run", "--wait", wait, fails=True)
    assert problem.startswith("--wait: must be a number of seconds from 0 on")
