"""Part of a site's parent process: starts jobs, and restarts those that crash."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey, FLMetaKey, JobConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobProcessArgs, JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import JOB_RETURN_CODE_MAPPING
from nvflare.fuel.common.exit_codes import ProcessExitCode

from cnfgnn.federation.engine.carry.control import CONNECTION, connection_for_job
from cnfgnn.federation.kits.engine_files import TASK_ID
from cnfgnn.federation.restarts import Pauses

ABORTED = 9  # the engine's exit code of a job that was aborted
# A restart is pointless after these: the job finished, was aborted, or is invalid and can never run here.
FINAL_EXIT_CODES = (0, ABORTED, ProcessExitCode.UNSAFE_COMPONENT, ProcessExitCode.CONFIG_ERROR)
KEPT_JOBS = 20  # whose logs stay in the workspace


class RestartingHandle(JobHandleSpec):  # type: ignore[misc]
    """A job's process and its restarts; to the engine they are one job that has not ended yet.

    If the engine saw a process crash, it would fail the job for all sites. A process that crashes repeatedly
    is restarted after growing pauses: its owner may fix the cause while the other sites continue.
    """

    def __init__(self, spawn: Callable[[], Any], ended: Callable[[], None], logger: Any) -> None:
        super().__init__()
        self.spawn, self.ended, self.logger = spawn, ended, logger
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.process = spawn()
        self.code: int | None = None

    def terminate(self) -> None:
        with self.lock:
            self.stopping.set()
            self.process.terminate()

    def poll(self) -> Any:
        if self.code is None:
            return JobReturnCode.UNKNOWN
        return JOB_RETURN_CODE_MAPPING.get(self.code, JobReturnCode.EXECUTION_ERROR)

    def wait(self) -> None:
        pauses = Pauses()
        while True:
            started = time.monotonic()
            self.process.wait()
            code = self.process.poll()
            if code in FINAL_EXIT_CODES or self.stopping.is_set():
                break
            pause = pauses.after(time.monotonic() - started)
            self.logger.warning(
                f"the job's process ended with exit code {code}: restarting it in {pause:.0f} s"
            )
            if self.stopping.wait(pause) or not self._restart():
                break
        self.code = ABORTED if self.stopping.is_set() else code
        self.ended()

    def _restart(self) -> bool:
        with self.lock:
            if self.stopping.is_set():
                return False
            self.process = self.spawn()
            return True


class RestartingLauncher(ClientProcessJobLauncher):  # type: ignore[misc]
    """Starts jobs at a site, each with a connection to the site, and restarts them when they crash."""

    def __init__(self) -> None:
        super().__init__()
        self._starting = threading.Lock()

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        workspace = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        job = workspace / job_meta[JobConstants.JOB_ID]
        launch = super().launch_job

        def spawn() -> Any:
            (job / FLMetaKey.PROCESS_RC_FILE).unlink(missing_ok=True)  # of the previous process
            _renew_credentials(fl_ctx)
            connection = connection_for_job()
            with self._starting:  # the engine hands our environment and inheritable files to the job
                try:
                    os.set_inheritable(connection, True)
                    os.environ[CONNECTION] = str(connection)
                    return launch(job_meta, fl_ctx).adapter
                finally:
                    os.close(connection)

        return RestartingHandle(spawn, lambda: _remove_old_jobs(workspace), self.logger)


def _remove_old_jobs(workspace: Path) -> None:
    """Remove the files of all but the latest finished jobs, which are their logs."""
    folders = [path for path in workspace.iterdir() if TASK_ID.fullmatch(path.name)]
    for folder in sorted(folders, key=lambda path: path.stat().st_mtime)[:-KEPT_JOBS]:
        shutil.rmtree(folder, ignore_errors=True)


def _renew_credentials(fl_ctx: FLContext) -> None:
    """Use the current token: a site that registered again has another one than when the job began."""
    client = fl_ctx.get_engine().client
    args = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
    for key, value in (
        (JobProcessArgs.AUTH_TOKEN, client.token),
        (JobProcessArgs.TOKEN_SIGNATURE, client.token_signature),
        (JobProcessArgs.SSID, client.ssid),
    ):
        args[key] = (args[key][0], value)
