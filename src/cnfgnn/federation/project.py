"""The project file (PROJECT.toml): the sites of a federation, the sensors each one owns, and the server."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cnfgnn.config.settings import DataConfig
from cnfgnn.config.toml import read_toml
from cnfgnn.data.files.adjacency import read_edges, read_positions
from cnfgnn.data.files.text import shown
from cnfgnn.data.options import ReadingOptions
from cnfgnn.errors import ConfigError
from cnfgnn.federation.newcomers import NewSensor
from cnfgnn.federation.permission_rules import PermissionRules
from cnfgnn.live.options import ServiceOptions
from cnfgnn.privacy.noise import LEAST_SIGMA
from cnfgnn.transports.remote.limits import LARGEST_PIECE, PIECE

# NVIDIA FLARE's rules for names; at most 64 characters, because a name becomes a certificate's common name.
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
ORGANISATION = re.compile(r"[A-Za-z0-9_]{1,64}")
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
HOST = re.compile(rf"({LABEL}\.)*{LABEL}")
RESERVED = ("server", "admin", "authority")  # folders of these names belong to other parties

PROJECT_KEYS = ("name", "min_sites", "blur", "piece_kib", "keep_tasks", "server", "graph", "sites")
CLEANING_KEYS = ("missing_value", "outliers")  # settings under [data] of a run that each site makes itself
KEEP_TASKS, MOST_TASKS = 20, 100_000  # how many finished tasks keep their logs and settings: default, limit
SERVER_KEYS = ("host", "port", "admin_port", "organisation")
GRAPH_KEYS = ("sensors", "edges")
SITE_KEYS = ("sensors", "readings", "organisation")


@dataclass(frozen=True)
class ServerAddress:
    """Where sites reach the server. The admin port accepts commands from the server's own machine only."""

    host: str
    port: int = 8002
    admin_port: int = 8003
    organisation: str = "server"


@dataclass(frozen=True)
class SiteLive(ServiceOptions):
    """How a site serves its forecasts while the federation is live: `[live]` in its local/site.toml. Paths
    are absolute or relative to the kit."""

    positions: str = ""  # path of a file with the sensors' positions; empty: sensors.csv beside the readings
    tell_coverage: bool = False  # whether the server gets sums of how many readings lay within their ranges


@dataclass(frozen=True)
class SiteEngine:
    """The settings under [engine] of a site: how its engine is kept away from the readings.

    user       whom the engine becomes if the site is started by root, or who runs it elsewhere
    confined   "required": the engine does not run if this machine cannot confine it
    elsewhere  whether the engine is started by somebody else, such as in a container of its own
    """

    user: str = "nobody"
    confined: str = "if possible"
    elsewhere: bool = False


@dataclass(frozen=True)
class SitePlan:
    """One site: the sensors it owns and, if known, where it keeps their readings.

    Everything from `device` on, except `least_blur`, is the site's own choice and is read from its
    local/site.toml.
    """

    name: str
    sensors: tuple[str, ...]
    readings: str | None = None
    organisation: str = ""
    device: str = "auto"  # where its nodes compute
    memory: int = 0  # bytes that hidden states and embeddings may use; 0: half of the device's memory
    keep_tasks: int = KEEP_TASKS  # how many finished tasks keep their logs
    least_blur: float = 0.0  # what the project asks of every site
    blur: float = 0.0  # of the copy that everything sent is computed from, in the readings' unit; 0: none
    input_blurs: Mapping[str, float] = field(default_factory=dict)  # of further inputs; 0: declared public
    private: str | None = None  # folder of the key and the copies; None: beside the readings
    tell_errors: bool = False  # whether the server gets the sums of true errors
    cleaning: DataConfig = field(default_factory=DataConfig)  # which readings count as missing
    reading: ReadingOptions = field(default_factory=ReadingOptions)  # how to parse its files
    live: SiteLive = field(default_factory=SiteLive)  # where it serves live forecasts
    engine: SiteEngine = field(default_factory=SiteEngine)  # how the engine is confined
    new_sensors: tuple[NewSensor, ...] = ()  # that the project does not know, for a live federation
    permissions: PermissionRules = field(default_factory=PermissionRules)  # what it takes part in


@dataclass(frozen=True)
class GraphFiles:
    """The files with the sensors' positions and, optionally, their connections."""

    sensors: Path
    edges: Path | None = None


@dataclass(frozen=True)
class Project:
    """A whole federation. Nodes are numbered by site in the file's order, and within a site as listed."""

    name: str
    server: ServerAddress
    sites: tuple[SitePlan, ...]
    graph: GraphFiles
    min_sites: int = 1
    piece_kib: int = PIECE >> 10  # larger payloads are split into messages of this size
    keep_tasks: int = KEEP_TASKS  # how many finished tasks keep their logs at the server
    blur: float = 0.0  # the least blur of every site, in the readings' unit

    @property
    def sensors(self) -> tuple[str, ...]:
        return tuple(sensor for site in self.sites for sensor in site.sensors)


def read_project(path: str | Path) -> Project:
    """Read and validate a project file; an error names the file and the key."""
    path = Path(path)
    content = read_toml(path)
    try:
        return _project(content, path.absolute().parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.key}", error.problem) from None


def _project(content: Mapping[str, Any], folder: Path) -> Project:
    _check_keys(content, "", PROJECT_KEYS)
    name = _string(content, "name", "", SITE_NAME, "is not allowed: use letters, digits, - and _ only")
    blur = amount_of_blur(content.get("blur", 0.0))
    sites = tuple(replace(site, least_blur=blur) for site in _sites(_table(content, "sites")))
    graph = _graph(_table(content, "graph"), folder)
    _check_owners(sites, read_positions(graph.sensors), graph.sensors)
    server = _server(_table(content, "server"))
    if server.host in [site.name for site in sites]:
        problem = "a site must not have the same name as server.host: rename the site"
        raise ConfigError(f"sites.{server.host}", problem)
    min_sites = _integer(content, "min_sites", 1, 1, len(sites))
    piece_kib = _integer(content, "piece_kib", PIECE >> 10, 16, LARGEST_PIECE >> 10)
    keep_tasks = _integer(content, "keep_tasks", KEEP_TASKS, 1, MOST_TASKS)
    return Project(name, server, sites, graph, min_sites, piece_kib, keep_tasks, blur)


def _server(table: Mapping[str, Any]) -> ServerAddress:
    _check_keys(table, "server.", SERVER_KEYS)
    host = _string(table, "host", "server.", HOST, "is not a host name or an IPv4 address")
    port = _integer(table, "port", 8002, 1, 65535, "server.")
    admin_port = _integer(table, "admin_port", port + 1, 1, 65535, "server.")
    if admin_port == port:
        raise ConfigError("server.admin_port", "it must differ from server.port")
    return ServerAddress(host, port, admin_port, _organisation(table, "server.", "server"))


def _graph(table: Mapping[str, Any], folder: Path) -> GraphFiles:
    _check_keys(table, "graph.", GRAPH_KEYS)
    sensors = folder / _string(table, "sensors", "graph.")
    edges = folder / _string(table, "edges", "graph.") if "edges" in table else None
    for key, file in (("graph.sensors", sensors), ("graph.edges", edges)):
        if file is not None and not file.is_file():
            raise ConfigError(key, f"the file {file} does not exist")
    if edges is not None:
        read_edges(edges)  # report a bad file now rather than when training starts
    return GraphFiles(sensors, edges)


def _sites(table: Mapping[str, Any]) -> tuple[SitePlan, ...]:
    if not table:
        raise ConfigError("sites", "there is no site: add a table [sites.NAME] with its sensors")
    folded = [name.lower() for name in table]
    for name in table:
        if not SITE_NAME.fullmatch(name):
            problem = "a site's name has up to 64 letters, digits, - and _, and starts with a letter or digit"
        elif name.lower() in RESERVED:
            problem = "this name is reserved: choose another one"
        elif folded.count(name.lower()) > 1:
            problem = "two sites have names that differ only in upper and lower case: rename one"
        else:
            continue
        raise ConfigError(f"sites.{name}", problem)
    return tuple(_site(name, _table(table, name, "sites.")) for name in table)


def _site(name: str, table: Mapping[str, Any]) -> SitePlan:
    prefix = f"sites.{name}."
    _check_keys(table, prefix, SITE_KEYS)
    sensors = table.get("sensors")
    if not isinstance(sensors, list) or not sensors or not all(isinstance(s, str) and s for s in sensors):
        raise ConfigError(f"{prefix}sensors", 'it must be a list of sensor ids such as ["s01", "s02"]')
    readings = _string(table, "readings", prefix) if "readings" in table else None
    organisation = _organisation(table, prefix, name.replace("-", "_"))
    return SitePlan(name, tuple(sensors), readings, organisation)


def _check_owners(sites: tuple[SitePlan, ...], located: Collection[str], file: Path) -> None:
    owners: dict[str, str] = {}
    for site in sites:
        for sensor in site.sensors:
            if sensor not in located:
                problem = f"is missing from {file.name}"
            elif (owner := owners.setdefault(sensor, "")) == site.name:
                problem = "is listed twice"
            elif owner:
                problem = f"already belongs to site {owner}"
            else:
                owners[sensor] = site.name
                continue
            raise ConfigError(f"sites.{site.name}.sensors", f"sensor {shown(sensor)} {problem}")


def amount_of_blur(value: object) -> float:
    """The value of a setting `blur`; ConfigError if it is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (value == 0 or LEAST_SIGMA <= value < math.inf):  # type: ignore[operator]
        raise ConfigError("blur", "it must be a number in the unit of the readings, 0 or more, such as 5")
    return float(value)  # type: ignore[arg-type]


def _check_keys(table: Mapping[str, Any], prefix: str, keys: Collection[str]) -> None:
    for key in table:
        if key not in keys:
            raise ConfigError(f"{prefix}{key}", "unknown key", keys)


def _table(table: Mapping[str, Any], key: str, prefix: str = "") -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{prefix}{key}", f"it must be a table, [{prefix}{key}]")
    return value


def _string(
    table: Mapping[str, Any],
    key: str,
    prefix: str = "",
    form: re.Pattern[str] | None = None,
    problem: str = "",
) -> str:
    """A text of this form, or the `problem` with it."""
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        problem = "it is missing" if value is None else "it must be a string"
        raise ConfigError(f"{prefix}{key}", problem)
    if form is not None and not form.fullmatch(value):
        raise ConfigError(f"{prefix}{key}", f"{shown(value)} {problem}")
    return value


def _organisation(table: Mapping[str, Any], prefix: str, default: str) -> str:
    problem = "is not allowed: use letters, digits and _ only"
    return _string({"organisation": default, **table}, "organisation", prefix, ORGANISATION, problem)


def _integer(
    table: Mapping[str, Any], key: str, default: int, least: int, most: int, prefix: str = ""
) -> int:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{prefix}{key}", f"it must be a whole number from {least} to {most}")
    return value
