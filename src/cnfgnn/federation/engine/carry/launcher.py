"""Part of a site's parent process: restarts jobs that crash, and rejoins them after the site restarts."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, FLMetaKey, JobConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobProcessArgs, JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import JOB_RETURN_CODE_MAPPING
from nvflare.fuel.common.exit_codes import ProcessExitCode

from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.kits.retention import REJOIN, remove_old_tasks
from cnfgnn.federation.project import KEEP_TASKS
from cnfgnn.files import write_whole

ABORTED = 9  # the engine's exit code of a job that was aborted
# A restart is pointless after these: the job finished, was aborted, or is invalid and can never run here.
FINAL_EXIT_CODES = (0, ABORTED, ProcessExitCode.UNSAFE_COMPONENT, ProcessExitCode.CONFIG_ERROR)
STABLE_UPTIME = 60.0  # seconds of uptime after which the crash counter resets
LONGEST_PAUSE = 30.0  # seconds between restarts


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
        crashes = 0
        while True:
            started = time.monotonic()
            self.process.wait()
            code = self.process.poll()
            if code in FINAL_EXIT_CODES or self.stopping.is_set():
                break
            crashes = 1 if time.monotonic() - started > STABLE_UPTIME else crashes + 1
            pause = min(2.0 ** (crashes - 2), LONGEST_PAUSE) if crashes > 1 else 0.0
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
    """Starts jobs at a site, restarts them when they crash, and rejoins them after the site restarts."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        job_id = job_meta[JobConstants.JOB_ID]
        marker = kit / REJOIN / f"{job_id}.json"
        marker.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(marker, json.dumps(job_meta).encode())
        launch = super().launch_job

        def spawn() -> Any:
            (kit / job_id / FLMetaKey.PROCESS_RC_FILE).unlink(missing_ok=True)  # of the previous process
            _renew_credentials(fl_ctx)
            return launch(job_meta, fl_ctx).adapter

        def ended() -> None:
            marker.unlink(missing_ok=True)
            self._remove_old_tasks(kit)

        return RestartingHandle(spawn, ended, self.logger)

    def _remove_old_tasks(self, kit: Path) -> None:
        try:
            remove_old_tasks(kit, KEEP_TASKS)
        except (CnfgnnError, OSError) as error:
            self.logger.error(f"the files of old tasks could not be removed: {error}")

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            self._remove_old_tasks(Path(fl_ctx.get_engine().args.workspace))
            self._rejoin(fl_ctx)
        super().handle_event(event_type, fl_ctx)

    def _rejoin(self, fl_ctx: FLContext) -> None:
        """Start the jobs that were running here; the server then ends those that have finished meanwhile."""
        engine = fl_ctx.get_engine()
        for marker in sorted((Path(engine.args.workspace) / REJOIN).glob("*.json")):
            try:
                meta = json.loads(marker.read_text())
                answer = engine.start_app(marker.stem, copy.deepcopy(meta))
                self.logger.info(f"rejoining job {marker.stem}: {answer}")
            except Exception as error:  # one job that fails must not keep the site from rejoining the others
                self.logger.error(f"job {marker.stem} could not be rejoined: {type(error).__name__}: {error}")
                marker.unlink(missing_ok=True)


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
