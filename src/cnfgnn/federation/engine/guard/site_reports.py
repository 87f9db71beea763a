"""What sites tell the server: each speaks for itself only, and cannot end a task for the others.

For the engine, a site that cannot begin ends the task, and an answer to a command that is none keeps every
task from beginning. Here such a site has not answered: the others begin, and it may join late. A site also
says at its login where in a tree of sites it stands, which ends every task if two stand in the same place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import Message as Answer
from nvflare.private.admin_defs import MsgHeader
from nvflare.private.admin_defs import ReturnCode as Outcome
from nvflare.private.defs import ERROR_MSG_PREFIX, ClientRegMsgKey, JobFailureMsgKey, TrainingTopic
from nvflare.private.fed.server.admin import FedAdminServer
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.scheduler_constants import ShareableHeader

from cnfgnn.federation.engine.guard.allowed import printable
from cnfgnn.federation.engine.guard.message_checks import REFUSED, record
from cnfgnn.federation.kits.engine_files import OPERATOR

CONFIGURED_WITHIN = 30.0  # seconds from the first message on

Handler = Callable[[Any, Message], Message]

_register_client: Handler = FederatedServer.register_client
_client_heartbeat: Handler = FederatedServer.client_heartbeat
_process_job_failure: Handler = FederatedServer.process_job_failure
_send_requests: Callable[..., list[Any]] = FedAdminServer.send_requests
_get_id_asserter: Callable[[Any], Any] = FederatedServer._get_id_asserter
_configured = threading.Event()


def install() -> None:
    """Have logins, heartbeats, reports of failures and answers to commands checked from now on."""
    FederatedServer.register_client = _in_own_name(_register_client)
    FederatedServer.client_heartbeat = _in_own_name(_client_heartbeat)
    FederatedServer.process_job_failure = _keep_task
    FederatedServer._get_id_asserter = _get_id_asserter_once_configured
    FedAdminServer.send_requests = _with_usable_answers


def _get_id_asserter_once_configured(server: FederatedServer) -> Any:
    """Have the first messages wait until the server knows its own certificate.

    The engine listens a moment before that. A site that logs in then would be refused for good, and the
    server would sign all its messages with nothing, so that its operator could not log in any more.
    """
    until = time.monotonic() + CONFIGURED_WITHIN
    while not _configured.is_set():
        with server.engine.new_context() as fl_ctx:
            if fl_ctx.get_prop(FLContextKey.SECURE_MODE) is not None or time.monotonic() > until:
                _configured.set()
        _configured.wait(0.02)
    return _get_id_asserter(server)


def _in_own_name(handle: Handler) -> Handler:
    """A handler of the engine's for messages that name nobody but their sender."""

    def checked(server: FederatedServer, request: Message) -> Message:
        sender, payload = request.get_prop(MessagePropKey.COMMON_NAME), request.payload
        peer = payload.get_peer_context() if hasattr(payload, "get_peer_context") else None
        named = peer.get_identity_name(default=sender) if peer is not None else sender
        if sender == OPERATOR or named == sender:
            _put_in_its_place(payload, peer, sender)
            return handle(server, request)
        record(printable(sender), f"a login or heartbeat in the name of {printable(named)}")
        return make_reply(ReturnCode.AUTHENTICATION_ERROR, REFUSED)

    return checked


def _put_in_its_place(payload: Any, peer: Any, sender: str) -> None:
    """Our sites stand beside each other, and the settings of one are not told to the others."""
    if peer is not None:
        peer.put(ReservedKey.FQSN, sender, private=False, sticky=False)
        peer.put(ReservedKey.IS_LEAF, True, private=False, sticky=False)
    if isinstance(payload, dict):
        payload.pop(ClientRegMsgKey.SITE_CONFIG, None)


def _keep_task(server: FederatedServer, request: Message) -> Message:
    """A site whose part of a task failed has left the task: the engine would end it for all sites."""
    if isinstance(request.payload, dict) and request.payload.get(JobFailureMsgKey.CODE):
        site = printable(request.get_header(MessageHeaderKey.ORIGIN))
        reason = printable(request.payload.get(JobFailureMsgKey.REASON))
        server.logger.warning(f"site {site} has ended its part of a task: {reason}")
        request.payload[JobFailureMsgKey.CODE] = 0
    return _process_job_failure(server, request)


def _with_usable_answers(server: FedAdminServer, *args: Any, **named: Any) -> list[Any]:
    replies = _send_requests(server, *args, **named)
    for reply in replies:
        answer = reply.reply
        reply.reply = usable(getattr(reply.request, "topic", ""), answer)
        if answer is not None and reply.reply is None:
            server.logger.warning(
                f"site {printable(reply.client_name)} did not do as asked ({reply.request.topic}): "
                f"{printable(getattr(answer, 'body', answer))}"
            )
    return replies


def usable(asked: str, answer: Any) -> Answer | None:
    """The answer of a site to a command if the engine can go on with it; None otherwise."""
    if not isinstance(answer, Answer):
        return None
    held = vars(answer)  # its sender says what it holds, even in place of its methods
    body, headers = held.get("body"), held.get("headers")
    if not isinstance(headers, dict):
        return None
    refused = headers.get(MsgHeader.RETURN_CODE, Outcome.OK) != Outcome.OK
    if asked == TrainingTopic.START_JOB and (refused or str(body).startswith(ERROR_MSG_PREFIX)):
        return None
    if asked == TrainingTopic.CHECK_RESOURCE and not refused and not _tells_resources(body):
        return None
    usual = Answer(str(held.get("topic")), str(body) if refused else body)
    usual.headers = headers
    return usual


def _tells_resources(body: Any) -> bool:
    headers = body.get(ReservedHeaderKey.HEADERS) if isinstance(body, Shareable) else None
    if not isinstance(headers, dict):
        return False
    enough = headers.get(ShareableHeader.IS_RESOURCE_ENOUGH)
    return isinstance(enough, bool) and isinstance(headers.get(ShareableHeader.RESOURCE_RESERVE_TOKEN), str)
