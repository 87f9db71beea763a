"""A question of a site to the server over the port that sites join by, without joining.

The engine begins each connection with a frame that names the party (HELLO), and the other side answers with
its name and its clock (READY). A site that asks adds the key `asks`; the server's doorkeeper answers with
what it knows of this site, and ends the connection.
"""

from __future__ import annotations

import json
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

REACHED_WITHIN = 5.0  # seconds
TRIES, AGAIN_AFTER = 3, 0.5  # of a handshake that breaks off, and seconds between them
HAS_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL
LONGEST_ANSWER = 1 << 16  # bytes
ASKS, STANDING = "asks", "standing"
NEVER_JOINS = "asks-"  # begins the last part of the name under which a site asks


@dataclass(frozen=True)
class Answer:
    """What the server says: its name, how far its clock is ahead of ours, and how it sees this site."""

    server: str
    address: str
    ahead: float  # seconds
    standing: Mapping[str, Any] = field(default_factory=dict)  # empty from a server without a doorkeeper


def ask(kit: Path, process: str = "") -> Answer:
    """Ask the server of a site's kit; `process` is by what the server knows the site's running process."""
    site, host, port = address_of(kit)
    context = _credentials(kit / "startup")
    for tries_left in reversed(range(TRIES)):
        try:
            return _asked(context, site, host, port, process)
        except ssl.SSLError as error:
            problem = f"certificates do not match ({error.reason or error})"
            if isinstance(error, ssl.SSLCertVerificationError):
                if error.verify_code == HAS_EXPIRED:
                    problem = "the server's certificate has expired, tell its operator"
                tries_left = 0  # it will not be another one
            if not tries_left:
                raise RunError(host, problem) from error
            time.sleep(AGAIN_AFTER)  # a server that is starting may break off a handshake
        except OSError as error:
            problem = f"port {port} cannot be reached ({error.strerror or error})"
            raise RunError(host, problem) from error
    raise AssertionError("at least one try")


def _asked(context: ssl.SSLContext, site: str, host: str, port: int, process: str) -> Answer:
    with (
        socket.create_connection((host, port), REACHED_WITHIN) as plain,
        context.wrap_socket(plain) as secure,
    ):
        name = _common_name(secure)
        begun = time.time()
        secure.sendall(_hello(f"{site}.{NEVER_JOINS}{secrets.token_hex(4)}", process))
        said = _ready(secure)
        ended = time.time()
    clock = said.get(HandshakeKeys.TIMESTAMP)
    if type(clock) not in (int, float) or not abs(float(str(clock))) < 2**40:
        raise RunError(host, f"what answers on port {port} is not a federation's server")
    standing = said.get(STANDING)
    ahead = float(str(clock)) - (begun + ended) / 2
    return Answer(name, f"{host}:{port}", ahead, standing if isinstance(standing, dict) else {})


def address_of(kit: Path) -> tuple[str, str, int]:
    """The site's name in the engine's file, and where it finds the server."""
    config = json.loads((kit / "startup" / "fed_client.json").read_text())
    host, _, port = str(config["servers"][0]["service"]["target"]).rpartition(":")
    return str(config["client"]["fqsn"]), host, int(port)


def _credentials(startup: Path) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.check_hostname = False  # the engine knows the server by its certificate's name
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    except OSError as error:  # SSLError is one
        raise DataError(startup, f"its certificates cannot be used ({error.strerror or error})") from error
    return context


def _hello(name: str, process: str) -> bytes:
    said = {
        HandshakeKeys.ENDPOINT_NAME: name,
        HandshakeKeys.TIMESTAMP: time.time(),
        ASKS: process,
    }
    return frame(Types.HELLO, said)


def frame(kind: int, said: Mapping[str, Any]) -> bytes:
    """One of the engine's frames with a small dictionary in it."""
    payload = msgpack.packb(dict(said))
    prefix, buffer = Prefix(PREFIX_LEN + len(payload), 0, kind, 0, 0, 0, 1, 1), bytearray(PREFIX_LEN)
    prefix.to_buffer(buffer, 0)
    return bytes(buffer) + bytes(payload)


def content(received: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The dictionary in a frame; an empty one if there is none."""
    try:
        prefix = Prefix.from_bytes(received)
        said = msgpack.unpackb(bytes(received[PREFIX_LEN + prefix.header_len :]))
    except Exception:  # of a stranger: whatever msgpack raises, it is no dictionary
        return {}
    return said if isinstance(said, dict) else {}


def _ready(secure: ssl.SSLSocket) -> dict[str, Any]:
    secure.settimeout(REACHED_WITHIN)
    head = _exactly(secure, PREFIX_LEN)
    length = Prefix.from_bytes(head).length
    if not PREFIX_LEN <= length <= LONGEST_ANSWER:
        return {}
    return content(head + _exactly(secure, length - PREFIX_LEN))


def _exactly(secure: ssl.SSLSocket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = secure.recv(size - len(received))
        if not piece:
            raise ConnectionResetError(0, "the server ended the connection without an answer")
        received += piece
    return received


def _common_name(secure: ssl.SSLSocket) -> str:
    certificate = secure.getpeercert() or {}
    subject: Any = certificate.get("subject", ())
    return str(dict(part[0] for part in subject).get("commonName", "unknown"))
