"""A site's jobs come back by themselves: after their process died, and after the whole site did."""

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
from cnfgnn.federation.retention import MARKERS, tidy
from cnfgnn.files import write_whole

# The job ended, was aborted, or can never run here: the job itself is wrong, and everyone must know.
FINAL = (0, 9, ProcessExitCode.UNSAFE_COMPONENT, ProcessExitCode.CONFIG_ERROR)
LONG_ENOUGH = 60.0  # seconds after which a death is no longer taken for the one before it
LONGEST_PAUSE = 30.0


class RestartingHandle(JobHandleSpec):  # type: ignore[misc]
    """A job process and its successors: to the engine one job that has not ended yet.

    If the engine saw one end badly, it would fail the job for all sites. A process that dies again and again
    is started after pauses of growing length, because its owner may mend what is wrong while others go on.
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
        deaths = 0
        while True:
            begun = time.monotonic()
            self.process.wait()
            code = self.process.poll()
            if code in FINAL or self.stopping.is_set():
                break
            deaths = 1 if time.monotonic() - begun > LONG_ENOUGH else deaths + 1
            pause = min(2.0 ** (deaths - 2), LONGEST_PAUSE) if deaths > 1 else 0.0
            self.logger.warning(f"the job's process ended with {code}: starting it again in {pause:.0f} s")
            if self.stopping.wait(pause) or not self._again():
                break
        self.code = 9 if self.stopping.is_set() else code
        self.ended()

    def _again(self) -> bool:
        with self.lock:
            if self.stopping.is_set():
                return False
            self.process = self.spawn()
            return True


class RestartingLauncher(ClientProcessJobLauncher):  # type: ignore[misc]
    """Starts jobs at a site, again when they die, and again after a restart of the whole site."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        job_id = job_meta[JobConstants.JOB_ID]
        marker = kit / MARKERS / f"{job_id}.json"
        marker.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(marker, json.dumps(job_meta).encode())
        launch = super().launch_job

        def spawn() -> Any:
            (kit / job_id / FLMetaKey.PROCESS_RC_FILE).unlink(missing_ok=True)  # of the process before
            _renew_credentials(fl_ctx)
            return launch(job_meta, fl_ctx).adapter

        def ended() -> None:
            marker.unlink(missing_ok=True)
            self._tidy(kit)

        return RestartingHandle(spawn, ended, self.logger)

    def _tidy(self, kit: Path) -> None:
        try:
            tidy(kit)
        except (CnfgnnError, OSError) as problem:
            self.logger.error(f"what old tasks left cannot be removed: {problem}")

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            self._tidy(Path(fl_ctx.get_engine().args.workspace))
            self._rejoin(fl_ctx)
        super().handle_event(event_type, fl_ctx)

    def _rejoin(self, fl_ctx: FLContext) -> None:
        """Start the jobs that were running here; the server's next answer ends those that are over."""
        engine = fl_ctx.get_engine()
        for marker in sorted((Path(engine.args.workspace) / MARKERS).glob("*.json")):
            try:
                meta = json.loads(marker.read_text())
                said = engine.start_app(marker.stem, copy.deepcopy(meta))
                self.logger.info(f"rejoining job {marker.stem}: {said}")
            except Exception as error:  # one job that cannot be rejoined must not keep the site from the rest
                self.logger.error(f"job {marker.stem} cannot be rejoined: {type(error).__name__}: {error}")
                marker.unlink(missing_ok=True)


def _renew_credentials(fl_ctx: FLContext) -> None:
    """A site that had to register again has another token than when the job began."""
    client = fl_ctx.get_engine().client
    args = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
    for key, value in (
        (JobProcessArgs.AUTH_TOKEN, client.token),
        (JobProcessArgs.TOKEN_SIGNATURE, client.token_signature),
        (JobProcessArgs.SSID, client.ssid),
    ):
        args[key] = (args[key][0], value)
