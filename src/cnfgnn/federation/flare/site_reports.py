"""What sites tell the server: each speaks for itself only, and cannot end a task for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import JobFailureMsgKey
from nvflare.private.fed.server.fed_server import FederatedServer

from cnfgnn.federation.flare.allowed import printable
from cnfgnn.federation.flare.message_checks import REFUSED, record
from cnfgnn.federation.flare.provisioning import OPERATOR

Handler = Callable[[Any, Message], Message]

_register_client: Handler = FederatedServer.register_client
_client_heartbeat: Handler = FederatedServer.client_heartbeat
_process_job_failure: Handler = FederatedServer.process_job_failure


def install() -> None:
    """Have logins, heartbeats and reports of failures checked from now on."""
    FederatedServer.register_client = _in_own_name(_register_client)
    FederatedServer.client_heartbeat = _in_own_name(_client_heartbeat)
    FederatedServer.process_job_failure = _keep_task


def _in_own_name(handle: Handler) -> Handler:
    """A handler of the engine's for messages that name nobody but their sender."""

    def checked(server: FederatedServer, request: Message) -> Message:
        sender, payload = request.get_prop(MessagePropKey.COMMON_NAME), request.payload
        peer = payload.get_peer_context() if hasattr(payload, "get_peer_context") else None
        named = peer.get_identity_name(default=sender) if peer is not None else sender
        if sender == OPERATOR or named == sender:
            return handle(server, request)
        record(printable(sender), f"a login or heartbeat in the name of {printable(named)}")
        return make_reply(ReturnCode.AUTHENTICATION_ERROR, REFUSED)

    return checked


def _keep_task(server: FederatedServer, request: Message) -> Message:
    """A site whose part of a task failed has left the task: the engine would end it for all sites."""
    if isinstance(request.payload, dict) and request.payload.get(JobFailureMsgKey.CODE):
        site = printable(request.get_header(MessageHeaderKey.ORIGIN))
        reason = printable(request.payload.get(JobFailureMsgKey.REASON))
        server.logger.warning(f"site {site} has ended its part of a task: {reason}")
        request.payload[JobFailureMsgKey.CODE] = 0
    return _process_job_failure(server, request)
