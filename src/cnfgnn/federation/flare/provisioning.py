"""Certificates and start-up files for every party, made by the engine."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from cnfgnn.errors import ConfigError, StorageError
from cnfgnn.federation.project import Project

OPERATOR = "operator@federation.cnfgnn"
AUTHORITY_DAYS = 3650
PARTY_DAYS = 730
AUTHORITY_FILE, AUTHORITY_KEYS = "cert.json", ("root_cert", "root_pri_key")


def provision(project: Project, workspace: Path, authority: str | Path | None) -> Path:
    """Let the engine make its files; what it made is in `kits`, the authority in `state`."""
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project as Parties
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    class LastingCertificates(CertBuilder):  # type: ignore[misc]
        """The engine's, which gives parties 360 days without asking."""

        @staticmethod
        def _generate_cert(*args: Any, valid_days: int = PARTY_DAYS, **kwargs: Any) -> Any:
            return CertBuilder._generate_cert(*args, valid_days=valid_days, **kwargs)

    parties = Parties(name=project.name, description="", props={"api_version": 3})
    server = project.server
    ports = {"fed_learn_port": server.port, "admin_port": server.admin_port}
    parties.set_server(server.host, server.organisation, ports)
    for site in project.sites:
        parties.add_client(site.name, site.organisation or site.name.replace("-", "_"), {})
    parties.add_admin(OPERATOR, server.organisation, {"role": "project_admin"})
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme="tcp"),
        LastingCertificates(root_valid_days=AUTHORITY_DAYS),
    ]
    workspace.mkdir(parents=True)
    if authority is not None:
        state = workspace / project.name / "state"
        state.mkdir(parents=True)
        _bring_authority(Path(authority), state)
    context = Provisioner(str(workspace), builders).provision(parties, logger=logging.getLogger(__name__))
    if context.get(CtxKey.BUILD_ERROR):
        raise StorageError(workspace, "the engine could not make the kits")
    made = workspace / project.name
    Path(context[CtxKey.CURRENT_PROD_DIR]).rename(made / "kits")
    (made / "kits" / parties.get_server().name).rename(made / "kits" / "server")
    return made


def _bring_authority(folder: Path, state: Path) -> None:
    """Let the engine go on with an authority that there is."""
    try:
        known = json.loads((folder / AUTHORITY_FILE).read_text())
        authority = {key: str(known[key]) for key in AUTHORITY_KEYS}
        (state / AUTHORITY_FILE).write_text(json.dumps(authority), encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(str(folder), "this is not the authority of a federation") from error
