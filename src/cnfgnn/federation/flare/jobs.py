"""Jobs as the server's operator sees them: written, submitted, watched and aborted."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnfgnn.errors import ConfigError, RunError
from cnfgnn.federation.flare.provisioning import OPERATOR
from cnfgnn.files import make_folder, write_whole

OPERATOR_KIT = "operator"
APP = "app"


@dataclass(frozen=True)
class Connected:
    """A site that the server hears from, and when it last did, in seconds since 1970."""

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
    """Write a job that names two installed classes and holds no code; sites see both sides' arguments."""
    folder = Path(folder)
    meta = {
        "name": name,
        "resource_spec": {},
        "deploy_map": {APP: ["@ALL"]},
        "min_clients": min_clients,
        "mandatory_clients": [],
    }
    no_filters: dict[str, Any] = {"components": [], "task_data_filters": [], "task_result_filters": []}
    server = {
        "format_version": 2,
        "workflows": [{"id": "controller", "path": server_class, "args": dict(server_args)}],
        **no_filters,
    }
    executor = {"path": client_class, "args": dict(client_args)}
    client = {"format_version": 2, "executors": [{"tasks": ["*"], "executor": executor}], **no_filters}
    config = make_folder(folder / APP / "config")
    for file, content in (
        (config / "config_fed_server.json", server),
        (config / "config_fed_client.json", client),
        (folder / "meta.json", meta),
    ):
        write_whole(file, json.dumps(content, indent=2).encode())
    return folder


class Session:
    """A connection of the operator to the server of the same machine."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def submit(self, job: str | Path) -> str:
        """Hand in a job folder; the job's id."""
        return str(self._asked(self.session.submit_job, str(Path(job).absolute())))

    def abort(self, job_id: str) -> None:
        self._asked(self.session.abort_job, job_id)

    def state(self, job_id: str) -> str:
        """SUBMITTED, APPROVED, DISPATCHED, RUNNING or FINISHED:..., in the engine's words."""
        return str(self._asked(self.session.get_job_status, job_id))

    def connected(self) -> list[Connected]:
        """The sites that the server hears from."""
        clients = self._asked(self.session.get_connected_client_list)
        return [Connected(client.name, float(client.last_connect_time)) for client in clients]

    def running_jobs(self) -> list[str]:
        return [job.job_id for job in self._asked(self.session.get_system_info).job_info]

    def _asked(self, question: Any, *args: Any) -> Any:
        from nvflare.fuel.flare_api.api_spec import JobNotFound

        try:
            return question(*args)
        except JobNotFound:
            raise ConfigError(str(args[0]), "there is no such job") from None
        except Exception as error:  # the engine has a dozen kinds, and a person can only read them
            raise RunError("server", f"it refused or did not answer ({error})") from error


@contextlib.contextmanager
def connect(kit: str | Path, timeout: float = 10.0) -> Iterator[Session]:
    """A session with the server of a kit; one sentence if it does not run or does not answer."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    operator = Path(kit).absolute() / OPERATOR_KIT
    if not (operator / "startup" / "fed_admin.json").is_file():
        raise ConfigError(str(kit), "this is not the kit of a server: it has no operator's kit in it")
    _be_quiet()
    try:
        with contextlib.redirect_stdout(None):  # the engine prints what its exceptions say
            session = new_secure_session(OPERATOR, str(operator), timeout=timeout)
    except Exception as error:
        raise RunError(kit, f"its server does not answer ({error})") from error
    try:
        yield Session(session)
    finally:
        with contextlib.suppress(Exception), contextlib.redirect_stdout(None):
            session.close()


def _be_quiet() -> None:
    """What the engine has to say about its connections is no part of a command's output."""
    logger = logging.getLogger("nvflare")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
