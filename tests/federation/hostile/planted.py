"""Code that a test plants in every process of the engine, as a hostile party would, with a look inside.

Each process listens on a Unix socket of its own, named after it. A test asks it what the engine would answer
in this process, to send a message with any headers, and which handlers have run. It is loaded before the
engine, so the guards come on top of it.

At a site the engine is confined and can open no Unix socket. Its parent process therefore opens one for
itself and one for its job before that: what is open stays open.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cnfgnn.federation.engine import confine as wall
from cnfgnn.federation.kits.engine_files import SITE_PROGRAM

JOB = "job"  # the name of a job's socket is that of its parent with this ending
JOBS_SOCKET = "CNFGNN_TESTS_SOCKET"  # environment variable of a site's job: the file descriptor of its socket
ATTACK = "cnfgnn_attack"  # a header that every attack has, whatever else it claims
ENGINE = "nvflare.private.fed.app."
handled: list[tuple[str, str, bool]] = []  # the kind of handler, what it was asked, whether by an attack
frames = {"processed": 0}
Content = tuple[Any, ...]  # see `_made`


def plant(folder: str, guarded: bool, walled: bool) -> None:
    """To be called when Python starts, in whichever process; the sockets are in the folder."""
    if SITE_PROGRAM in sys.orig_argv:
        name = Path(sys.orig_argv[-1]).parent.name  # its kit's
        ours, of_job = _listen(Path(folder) / name), _listen(Path(folder) / f"{name}.{JOB}")
        os.environ[JOBS_SOCKET] = str(of_job.fileno())

        def begin() -> None:
            of_job.set_inheritable(True)  # not before: the engine closes what it has inherited
            _begin(lambda cell: ours, guarded)

        after_confinement(walled, begin)
    elif _at_a_site():
        inherited = int(os.environ[JOBS_SOCKET])
        _begin(lambda cell: socket.socket(fileno=inherited), guarded)
    elif any(word.startswith(ENGINE) for word in sys.orig_argv):
        _begin(lambda cell: _listen(Path(folder) / _name(cell)), guarded)


def after_confinement(walled: bool, then: Callable[[], None]) -> None:
    """Run something as soon as this process is confined, before it loads the engine; without the wall, it
    only says that it is."""
    real = wall.confine

    def confine(limits: wall.Limits) -> wall.Confinement:
        nothing = wall.Confinement(
            landlock=0,
            user="root",
            other_user=False,
            capabilities_dropped=False,
            no_new_privileges=False,
            seccomp=False,
        )
        report = real(limits) if walled else nothing
        then()  # a process with threads cannot be confined
        return report

    wall.confine = confine


def _begin(listener: Callable[[Any], socket.socket], guarded: bool) -> None:
    if not guarded:
        _leave_doors_open()
    _note_handlers()
    threading.Thread(target=_serve, args=[listener], daemon=True).start()


def _leave_doors_open() -> None:
    from cnfgnn.federation.engine.guard import message_checks, site_commands

    message_checks.install = site_commands.install = lambda: None
    if not _at_a_site():
        from cnfgnn.federation.engine.guard import site_reports

        site_reports.install = lambda: None


def _at_a_site() -> bool:
    return any(word.startswith((f"{ENGINE}client", SITE_PROGRAM)) for word in sys.orig_argv)


# ---- which handlers run ------------------------------------------------------------------------------


def _note_handlers() -> None:
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.sfm.conn_manager import ConnManager
    from nvflare.fuel.f3.streaming.byte_receiver import ByteReceiver
    from nvflare.private.aux_runner import AuxRunner
    from nvflare.private.fed.client.admin import FedAdminAgent

    def noting(kind: str, handler: Callable[..., Any], what: Callable[..., tuple[str, bool]]) -> Any:
        def noted(*args: Any, **named: Any) -> Any:
            handled.append((kind, *what(*args, **named)))
            return handler(*args, **named)

        noted.__name__ = getattr(handler, "__name__", kind)
        return noted

    def of_message(message: Any, *rest: Any, **named: Any) -> tuple[str, bool]:
        get = message.get_header
        return f"{get('cn__channel')}:{get('cn__topic')}", bool(get(ATTACK))

    def of_stream(future: Any, *rest: Any, **named: Any) -> tuple[str, bool]:
        get = future.headers.get
        return f"{get('sm__ch')}:{get('sm__tp')}", bool(get(ATTACK))

    register, register_stream = CoreCell.register_request_cb, ByteReceiver.register_callback
    register_aux = AuxRunner.register_aux_message_handler
    register_processor, process = FedAdminAgent.register_processor, ConnManager.process_frame_task

    def register_request_cb(cell: Any, channel: str, topic: str, cb: Any, *args: Any, **named: Any) -> None:
        register(cell, channel, topic, noting("request", cb, of_message), *args, **named)

    def register_callback(receiver: Any, channel: str, topic: str, cb: Any, *args: Any, **named: Any) -> None:
        register_stream(receiver, channel, topic, noting("stream", cb, of_stream), *args, **named)

    def register_aux_message_handler(runner: Any, topic: str, message_handle_func: Any) -> None:
        noted = noting("aux", message_handle_func, lambda *args, **named: (topic, False))
        register_aux(runner, topic, noted)
        AUX_RUNNERS.append(runner)

    def register_one(agent: Any, processor: Any) -> None:
        processor.process = noting(
            "command", processor.process, lambda request, engine: (request.topic, False)
        )
        register_processor(agent, processor)

    def process_frame_task(manager: Any, connection: Any, frame: Any) -> None:
        process(manager, connection, frame)
        frames["processed"] += 1

    CoreCell.register_request_cb = register_request_cb
    ByteReceiver.register_callback = register_callback
    AuxRunner.register_aux_message_handler = register_aux_message_handler
    FedAdminAgent.register_processor = register_one
    ConnManager.process_frame_task = process_frame_task


AUX_RUNNERS: list[Any] = []


# ---- what a test asks --------------------------------------------------------------------------------


def _serve(listening: Callable[[Any], socket.socket]) -> None:
    cell = _cell()
    with listening(cell) as listener:
        while True:
            accepted, _ = listener.accept()
            connection = Connection(accepted.detach())
            threading.Thread(target=_answer, args=[connection, cell], daemon=True).start()


def _listen(place: Path) -> socket.socket:
    place.unlink(missing_ok=True)  # of a process before this one
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place))
    listener.listen()
    return listener


def _name(cell: Any) -> str:
    parent, dot, _ = cell.my_info.fqcn.partition(".")
    return parent + (dot and f".{JOB}")


def _cell() -> Any:
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell

    while not (cells := list(CoreCell.ALL_CELLS.values())):
        time.sleep(0.02)
    return cells[0]


def _answer(connection: Connection, cell: Any) -> None:
    with connection:
        question, *args = connection.recv()
        try:
            connection.send(QUESTIONS[question](cell, *args))
        except Exception:
            connection.send(RuntimeError(traceback.format_exc()))


def _inventory(cell: Any) -> dict[str, list[str]]:
    """Everything that the engine answers in this process, by the way that it is asked."""
    from nvflare.private.fed.client.admin_commands import AdminCommands
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
    from nvflare.private.fed.server.server_commands import ServerCommands

    at_site, job = _at_a_site(), "." in cell.my_info.fqcn
    processors = ClientRequestProcessors.request_processors if at_site and not job else []
    commands = (AdminCommands.commands if at_site else ServerCommands.commands) if job else []
    return {
        "requests": sorted(cell.req_reg.reg),
        "streams": sorted(cell.fobs_ctx["cell"].byte_receiver.registry.reg),
        "site commands": sorted(topic for one in processors for topic in one.get_topics()),
        "job commands": sorted(command.get_command_name() for command in commands),
        "aux": sorted({topic for runner in AUX_RUNNERS for topic in runner.topic_table}),
        "operator's commands": _operators_commands(),
    }


def _operators_commands() -> list[str]:
    import gc

    from nvflare.fuel.hci.server.hci import AdminServer

    servers = [one for one in gc.get_objects() if isinstance(one, AdminServer)]
    return sorted(name for server in servers if server.cmd_reg for name in server.cmd_reg.cmd_map)


def _send(cell: Any, headers: dict[str, Any], content: Content, seconds: float) -> tuple[str, Any]:
    """Send a message with any headers; returns the code and the content of the reply, if one is awaited."""
    from nvflare.fuel.f3.cellnet.core_cell import _Waiter
    from nvflare.fuel.f3.cellnet.utils import encode_payload
    from nvflare.fuel.f3.message import Message

    destination = headers["cn__destination"]
    waiter = _Waiter([destination])
    cell.waiters[waiter.id] = waiter
    usual = {
        "cn__msg_type": "req",
        "cn__req_id": waiter.id,
        "cn__reply_expected": seconds > 0,
        "cn__origin": cell.my_info.fqcn,
        "cn__from": cell.my_info.fqcn,
        "cn__route": [(cell.my_info.fqcn, time.time())],
        ATTACK: True,
    }
    message = Message(usual | {"cn__destination": destination}, _made(content))
    for installed in cell.out_req_filter_reg.find("*", "*") or []:  # the engine adds its token
        installed.cb(message, *installed.args, **installed.kwargs)
    message.add_headers(headers)
    encode_payload(message, fobs_ctx=cell.get_fobs_context())
    next_leg = cell._find_endpoint(destination, message)[1]
    if next_leg is None:
        return "no way", None
    message.set_header("cn__to", next_leg.name)
    problem = cell._send_to_endpoint(next_leg, message)
    if not problem and seconds > 0:
        waiter.wait(seconds)
    cell.waiters.pop(waiter.id, None)
    reply = waiter.received_replies.get(destination)
    if problem or reply is None:
        return str(problem) or "silence", None
    return str(reply.get_header("cn__return_code")), _shown(reply.payload)


def _send_all(cell: Any, attacks: list[tuple[dict[str, Any], Content, float]]) -> list[tuple[str, Any]]:
    return [_send(cell, *attack) for attack in attacks]


def _ask_streamed(cell: Any, headers: dict[str, str], content: Content, seconds: float) -> tuple[str, bytes]:
    """Send a request in pieces, as the engine sends those of a task; returns the reply as it arrived."""
    from nvflare.fuel.f3.cellnet import cell as streaming
    from nvflare.fuel.f3.message import Message

    received: list[bytes] = []
    decode = streaming.decode_payload

    def keep(message: Any, *args: Any, **named: Any) -> None:
        payload = message.payload
        received.append(b"".join(map(bytes, payload)) if isinstance(payload, list) else bytes(payload or b""))
        decode(message, *args, **named)

    streaming.decode_payload = keep
    try:
        reply = cell.fobs_ctx["cell"]._send_request(
            headers["cn__channel"],
            headers["cn__destination"],
            headers["cn__topic"],
            Message({ATTACK: True}, _made(content)),
            timeout=seconds,
            optional=True,
        )
        code = str(reply.get_header("cn__return_code"))
    except Exception as error:  # what came back is nothing that this process may decode
        code = str(error)
    finally:
        streaming.decode_payload = decode
    return code, b"".join(received)


def _made(content: Content) -> Any:
    """What a message carries: one of the engine's own objects, or anything else."""
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.fuel.f3.cellnet.utils import encode_payload
    from nvflare.fuel.f3.message import Message
    from nvflare.private.admin_defs import Message as Command

    kind, *parts = content
    if kind == "command":
        topic, headers, body = parts
        command = Command(topic=topic, body=body)
        command.headers.update(headers)
        return command
    if kind == "shareable":
        return Shareable(parts[0])
    if kind == "in the name of":
        peer, shareable = FLContext(), Shareable()
        peer.set_prop("__identity_name__", parts[0], private=False)
        shareable.set_peer_context(peer)
        return shareable
    if kind == "shareable with cookies":  # the receiver puts them into its reply
        shareable = Shareable()
        shareable.set_cookie_jar(parts[0])
        return shareable
    if kind == "bulk":
        target, channel, topic, inner = parts
        message = Message({}, _made(inner))
        encode_payload(message)
        packed = message.payload
        payload = b"".join(bytes(one) for one in packed) if isinstance(packed, list) else packed
        carried = {"headers": dict(message.headers), "payload": payload}
        return [{"target": target, "channel": channel, "topic": topic, "message": carried}]
    return parts[0]


def _shown(payload: Any) -> Any:
    """A reply's content, as text or bytes in which a test can search."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    if hasattr(payload, "body"):
        return repr((payload.topic, payload.headers, payload.body))
    return repr(payload)


QUESTIONS: dict[str, Callable[..., Any]] = {
    "who": lambda cell: os.getpid(),
    "inventory": _inventory,
    "handled": lambda cell: list(handled),
    "frames": lambda cell: frames["processed"],
    "peers": lambda cell: set(cell.agents),
    "send": _send_all,
    "ask streamed": _ask_streamed,
}
