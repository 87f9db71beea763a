"""Part of the server's parent process, which routes every message between the parties.

It does not load PyTorch, and neither does anything else in that process.
"""

from __future__ import annotations

import logging
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message

CHANNEL = "cnfgnn"  # the engine's channel that our requests use
ONLY_THE_SERVER = "only the server of the job may send requests"


class MessageGuard(FLComponent):  # type: ignore[misc]
    """Keeps sites from sending requests in the server's name or to each other."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            reject_requests_of_sites(fl_ctx.get_engine().server.cell.core_cell)


def reject_requests_of_sites(cell: Any) -> None:
    """At the server, where all connections end: forward only requests that its own jobs send.

    A sender can write any origin into a message. The engine compares it with the sender's token, but not if
    it no longer knows the token. The connection cannot be forged: its certificate names the sender.
    """

    def checked(message: Message) -> Message | None:
        if message.get_header(MessageHeaderKey.CHANNEL) != CHANNEL:
            return None
        sender = message.get_prop(MessagePropKey.ENDPOINT).name
        if FQCN.get_root(sender) == FQCN.ROOT_SERVER:
            return None
        origin = message.get_header(MessageHeaderKey.ORIGIN)
        logging.getLogger(__name__).warning(
            "rejected a request that %s sent in the name of %s", sender, origin
        )
        return make_reply(ReturnCode.AUTHENTICATION_ERROR, ONLY_THE_SERVER)

    # The engine calls it after its own checks and before it forwards a message.
    cell.set_message_interceptor(checked)
