"""The project file: what is read, and what is refused with the file and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnfgnn.errors import ConfigError, DataError
from cnfgnn.federation.project import SitePlan, read_project
from tests.federation.two_site_federation import write_project


def test_nodes_are_numbered_by_site_and_within_a_site_as_listed(tmp_path: Path) -> None:
    project = read_project(write_project(tmp_path))
    assert project.sites == (
        SitePlan("north", ("s0",), "/data/north", "north"),
        SitePlan("south", ("s2", "s1"), None, "south"),
    )
    assert project.sensors == ("s0", "s2", "s1")
    assert (project.name, project.min_sites) == ("city", 1)
    assert project.graph.sensors == tmp_path / "sensors.csv"
    assert project.graph.edges is None


def test_ports_and_organisations_have_defaults(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    lines = [line for line in path.read_text().splitlines() if "port" not in line]
    path.write_text("\n".join(lines).replace("sites.south", 'sites."east-2"'))
    project = read_project(path)
    assert (project.server.port, project.server.admin_port) == (8002, 8003)
    assert [site.organisation for site in project.sites] == ["north", "east_2"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"name": '"a city"'}, "name"),
        ({"name": "3"}, "name"),
        ({"min_sites": 3}, "min_sites"),
        ({"min_sites": 0}, "min_sites"),
        ({"min_sites": "true"}, "min_sites"),
        ({"min_sites": "1\nmax_sites = 2"}, "max_sites"),
        ({"host": '"fl example"'}, "server.host"),
        ({"host": '"north"'}, "sites.north"),
        ({"host": '"h"\nhots = "i"'}, "server.hots"),
        ({"port": 0}, "server.port"),
        ({"port": 65536}, "server.port"),
        ({"port": 9000, "admin_port": 9000}, "server.admin_port"),
        ({"sensors": '"nowhere.csv"'}, "graph.sensors"),
        ({"sensors": '"sensors.csv"\nedges = "nowhere.csv"'}, "graph.edges"),
        ({"sensors": '"sensors.csv"\nroads = "x"'}, "graph.roads"),
        ({"sensors ": "[]"}, "sites.north.sensors"),
        ({"sensors ": '"s0"'}, "sites.north.sensors"),
        ({"sensors ": '["s0", "s0"]'}, "sites.north.sensors"),
        ({"sensors ": '["s9"]'}, "sites.north.sensors"),
        ({" sensors": '["s1", "s0"]'}, "sites.south.sensors"),
        ({"readings": "7"}, "sites.north.readings"),
        ({"readings": '"r"\nreading = "r"'}, "sites.north.reading"),
        ({"readings": '"r"\norganisation = "a-b"'}, "sites.north.organisation"),
        ({" sensors": '["s1"]\n[sites.server]\nsensors = ["s2"]'}, "sites.server"),
        ({" sensors": '["s1"]\n[sites.NORTH]\nsensors = ["s2"]'}, "sites.north"),
        ({" sensors": '["s1"]\n[sites."../up"]\nsensors = ["s2"]'}, "sites.../up"),
        ({" sensors": '["s1"]\n[sites._a]\nsensors = ["s2"]'}, "sites._a"),
    ],
)
def test_an_invalid_value_is_refused_with_the_file_and_the_key(
    tmp_path: Path, changes: dict[str, object], key: str
) -> None:
    path = write_project(tmp_path, **changes)
    with pytest.raises(ConfigError) as caught:
        read_project(path)
    assert caught.value.key == f"{path}: {key}"
    assert "\n" not in str(caught.value)


def test_a_project_without_sites_or_server_is_refused(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    whole = path.read_text()
    path.write_text(whole[: whole.index("[sites")])
    with pytest.raises(ConfigError, match="there is no site"):
        read_project(path)
    path.write_text("sites = 3\n" + whole[: whole.index("[sites")])
    with pytest.raises(ConfigError, match=r"sites: it must be a table, \[sites\]"):
        read_project(path)


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", None])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "PROJECT.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"PROJECT\.toml: it "):
        read_project(path)


def test_the_error_about_an_empty_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "PROJECT.toml"
    path.touch()
    with pytest.raises(ConfigError, match=r"PROJECT\.toml: name: it is missing"):
        read_project(path)
