"""PROJECT.toml: who takes part in a federation, which sensors each site owns, and where the server is."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cnfgnn.config.settings import DataConfig
from cnfgnn.config.toml import read_toml
from cnfgnn.data.adjacency import read_edges, read_positions
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.text import shown
from cnfgnn.errors import ConfigError
from cnfgnn.transports.remote.limits import LARGEST_PIECE, PIECE

# The engine's own rules, and 64 characters because a name becomes the common name of a certificate.
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
ORGANISATION = re.compile(r"[A-Za-z0-9_]{1,64}")
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
HOST = re.compile(rf"({LABEL}\.)*{LABEL}")
RESERVED = ("server", "admin", "authority")  # kits of these names are not a site's

PROJECT_KEYS = ("name", "min_sites", "piece_kib", "keep_tasks", "server", "graph", "sites")
KEEP_TASKS, MOST_TASKS = 20, 100_000  # finished tasks of which a kit keeps logs and settings
SERVER_KEYS = ("host", "port", "admin_port", "organisation")
GRAPH_KEYS = ("sensors", "edges")
SITE_KEYS = ("sensors", "readings", "organisation")


@dataclass(frozen=True)
class ServerPlace:
    """Where sites find the server; the second port takes commands, from the server's own machine alone."""

    host: str
    port: int = 8002
    admin_port: int = 8003
    organisation: str = "server"


@dataclass(frozen=True)
class SitePlan:
    """One site: the sensors it owns, and where it keeps their readings if the project says so."""

    name: str
    sensors: tuple[str, ...]
    readings: str | None = None
    organisation: str = ""
    device: str = "auto"  # where its nodes compute: the site's own choice
    memory: int = 0  # bytes that its hidden states and embeddings may take; 0: half of what the device has
    keep_tasks: int = KEEP_TASKS  # of which it keeps the logs: the site's own choice too
    cleaning: DataConfig = field(default_factory=DataConfig)  # which readings count as missing: likewise
    # how to read its files: likewise
    reading: ReadingOptions = field(default_factory=ReadingOptions)


@dataclass(frozen=True)
class GraphFiles:
    """The files that say where the sensors are and how they are connected."""

    sensors: Path
    edges: Path | None = None


@dataclass(frozen=True)
class Project:
    """A whole federation; nodes are numbered by site, in the file's order, and within a site as listed."""

    name: str
    server: ServerPlace
    sites: tuple[SitePlan, ...]
    graph: GraphFiles
    min_sites: int = 1
    piece_kib: int = PIECE >> 10  # of what is sent in one message, at most
    keep_tasks: int = KEEP_TASKS  # of which the server keeps the logs

    @property
    def sensors(self) -> tuple[str, ...]:
        return tuple(sensor for site in self.sites for sensor in site.sensors)


def read_project(path: str | Path) -> Project:
    """The project of a PROJECT.toml, or one sentence that names the key that is wrong."""
    path = Path(path)
    content = read_toml(path)
    _known(content, "", PROJECT_KEYS)
    name = _text(content, "name")
    if not SITE_NAME.fullmatch(name):
        raise ConfigError("name", f"{shown(name)} may hold letters, digits, - and _ only")
    sites = _sites(_table(content, "sites"))
    graph = _graph(_table(content, "graph"), path.absolute().parent)
    _owned_once(sites, read_positions(graph.sensors), graph.sensors)
    server = _server(_table(content, "server"))
    if server.host in [site.name for site in sites]:
        raise ConfigError(f"sites.{server.host}", "a site needs another name than the server's host")
    min_sites = _whole(content, "min_sites", 1, 1, len(sites))
    piece_kib = _whole(content, "piece_kib", PIECE >> 10, 16, LARGEST_PIECE >> 10)
    keep_tasks = _whole(content, "keep_tasks", KEEP_TASKS, 1, MOST_TASKS)
    return Project(name, server, sites, graph, min_sites, piece_kib, keep_tasks)


def _server(table: Mapping[str, Any]) -> ServerPlace:
    _known(table, "server.", SERVER_KEYS)
    host = _text(table, "host", "server.")
    if not HOST.fullmatch(host):
        raise ConfigError("server.host", f"{shown(host)} is no host name or IPv4 address")
    port = _whole(table, "port", 8002, 1, 65535, "server.")
    admin_port = _whole(table, "admin_port", port + 1, 1, 65535, "server.")
    if admin_port == port:
        raise ConfigError("server.admin_port", "it must differ from server.port")
    return ServerPlace(host, port, admin_port, _organisation(table, "server.", "server"))


def _graph(table: Mapping[str, Any], folder: Path) -> GraphFiles:
    _known(table, "graph.", GRAPH_KEYS)
    sensors = folder / _text(table, "sensors", "graph.")
    edges = folder / _text(table, "edges", "graph.") if "edges" in table else None
    for key, file in (("graph.sensors", sensors), ("graph.edges", edges)):
        if file is not None and not file.is_file():
            raise ConfigError(key, f"there is no file {file}")
    if edges is not None:
        read_edges(edges)  # what is wrong with it is said now, not when a training starts
    return GraphFiles(sensors, edges)


def _sites(table: Mapping[str, Any]) -> tuple[SitePlan, ...]:
    if not table:
        raise ConfigError("sites", "there is no site: add [sites.NAME] with its sensors")
    for name in table:
        if not SITE_NAME.fullmatch(name):
            problem = "a site's name has up to 64 letters, digits, - and _, and begins with no - or _"
            raise ConfigError(f"sites.{name}", problem)
        if name.lower() in RESERVED:
            raise ConfigError(f"sites.{name}", "this name is not free for a site")
    folded = [name.lower() for name in table]
    for name in table:
        if folded.count(name.lower()) > 1:
            raise ConfigError(f"sites.{name}", "another site's name differs only by capital letters")
    return tuple(_site(name, _table(table, name, "sites.")) for name in table)


def _site(name: str, table: Mapping[str, Any]) -> SitePlan:
    prefix = f"sites.{name}."
    _known(table, prefix, SITE_KEYS)
    sensors = table.get("sensors")
    if not isinstance(sensors, list) or not sensors or not all(isinstance(s, str) and s for s in sensors):
        raise ConfigError(f"{prefix}sensors", 'it must be a list of sensor ids such as ["s01", "s02"]')
    readings = _text(table, "readings", prefix) if "readings" in table else None
    organisation = _organisation(table, prefix, name.replace("-", "_"))
    return SitePlan(name, tuple(sensors), readings, organisation)


def _owned_once(sites: tuple[SitePlan, ...], located: Collection[str], file: Path) -> None:
    owners: dict[str, str] = {}
    for site in sites:
        key = f"sites.{site.name}.sensors"
        for sensor in site.sensors:
            if sensor in owners:
                where = "twice in this list" if owners[sensor] == site.name else f"site {owners[sensor]}'s"
                raise ConfigError(key, f"sensor {shown(sensor)} is already {where}")
            if sensor not in located:
                raise ConfigError(key, f"sensor {shown(sensor)} is not in {file.name}")
            owners[sensor] = site.name


def _known(table: Mapping[str, Any], prefix: str, keys: Collection[str]) -> None:
    for key in table:
        if key not in keys:
            raise ConfigError(f"{prefix}{key}", "there is no such key", keys)


def _table(table: Mapping[str, Any], key: str, prefix: str = "") -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{prefix}{key}", f"it must be a table: [{prefix}{key}]")
    return value


def _text(table: Mapping[str, Any], key: str, prefix: str = "") -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        problem = "it is missing" if value is None else "it must be a text"
        raise ConfigError(f"{prefix}{key}", problem)
    return value


def _organisation(table: Mapping[str, Any], prefix: str, default: str) -> str:
    value = _text(table, "organisation", prefix) if "organisation" in table else default
    if not ORGANISATION.fullmatch(value):
        raise ConfigError(f"{prefix}organisation", f"{shown(value)} may hold letters, digits and _ only")
    return value


def _whole(table: Mapping[str, Any], key: str, default: int, least: int, most: int, prefix: str = "") -> int:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{prefix}{key}", f"it must be a whole number from {least} to {most}")
    return value
