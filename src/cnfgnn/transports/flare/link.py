"""The server's end of the way to one site: a request in pieces, the wait, the answer in pieces.

A site says within seconds that it is at work, so a request that takes an hour is told apart from a site that
is gone. What was sent twice because its answer was lost is carried out once: requests are numbered. So the
waits are short and the tries many: one that died while it worked is found out by the first try after it began
anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from cnfgnn.transports.flare.header import Malformed
from cnfgnn.transports.flare.messages import PIECE, Channel, Note, Unreachable, legible, pack, pieces, unpack

ANSWER_WITHIN = 4.0  # seconds in which a site must say something, twice as long as it takes to say "working"
SLOWEST = 1 << 19  # bytes a second on the way there and back, in addition
TRIES = 5  # of a note whose answer does not come


class Lost(Exception):
    """The site is there, but does not know its part: it began anew, or is busy with what we gave up on."""


class Link:
    """One request at a time."""

    worked = 0.0  # seconds that the site says it took for the last one

    def __init__(
        self,
        site: str,
        channel: Channel,
        session: str,
        piece: int = PIECE,
        answer_within: float = ANSWER_WITHIN,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.site, self.channel, self.session = site, channel, session
        self.piece, self.answer_within, self.stopped = piece, answer_within, stopped
        self._numbers = itertools.count(1)

    def hello(self, timeout: float | None = None) -> Mapping[str, Any]:
        """What the site says of itself."""
        request = pack("hello", session=self.session)
        return unpack(self.channel.ask(self.site, request, timeout or self.answer_within)).fields

    def carry(self, request: bytes, most: int, **about: Any) -> bytearray:
        """Have calls carried out and bring their answers, which may take up `most` bytes."""
        number, sent = next(self._numbers), pieces(request, self.piece)
        same: dict[str, Any] = {"session": self.session, "number": number, "piece": self.piece}
        about |= {**same, "size": len(request)}
        for k, piece in enumerate(sent[:-1]):
            self._settled(self._asked(pack("piece", piece, start=k * self.piece, **about)))
        note = self._asked(pack("run", sent[-1], start=len(request) - len(sent[-1]), **about), most)
        while note.kind == "working":
            note = self._asked(pack("wait", **same), most)
        self._settled(note)
        self.worked = _seconds(note)
        size = note.whole("size")
        if size > most:
            raise Malformed(f"the answer has {size} bytes, and {most} can be meant")
        answer = bytearray(note.payload)
        while len(answer) < size:
            wanted = pack("fetch", start=len(answer), **same)
            more = self._settled(self._asked(wanted, size)).payload
            if not len(more):
                raise Malformed("the answer ends too early")
            answer += more
        if len(answer) > size:
            raise Malformed("the answer is longer than it said")
        return answer

    def _settled(self, note: Note) -> Note:
        if note.kind == "lost":
            raise Lost(legible(note.fields.get("reason", "")))
        if note.kind not in ("done", "noted"):
            raise Malformed(f"the site answered {legible(note.kind, 40)!r}")
        return note

    def _asked(self, request: bytes, most: int = 0) -> Note:
        """The site's answer, which may have a payload of `most` bytes or a piece of it."""
        timeout = self.answer_within + (len(request) + min(most, self.piece)) / SLOWEST
        for left in reversed(range(TRIES)):
            if self.stopped():  # whoever is asked may be gone already, or at work for an hour
                raise Unreachable("the task was stopped")
            try:
                return unpack(self.channel.ask(self.site, request, timeout))
            except Unreachable:
                if not left:
                    raise
        raise AssertionError("at least one try")


def _seconds(note: Note) -> float:
    """For the status alone: what cannot be meant is nothing."""
    said = note.fields.get("seconds")
    return float(said) if isinstance(said, int | float) and 0 <= said < 1e9 else 0.0
