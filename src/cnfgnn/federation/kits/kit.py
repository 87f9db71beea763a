"""Kits: one folder per party with its certificate, its configuration and its part of the project."""

from __future__ import annotations

import sys
from pathlib import Path

from cnfgnn.errors import ConfigError, RunError
from cnfgnn.federation.kits import engine_files
from cnfgnn.federation.project import Project, read_project
from cnfgnn.files import write_whole

ISSUED = "issued.json"  # in the server's `startup`: serial numbers and expiry of the sites' certificates
PROGRAM_FILE = "program.txt"  # the Python that has cnfgnn, so that start.sh works without PATH


def role(kit: str | Path) -> str:
    """Whether a kit is a "server" kit or a "site" kit."""
    kit = Path(kit)
    for found, file in (("server", "fed_server.json"), ("site", "fed_client.json")):
        if (kit / "startup" / file).is_file():
            return found
    raise ConfigError(str(kit), "this folder is not the kit of a server or a site")


def check_is_site(kit: Path) -> None:
    if role(kit) != "site":
        raise ConfigError(str(kit), "this is the server's kit: the command is for the kit of a site")


def site_name(kit: Path) -> str:
    """The name in the engine's file, which must be the certificate's: site.toml may have been edited."""
    return engine_files.read_startup(kit, "fed_client.json", lambda config: str(config["client"]["fqsn"]))


def check_current(kit: Path) -> None:
    """Refuse a kit made by an earlier version: it does not load the components that this version needs."""
    needed = engine_files.SERVER_COMPONENTS if role(kit) == "server" else engine_files.SITE_COMPONENTS
    file = kit / "local" / "resources.json"
    try:
        resources = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RunError(file, "cannot be read") from error
    if not all(component in resources for component in needed):
        raise RunError(
            kit,
            "this kit was made by an earlier version of cnfgnn: make new kits with cnfgnn federation init"
            " PROJECT.toml --authority AUTHORITY --out FOLDER, and copy local/site.toml, local/copies.json"
            " and states/ of a site into its new kit, which then finds its key and copies again",
        )


def read_server(kit: str | Path) -> Project:
    """The project as the server's kit records it: sites, sensors and graph, but no paths of readings."""
    return read_project(Path(kit) / "local" / "project.toml")


def record_program(kit: Path) -> None:
    """Record which Python has cnfgnn, so that start.sh also works where PATH is short, as under cron.

    `up` and `check` record it again, because kits are made on one machine and used on another.
    """
    write_whole(kit / PROGRAM_FILE, f"{sys.executable}\n".encode(), 0o600)
