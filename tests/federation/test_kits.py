"""Kits are complete or absent, private, and contain no more than their party needs."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from cnfgnn.errors import ConfigError, DataError, RunError, StorageError
from cnfgnn.federation.engine.guard.handshake import ask_server
from cnfgnn.federation.kits import engine_files, processes
from cnfgnn.federation.kits import kit as kits
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.project import Project, SitePlan, read_project
from cnfgnn.federation.site.readings import SiteData
from cnfgnn.federation.site.settings import read_site
from tests.federation.known_keys import known_keys
from tests.federation.two_site_federation import write_project


@pytest.fixture(autouse=True)
def _known_keys() -> Iterator[None]:
    with known_keys():
        yield


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "edges.csv").write_text("from,to,distance\ns0,s1,100\ns1,s2,200\n")
    return read_project(write_project(tmp_path, sensors='"sensors.csv"\nedges = "edges.csv"'))


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_each_party_gets_what_it_needs_and_no_more(tmp_path: Path, project: Project) -> None:
    made = make_kits(project, tmp_path / "kits")
    assert {path.name for path in (tmp_path / "kits").iterdir()} == {"authority", "north", "server", "south"}
    common = {f"local/{name}.json" for name in ("authorization", "comm_config", "log_config", "resources")}
    common |= {"start.sh", "stop.sh", "program.txt", "startup/rootCA.pem"}
    site = {"local/site.toml", "startup/client.crt", "startup/client.key", "startup/fed_client.json"}
    assert files(made["north"]) == common | site
    assert kits.role(made["north"]) == "site"
    assert kits.role(made["server"]) == "server"
    assert read_site(made["north"]) == SitePlan("north", ("s0",), "/data/north")
    assert read_site(made["south"]) == SitePlan("south", ("s2", "s1"), None)

    known = kits.read_server(made["server"])
    assert known.sensors == project.sensors
    assert known.min_sites == project.min_sites
    assert known.server == project.server
    assert all(site.readings is None for site in known.sites)
    assert known.graph.edges is not None
    assert known.graph.edges.read_text() == (tmp_path / "edges.csv").read_text()
    assert "/data/north" not in "".join((made["server"] / file).read_text() for file in files(made["server"]))


def test_kits_are_private_and_hold_one_key_each(tmp_path: Path, project: Project) -> None:
    make_kits(project, tmp_path / "kits")
    for place, folders, names in os.walk(tmp_path / "kits"):
        for name in (*folders, *names):
            assert (Path(place) / name).stat().st_mode & 0o077 == 0, name
    keys = [
        path
        for path in (tmp_path / "kits").rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    ]
    relative = {str(key.relative_to(tmp_path / "kits")) for key in keys}
    sites = {f"{name}/startup/client.key" for name in ("north", "south", "server/operator")}
    assert relative == {"authority/cert.json", "server/startup/server.key", *sites}
    assert set(json.loads((tmp_path / "kits/authority/cert.json").read_text())) == {
        "root_cert",
        "root_pri_key",
    }


def test_certificates_are_valid_for_two_years_and_the_authority_for_ten(
    tmp_path: Path, project: Project
) -> None:
    made = make_kits(project, tmp_path / "kits")
    startup = made["north"] / "startup"
    for name, days in (("rootCA.pem", 3650), ("client.crt", 730)):
        certificate = x509.load_pem_x509_certificate((startup / name).read_bytes())
        lasts = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert abs(lasts - datetime.timedelta(days=days)) < datetime.timedelta(days=2)


def test_jobs_may_load_our_classes_only(tmp_path: Path, project: Project) -> None:
    made = make_kits(project, tmp_path / "kits")
    for name, allowed in (("server", engine_files.CONTROLLER), ("north", engine_files.EXECUTOR)):
        local = made[name] / "local"
        resources = json.loads((local / "resources.json").read_text())
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert resources["class_allow_list"] == [allowed]
        rights = json.loads((local / "authorization.json").read_text())["permissions"]
        assert list(rights) == ["project_admin"]
        assert {rights["project_admin"][key] for key in ("byoc", "shell_commands", "operate")} == {"none"}
        assert "/tmp" not in json.dumps(resources)


def test_commands_reach_the_server_from_its_own_machine_only(tmp_path: Path, project: Project) -> None:
    made = make_kits(project, tmp_path / "kits")
    server = json.loads((made["server"] / "startup" / "fed_server.json").read_text())["servers"][0]
    assert server["admin_host"] == "127.0.0.1"
    assert server["connection_security"] == "mtls"
    assert server["service"]["scheme"] == "tcp"


def test_kits_are_never_overwritten_and_never_half_written(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kits").mkdir()
    with pytest.raises(RunError, match="never overwritten"):
        make_kits(project, tmp_path / "kits")
    before = set(tmp_path.iterdir())

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cnfgnn.federation.operator.make_kits._restrict_to_owner", full)
    with pytest.raises(StorageError, match="No space left"):
        make_kits(project, tmp_path / "more")
    assert set(tmp_path.iterdir()) == before


def test_an_owner_may_change_the_settings_of_a_site(tmp_path: Path, project: Project) -> None:
    kit = make_kits(project, tmp_path / "kits")["south"]
    file = kit / "local" / "site.toml"
    file.write_text(file.read_text() + 'readings = "/elsewhere"\n')
    assert read_site(kit).readings == "/elsewhere"
    written = (kit / "local" / "site.toml").read_text()
    for said, size in (("2 GiB", 2 << 30), ("1.5 GiB", 3 << 29), ("512MiB", 512 << 20)):
        (kit / "local" / "site.toml").write_text(f'{written}\nmemory = "{said}"\n')
        assert read_site(kit).memory == size
    for wrong in ('"2 apples"', '"-1 GiB"', '"0 MiB"', "2", "true"):
        (kit / "local" / "site.toml").write_text(f"{written}\nmemory = {wrong}\n")
        with pytest.raises(ConfigError, match=r'memory: it must be an amount such as "512 MiB"'):
            read_site(kit)
    (kit / "local" / "site.toml").write_text(written)
    file.write_text(file.read_text() + "secret = 3\n")
    with pytest.raises(ConfigError, match="secret: unknown key"):
        read_site(kit)
    file.write_text('name = "south"\n')
    with pytest.raises(ConfigError, match="sensors: it is missing"):
        read_site(kit)
    file.write_text('name = "south"\nsensors = ["a"]\nreadings = 3\n')
    with pytest.raises(ConfigError, match="readings: it must be"):
        read_site(kit)


def test_an_owner_sets_how_ambiguous_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    file = tmp_path / "local" / "site.toml"
    (tmp_path / "readings.csv").write_text(
        "time;id;value\n01/02/2024 02:00;a;1,5\n01/02/2024 03:00;a;2,5\n01/02/2024 02:00;b;3,5\n"
    )
    site = 'name = "south"\nsensors = ["a", "b"]\nreadings = "readings.csv"\n[reading]\n'
    file.write_text(site)
    with pytest.raises(DataError, match=r'dates = "day-first" under \[reading\] in .*site\.toml'):
        SiteData(read_site(tmp_path), tmp_path)
    file.write_text(site + 'dates = "day-first"\ntimezone = "Europe/Paris"\n')
    own = SiteData(read_site(tmp_path), tmp_path)
    assert str(own.truth.times[0]) == "2024-02-01T01:00:00"
    times = {"first": own.first, "last": own.last, "step": 3600, "utc": True, "newest": own.last}
    about = {"blur": 0, "measured": len(own.counted), "ignored": 0, "variables": [], "covariates": []}
    assert own.describe() == times | about
    for wrong, sentence in {
        'zone = "Europe/Paris"': "reading.zone: unknown key",
        "refusals = 3": "reading.refusals: unknown key",
        'timezone = "Paris"': "reading.timezone: there is no time zone 'Paris'",
        "dates = [1]": "reading.dates: cannot be",
    }.items():
        file.write_text(f"{site}{wrong}\n")
        with pytest.raises(ConfigError, match=sentence):
            read_site(tmp_path)
    file.write_text(site.replace("[reading]", "reading = 3"))
    with pytest.raises(ConfigError, match=r"reading: it must be a table, \[reading\]"):
        read_site(tmp_path)


@pytest.mark.parametrize("party", ["server", "north"])
def test_a_kit_of_an_earlier_version_is_refused_with_instructions(
    party: str, tmp_path: Path, project: Project
) -> None:
    kit = make_kits(project, tmp_path / "kits")[party]
    resources = kit / "local" / "resources.json"
    content = json.loads(resources.read_text())
    parts = [part for part in content["components"] if part["id"] not in ("admission", "connection_monitor")]
    resources.write_text(json.dumps(content | {"components": parts}))
    with pytest.raises(
        RunError, match=r"made by an earlier version of cnfgnn: make new kits with cnfgnn federation init"
    ):
        processes.up(kit)
    assert processes.running(kit) is None


def test_a_folder_that_is_not_a_kit_is_refused(tmp_path: Path) -> None:
    for act in (kits.role, processes.up, processes.down, processes.running):
        with pytest.raises(ConfigError, match="not the kit of a server or a site"):
            act(tmp_path)


def test_a_process_file_of_a_dead_or_another_process_is_ignored(tmp_path: Path, project: Project) -> None:
    kit = make_kits(project, tmp_path / "kits")["north"]
    assert processes.running(kit) is None
    for content in (
        "",
        "{}",
        "[]",
        '{"pid": "x", "started": 0}',
        json.dumps({"pid": os.getpid(), "started": 1.0}),
    ):
        (kit / "process.json").write_text(content)
        assert processes.running(kit) is None


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"servers": [{"service": {"target": "here"}}]}'])
@pytest.mark.parametrize("party", ["server", "north"])
def test_a_damaged_file_of_the_engine_is_named(
    party: str, content: str, tmp_path: Path, project: Project
) -> None:
    kit = make_kits(project, tmp_path / "kits")[party]
    name = "fed_server.json" if party == "server" else "fed_client.json"
    (kit / "startup" / name).write_text(content)
    with pytest.raises(RunError, match=rf"{name}: is damaged and cannot be read: replace"):
        processes.up(kit)
    if party == "north":
        with pytest.raises(RunError, match=name):
            ask_server(kit)
    assert processes.running(kit) is None


def test_a_kit_that_cannot_be_written_is_named(tmp_path: Path, project: Project) -> None:
    kit = make_kits(project, tmp_path / "kits")["north"]
    (kit / ".lock").mkdir()
    with pytest.raises(StorageError, match=r"north/\.lock: cannot be written"):
        processes.down(kit)
