"""What one party may send another through the engine. Everything that is not listed here is refused.

The engine was made for parties that trust each other: its processes answer commands that run programs, read
files and delete folders, and its server forwards what one site sends to another. So every message is checked
where it arrives (`message_checks`): who sent it, by the certificate of the connection; for whom it is; and
whether it is one of these requests. A party's own processes, which share its certificate, are not kept apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nvflare.fuel.f3.cellnet.core_cell import _TOPIC_BULK as BULK
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamDataType,
    StreamHeaderKey,
)
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name
from nvflare.private.defs import CellMessageHeaderKeys

from cnfgnn.federation.kits.engine_files import LARGEST_STREAM, OPERATOR, TASK_ID

CHANNEL, TOPIC = "cnfgnn", "request"  # of our own requests
SERVER, SITE, SERVER_JOB, SITE_JOB = "server", "site", "server's job", "site's job"  # the kinds of processes
COMMANDS, AUX, TASK = CellChannel.CLIENT_MAIN, CellChannel.AUX_COMMUNICATION, CellChannel.SERVER_MAIN
STATUS_OF_JOB = "train.notify_job_status"
MESSAGE_KINDS = (MessageType.REQ, MessageType.REPLY, MessageType.RETURN)


class Door(NamedTuple):
    """A request that another party may send, and why it must be able to."""

    channel: str
    topic: str
    reason: str
    streamed: bool = False


_GOODBYE = Door(CellChannel.CELLNET, CellChannelTopic.Bye, "a process that ends says so to the one it used")
_PIECES = (
    Door(STREAM_CHANNEL, STREAM_ACK_TOPIC, "confirms pieces of a streamed message"),
    Door(STREAM_CHANNEL, STREAM_ERROR_TOPIC, "says that a streamed message has no receiver"),
)

FROM_SERVER: Mapping[str, tuple[Door, ...]] = {
    SITE: (
        Door(COMMANDS, "admin", "starts and ends tasks; see `site_commands` for the commands themselves"),
        _GOODBYE,
    ),
    SITE_JOB: (
        Door(CHANNEL, TOPIC, "the requests of a task, which are checked by transports/remote"),
        Door(AUX, "__end_run__", "tells a task's process that the task is over", streamed=True),
        *_PIECES,
        _GOODBYE,
    ),
}
FROM_SITE: Mapping[str, tuple[Door, ...]] = {
    SERVER: (
        Door(TASK, CellChannelTopic.Challenge, "the first step of a login"),
        Door(TASK, CellChannelTopic.Register, "the second step, with proof of the site's key"),
        Door(TASK, CellChannelTopic.HEART_BEAT, "shows that the site is there"),
        Door(TASK, CellChannelTopic.REPORT_JOB_FAILURE, "says that the site's part of a task has ended"),
        _GOODBYE,
    ),
    SERVER_JOB: (
        Door(AUX, "__sync_runner__", "a task's process at a site says that it is there", streamed=True),
        Door(AUX, "__job_heartbeat__", "and that it still is", streamed=True),
        *_PIECES,
        _GOODBYE,
    ),
}
# If a task's process reaches the server before its own parent, the engine sends this by way of the server.
FROM_ITSELF: Mapping[str, tuple[Door, ...]] = {
    SITE: (Door(COMMANDS, STATUS_OF_JOB, "a task's process tells its parent how it is"),)
}


def refusal(here: str, server: str, certificate: str, headers: Mapping[str, Any]) -> str:
    """Why a message is refused; empty if it may pass.

    here         the name of the process that received it, such as `north` or `server.JOB`
    server       the name in the server's certificate
    certificate  the name in the certificate of the connection
    headers      those of the message, which its sender may have made up
    """
    origin, destination = headers.get(MessageHeaderKey.ORIGIN), headers.get(MessageHeaderKey.DESTINATION)
    if not isinstance(origin, str) or not isinstance(destination, str):
        return "it does not say where it is from or for whom"
    kind = headers.get(MessageHeaderKey.MSG_TYPE)
    if kind not in MESSAGE_KINDS:
        return "it is neither a request nor a reply"
    channel, topic = headers.get(MessageHeaderKey.CHANNEL), headers.get(MessageHeaderKey.TOPIC)
    if kind == MessageType.REQ and (channel, topic) == (CellChannel.CELLNET, BULK):
        return "several messages in one are not allowed"
    own, claimed = FQCN.get_root(here), FQCN.get_root(origin)
    sender = party(server, certificate)
    if sender == own and claimed == own:
        reaches = own == SERVER or FQCN.get_root(destination) in (own, SERVER)
        return "" if reaches else "it is for another site"
    if sender == own:  # passed on by our own process: judge by its origin, which that process has checked
        sender = claimed
    problem = _address_problem(own, sender, origin, destination)
    if problem or sender == OPERATOR or kind == MessageType.REPLY:
        return problem
    if kind == MessageType.RETURN:
        return _return_problem(own, sender, headers)
    return _request_problem(own, sender, claimed, destination, headers)


def _address_problem(own: str, sender: str, origin: str, destination: str) -> str:
    """What is wrong with where a message of another party is from, or where it should go."""
    claimed, target = FQCN.get_root(origin), FQCN.get_root(destination)
    if sender == OPERATOR:
        allowed = own == destination == SERVER and is_valid_admin_client_name(origin)
        return "" if allowed else "the operator's commands are for the server"
    if own != SERVER:
        if sender != SERVER:
            return "sites do not talk to each other"
        return "" if target == own and claimed in (SERVER, own) else "it is from or for another party"
    if claimed != sender:
        return f"it claims to be from {printable(claimed)}"
    return "" if target in (SERVER, sender) else "sites do not talk to each other"


def _return_problem(own: str, sender: str, headers: Mapping[str, Any]) -> str:
    """What is wrong with a request that came back, which says by itself to whom it was sent.

    The engine asks all sites under one number: a site could answer for another one.
    """
    original = headers.get(MessageHeaderKey.ORIGINAL_HEADERS)
    asked = original.get(MessageHeaderKey.DESTINATION) if isinstance(original, dict) else None
    if not isinstance(asked, str):
        return "it does not say to whom it was sent"
    return "" if own != SERVER or FQCN.get_root(asked) == sender else "it was sent to another site"


def _request_problem(
    own: str, sender: str, claimed: str, destination: str, headers: Mapping[str, Any]
) -> str:
    receiver = kind_of(destination)
    if receiver is None:
        return "it is for a process that does not exist"
    if headers.get(MessageHeaderKey.SECURE) or headers.get(MessageHeaderKey.ENCRYPTED):
        return "encryption inside a connection is not used"
    name = headers.get(CellMessageHeaderKeys.CLIENT_NAME)
    if own == SERVER and name not in (None, sender):
        return f"it claims to be from {printable(name)}"
    if claimed == FQCN.get_root(destination):
        doors = FROM_ITSELF.get(receiver, ())
    else:
        doors = (FROM_SERVER if sender == SERVER else FROM_SITE).get(receiver, ())
    return "" if _is_open(doors, receiver, headers) else "no task needs it"


def _is_open(doors: tuple[Door, ...], receiver: str, headers: Mapping[str, Any]) -> bool:
    channel, topic = headers.get(MessageHeaderKey.CHANNEL), headers.get(MessageHeaderKey.TOPIC)
    if (channel, topic) != (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        return any((channel, topic) == (door.channel, door.topic) and not door.streamed for door in doors)
    size = headers.get(StreamHeaderKey.SIZE, 0)
    if not doors or type(size) is not int or not 0 <= size <= LARGEST_STREAM or not _is_whole(headers):
        return False
    channel, topic = headers.get(StreamHeaderKey.CHANNEL), headers.get(StreamHeaderKey.TOPIC)
    if channel == CellChannel.RETURN_ONLY:  # the answer to a streamed request in the other direction
        asked = {SITE_JOB: FROM_SITE[SERVER_JOB], SERVER_JOB: FROM_SERVER[SITE_JOB]}.get(receiver, ())
        return any(topic == f"{door.channel}:{door.topic}" and door.streamed for door in asked)
    return any((channel, topic) == (door.channel, door.topic) and door.streamed for door in doors)


def party(server: str, certificate: str) -> str:
    """Who holds a certificate with this name: the server, or a site of the same name. Nobody else is called
    `server`, whatever name a certificate has."""
    if certificate == server:
        return SERVER
    return "" if certificate == SERVER else certificate


def _is_whole(headers: Mapping[str, Any]) -> bool:
    """Whether it is in one piece: until the last one has come, its receiver has a thread wait for it."""
    kind, number = headers.get(StreamHeaderKey.DATA_TYPE), headers.get(StreamHeaderKey.SEQUENCE)
    given_up = headers.get(StreamHeaderKey.ERROR_MSG)  # its receiver forgets what it has of it
    return (type(number) is int and number == 0 and kind == StreamDataType.FINAL) or bool(given_up)


def kind_of(process: str) -> str | None:
    """Which of the four kinds of processes this is the name of; None if of none."""
    root, *job = FQCN.split(process)
    if not job:
        return SERVER if root == SERVER else SITE
    if len(job) > 1 or not TASK_ID.fullmatch(job[0]):
        return None
    return SERVER_JOB if root == SERVER else SITE_JOB


def printable(text: object) -> str:
    """A text from outside, for a log: short and on one line."""
    shown = str(text)[:80]
    return shown if shown.isprintable() else ascii(shown)
