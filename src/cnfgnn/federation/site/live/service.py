"""The live service of a site as a process: `python -m cnfgnn.federation.site.live.service KIT TERMS`.

The process of a live task starts it, see `live_relay`, and brings it the server's requests. It ends when the
server's operator ends the task, and with `cnfgnn federation down`. If the server is gone, it goes on.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from cnfgnn.federation.kits.process_identity import identity
from cnfgnn.federation.site.live.nodes import LiveSiteNodes, LiveTerms
from cnfgnn.federation.site.live.relay import LIVE, SERVICE, send_at_once
from cnfgnn.files import hold_lock, make_folder
from cnfgnn.privacy.copies import write_private
from cnfgnn.transports.remote.endpoint import Endpoint

LOG = "log.txt"  # in the folder of the service; `console.txt` beside it has why it did not start
LOG_BYTES = 2_000_000  # of a file; the one before is kept


def serve(kit: Path, terms: dict[str, object], ended: threading.Event) -> None:
    """Serve a site until the task is ended by its operator, or until `ended` is set."""
    folder = make_folder(kit / LIVE)
    lock = hold_lock(folder / "service.lock", folder, "the live service of process")
    key = secrets.token_bytes(32)
    try:
        with Listener(("127.0.0.1", 0), authkey=key, backlog=64) as listener:
            site = LiveSiteNodes(kit, LiveTerms.of(terms))
            site.ended = ended
            endpoint = Endpoint(site.join, site.describe, due=site.due)
            threading.Thread(target=_accept, args=[listener, endpoint.answer], daemon=True).start()
            about = {"process": identity(os.getpid()), "port": listener.address[1], "key": key.hex()}
            write_private(folder / SERVICE, json.dumps({**about, "terms": terms}).encode())
            ended.wait()
            (folder / SERVICE).unlink(missing_ok=True)
            site.close()
    finally:
        os.close(lock)


def _accept(listener: Listener, answer: Callable[[bytes], bytes]) -> None:
    """A thread for each connection: some notes wait for a moment."""
    while True:
        try:
            connection = listener.accept()
        except (AuthenticationError, EOFError, ConnectionError):
            continue
        except OSError:
            return  # it is closed
        threading.Thread(target=_answered, args=[connection, answer], daemon=True).start()


def _answered(connection: Connection, answer: Callable[[bytes], bytes]) -> None:
    with connection, suppress(OSError, EOFError):  # until the process of the task hangs up
        send_at_once(connection)
        while True:
            connection.send_bytes(answer(connection.recv_bytes()))


def main() -> None:
    kit, terms = Path(sys.argv[1]), json.loads(sys.argv[2])
    log = RotatingFileHandler(make_folder(kit / LIVE) / LOG, maxBytes=LOG_BYTES, backupCount=1)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", handlers=[log])
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    serve(kit, terms, ended)


if __name__ == "__main__":
    main()
