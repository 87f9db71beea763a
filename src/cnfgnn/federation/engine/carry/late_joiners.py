"""Part of the server's parent process: deploys a running job to sites that connect after it began.

The engine itself deploys a job once, when it starts.
"""

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

CHECK_INTERVAL = 2.0  # seconds


class LateJoiners(FLComponent):  # type: ignore[misc]
    """Checks regularly whether a connected site lacks a running job.

    A site gets a new token each time it registers. A site whose token did not take part when the job began is
    asked which jobs it runs. After a restart it runs none, and the job is deployed to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.joined: set[tuple[str, str]] = set()  # job and token of late sites that run the job
        self.ended = threading.Event()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            threading.Thread(target=self._watch, args=[fl_ctx.get_engine()], daemon=True).start()
        elif event_type == EventType.SYSTEM_END:
            self.ended.set()

    def _watch(self, engine: Any) -> None:
        while not self.ended.wait(CHECK_INTERVAL):
            running = dict(engine.job_runner.running_jobs)
            self.joined = {pair for pair in self.joined if pair[0] in running}
            for job_id, job in running.items():
                participants = engine.run_processes.get(job_id, {}).get(RunProcessKey.PARTICIPANTS)
                if participants is None:
                    continue
                for client in engine.get_clients():
                    if client.token not in participants and (job_id, client.token) not in self.joined:
                        self._check(engine, job, client)

    def _check(self, engine: Any, job: Any, client: Any) -> None:
        pair = (job.job_id, client.token)
        try:
            if _runs_job(engine, job.job_id, client):
                self.joined.add(pair)
            else:
                with engine.new_context() as fl_ctx:
                    _deploy(engine, job, client, fl_ctx)
                self.logger.info(f"site {client.name} joined job {job.job_id} late")
        except Exception as error:  # it may have disconnected again: the next check will tell
            self.logger.warning(f"site {client.name} could not join job {job.job_id} yet: {error}")


def _runs_job(engine: Any, job_id: str, client: Any) -> bool:
    status = json.loads(_request(engine, client, Message(topic=TrainingTopic.CHECK_STATUS, body="")))
    return job_id in [job[ClientStatusKey.JOB_ID] for job in status[ClientStatusKey.RUNNING_JOBS]]


def _deploy(engine: Any, job: Any, client: Any, fl_ctx: FLContext) -> None:
    """Deploy a running job to one more site and start it there, as the engine does for all at the start."""
    has_resources, token = engine.check_client_resources(job, {client.name: {}}, fl_ctx)[client.name]
    if not has_resources:
        raise RuntimeError("the site does not answer")
    [app] = job.get_deployment()
    data = job.get_application(app, fl_ctx)
    _request(engine, client, engine.job_runner._make_deploy_message(job, data, app, fl_ctx))
    engine.start_client_job(job, {client.name: DispatchInfo(app, {}, token)}, fl_ctx)


def _request(engine: Any, client: Any, message: Message) -> Any:
    admin = engine.server.admin_server
    replies = admin.send_requests_and_get_reply_dict({client.token: message}, timeout_secs=admin.timeout)
    reply = replies.get(client.token)
    if reply is None:
        raise RuntimeError("the site does not answer")
    if reply.get_header(MsgHeader.RETURN_CODE, ReturnCode.OK) != ReturnCode.OK:
        raise RuntimeError(f"the site refused ({reply.body})")
    return reply.body
