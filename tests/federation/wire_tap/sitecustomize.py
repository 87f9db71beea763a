"""Records everything that a site's sockets carry, before it is encrypted and after it is decrypted.

Every Python process with this folder on PYTHONPATH loads this module before anything else. TLS goes through
the objects that `_wrap_socket` and `_wrap_bio` of a context make, and plain traffic through the methods of
`socket.socket`: both are replaced here. Each stream is written to a file of its own, with the peer's port in
its name, so that a value that was sent in two parts is still found.

A site's engine gets no environment variable of ours and can write to its own folder only. That is emptied at
each start, except for its logs: its streams have names like those.
"""

import itertools
import os
import socket
import ssl
import sys

ENGINE = ("cnfgnn.federation.engine.client", "nvflare.private.fed.app.client.worker_process")
IN_ENGINE = any(word in ENGINE for word in sys.orig_argv)
FOLDER = os.path.join(os.getcwd(), "log.txt.tapped-") if IN_ENGINE else os.environ.get("CNFGNN_TAP", "")
numbers = itertools.count()


class Stream:
    def __init__(self, kind: str, end: object) -> None:
        self.name, self.end = f"{os.getpid()}-{next(numbers)}-{kind}", end
        self.files: dict[str, int] = {}

    def record(self, direction: str, data: object) -> None:
        if direction not in self.files:
            name = f"{self.name}-{port(self.end)}-{direction}"  # it is connected by now
            path = FOLDER + name if IN_ENGINE else os.path.join(FOLDER, name)
            self.files[direction] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        while view:
            view = view[os.write(self.files[direction], view) :]


def port(end: object) -> int:
    """The peer's port; 0 if it has none."""
    try:
        return end.getpeername()[1]
    except (AttributeError, IndexError, OSError):
        return 0


class Tapped:
    """One of the ssl module's own objects that records what is written and read."""

    def __init__(self, inner: object, end: object) -> None:
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "stream", Stream("tls", end))

    def write(self, data):
        sent = self.inner.write(data)
        self.stream.record("out", memoryview(data).cast("B")[:sent])
        return sent

    def read(self, *args):
        got = self.inner.read(*args)
        into = args[1] if len(args) > 1 else None
        self.stream.record("in", got if into is None else memoryview(into).cast("B")[:got])
        return got

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __setattr__(self, name, value):
        setattr(self.inner, name, value)


def tap_tls(name: str) -> None:
    make = getattr(ssl.SSLContext, name)
    setattr(ssl.SSLContext, name, lambda self, *args, **kw: Tapped(make(self, *args, **kw), args[0]))


streams: dict[tuple[int, object], Stream] = {}


def plain(sock: socket.socket) -> Stream:
    try:
        key = (sock.fileno(), sock.getsockname())
    except OSError:
        key = (sock.fileno(), None)
    return streams.setdefault(key, Stream("plain", sock))


def tap_sending(name: str, whole: bool = False) -> None:
    send = getattr(socket.socket, name)

    def tapped(self, data, *args):
        sent = send(self, data, *args)
        if name == "sendmsg":
            data = b"".join(bytes(part) for part in data)
        plain(self).record("out", data if whole else memoryview(data).cast("B")[:sent])
        return sent

    setattr(socket.socket, name, tapped)


def tap_receiving(name: str) -> None:
    receive = getattr(socket.socket, name)

    def tapped(self, first, *args):
        got = receive(self, first, *args)
        size = got[0] if isinstance(got, tuple) else got
        if name == "recvmsg_into":
            size = b"".join(bytes(part) for part in first)
        plain(self).record("in", memoryview(first).cast("B")[:size] if isinstance(size, int) else size)
        return got

    setattr(socket.socket, name, tapped)


if FOLDER:
    tap_tls("_wrap_socket")
    tap_tls("_wrap_bio")
    tap_sending("sendall", whole=True)
    for sending in ("send", "sendto", "sendmsg"):
        tap_sending(sending)
    for receiving in ("recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into"):
        tap_receiving(receiving)
