"""A site's process for one task: `python -m cnfgnn.federation.site.worker KIT HANDLE`.

It holds the site's nodes in memory and answers the server's requests, which arrive by an open connection.
All that touches a reading happens here. A process of its own keeps what cannot be undone in a process, such
as memory settings, a low priority or being killed for its memory, away from the other tasks.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from multiprocessing.connection import Connection
from pathlib import Path

from cnfgnn.config import outside
from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.frames import LARGEST
from cnfgnn.federation.kept_states import KeptStates
from cnfgnn.federation.kits.process_identity import identity
from cnfgnn.federation.kits.processes import SERVICE
from cnfgnn.federation.kits.retention import TASKS
from cnfgnn.federation.site.nodes import SiteNodes
from cnfgnn.federation.site.old_states import remove_old_states
from cnfgnn.federation.site.permissions import Permissions
from cnfgnn.federation.site.task_verbs import verbs_allowed
from cnfgnn.federation.site.workers import ANSWER, LOADED, parts_of
from cnfgnn.federation.site_task import LiveTerms, SiteTask
from cnfgnn.files import holding_lock, make_folder
from cnfgnn.live.options import LIVE
from cnfgnn.privacy.copies import write_private
from cnfgnn.process_setup import collect_garbage_regularly, keep_freed_memory, make_way
from cnfgnn.repeated_lines import RepeatedLines
from cnfgnn.transports.remote.endpoint import Endpoint

AT_A_TIME = 8  # requests that may wait for something while another one is answered
LONGEST = 1 << 17  # bytes before a request
UNUSED_FOR, UNUSED = 120.0, 1  # seconds after which a process that gets no task ends, and its exit code
LOG = "log.txt"  # of a live service, in its folder
LOG_BYTES = 2_000_000  # of a file; the one before is kept

log = logging.getLogger(__name__)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    connection = Connection(int(sys.argv[2]))
    try:
        connection.send_bytes(ANSWER.pack(LOADED, 0))
        if not connection.poll(UNUSED_FOR):
            sys.exit(UNUSED)
        task = SiteTask.of(json.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        sys.exit(UNUSED)  # the supervisor is gone
    serve(Path(sys.argv[1]), task, connection)


def serve(kit: Path, task: SiteTask, connection: Connection) -> None:
    """Answer the requests that arrive, until the task is over or the process is asked to end."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    collect_garbage_regularly()
    _load_only_what_is_permitted(kit, task)
    if task.do == LIVE:
        _write_log(make_folder(kit / LIVE, 0o700) / LOG)
        _serve_live(kit, task, connection, ended)
    else:
        _write_log(make_folder(kit / TASKS, 0o700) / f"{task.id}.txt")
        if task.do == "retrain":
            make_way()
            _remove_old_states(kit, task)
        keep_freed_memory()
        nodes = SiteNodes(kit, live=task.do == "retrain")
        _answer(connection, Endpoint(nodes.join, nodes.describe, allowed=_verbs(task)), ended.set)
        ended.wait()


def _serve_live(kit: Path, task: SiteTask, connection: Connection, ended: threading.Event) -> None:
    """Serve until the operator ends the task: without a supervisor or a server the forecasts go on."""
    from cnfgnn.federation.site.live.nodes import LiveSiteNodes

    folder = kit / LIVE
    with holding_lock(folder / "service.lock", folder, "the live service of process"):
        write_private(folder / SERVICE, json.dumps(identity(os.getpid())).encode())
        site = LiveSiteNodes(kit, LiveTerms.of(task.live))
        site.ended = ended
        endpoint = Endpoint(site.join, site.describe, due=site.due, allowed=_verbs(task))
        _answer(connection, endpoint, lambda: None)
        ended.wait()
        (folder / SERVICE).unlink(missing_ok=True)
        site.close()


def _load_only_what_is_permitted(kit: Path, task: SiteTask) -> None:
    """A training says its method, which the owner's permissions were asked about; other tasks do not."""
    permitted = (task.method,) if task.method else Permissions(kit).methods
    if permitted is not None:
        outside.load_only(permitted)


def _verbs(task: SiteTask) -> frozenset[str]:
    """What the server may ask for, by what it says of the task."""
    return verbs_allowed(task.do, task.method)


def _answer(connection: Connection, endpoint: Endpoint, closed: Callable[[], None]) -> None:
    """Answer requests in several threads, because some wait for a moment, until the supervisor is gone."""
    receiving, sending = threading.Lock(), threading.Lock()

    def keep_answering() -> None:
        try:
            while True:
                with receiving:
                    number, most_rounds, reason, request = parts_of(connection.recv_bytes(LARGEST + LONGEST))
                try:
                    endpoint.most_rounds, endpoint.no_more_rounds = most_rounds, reason
                    answered = endpoint.answer(request)
                except Exception:  # no request may cost the site a thread: it gets no answer
                    log.exception("a request could not be answered")
                    continue
                with sending:
                    connection.send_bytes(ANSWER.pack(number, endpoint.rounds_begun) + answered)
        except (EOFError, OSError):
            closed()

    for _ in range(AT_A_TIME):
        threading.Thread(target=keep_answering, name="answers", daemon=True).start()


def _remove_old_states(kit: Path, task: SiteTask) -> None:
    try:
        kept = KeptStates.told(task.states)
        if kept is not None and (removed := remove_old_states(kit, kept)):
            log.info("removed the states of models that are not kept: %s", ", ".join(removed))
    except (CnfgnnError, OSError) as error:  # the training does not need it
        log.error("old states could not be removed: %s", error)


def _write_log(file: Path) -> None:
    handler = RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=1)
    handler.addFilter(RepeatedLines())
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=[handler], force=True
    )


if __name__ == "__main__":
    main()
