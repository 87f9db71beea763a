"""Expired and revoked certificates, ports in use, and start scripts with a short PATH."""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from cnfgnn.errors import ConfigError, RunError
from cnfgnn.federation.engine import provisioning
from cnfgnn.federation.example import free_ports
from cnfgnn.federation.kits import certificates, processes
from cnfgnn.federation.kits.engine_files import CONNECTION_FILE, ENGINE_FOLDER
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.operator.status import site_notices
from cnfgnn.federation.project import Project, read_project
from cnfgnn.federation.site.settings import read_site
from tests.commands import said
from tests.federation.two_site_federation import write_project
from tests.waiting import wait_for

SECOND = 1 / 86400  # in days
CRON = {"PATH": "/usr/bin:/bin"}  # what cron and systemd give a program


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return read_project(write_project(tmp_path))


def refused(*arguments: object) -> str:
    return said("federation", *arguments, fails=True)


def made_for(days: float, project: Project, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Path]:
    patch.setattr(provisioning, "PARTY_DAYS", days)
    return make_kits(project, folder)


def test_an_expired_certificate_is_reported_as_such(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_for(SECOND, project, tmp_path / "kits", monkeypatch)
    wait_for(lambda: all(map(problem_of, (made["north"], made["server"]))), "both certificates expire")
    for kit in (made["server"], made["north"]):
        assert "expired on" in refused("up", kit)
        assert processes.running(kit) is None
        assert "expired on" in said("federation", "status", kit)
    [line] = map(str, site_notices(made["server"], "north"))
    assert line.startswith("its certificate expired on")
    assert f"    {line}" in said("federation", "status", made["server"])


def problem_of(kit: Path) -> str:
    return "".join(validity.problem() for validity in certificates.validities(kit))


@pytest.mark.slow
def test_a_certificate_that_expires_soon_is_reported_in_advance(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_for(10, project, tmp_path / "kits", monkeypatch)
    [warning] = certificates.check_valid(made["north"])
    assert "expires in 9 days" in warning
    assert "expires in 9 days" in said("federation", "status", made["north"])
    [line] = map(str, site_notices(made["server"], "south"))
    assert "its certificate expires on" in line
    [validity, _] = certificates.validities(made["north"])
    assert "clock" in validity.problem(validity.begins - timedelta(seconds=1))
    assert certificates.check_valid(made_for(31, project, tmp_path / "later", monkeypatch)["north"]) == []


@pytest.mark.slow
def test_one_site_gets_a_new_kit_and_its_old_one_is_revoked(project: Project, tmp_path: Path) -> None:
    made = make_kits(project, tmp_path / "kits")
    server, authority = made["server"], tmp_path / "kits" / "authority"
    with pytest.raises(ConfigError, match="--authority is missing"):
        make_kits(project, tmp_path / "new", only="north")
    with pytest.raises(ConfigError, match="the project has no site 'east'"):
        make_kits(project, tmp_path / "new", authority=authority, only="east")
    told = said(
        *("federation", "init", tmp_path / "PROJECT.toml", "--authority", authority),
        *("--only", "north", "--out", tmp_path / "new"),
    )
    assert "next: at site north, replace the folder startup/" in told
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["north"]
    assert read_site(tmp_path / "new" / "north") == read_site(made["north"])

    assert "valid: north, south" in refused("revoke", server, "east")
    assert "site's kit" in refused("revoke", made["north"], "north")
    assert "1 certificate revoked" in said("federation", "revoke", server, "north")
    old, new = (
        f"{certificates.read(kit / 'startup' / 'client.crt').serial_number:x}"
        for kit in (made["north"], tmp_path / "new" / "north")
    )
    assert certificates.revoked(server).serials == {old: "north"}
    assert old != new
    assert "0 certificates revoked" in said("federation", "revoke", server, "north")
    assert certificates.revoke(server, "north", (new,)) == [new]
    assert "its certificate is revoked" in said("federation", "status", server)
    (server / "revoked.json").write_text("[")
    with pytest.raises(RunError, match="damaged"):
        certificates.revoked(server)


@pytest.mark.slow
def test_a_server_whose_port_is_in_use_is_refused_at_once(tmp_path: Path) -> None:
    port, other = free_ports(2)
    made = make_kits(read_project(write_project(tmp_path, port=port, admin_port=other)), tmp_path / "kits")
    for taken in (port, other):
        with socket.create_server(("127.0.0.1", taken)):
            assert f"port {taken} cannot be opened" in refused("up", made["server"])
        assert processes.running(made["server"]) is None


@pytest.mark.slow
def test_an_engine_that_ends_right_after_the_start_is_reported_until_its_owner_mends_it(
    tmp_path: Path, project: Project
) -> None:
    kit = make_kits(project, tmp_path / "kits")["north"]
    resources = kit / "local" / "resources.json"
    good = resources.read_text()
    resources.write_text(f"{good}}}")
    try:
        assert "its engine ends right after each start (" in refused("up", kit)
        pid = processes.running(kit)
        assert pid is not None
        resources.write_text(good)
        wait_for((kit / ENGINE_FOLDER / CONNECTION_FILE).exists, "the engine runs")
        assert processes.running(kit) == pid
    finally:
        processes.down(kit)


@pytest.mark.slow
def test_scripts_find_cnfgnn_although_it_is_not_on_path(tmp_path: Path, project: Project) -> None:
    kit = make_kits(project, tmp_path / "kits with space")["north"]
    start, stop = ((kit / name).read_text() for name in ("start.sh", "stop.sh"))
    assert start.replace("federation up", "federation down") == stop
    ended = subprocess.run([kit / "stop.sh"], env=CRON, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "the site was not running\n"), ended.stderr

    (kit / "program.txt").write_text("/nowhere/python\n")  # the kit came from another machine
    ended = subprocess.run([kit / "stop.sh"], env=CRON, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 127
    assert "cnfgnn is not on PATH" in ended.stderr
    refused("check", kit)  # after a command was run by its full path, the script works
    assert (kit / "program.txt").read_text() == f"{sys.executable}\n"
