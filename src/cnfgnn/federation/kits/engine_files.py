"""The engine's configuration files in our kits: jobs may load our own two classes and nothing else."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from cnfgnn.errors import RunError

Found = TypeVar("Found")
OPERATOR = "operator@federation.cnfgnn"  # the name of the operator's certificate
TASK_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
CONTROLLER = "cnfgnn.federation.engine.carry.controller.FederationController"
EXECUTOR = "cnfgnn.federation.engine.carry.executor.SiteExecutor"
LAUNCHER = "cnfgnn.federation.engine.carry.launcher.RestartingLauncher"
LATE_JOINERS = "cnfgnn.federation.engine.carry.late_joiners.LateJoiners"
MESSAGE_GUARD = "cnfgnn.federation.engine.guard.message_guard.MessageGuard"
ADMISSION = "cnfgnn.federation.engine.guard.admission.AdmissionControl"
JOB_STORE = "cnfgnn.federation.engine.carry.job_store.BoundedJobStore"
RETENTION = "cnfgnn.federation.engine.carry.job_store.JobRetention"
CONNECTION_MONITOR = "cnfgnn.federation.engine.guard.connection_monitor.ConnectionMonitor"
ENGINE_PARTS = "nvflare.app_common"
SERVER_COMPONENTS = (LATE_JOINERS, MESSAGE_GUARD, ADMISSION, JOB_STORE, RETENTION)
SITE_COMPONENTS = (LAUNCHER, CONNECTION_MONITOR)
SITE_PROGRAM = "cnfgnn.federation.engine.client"  # the engine at a site
ENGINE_FOLDER = "engine"  # in a site's kit: the engine's scratch workspace, which is emptied at each start
# What the engine gets of the owner's environment. A password that a service was given is not its business.
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "RES_OPTIONS")
KEPT = ("log.txt", "refused.json")  # what a new workspace has of the one before
KNOWN_AS = "CNFGNN_ENGINE"  # environment variable of an engine: by which name the server tells it from others
CONNECTION_FILE = "connection.json"  # in a site's engine folder: how the server sees its connection
HEARTBEAT_TIMEOUT = 30  # seconds without a heartbeat before the server counts a site as disconnected
MOST_SITES = 450  # two connections each, and the engine's select() takes 1,024 files
LARGEST_STREAM = 16 << 20  # bytes of a message that the engine streams; it streams none of ours
# What the engine reads from its environment.
ENGINE_LIMITS = {
    "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10",
    "NVFLARE_STREAMING_MAX_BLOB_SIZE": str(LARGEST_STREAM),
    "PYTHONUNBUFFERED": "1",
}
MOST_JOBS = 2  # at a time: a live task, and a training beside it

# What the engine lets the operator do: a job must contain no code, and a site's processes are its owner's.
# There is one role; all others have no rights. An honest server keeps to this; a hostile one is bound by
# `allowed` and `site_commands`.
OPERATOR_RIGHTS = {
    "submit_job": "any",
    "clone_job": "none",
    "manage_job": "any",
    "download_job": "none",
    "view": "any",
    "operate": "none",
    "shell_commands": "none",
    "byoc": "none",
    "server-predeployed-flwr": "none",
}


def authorization() -> dict[str, Any]:
    return {"format_version": "1.0", "permissions": {"project_admin": OPERATOR_RIGHTS}}


def server_resources(also_allowed: Iterable[str] = ()) -> dict[str, Any]:
    return {
        "format_version": 2,
        **_allow([CONTROLLER, *also_allowed]),
        "servers": [
            {
                "admin_storage": "transfer",
                "max_num_clients": MOST_SITES,
                "heart_beat_timeout": HEARTBEAT_TIMEOUT,
                "admin_timeout": 10.0,
            }
        ],
        "components": [
            _component(
                "job_scheduler",
                f"{ENGINE_PARTS}.job_schedulers.job_scheduler.DefaultJobScheduler",
                # By default it retries after ten seconds, then more rarely, and gives up after ten tries.
                max_jobs=MOST_JOBS,
                min_schedule_interval=1.0,
                max_schedule_interval=5.0,
                max_schedule_count=1_000_000,
            ),
            # `up` sets where jobs are stored: the path must be absolute, and kits move between machines.
            _component("job_manager", JOB_STORE, uri_root="jobs", job_store_id="job_store"),
            _component("job_store", f"{ENGINE_PARTS}.storages.filesystem_storage.FilesystemStorage"),
            _component(
                "process_launcher",
                f"{ENGINE_PARTS}.job_launcher.server_process_launcher.ServerProcessJobLauncher",
            ),
            _component("late_joiners", LATE_JOINERS),
            _component("message_guard", MESSAGE_GUARD),
            _component("admission", ADMISSION),
            _component("retention", RETENTION),
        ],
    }


def site_resources(also_allowed: Iterable[str] = ()) -> dict[str, Any]:
    """The engine's defaults with our launcher, and without the component that sends a site's logs away."""
    return {
        "format_version": 2,
        **_allow([EXECUTOR, *also_allowed]),
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30, "compression": "Gzip"},
        "components": [
            _component(
                "resource_manager",
                f"{ENGINE_PARTS}.resource_managers.gpu_resource_manager.GPUResourceManager",
                num_of_gpus=0,
                mem_per_gpu_in_GiB=0,
                expiration_period=300,
            ),
            _component(
                "resource_consumer",
                f"{ENGINE_PARTS}.resource_consumers.gpu_resource_consumer.GPUResourceConsumer",
            ),
            _component("process_launcher", LAUNCHER),
            _component("connection_monitor", CONNECTION_MONITOR),
        ],
    }


def connection_settings() -> dict[str, Any]:
    """Require certificates on loopback too: every user of the machine could connect to a parent process.
    Sites connect to the server only."""
    loopback = {"host": "localhost", "connection_security": "mtls"}
    return {"internal": {"scheme": "tcp", "resources": loopback}, "allow_adhoc_conns": False}


def with_port(settings: dict[str, Any], port: int) -> dict[str, Any]:
    """Connection settings in which the engine's processes at a site find each other at this port."""
    internal = settings["internal"]
    return {**settings, "internal": {**internal, "resources": {**internal["resources"], "port": port}}}


def engine_environment(workspace: Path) -> dict[str, str]:
    """The environment of a site's engine, made from nothing. PYTHONPATH becomes absolute, because the process
    runs in its workspace.

    Python must not look for modules there: what an engine left behind would be loaded by the next one, before
    that is confined.
    """
    found = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    if "PYTHONPATH" in found:
        found["PYTHONPATH"] = absolute_places(found["PYTHONPATH"])
    places = {"HOME": str(workspace), "TMPDIR": str(workspace / "tmp")}
    return {**found, **ENGINE_LIMITS, **places, "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}


def open_to_engine(reaches: Iterable[str], private: Iterable[str | os.PathLike[str]]) -> list[str]:
    """A sentence for each private file or folder below a path that the engine may open."""
    allowed = [os.path.realpath(path) for path in reaches]
    problems = []
    for place in private:
        real = os.path.realpath(place)
        above = [other for other in allowed if os.path.commonpath([real, other]) == other]
        if above:
            problems.append(f"{place} is open to the engine, which may open all of {above[0]}: move it")
    return problems


def absolute_places(places: str) -> str:
    """The places of a PYTHONPATH, none of them relative."""
    return os.pathsep.join(os.path.abspath(place) for place in places.split(os.pathsep) if place)


def log_settings() -> dict[str, Any]:
    """One rotating log per process; the console shows errors and what failed before logging began."""
    layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    console = {"class": "logging.StreamHandler", "level": "ERROR", "stream": "ext://sys.stdout"}
    file = {"class": "logging.handlers.RotatingFileHandler", "level": "DEBUG", "filename": "log.txt"}
    rotation = {"mode": "a", "maxBytes": 5_000_000, "backupCount": 3}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"()": "nvflare.fuel.utils.log_utils.BaseFormatter", "fmt": layout}},
        "handlers": {
            "console": {**console, "formatter": "plain"},
            "file": {**file, **rotation, "formatter": "plain"},
        },
        "loggers": {"root": {"level": "INFO", "handlers": ["console", "file"]}},
    }


def _allow(classes: list[str]) -> dict[str, Any]:
    return {"class_list_enforcement_mode": "enforce", "class_allow_list": classes}


def _component(name: str, path: str, **args: Any) -> dict[str, Any]:
    return {"id": name, "path": path, "args": args}


def read_startup(kit: Path, file: str, find: Callable[[Any], Found]) -> Found:
    """What `find` finds in one of the engine's files in the folder `startup` of a kit.

    Raises:
        RunError: The file cannot be read, or it is not what the engine writes.
    """
    path = kit / "startup" / file
    try:
        return find(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError) as error:
        problem = "is damaged and cannot be read: replace the folder startup/ with that of a new kit"
        raise RunError(path, problem) from error
