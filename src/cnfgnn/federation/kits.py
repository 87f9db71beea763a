"""Kits: one folder a party, with its certificate, its configuration and what it must know of the project."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from cnfgnn.config.settings import Config
from cnfgnn.config.toml import read_toml
from cnfgnn.data.options import ReadingOptions
from cnfgnn.errors import ConfigError, RunError, StorageError
from cnfgnn.federation.flare import engine_files
from cnfgnn.federation.flare.provisioning import AUTHORITY_FILE, AUTHORITY_KEYS, OPERATOR, provision
from cnfgnn.federation.project import KEEP_TASKS, MOST_TASKS, Project, SitePlan, read_project
from cnfgnn.files import write_whole

CLEANING_KEYS = ("missing_value", "outliers")  # settings of [data] that each site makes for itself
SITE_KEYS = ("name", "sensors", "readings", "device", "memory", "keep_tasks", "reading", *CLEANING_KEYS)
MEMORY = re.compile(r"(\d+(?:\.\d+)?) *(MiB|GiB)")
ISSUED = "issued.json"  # in the server's `startup`: the serial numbers of the sites' certificates
PROGRAM_FILE = "program.txt"  # the Python that has cnfgnn, for `start.sh` where PATH does not lead to it
SCRIPT = """#!/bin/sh
kit=$(cd "$(dirname "$0")" && pwd) || exit 1
python=$(cat "$kit/{program}" 2>/dev/null)
if [ -x "$python" ]; then
  exec "$python" -m cnfgnn federation {command} "$kit"
elif command -v cnfgnn >/dev/null; then
  exec cnfgnn federation {command} "$kit"
fi
echo "$0: there is no cnfgnn in PATH: run 'cnfgnn federation {command} $kit' by its full path once" >&2
exit 127
"""
NOT_OURS = ("*.sh", "*.ipynb", "readme.txt")  # the engine's own ways to start, which know nothing of ours


def make_kits(
    project: Project,
    folder: str | Path,
    also_allowed: Iterable[str] = (),
    authority: str | Path | None = None,
    only: str | None = None,
) -> dict[str, Path]:
    """Kits for the server and every site, whole or not at all, by name; `folder` must not exist yet.

    Each party gets a certificate for two years, signed by an authority made here for ten; its key stays in
    `folder/authority` and belongs to whoever made the kits. The operator's kit lies in the server's. Kits of
    an `authority` made earlier fit its other kits: so certificates are renewed, and sites added. With `only`,
    one site gets a new kit and nobody else does.
    """
    folder = Path(folder).absolute()
    names = ["server", *(site.name for site in project.sites)]
    if only is not None:
        if only not in names[1:]:
            raise ConfigError("--only", f"there is no site {only!r} in this project", names[1:])
        if authority is None:
            raise ConfigError("--only", "--authority is missing: the new kit must fit those of the others")
        names = [only]
    if folder.exists():
        raise StorageError(folder, "there is such a folder already, and kits are never overwritten")
    also_allowed = list(also_allowed)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))  # mode 0700
        try:
            made = provision(project, aside / "engine", authority)
            whole = aside / "kits"
            whole.mkdir()
            if only is None:
                _take_authority(made, whole / "authority")
                _server_kit(project, made, whole / "server", also_allowed)
            for site in project.sites:
                if site.name in names:
                    _site_kit(site, made / "kits" / site.name, whole / site.name, also_allowed)
            _close_to_others(whole)
            whole.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise StorageError(folder, error) from error
    return {name: folder / name for name in names}


def kind(kit: str | Path) -> str:
    """Whether a folder is the kit of a "server" or of a "site"."""
    kit = Path(kit)
    for found, file in (("server", "fed_server.json"), ("site", "fed_client.json")):
        if (kit / "startup" / file).is_file():
            return found
    raise ConfigError(str(kit), "this folder is no kit of a server or a site")


def read_site(kit: str | Path) -> SitePlan:
    """What a site's kit says about the site; the path of its readings is the owner's to change."""
    file = Path(kit) / "local" / "site.toml"
    content = read_toml(file)
    for key in content:
        if key not in SITE_KEYS:
            raise ConfigError(f"{file}: {key}", "there is no such key", SITE_KEYS)
    name, sensors, readings = content.get("name"), content.get("sensors"), content.get("readings")
    if not isinstance(name, str) or not isinstance(sensors, list):
        raise ConfigError(f"{file}: {'sensors' if isinstance(name, str) else 'name'}", "it is missing")
    if readings is not None and not isinstance(readings, str):
        raise ConfigError(f"{file}: readings", "it must be the path of a file or folder")
    device = str(content.get("device", "auto"))
    cleaning = {f"data.{key}": content[key] for key in CLEANING_KEYS if key in content}
    try:
        data = Config().with_changes(cleaning).data
    except ConfigError as problem:
        raise ConfigError(f"{file}: {problem.key.removeprefix('data.')}", problem.problem) from None
    keep = content.get("keep_tasks", KEEP_TASKS)
    if type(keep) is not int or not 1 <= keep <= MOST_TASKS:
        raise ConfigError(f"{file}: keep_tasks", f"it must be a whole number from 1 to {MOST_TASKS}")
    memory = _memory(content.get("memory"), file)
    return SitePlan(
        name,
        tuple(map(str, sensors)),
        readings or None,
        device=device,
        memory=memory,
        keep_tasks=keep,
        cleaning=data,
        reading=_reading(content.get("reading", {}), file),
    )


def _memory(said: object, file: Path) -> int:
    """Bytes of a text such as "2 GiB"; 0 where nothing is said."""
    if said is None:
        return 0
    found = MEMORY.fullmatch(said) if isinstance(said, str) else None
    size = float(found[1]) * {"MiB": 1 << 20, "GiB": 1 << 30}[found[2]] if found else 0
    if size < 1:
        raise ConfigError(f"{file}: memory", 'it must be an amount such as "512 MiB" or "2 GiB"')
    return int(size)


def _reading(table: Any, file: Path) -> ReadingOptions:
    """The settings under [reading]: dates, decimal and timezone, as data.* of a run has them."""
    valid = [field.name for field in fields(ReadingOptions) if field.name != "place"]
    for key in table if isinstance(table, dict) else ["reading"]:
        if key not in valid:
            raise ConfigError(f"{file}: reading", f"there is no such setting as {key!r}", valid)
    return ReadingOptions(**table, place=str(file))


def check_current(kit: Path) -> None:
    """Refuse a kit that an earlier version made: it lacks what keeps copies out and old tasks tidy."""
    needed = engine_files.ADMISSION if kind(kit) == "server" else engine_files.CONNECTION_MONITOR
    try:
        is_current = needed in (kit / "local" / "resources.json").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RunError(kit / "local" / "resources.json", "cannot be read") from error
    if not is_current:
        problem = (
            "this kit was made by an earlier version: make new ones with cnfgnn federation init PROJECT.toml"
        )
        raise RunError(kit, f"{problem} --authority AUTHORITY --out FOLDER")


def read_server(kit: str | Path) -> Project:
    """The project as the server's kit knows it: sites, sensors and graph, but no path of readings."""
    return read_project(Path(kit) / "local" / "project.toml")


def _take_authority(made: Path, folder: Path) -> None:
    """Keep the authority's certificate and key, and nobody else's key."""
    state = json.loads((made / "state" / AUTHORITY_FILE).read_text())
    folder.mkdir()
    _write_json(folder / AUTHORITY_FILE, {key: state[key] for key in AUTHORITY_KEYS})


def _server_kit(project: Project, made: Path, kit: Path, also_allowed: list[str]) -> None:
    _common_kit(made / "kits" / "server", kit, engine_files.server_resources(also_allowed))
    startup = kit / "startup" / "fed_server.json"
    config = json.loads(startup.read_text())
    config["servers"][0]["admin_host"] = "127.0.0.1"  # commands come from this machine alone
    _write_json(startup, config)
    certificates = {site.name: made / "kits" / site.name / "startup" / "client.crt" for site in project.sites}
    _write_json(kit / "startup" / ISSUED, {name: _issued(file) for name, file in certificates.items()})
    graph = kit / "local" / "graph"
    graph.mkdir()
    shutil.copyfile(project.graph.sensors, graph / "sensors.csv")
    if project.graph.edges is not None:
        shutil.copyfile(project.graph.edges, graph / "edges.csv")
    (kit / "local" / "project.toml").write_text(_project_text(project), encoding="utf-8")
    _operator_kit(made / "kits" / OPERATOR, kit / "operator")


def _operator_kit(made: Path, kit: Path) -> None:
    _without_scripts(made, kit)
    startup = kit / "startup" / "fed_admin.json"
    config = json.loads(startup.read_text())
    config["admin"]["host"] = "127.0.0.1"
    _write_json(startup, config)


def _site_kit(site: SitePlan, made: Path, kit: Path, also_allowed: list[str]) -> None:
    _common_kit(made, kit, engine_files.site_resources(also_allowed))
    (kit / "local" / "site.toml").write_text(_site_text(site), encoding="utf-8")


def _common_kit(made: Path, kit: Path, resources: dict[str, Any]) -> None:
    _without_scripts(made, kit)
    for default in (kit / "local").iterdir():
        default.unlink()
    _write_json(kit / "local" / "resources.json", resources)
    _write_json(kit / "local" / "authorization.json", engine_files.authorization())
    _write_json(kit / "local" / "comm_config.json", engine_files.connection_settings())
    _write_json(kit / "local" / "log_config.json", engine_files.log_settings())
    for name, command in (("start.sh", "up"), ("stop.sh", "down")):
        script = kit / name
        script.write_text(SCRIPT.format(program=PROGRAM_FILE, command=command))
        script.chmod(0o700)
    note_program(kit)


def note_program(kit: Path) -> None:
    """Note which Python has this package, so that `start.sh` finds it where PATH is short, as in cron.

    It is noted anew by each command that a person runs at the kit, because kits travel to other machines.
    """
    write_whole(kit / PROGRAM_FILE, f"{sys.executable}\n".encode())
    (kit / PROGRAM_FILE).chmod(0o600)


def _issued(file: Path) -> dict[str, str]:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    ends = certificate.not_valid_after_utc.isoformat(timespec="seconds")
    return {"serial": f"{certificate.serial_number:x}", "until": ends}


def _without_scripts(made: Path, kit: Path) -> None:
    shutil.copytree(made, kit, ignore=shutil.ignore_patterns(*NOT_OURS))


def _site_text(site: SitePlan) -> str:
    readings = f"readings = {_toml(site.readings)}" if site.readings else '# readings = "/data/readings.csv"'
    return (
        f"# What this site brings to the federation. The path of the readings is yours to change.\n"
        f"name = {_toml(site.name)}\nsensors = {_toml(site.sensors)}\n{readings}\n"
    )


def _project_text(project: Project) -> str:
    server = project.server
    lines = [
        f"name = {_toml(project.name)}",
        f"min_sites = {project.min_sites}",
        f"piece_kib = {project.piece_kib}",
        f"keep_tasks = {project.keep_tasks}",
        "[server]",
        f"host = {_toml(server.host)}",
        f"port = {server.port}",
        f"admin_port = {server.admin_port}",
        f"organisation = {_toml(server.organisation)}",
        "[graph]",
        'sensors = "graph/sensors.csv"',
        *(['edges = "graph/edges.csv"'] if project.graph.edges is not None else []),
    ]
    for site in project.sites:
        lines += [f"[sites.{_toml(site.name)}]", f"sensors = {_toml(site.sensors)}"]
        lines += [f"organisation = {_toml(site.organisation)}"] if site.organisation else []
    return "\n".join([*lines, ""])


def _toml(value: str | tuple[str, ...]) -> str:
    """A text or a list of them; JSON's escapes are TOML's, but for the one character that JSON leaves."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _close_to_others(folder: Path) -> None:
    """Nobody but the owner may look into a kit."""
    for place, _, files in os.walk(folder):
        Path(place).chmod(0o700)
        for name in files:
            file = Path(place) / name
            file.chmod(0o700 if file.suffix == ".sh" else 0o600)
