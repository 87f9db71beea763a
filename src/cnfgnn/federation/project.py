"""The project file (PROJECT.toml): the sites of a federation, the sensors each one owns, and the server."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cnfgnn.config.declarations import Declaration, is_number, read_table
from cnfgnn.config.settings import SETTINGS, DataConfig
from cnfgnn.config.toml import read_toml
from cnfgnn.data.files.adjacency import read_edges, read_positions
from cnfgnn.data.files.text import shown
from cnfgnn.data.options import ReadingOptions
from cnfgnn.errors import ConfigError
from cnfgnn.federation.newcomers import NewSensor
from cnfgnn.federation.permission_rules import PermissionRules
from cnfgnn.live.options import ServiceOptions
from cnfgnn.privacy.inputs import input_blur
from cnfgnn.privacy.noise import LEAST_SIGMA
from cnfgnn.transports.remote.limits import LARGEST_PIECE, PIECE

# NVIDIA FLARE's rules for names; at most 64 characters, because a name becomes a certificate's common name.
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
ORGANISATION = re.compile(r"[A-Za-z0-9_]{1,64}")
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
HOST = re.compile(rf"({LABEL}\.)*{LABEL}")
RESERVED = ("server", "admin", "authority")  # folders of these names belong to other parties

SOME = re.compile(r".*\S.*", re.DOTALL)
KEEP_TASKS, MOST_TASKS = 20, 100_000  # how many finished tasks keep their logs and settings: default, limit
CLEANING_KEYS = ("missing_value", "outliers")  # settings under [data] of a run that each site makes itself
MEMORY = re.compile(r"(\d+(?:\.\d+)?) *(MiB|GiB)")
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
REQUIRED: Final = "required"


def _amount_of_blur(value: object) -> float:
    if not is_number(value) or not (value == 0 or value >= LEAST_SIGMA):
        raise ConfigError("", "it must be a number in the unit of the readings, 0 or more, such as 5")
    return float(value)


def _input_blurs(table: Any) -> dict[str, float]:
    """The settings under [inputs]: the blur of each variable and covariate, or "public"."""
    if not isinstance(table, dict):
        raise ConfigError("", 'it must be a table, [inputs], with lines like flow = 200 or rain = "public"')
    return {name: input_blur(f".{name}", value) for name, value in table.items()}


def _memory(text: object) -> int:
    """The bytes of a text such as "2 GiB"."""
    match = MEMORY.fullmatch(text) if isinstance(text, str) else None
    size = float(match[1]) * UNITS[match[2]] if match else 0
    if size < 1:
        raise ConfigError("", 'it must be an amount such as "512 MiB" or "2 GiB"')
    return int(size)


def _path(text: object) -> Path:
    if not isinstance(text, str) or not text.strip():
        raise ConfigError("", "it must be a string")
    return Path(text)


Port = Annotated[int, Declaration(at_least=1, at_most=65535)]
Organisation = Annotated[str, Declaration(form=ORGANISATION, says="up to 64 letters, digits and _ only")]
Sensors = Annotated[tuple[str, ...], Declaration(form=SOME, says='a list of ids such as ["s01", "s02"]')]
Tasks = Annotated[int, Declaration(at_least=1, at_most=MOST_TASKS)]
Blur = Annotated[float, Declaration(parse=_amount_of_blur)]
Memory = Annotated[int, Declaration(parse=_memory)]
InputBlurs = Annotated[Mapping[str, float], Declaration(key="inputs", parse=_input_blurs)]
MissingValues = Annotated[tuple[float, ...], Declaration(parse=SETTINGS["data.missing_value"].read)]
Folder = Annotated[str, Declaration(form=SOME, says="the path of a folder")]
File = Annotated[Path, Declaration(parse=_path)]


@dataclass(frozen=True)
class ServerAddress:
    """Where sites reach the server. The admin port accepts commands from the server's own machine only."""

    host: Annotated[str, Declaration(form=HOST, says="a host name or an IPv4 address")]
    port: Port = 8002
    admin_port: Port = 8003
    organisation: Organisation = "server"


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
    confined: Literal["if possible", "required"] = "if possible"
    elsewhere: bool = False


@dataclass(frozen=True)
class SiteInProject:
    """A table [sites.NAME] of the project."""

    sensors: Sensors
    readings: Annotated[str, Declaration(form=SOME, says="the path of a file or folder")] | None = None
    organisation: Organisation = ""


@dataclass(frozen=True)
class SitePlan:
    """One site: the sensors it owns and, if known, where it keeps their readings.

    Everything from `device` on, except `least_blur`, is the site's own choice and is read from its
    local/site.toml.
    """

    name: str
    sensors: Sensors
    readings: Annotated[str, Declaration(says="the path of a file or folder")] | None = None
    organisation: str = ""
    device: str = "auto"  # where its nodes compute
    memory: Memory = 0  # bytes for hidden states and embeddings; 0: half of the device's
    keep_tasks: Tasks = KEEP_TASKS  # how many finished tasks keep their logs
    least_blur: Blur = 0.0  # what the project asks of every site
    blur: Blur = 0.0  # of the copy that everything sent is computed from, in the readings' unit; 0: none
    input_blurs: InputBlurs = field(default_factory=dict)  # of further inputs; 0: declared public
    private: Folder | None = None  # of the key and the copies; None: beside the readings
    tell_errors: bool = False  # whether the server gets the sums of true errors
    missing_value: MissingValues = ()  # numbers that stand for a missing reading
    outliers: Literal["missing", "keep"] = "missing"
    reading: ReadingOptions = field(default_factory=ReadingOptions)  # how to parse its files
    live: SiteLive = field(default_factory=SiteLive)  # where it serves live forecasts
    engine: SiteEngine = field(default_factory=SiteEngine)  # how the engine is confined
    new_sensors: tuple[NewSensor, ...] = ()  # that the project does not know, for a live federation
    permissions: PermissionRules = field(default_factory=PermissionRules)  # what it takes part in

    @property
    def cleaning(self) -> DataConfig:
        """Which readings count as missing."""
        return DataConfig(missing_value=self.missing_value, outliers=self.outliers)


@dataclass(frozen=True)
class GraphFiles:
    """The files with the sensors' positions and, optionally, their connections."""

    sensors: File
    edges: File | None = None


@dataclass(frozen=True)
class Project:
    """A whole federation. Nodes are numbered by site in the file's order, and within a site as listed."""

    name: Annotated[str, Declaration(form=SITE_NAME, says="a text of up to 64 letters, digits, - and _")]
    server: ServerAddress
    sites: tuple[SitePlan, ...]
    graph: GraphFiles
    min_sites: Annotated[int, Declaration(at_least=1)] = 1
    # larger payloads are split into messages of this size
    piece_kib: Annotated[int, Declaration(at_least=16, at_most=LARGEST_PIECE >> 10)] = PIECE >> 10
    keep_tasks: Tasks = KEEP_TASKS  # how many finished tasks keep their logs at the server
    blur: Blur = 0.0  # the least blur of every site, in the readings' unit

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
    tables = {"server": {}, "graph": {}, **content}
    project = read_table(Project, {**tables, "sites": ()})
    sites = tuple(replace(site, least_blur=project.blur) for site in _sites(content.get("sites", {})))
    graph = _graph(project.graph, folder)
    _check_owners(sites, read_positions(graph.sensors), graph.sensors)
    if project.server.host in [site.name for site in sites]:
        problem = "a site must not have the same name as server.host: rename the site"
        raise ConfigError(f"sites.{project.server.host}", problem)
    if project.min_sites > len(sites):
        raise ConfigError("min_sites", f"it must be a whole number from 1 to {len(sites)}")
    # The operator's port is the next one, if the project does not name it.
    addresses = {"admin_port": project.server.port + 1, **tables["server"]}
    server = read_table(ServerAddress, addresses, "server")
    if server.admin_port == server.port:
        raise ConfigError("server.admin_port", "it must differ from server.port")
    return replace(project, server=server, sites=sites, graph=graph)


def _graph(named: GraphFiles, folder: Path) -> GraphFiles:
    graph = GraphFiles(folder / named.sensors, None if named.edges is None else folder / named.edges)
    for key, file in (("graph.sensors", graph.sensors), ("graph.edges", graph.edges)):
        if file is not None and not file.is_file():
            raise ConfigError(key, f"the file {file} does not exist")
    if graph.edges is not None:
        read_edges(graph.edges)  # report a bad file now rather than when training starts
    return graph


def _sites(tables: Any) -> Iterator[SitePlan]:
    if not isinstance(tables, dict):
        raise ConfigError("sites", "it must be a table, [sites]")
    if not tables:
        raise ConfigError("sites", "there is no site: add a table [sites.NAME] with its sensors")
    folded = [name.lower() for name in tables]
    for name, table in tables.items():
        if not SITE_NAME.fullmatch(name):
            problem = "a site's name has up to 64 letters, digits, - and _, and starts with a letter or digit"
        elif name.lower() in RESERVED:
            problem = "this name is reserved: choose another one"
        elif folded.count(name.lower()) > 1:
            problem = "two sites have names that differ only in upper and lower case: rename one"
        else:
            own = read_table(SiteInProject, table, f"sites.{name}")
            if not own.sensors:
                raise ConfigError(f"sites.{name}.sensors", "there is none: list its sensors")
            yield SitePlan(name, own.sensors, own.readings, own.organisation or name.replace("-", "_"))
            continue
        raise ConfigError(f"sites.{name}", problem)


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
