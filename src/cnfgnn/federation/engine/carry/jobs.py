"""The operator's view of the engine's jobs: write, submit, watch and abort them."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnfgnn.errors import ConfigError, RunError
from cnfgnn.federation.kits.engine_files import OPERATOR
from cnfgnn.files import make_folder, write_whole

OPERATOR_KIT = "operator"
APP = "app"
NO_FILTERS: Mapping[str, Any] = {"components": [], "task_data_filters": [], "task_result_filters": []}


@dataclass(frozen=True)
class ConnectedSite:
    """A connected site, and when the server last heard from it (seconds since 1970)."""

    name: str
    last_seen: float


def job_folder(
    folder: str | Path,
    name: str,
    server_class: str,
    server_args: Mapping[str, Any],
    client_class: str,
    client_args: Mapping[str, Any],
    min_clients: int = 1,
) -> Path:
    """Write a job that names two installed classes and contains no code; sites see the arguments of both."""
    folder = Path(folder)
    meta = {
        "name": name,
        "resource_spec": {},
        "deploy_map": {APP: ["@ALL"]},
        "min_clients": min_clients,
        "mandatory_clients": [],
    }
    server = {
        "format_version": 2,
        "workflows": [{"id": "controller", "path": server_class, "args": dict(server_args)}],
        **NO_FILTERS,
    }
    config = make_folder(folder / APP / "config")
    for file, content in (
        (config / "config_fed_server.json", server),
        (config / "config_fed_client.json", client_config(client_class, client_args)),
        (folder / "meta.json", meta),
    ):
        write_whole(file, json.dumps(content, indent=2).encode())
    return folder


def client_config(client_class: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """What a job says to sites: which class to load, with which arguments."""
    executor = {"path": client_class, "args": dict(args)}
    return {"format_version": 2, "executors": [{"tasks": ["*"], "executor": executor}], **NO_FILTERS}


class Session:
    """The operator's connection to the server on the same machine."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def submit(self, job: str | Path) -> str:
        """Submit a job folder; return the job's id."""
        return str(self._call(self.session.submit_job, str(Path(job).absolute())))

    def abort(self, job_id: str) -> None:
        self._call(self.session.abort_job, job_id)

    def state(self, job_id: str) -> str:
        """The engine's state of a job: SUBMITTED, APPROVED, DISPATCHED, RUNNING or FINISHED:..."""
        return str(self._call(self.session.get_job_status, job_id))

    def connected(self) -> list[ConnectedSite]:
        """The sites that are connected to the server."""
        clients = self._call(self.session.get_connected_client_list)
        return [ConnectedSite(client.name, float(client.last_connect_time)) for client in clients]

    def running_jobs(self) -> list[str]:
        return [job.job_id for job in self._call(self.session.get_system_info).job_info]

    def _call(self, command: Any, *args: Any) -> Any:
        from nvflare.fuel.flare_api.api_spec import JobNotFound

        try:
            return command(*args)
        except JobNotFound:
            raise ConfigError(str(args[0]), "the server has no such job") from None
        except Exception as error:  # the engine raises a dozen kinds of errors here
            raise RunError("server", f"it refused the command or did not answer ({error})") from error


@contextlib.contextmanager
def connect(kit: str | Path, timeout: float = 10.0) -> Iterator[Session]:
    """Open a session with the server of a kit; raise RunError if it does not answer."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    from cnfgnn.federation.engine.repairs.shared_sockets import share_sockets

    operator = Path(kit).absolute() / OPERATOR_KIT
    if not (operator / "startup" / "fed_admin.json").is_file():
        raise ConfigError(str(kit), "this is not a server's kit: it contains no operator's kit")
    _silence_engine_log()
    share_sockets()
    try:
        with contextlib.redirect_stdout(None):  # the engine prints its exceptions as well
            session = new_secure_session(OPERATOR, str(operator), timeout=timeout)
    except Exception as error:
        raise RunError(
            kit, f"the server does not answer ({error}); see console.txt and log.txt in its kit"
        ) from error
    try:
        yield Session(session)
    finally:
        with contextlib.suppress(Exception), contextlib.redirect_stdout(None):
            session.close()


def _silence_engine_log() -> None:
    """Keep the engine's messages about its connections out of a command's output."""
    logger = logging.getLogger("nvflare")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
