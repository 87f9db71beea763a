"""Checks every message of the engine where it arrives, in each of its processes, before the engine sees it.

Components of every kit install this while the engine reads its configuration, so before there is a
connection. It does not load PyTorch, and neither does anything else in a parent process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType, ReturnCode, ReturnReason
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager, NullConnection
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.fuel.f3.stats_pool import CounterPool, HistPool
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, StreamHeaderKey

from cnfgnn.federation.engine.guard import contents
from cnfgnn.federation.engine.guard.allowed import SERVER, party, printable, refusal
from cnfgnn.federation.engine.guard.handshake import peer_certificate, role
from cnfgnn.federation.engine.repairs.repetitions import leave_out_repetitions
from cnfgnn.federation.kits.engine_files import OPERATOR
from cnfgnn.federation.kits.refusals import MOST_REFUSALS, record_refusal

REFUSED = "refused"  # all that the sender of a request is told
ALL_POWERFUL = "super"  # the role that the engine lets do everything
# A sender may offer an address to connect to directly, or say that a message was too large for it, which ends
# a server's job. No task needs either.
NOT_TAKEN = (MessageHeaderKey.CONN_URL, StreamHeaderKey.ERROR_TYPE)
# The engine counts messages by what their senders say of them, and keeps every such name.
MOST_COUNTED, LONGEST_COUNTED, NOT_COUNTED = 500, 200, "others"

_process_message = CoreCell.process_message
_update_endpoint = ConnManager.update_endpoint
_record_value = HistPool.record_value
_increment = CounterPool.increment
_recorded: dict[str, set[str]] = {}  # what was refused to each party
log = logging.getLogger(__name__)


def install() -> None:
    """Have every message and every connection of this process checked from now on, and its log kept short."""
    CoreCell.process_message = _process_if_allowed
    ConnManager.update_endpoint = _connect_if_allowed
    HistPool.record_value = _record_value_if_room
    CounterPool.increment = _increment_if_room
    contents.install()
    leave_out_repetitions()  # a peer may cause lines, too


def record(who: str, what: str) -> None:
    """Log a refusal, and record it for the kit's owner: once, however often it is tried."""
    of_party = _recorded.setdefault(who, set())
    if what not in of_party and len(of_party) < MOST_REFUSALS:
        of_party.add(what)
        log.warning("refused %s: %s", who, what)
        record_refusal(Path.cwd(), who, what)  # the engine's processes run in the kit's folder


def _process_if_allowed(
    cell: CoreCell, endpoint: Endpoint, connection: Any, app_id: int, message: Message
) -> None:
    server, certificate = cell.identity_resolver.resolve(SERVER), _certificate_name(cell, connection)
    headers = message.headers if isinstance(message.headers, dict) else {}
    try:
        problem = refusal(cell.my_info.fqcn, server, certificate, headers)
    except Exception as error:  # whatever the headers hold, it is nothing that a task sends
        problem = f"its headers are damaged ({type(error).__name__})"
    if not problem:
        for key in NOT_TAKEN:
            message.remove_header(key)
        _process_message(cell, endpoint, connection, app_id, message)
        return
    record(printable(party(server, certificate)), f"{problem} ({_subject(headers)})")
    try:
        _answer(cell, endpoint, message)
    except Exception as error:  # the sender gets no answer
        log.debug("no answer to a refused message: %s", error)


def _record_value_if_room(pool: HistPool, category: str, value: float) -> None:
    _record_value(pool, _counted(category, pool.cat_bins), value)


def _increment_if_room(pool: CounterPool, category: str, counter_name: str, amount: int = 1) -> None:
    _increment(pool, _counted(category, pool.cat_counters), counter_name, amount)


def _counted(category: str, known: Mapping[str, Any]) -> str:
    """The name under which a message is counted: its own as long as there is room for it."""
    room = len(known) < MOST_COUNTED and len(category) <= LONGEST_COUNTED
    return category if room or category in known else NOT_COUNTED


def _certificate_name(cell: CoreCell, connection: Any) -> str:
    """The name in the certificate of the other end; a process may also send messages to itself."""
    if connection is None or isinstance(connection, NullConnection):
        return str(cell.identity_resolver.resolve(cell.my_info.root))
    return str(connection.get_conn_properties().get(DriverParams.PEER_CN.value) or "")


def _subject(headers: dict[str, Any]) -> str:
    """What a message is about, for a log."""
    channel, topic = headers.get(MessageHeaderKey.CHANNEL), headers.get(MessageHeaderKey.TOPIC)
    if channel == STREAM_CHANNEL:
        channel, topic = headers.get(StreamHeaderKey.CHANNEL), headers.get(StreamHeaderKey.TOPIC)
    return f"{printable(channel)}: {printable(topic)}"


def _answer(cell: CoreCell, endpoint: Endpoint, message: Message) -> None:
    """Tell the sender of a request that it was refused, as the engine itself would."""
    if message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
        return
    if not message.get_header(MessageHeaderKey.REPLY_EXPECTED):
        return
    reply = make_reply(ReturnCode.AUTHENTICATION_ERROR, REFUSED)
    reply.add_headers(
        {
            MessageHeaderKey.ORIGINAL_HEADERS: message.headers,
            MessageHeaderKey.FROM_CELL: cell.my_info.fqcn,
            MessageHeaderKey.TO_CELL: endpoint.name,
            MessageHeaderKey.ORIGIN: cell.my_info.fqcn,
            MessageHeaderKey.DESTINATION: message.get_header(MessageHeaderKey.ORIGIN),
            MessageHeaderKey.REQ_ID: [message.get_header(MessageHeaderKey.REQ_ID, "")],
            MessageHeaderKey.MSG_TYPE: MessageType.RETURN,
            MessageHeaderKey.ROUTE: [(cell.my_info.fqcn, time.time())],
            MessageHeaderKey.RETURN_REASON: ReturnReason.INTERCEPT,
        }
    )
    cell._send_reply(reply, endpoint)


def _connect_if_allowed(manager: ConnManager, connection: Any, hello: dict[str, Any]) -> None:
    """Close a connection of a party that has no business here, or whose name is not its certificate's."""
    properties = connection.conn.get_conn_properties()
    certificate = str(properties.get(DriverParams.PEER_CN.value) or "")
    own = FQCN.get_root(manager.local_endpoint.name)
    server = manager.identity_resolver.resolve(SERVER)
    peer = party(server, certificate)
    name = str(hello.get(HandshakeKeys.ENDPOINT_NAME))
    problem = ""
    if role(peer_certificate(connection.conn)) == ALL_POWERFUL:
        problem = f"its certificate has the role {ALL_POWERFUL}"
    elif own != SERVER and peer not in (SERVER, own):
        problem = "sites do not talk to each other"
    elif peer != OPERATOR and FQCN.get_root(name) != peer:
        problem = f"it claims to be {printable(FQCN.get_root(name))}"
    if problem:
        record(printable(peer), f"{problem} (a connection)")
        connection.conn.close()
        raise CommError(CommError.BAD_DATA, problem)
    _update_endpoint(manager, connection, hello)
