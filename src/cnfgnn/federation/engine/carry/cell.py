"""Requests over the engine's authenticated connections: the one module that uses its message layer.

That layer is not part of the engine's documented interface. Another channel could take its place behind
`ask`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message

from cnfgnn.federation.engine.guard.allowed import CHANNEL, TOPIC
from cnfgnn.transports.remote.messages import Buffer, Unreachable

ONLY_THE_SERVER = "only the server of the job may send requests"


class CellChannel:
    """A `Channel` from the server's job to the jobs of the sites."""

    def __init__(self, cell: Any, job_id: str) -> None:
        self.cell, self.job_id = cell, job_id

    def ask(self, site: str, request: bytes, timeout: float) -> bytes | memoryview:
        target = FQCN.join([site, self.job_id])
        try:
            reply = self.cell.send_request(
                CHANNEL, TOPIC, target, Message(payload=request), timeout=timeout, optional=True
            )
        except Exception as error:  # a broken connection raises many kinds of errors in the engine's layers
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        if code != ReturnCode.OK or not isinstance(reply.payload, bytes | bytearray | memoryview):
            raise Unreachable(str(code))
        return memoryview(reply.payload)


def serve_requests(cell: Any, job_id: str, answer: Callable[[bytes], Buffer | None]) -> None:
    """At a site: answer the requests of this job's server, and of nobody else; None is no answer."""
    server = FQCN.join([FQCN.ROOT_SERVER, job_id])

    def respond(message: Message) -> Message | None:
        if message.get_header(MessageHeaderKey.ORIGIN) != server:
            return make_reply(ReturnCode.AUTHENTICATION_ERROR, ONLY_THE_SERVER)
        payload = message.payload
        if not isinstance(payload, bytes | bytearray | memoryview):
            return make_reply(ReturnCode.INVALID_REQUEST, "the payload is not bytes")
        answered = answer(bytes(payload))
        return None if answered is None else make_reply(ReturnCode.OK, "", answered)

    cell.register_request_cb(channel=CHANNEL, topic=TOPIC, cb=respond)
