"""Sites that connect while a job runs are given it too; the engine by itself deploys once, at the start."""

from __future__ import annotations

import json
import threading
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_scheduler_spec import DispatchInfo
from nvflare.private.admin_defs import Message, MsgHeader, ReturnCode
from nvflare.private.defs import ClientStatusKey, TrainingTopic

EVERY = 2.0  # seconds


class LateJoiners(FLComponent):  # type: ignore[misc]
    """Part of the server's parent process: looks now and then whether a connected site lacks a running job.

    A site has another token each time it registers. One that was not there when the job began is asked which
    jobs it runs: after a restart it has rejoined by itself (see the launcher), else it is given the job.
    """

    def __init__(self) -> None:
        super().__init__()
        self.settled: set[tuple[str, str]] = set()  # job and token of sites that have it
        self.lacking: set[tuple[str, str]] = set()  # and of those that did not at the last look
        self.ended = threading.Event()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            threading.Thread(target=self._watch, args=[fl_ctx.get_engine()], daemon=True).start()
        elif event_type == EventType.SYSTEM_END:
            self.ended.set()

    def _watch(self, engine: Any) -> None:
        while not self.ended.wait(EVERY):
            running = dict(engine.job_runner.running_jobs)
            self.settled = {pair for pair in self.settled if pair[0] in running}
            self.lacking = {pair for pair in self.lacking if pair[0] in running}
            for job_id, job in running.items():
                began_with = engine.run_processes.get(job_id, {}).get(RunProcessKey.PARTICIPANTS)
                if began_with is None:
                    continue
                for client in engine.get_clients():
                    if client.token not in began_with and (job_id, client.token) not in self.settled:
                        self._look_at(engine, job, client)

    def _look_at(self, engine: Any, job: Any, client: Any) -> None:
        pair = (job.job_id, client.token)
        try:
            if _runs(engine, job.job_id, client):
                self.settled.add(pair)
            elif pair not in self.lacking:
                self.lacking.add(pair)  # it may be about to rejoin by itself
            else:
                with engine.new_context() as fl_ctx:
                    _give(engine, job, client, fl_ctx)
                self.logger.info(f"{client.name} joined job {job.job_id} late")
        except Exception as error:  # it may have gone again: the next look will tell
            self.logger.warning(f"{client.name} could not join job {job.job_id} yet: {error}")


def _runs(engine: Any, job_id: str, client: Any) -> bool:
    status = json.loads(_asked(engine, client, Message(topic=TrainingTopic.CHECK_STATUS, body="")))
    return job_id in [job[ClientStatusKey.JOB_ID] for job in status[ClientStatusKey.RUNNING_JOBS]]


def _give(engine: Any, job: Any, client: Any, fl_ctx: FLContext) -> None:
    """Deploy a running job to one more site and start it there, as the engine does for all when it begins."""
    enough, token = engine.check_client_resources(job, {client.name: {}}, fl_ctx)[client.name]
    if not enough:
        raise RuntimeError("it does not answer")
    [app] = job.get_deployment()
    data = job.get_application(app, fl_ctx)
    _asked(engine, client, engine.job_runner._make_deploy_message(job, data, app, fl_ctx))
    engine.start_client_job(job, {client.name: DispatchInfo(app, {}, token)}, fl_ctx)


def _asked(engine: Any, client: Any, message: Message) -> Any:
    admin = engine.server.admin_server
    replies = admin.send_requests_and_get_reply_dict({client.token: message}, timeout_secs=admin.timeout)
    reply = replies.get(client.token)
    if reply is None or reply.get_header(MsgHeader.RETURN_CODE, ReturnCode.OK) != ReturnCode.OK:
        raise RuntimeError(f"it refused ({reply.body})" if reply else "it does not answer")
    return reply.body
