"""Making kits: for each party a folder with its certificate, configuration and part of the project."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cnfgnn.config.toml import dump_table
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.federation.engine.provisioning import AUTHORITY_FILE, AUTHORITY_KEYS, provision
from cnfgnn.federation.kits import certificates, engine_files
from cnfgnn.federation.kits.engine_files import OPERATOR
from cnfgnn.federation.kits.kit import ISSUED, PROGRAM_FILE, record_program
from cnfgnn.federation.kits.requests import Request, complete_folder
from cnfgnn.federation.project import Project, SitePlan

SCRIPT = """#!/bin/sh
kit=$(cd "$(dirname "$0")" && pwd) || exit 1
python=$(cat "$kit/{program}" 2>/dev/null)
if [ -x "$python" ]; then
  exec "$python" -m cnfgnn federation {command} "$kit"
elif command -v cnfgnn >/dev/null; then
  exec cnfgnn federation {command} "$kit"
fi
echo "$0: cnfgnn is not on PATH: run it once by its full path: .../cnfgnn federation {command} '$kit'" >&2
exit 127
"""
BLUR_NOTE = """# blur = {default}
# The noise on the copy of the readings that everything sent is computed from: a standard deviation in the
# readings' unit. 0 protects nothing. It can only be chosen before a reading is used for the first time.
"""
ENGINE_SCRIPTS = ("*.sh", "*.ipynb", "readme.txt")  # the engine's start scripts, which do not fit our kits


def make_kits(
    project: Project,
    folder: str | Path,
    also_allowed: Iterable[str] = (),
    authority: str | Path | None = None,
    only: str | None = None,
    requests: Mapping[str, Request] | None = None,
) -> dict[str, Path]:
    """Make kits for the server and every site; return their folders by name.

    `folder` must not exist yet; it appears only once all kits are complete. Each party gets a certificate
    that is valid for two years, signed by a certificate authority that is valid for ten. The authority's key
    is kept in `folder/authority` and belongs to whoever makes the kits. The operator's kit is inside the
    server's.

    Pass an existing `authority` to renew certificates or to add a site: the new kits work together with the
    old ones. With `only`, a kit is made for that site alone. A site that is in `requests` has its own key:
    its kit has a certificate for that key, and no key.
    """
    folder = Path(folder).absolute()
    names = ["server", *(site.name for site in project.sites)]
    if only is not None:
        if only not in names[1:]:
            raise ConfigError("--only", f"the project has no site {only!r}", names[1:])
        if authority is None:
            problem = "--authority is missing: the new kit must be signed by the authority of the other kits"
            raise ConfigError("--only", problem)
        if requests and only not in requests:
            raise ConfigError("--requests", f"there is no request of site {only}")
        names = [only]
    if folder.exists():
        raise RunError(folder, "exists already, and kits are never overwritten: choose another --out")
    also_allowed = list(also_allowed)
    with (
        complete_folder(folder) as complete,
        tempfile.TemporaryDirectory(prefix=f".{folder.name}.partial-", dir=folder.parent) as engine,
    ):
        provisioned = provision(project, Path(engine) / "engine", authority, requests or {})
        if only is None:
            _copy_authority(provisioned, complete / "authority")
            _server_kit(project, provisioned, complete / "server", also_allowed)
        for site in project.sites:
            if site.name in names:
                kit, resources = complete / site.name, engine_files.site_resources(also_allowed)
                _any_kit(provisioned / "kits" / site.name, kit, resources)
                (kit / "local" / "site.toml").write_text(_site_text(site), encoding="utf-8")
        _restrict_to_owner(complete)
    return {name: folder / name for name in names}


def _copy_authority(provisioned: Path, folder: Path) -> None:
    """Copy the authority's certificate and key, and nobody else's key."""
    state = json.loads((provisioned / "state" / AUTHORITY_FILE).read_text())
    folder.mkdir()
    _write_json(folder / AUTHORITY_FILE, {key: state[key] for key in AUTHORITY_KEYS})


def _server_kit(project: Project, provisioned: Path, kit: Path, also_allowed: list[str]) -> None:
    _any_kit(provisioned / "kits" / "server", kit, engine_files.server_resources(also_allowed))
    _to_loopback(kit / "startup" / "fed_server.json", lambda config: config["servers"][0], "admin_host")
    issued = {}
    for site in project.sites:
        made = certificates.read(provisioned / "kits" / site.name / "startup" / "client.crt")
        expires = made.not_valid_after_utc.isoformat(timespec="seconds")
        issued[site.name] = {"serial": f"{made.serial_number:x}", "until": expires}
    _write_json(kit / "startup" / ISSUED, issued)
    graph = kit / "local" / "graph"
    graph.mkdir()
    shutil.copyfile(project.graph.sensors, graph / "sensors.csv")
    if project.graph.edges is not None:
        shutil.copyfile(project.graph.edges, graph / "edges.csv")
    (kit / "local" / "project.toml").write_text(_project_text(project), encoding="utf-8")
    _copy_without_scripts(provisioned / "kits" / OPERATOR, kit / "operator")
    _to_loopback(kit / "operator" / "startup" / "fed_admin.json", lambda config: config["admin"], "host")


def _any_kit(provisioned: Path, kit: Path, resources: dict[str, Any]) -> None:
    """The files that every kit has."""
    _copy_without_scripts(provisioned, kit)
    for default in (kit / "local").iterdir():
        default.unlink()
    _write_json(kit / "local" / "resources.json", resources)
    _write_json(kit / "local" / "authorization.json", engine_files.authorization())
    _write_json(kit / "local" / "comm_config.json", engine_files.connection_settings())
    _write_json(kit / "local" / "log_config.json", engine_files.log_settings())
    for name, command in (("start.sh", "up"), ("stop.sh", "down")):
        (kit / name).write_text(SCRIPT.format(program=PROGRAM_FILE, command=command))
    record_program(kit)


def _copy_without_scripts(provisioned: Path, kit: Path) -> None:
    shutil.copytree(provisioned, kit, ignore=shutil.ignore_patterns(*ENGINE_SCRIPTS))


def _site_text(site: SitePlan) -> str:
    settings: dict[str, Any] = {"name": site.name, "sensors": site.sensors}
    if site.readings:
        settings["readings"] = site.readings
    if site.least_blur:
        settings["least_blur"] = site.least_blur
    text = "# The settings of this site. You may change everything but name, sensors and least_blur.\n"
    text += dump_table(settings)
    if not site.readings:
        text += '# readings = "/data/readings.csv"\n'
    return text + BLUR_NOTE.format(default=f"{site.least_blur:g}")


def _project_text(project: Project) -> str:
    graph = {"sensors": "graph/sensors.csv"}
    if project.graph.edges is not None:
        graph["edges"] = "graph/edges.csv"
    sites: dict[str, dict[str, Any]] = {}
    for site in project.sites:
        sites[site.name] = {"sensors": site.sensors}
        if site.organisation:
            sites[site.name]["organisation"] = site.organisation
    values = {key: getattr(project, key) for key in ("name", "min_sites", "blur", "piece_kib", "keep_tasks")}
    return dump_table({**values, "server": asdict(project.server), "graph": graph, "sites": sites})


def _to_loopback(path: Path, part: Callable[[Any], dict[str, Any]], key: str) -> None:
    """Have the engine accept commands from this machine only."""
    config = json.loads(path.read_text())
    part(config)[key] = "127.0.0.1"
    _write_json(path, config)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _restrict_to_owner(folder: Path) -> None:
    """Make every file and folder inaccessible to other users of the machine."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() or path.suffix == ".sh" else 0o600)
