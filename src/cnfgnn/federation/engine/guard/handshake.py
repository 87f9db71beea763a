"""A site asks the server for its connection status over the port that sites connect to, without joining.

The engine begins each connection with a frame that names the party (HELLO), and the other side answers with
its name and its clock (READY). A site that asks adds the key `STATUS_REQUEST`. The server's admission control
answers with what it knows of this site and closes the connection.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from cnfgnn.errors import DataError, RunError
from cnfgnn.federation.kits.engine_files import read_startup
from cnfgnn.federation.objections import OBJECTIONS
from cnfgnn.transports.remote.limits import MOST_CLOCK_DIFFERENCE
from cnfgnn.transports.remote.messages import legible
from cnfgnn.version import __version__

ANSWERS_WITHIN = 5.0  # seconds
ATTEMPTS, RETRY_AFTER = 3, 0.5  # attempts at a TLS handshake that breaks off, and seconds between them
COPY_WARNING_LASTS = 86_400.0  # seconds in which the owner is warned about a copy of the kit
HAS_EXPIRED = 10  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED
LONGEST_ANSWER = 1 << 16  # bytes
STATUS_REQUEST, CONNECTION_STATUS = "cnfgnn_status_request", "cnfgnn_connection_status"
SITE_PROCESS = "cnfgnn_process"  # the property that identifies a site's process in its heartbeats
CODES = tuple(OBJECTIONS)  # compared one by one: a server may send what cannot be a key
PROBE_PREFIX = "status-"  # begins the last part of the name under which a site asks


@dataclass(frozen=True)
class ServerAnswer:
    """What the server answers: its name, its clock, and how it sees this site's connection."""

    server: str
    address: str
    clock_ahead: float  # seconds by which the server's clock is ahead of ours
    # Empty from a server without admission control.
    connection: Mapping[str, Any] = field(default_factory=dict)


def ask_server(kit: Path, process: str = "") -> ServerAnswer:
    """Ask the server of a site's kit; `process` identifies the site's running process to the server."""
    site, host, port = _addresses(kit)
    context = _tls_context(kit / "startup")
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            return _exchange(context, site, host, port, process)
        except ssl.SSLError as error:
            problem = f"the certificates of this kit and the server do not match ({error.reason or error})"
            if isinstance(error, ssl.SSLCertVerificationError):
                if error.verify_code == HAS_EXPIRED:
                    problem = "the server's certificate has expired: tell its operator"
                attempts_left = 0  # the certificate will not be another one
            if not attempts_left:
                raise RunError(host, problem) from error
            time.sleep(RETRY_AFTER)  # a server that is starting may break off a handshake
        except OSError as error:
            problem = f"port {port} of the server cannot be reached ({error.strerror or error})"
            raise RunError(host, problem) from error
    raise AssertionError("there is at least one attempt")


def _exchange(context: ssl.SSLContext, site: str, host: str, port: int, process: str) -> ServerAnswer:
    with (
        socket.create_connection((host, port), ANSWERS_WITHIN) as plain,
        context.wrap_socket(plain) as secure,
    ):
        name = common_name(secure.getpeercert()) or "unknown"
        asking, sent = f"{site}.{PROBE_PREFIX}{secrets.token_hex(4)}", time.time()
        hello = {HandshakeKeys.ENDPOINT_NAME: asking, HandshakeKeys.TIMESTAMP: sent, STATUS_REQUEST: process}
        secure.sendall(encode_frame(Types.HELLO, hello))
        ready = _read_ready(secure)
        received = time.time()
    clock: Any = ready.get(HandshakeKeys.TIMESTAMP)
    if type(clock) not in (int, float) or not abs(clock) < 2**40:
        raise RunError(host, f"the program on port {port} is not the server of a federation")
    clock_ahead = clock - (sent + received) / 2
    return ServerAnswer(name, f"{host}:{port}", clock_ahead, checked_status(ready.get(CONNECTION_STATUS)))


def checked_status(status: object) -> dict[str, Any]:
    """What a server answers about a site, as far as it is such an answer: a few printable words."""
    if not isinstance(status, dict):
        return {}
    found: dict[str, Any] = {
        key: status.get(key) is True for key in ("unknown", "revoked", "connected", "other_process")
    }
    found |= {key: _number(status.get(key)) for key in ("heard", "since")}
    texts = [key for key in ("version", "address") if isinstance(status.get(key), str)]
    found |= {key: legible(status[key], 60) for key in texts}
    found["objection"] = status.get("objection") if status.get("objection") in CODES else ""
    refused = status.get("refused")
    if isinstance(refused, dict):
        told = {key: legible(refused.get(key), 100) for key in ("reason", "address")}
        found["refused"] = {**told, "last": _number(refused.get("last"))}
    return found


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) and 0 <= value < 2**33 else None


def _addresses(kit: Path) -> tuple[str, str, int]:
    """The site's name in the engine's file, and the server's host and port."""

    def find(config: Any) -> tuple[str, str, int]:
        host, _, port = str(config["servers"][0]["service"]["target"]).rpartition(":")
        return str(config["client"]["fqsn"]), host, int(port)

    return read_startup(kit, "fed_client.json", find)


def _tls_context(startup: Path) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.check_hostname = False  # the engine identifies the server by its certificate's name
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    except OSError as error:  # SSLError is one
        problem = f"the certificates in this folder cannot be used ({error.strerror or error})"
        raise DataError(startup, problem) from error
    return context


def encode_frame(kind: int, content: Mapping[str, Any]) -> bytes:
    """One of the engine's frames with a small dictionary in it."""
    payload = msgpack.packb(dict(content))
    prefix, buffer = Prefix(PREFIX_LEN + len(payload), 0, kind, 0, 0, 0, 1, 1), bytearray(PREFIX_LEN)
    prefix.to_buffer(buffer, 0)
    return bytes(buffer) + bytes(payload)


def decode_frame(received: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The dictionary in a frame; empty if there is none."""
    try:
        prefix = Prefix.from_bytes(received)
        content = msgpack.unpackb(bytes(received[PREFIX_LEN + prefix.header_len :]))
    except Exception:  # it comes from outside: whatever msgpack raises, it is not a dictionary
        return {}
    return content if isinstance(content, dict) else {}


def _read_ready(secure: ssl.SSLSocket) -> dict[str, Any]:
    with secure.makefile("rb") as stream:
        head = stream.read(PREFIX_LEN)
        length = Prefix.from_bytes(head).length if len(head) == PREFIX_LEN else PREFIX_LEN
        if not PREFIX_LEN <= length <= LONGEST_ANSWER:
            return {}
        frame = head + stream.read(length - PREFIX_LEN)
    if len(frame) < length:
        raise ConnectionResetError(0, "the server closed the connection without an answer")
    return decode_frame(frame)


def common_name(certificate: Mapping[str, Any] | None) -> str:
    """The party that a certificate was issued to; empty if it names none."""
    return _in_subject(certificate, "commonName")


def role(certificate: Mapping[str, Any] | None) -> str:
    """What the engine lets the holder of a certificate do; empty for a server or a site."""
    return _in_subject(certificate, "unstructuredName")


def _in_subject(certificate: Mapping[str, Any] | None, key: str) -> str:
    subject = (certificate or {}).get("subject", ())
    return str(dict(part[0] for part in subject).get(key, ""))


def peer_certificate(connection: Any) -> dict[str, Any]:
    """The certificate at the other end of one of the engine's connections, as Python shows it; empty if there
    is none or the connection is closed."""
    try:
        return dict(connection.sock.getpeercert() or {})
    except (AttributeError, OSError, ValueError):
        return {}


def connection_problem(answer: ServerAnswer) -> str:
    """Why this site cannot take part, according to the server; empty if it can."""
    connection = answer.connection
    if abs(answer.clock_ahead) > MOST_CLOCK_DIFFERENCE:
        direction = "behind" if answer.clock_ahead > 0 else "ahead of"
        difference = f"{abs(answer.clock_ahead):.0f} s {direction} the server's"
        allowed = f"{MOST_CLOCK_DIFFERENCE:.0f} s are allowed"
        return f"this machine's clock is {difference}, and {allowed}: set the clock (NTP)"
    if connection.get("unknown"):
        return (
            "the server's kit does not list this site, so it cannot take part: ask the server's operator to"
            " use the kit of the same project file"
        )
    if connection.get("revoked"):
        return "the server's operator has revoked this kit's certificate: ask for a new one"
    if connection.get("other_process"):
        return (
            f"the server refuses this kit: another process with the same certificate has been connected from"
            f" {connection.get('address')} since {local_time(connection.get('since'))}; stop that process, or"
            " have the certificate revoked"
        )
    if (version := connection.get("version", __version__)) != __version__:
        return f"this site runs cnfgnn {__version__}, and the server {version}: install the same version"
    if objection := connection.get("objection"):
        return f"the server's task goes on without this site: {OBJECTIONS[objection]}"
    return ""


def copied_kit_warning(connection: Mapping[str, Any]) -> str:
    """A warning if somebody tried to use a copy of this kit within a day; empty if nobody did."""
    refused = connection.get("refused") or {}
    last = refused.get("last")
    if "same certificate" not in str(refused.get("reason")) or not isinstance(last, int | float):
        return ""
    if time.time() - last > COPY_WARNING_LASTS:
        return ""
    return (
        f"another process tried to connect with a copy of this kit from {refused.get('address')} at"
        f" {local_time(last)} and was refused; if that was not you, have the certificate revoked"
    )


def local_time(seconds: object) -> str:
    """A time in seconds since 1970 in this machine's time zone, for people to read."""
    if not isinstance(seconds, int | float):
        return "an unknown time"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
