"""Making kits: for each party a folder with its certificate, configuration and part of the project."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cnfgnn.config.toml import dump_table
from cnfgnn.errors import ConfigError, RunError, StorageError
from cnfgnn.federation.engine.provisioning import AUTHORITY_FILE, AUTHORITY_KEYS, provision
from cnfgnn.federation.kits import engine_files
from cnfgnn.federation.kits.engine_files import OPERATOR
from cnfgnn.federation.kits.kit import ISSUED, PROGRAM_FILE, record_program
from cnfgnn.federation.kits.requests import Request
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
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))  # mode 0700
        try:
            provisioned = provision(project, partial / "engine", authority, requests or {})
            complete = partial / "kits"
            complete.mkdir()
            if only is None:
                _copy_authority(provisioned, complete / "authority")
                _server_kit(project, provisioned, complete / "server", also_allowed)
            for site in project.sites:
                if site.name in names:
                    _site_kit(site, provisioned / "kits" / site.name, complete / site.name, also_allowed)
            _restrict_to_owner(complete)
            complete.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise StorageError(folder, error) from error
    return {name: folder / name for name in names}


def _copy_authority(provisioned: Path, folder: Path) -> None:
    """Copy the authority's certificate and key, and nobody else's key."""
    state = json.loads((provisioned / "state" / AUTHORITY_FILE).read_text())
    folder.mkdir()
    _write_json(folder / AUTHORITY_FILE, {key: state[key] for key in AUTHORITY_KEYS})


def _server_kit(project: Project, provisioned: Path, kit: Path, also_allowed: list[str]) -> None:
    _any_kit(provisioned / "kits" / "server", kit, engine_files.server_resources(also_allowed))
    startup = kit / "startup" / "fed_server.json"
    config = json.loads(startup.read_text())
    config["servers"][0]["admin_host"] = "127.0.0.1"  # accept commands from this machine only
    _write_json(startup, config)
    issued = {}
    for site in project.sites:
        issued[site.name] = _issued(provisioned / "kits" / site.name / "startup" / "client.crt")
    _write_json(kit / "startup" / ISSUED, issued)
    graph = kit / "local" / "graph"
    graph.mkdir()
    shutil.copyfile(project.graph.sensors, graph / "sensors.csv")
    if project.graph.edges is not None:
        shutil.copyfile(project.graph.edges, graph / "edges.csv")
    (kit / "local" / "project.toml").write_text(_project_text(project), encoding="utf-8")
    _operator_kit(provisioned / "kits" / OPERATOR, kit / "operator")


def _operator_kit(provisioned: Path, kit: Path) -> None:
    _copy_without_scripts(provisioned, kit)
    startup = kit / "startup" / "fed_admin.json"
    config = json.loads(startup.read_text())
    config["admin"]["host"] = "127.0.0.1"
    _write_json(startup, config)


def _site_kit(site: SitePlan, provisioned: Path, kit: Path, also_allowed: list[str]) -> None:
    _any_kit(provisioned, kit, engine_files.site_resources(also_allowed))
    (kit / "local" / "site.toml").write_text(_site_text(site), encoding="utf-8")


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
        script = kit / name
        script.write_text(SCRIPT.format(program=PROGRAM_FILE, command=command))
        script.chmod(0o700)
    record_program(kit)


def _issued(file: Path) -> dict[str, str]:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    expires = certificate.not_valid_after_utc.isoformat(timespec="seconds")
    return {"serial": f"{certificate.serial_number:x}", "until": expires}


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
    server = project.server
    graph = {"sensors": "graph/sensors.csv"}
    if project.graph.edges is not None:
        graph["edges"] = "graph/edges.csv"
    sites: dict[str, dict[str, Any]] = {}
    for site in project.sites:
        sites[site.name] = {"sensors": site.sensors}
        if site.organisation:
            sites[site.name]["organisation"] = site.organisation
    content = {
        "name": project.name,
        "min_sites": project.min_sites,
        "blur": project.blur,
        "piece_kib": project.piece_kib,
        "keep_tasks": project.keep_tasks,
        "server": {
            "host": server.host,
            "port": server.port,
            "admin_port": server.admin_port,
            "organisation": server.organisation,
        },
        "graph": graph,
        "sites": sites,
    }
    return dump_table(content)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _restrict_to_owner(folder: Path) -> None:
    """Make every file and folder inaccessible to other users of the machine."""
    for place, _, files in os.walk(folder):
        Path(place).chmod(0o700)
        for name in files:
            file = Path(place) / name
            file.chmod(0o700 if file.suffix == ".sh" else 0o600)
