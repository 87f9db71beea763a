"""A program for tests: sends data over every kind of socket, to check that the wire tap records it."""

from __future__ import annotations

import datetime
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificate(folder: Path) -> Path:
    """A self-signed certificate and its key in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "here.pem"
    file.write_bytes(private + made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return file


def plain_sockets() -> None:
    one, other = socket.socketpair()
    one.send(b"<send>[recv]")
    other.recv(100)
    one.sendall(b"<sendall>[recv_into]")
    other.recv_into(bytearray(100))
    one.sendmsg([b"<sendm", b"sg>[recvmsg]"])
    other.recvmsg(100)
    one.close()
    other.close()
    with socket.socket(type=socket.SOCK_DGRAM) as near, socket.socket(type=socket.SOCK_DGRAM) as far:
        far.bind(("127.0.0.1", 0))
        near.sendto(b"<sendto>[recvfrom]", far.getsockname())
        far.recvfrom(100)


def tls_sockets(file: Path) -> None:
    at_server, at_client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    at_server.load_cert_chain(file)
    at_client.check_hostname, at_client.verify_mode = False, ssl.CERT_NONE
    near, far = socket.socketpair()
    accepted: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: accepted.append(at_server.wrap_socket(far, server_side=True)))
    thread.start()
    with at_client.wrap_socket(near) as client:
        thread.join()
        with accepted[0] as server:
            client.send(b"<tls-send>[tls-recv]")
            server.recv(100)
            client.sendall(b"<tls-sendall>[tls-recv_into]")
            server.recv_into(bytearray(100))
            client.write(b"<tls-write>[tls-read]")
            server.read(100)
    tls_in_memory(at_server, at_client)


def tls_in_memory(at_server: ssl.SSLContext, at_client: ssl.SSLContext) -> None:
    """TLS over memory buffers, as asyncio uses it."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = at_client.wrap_bio(to_client, to_server)
    server = at_server.wrap_bio(to_server, to_client, server_side=True)
    ends: list[Callable[[], object]] = [client.do_handshake, server.do_handshake]
    while ends:
        try:
            ends[0]()
            ends.pop(0)
        except ssl.SSLWantReadError:
            ends.reverse()
    client.write(b"<tls-bio>[tls-bio]")
    server.read(100)


if __name__ == "__main__":
    plain_sockets()
    tls_sockets(certificate(Path(sys.argv[1])))
