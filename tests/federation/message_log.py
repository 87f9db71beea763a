"""A server that notes every message that arrives at it, to compare what the servers of two trainings saw."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from cnfgnn.federation.engine.carry.cell import CellChannel
from cnfgnn.federation.engine.carry.controller import FederationController
from cnfgnn.federation.server.task import serve
from cnfgnn.transports.remote.messages import Channel, Note, unpack

CONTROLLER = "tests.federation.message_log.LoggingServer"
MESSAGES = "messages.jsonl"  # in the server's kit
CLOCK = ("clock", "busy", "seconds")  # what an answer says about time, and not about readings


class LoggingServer(FederationController):
    """The server of a federation, whose channel to the sites is logged."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        channel = CellChannel(fl_ctx.get_engine().get_cell().core_cell, fl_ctx.get_job_id())
        logged = LoggedChannel(channel, kit / MESSAGES, self.task.do)
        serve(kit, self.task, logged, lambda: bool(abort_signal.triggered))


class LoggedChannel:
    """A channel that writes a line for every answer: who answered, to what, and a digest of every byte.

    A request is identified by its own bytes: the random name of the session and the number of the request are
    not part of them. Seconds and clocks are left out of the line; the names of the verbs stay.
    """

    def __init__(self, channel: Channel, path: Path, do: str) -> None:
        self.channel, self.do = channel, do
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.requests: dict[tuple[object, ...], dict[int, str]] = {}  # digests of its pieces
        self.lock = threading.Lock()

    def ask(self, site: str, request: bytes, timeout: float) -> bytes | memoryview:
        answer = self.channel.ask(site, request, timeout)
        asked, got = unpack(request), unpack(answer)
        line = {
            "do": self.do,
            "site": site,
            "asked": asked.kind,
            "request": self._request(site, asked),
            "start": asked.fields.get("start") if asked.kind == "fetch" else 0,
            **described(got),
        }
        os.write(self.file, json.dumps(line, sort_keys=True).encode() + b"\n")  # whole, or not at all
        return answer

    def _request(self, site: str, asked: Note) -> str:
        """A digest of the whole request that is being answered; empty for a hello."""
        key = (site, asked.fields.get("session"), asked.fields.get("number"))
        with self.lock:
            pieces = self.requests.setdefault(key, {})
            if asked.kind in ("piece", "run"):
                pieces[int(asked.fields["start"])] = digest(asked.payload)
            return digest(repr(sorted(pieces.items())).encode()) if pieces else ""


def described(answer: Note) -> dict[str, Any]:
    """An answer, without what it says about time."""
    return {"answer": answer.kind, "fields": _timeless(answer.fields), "payload": digest(answer.payload)}


def digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _timeless(fields: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in fields.items() if name not in CLOCK}
    if "verbs" in kept:
        kept["verbs"] = sorted(kept["verbs"])
    return kept
