"""Notes over the engine's own authenticated connections: the one place that knows its message layer.

The layer is not part of the engine's documented interface; another channel can take its place behind `ask`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message

from cnfgnn.transports.remote.messages import Unreachable

CHANNEL, TOPIC = "cnfgnn", "note"


class CellChannel:
    """From the server's job to the jobs of the sites; a `Channel`."""

    def __init__(self, cell: Any, job_id: str) -> None:
        self.cell, self.job_id = cell, job_id

    def ask(self, site: str, request: bytes, timeout: float) -> bytes | memoryview:
        target = FQCN.join([site, self.job_id])
        try:
            reply = self.cell.send_request(
                CHANNEL, TOPIC, target, Message(payload=request), timeout=timeout, optional=True
            )
        except Exception as error:  # the engine's layers raise what they like when a connection breaks
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        if code != ReturnCode.OK or not isinstance(reply.payload, bytes | bytearray | memoryview):
            raise Unreachable(str(code))
        return memoryview(reply.payload)


def serve_notes(cell: Any, job_id: str, answer: Callable[[bytes], bytes]) -> None:
    """At a site: answer notes of this job's server, and of nobody else."""
    server = FQCN.join([FQCN.ROOT_SERVER, job_id])

    def answered(message: Message) -> Message:
        if message.get_header(MessageHeaderKey.ORIGIN) != server:
            return make_reply(ReturnCode.AUTHENTICATION_ERROR, "only the server of the job may ask")
        payload = message.payload
        if not isinstance(payload, bytes | bytearray | memoryview):
            return make_reply(ReturnCode.INVALID_REQUEST, "no bytes")
        return make_reply(ReturnCode.OK, "", answer(bytes(payload)))

    cell.register_request_cb(channel=CHANNEL, topic=TOPIC, cb=answered)


def guard_notes(cell: Any) -> None:
    """At the server, where all connections end: notes that ask come from its own jobs and from no site.

    Whom a message comes from is what its sender wrote on it. The engine compares that with the sender's
    token, unless it does not know the token any more; whose a connection is it knows by certificate.
    """

    def checked(message: Message) -> Message | None:
        if message.get_header(MessageHeaderKey.CHANNEL) != CHANNEL:
            return None
        sender = message.get_prop(MessagePropKey.ENDPOINT).name
        if FQCN.get_root(sender) == FQCN.ROOT_SERVER:
            return None
        said = message.get_header(MessageHeaderKey.ORIGIN)
        logging.getLogger(__name__).warning("a note of %s, in the name of %s, is not passed on", sender, said)
        return make_reply(ReturnCode.AUTHENTICATION_ERROR, "only the server of the job may ask")

    cell.set_message_interceptor(
        checked
    )  # asked after the engine's own checks, before a message is passed on
