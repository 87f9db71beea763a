"""The server's end of the way to one site: a request in pieces, the wait, the answer in pieces.

A site says within seconds that it is at work, so a request that takes an hour is told apart from a site that
is gone. What was sent twice because its answer was lost is carried out once: requests are numbered.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from cnfgnn.transports.flare.header import Malformed
from cnfgnn.transports.flare.messages import PIECE, Channel, Note, Unreachable, pack, pieces, unpack

ANSWER_WITHIN = 10.0  # seconds in which a site must say something
TRIES = 2  # of a note whose answer does not come


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
    ) -> None:
        self.site, self.channel, self.session = site, channel, session
        self.piece, self.answer_within = piece, answer_within
        self._numbers = itertools.count(1)

    def hello(self, timeout: float | None = None) -> Mapping[str, Any]:
        """What the site says of itself."""
        return self._asked(pack("hello", session=self.session), 1, timeout).fields

    def carry(self, request: bytes, most: int, **about: Any) -> bytearray:
        """Have calls carried out and bring their answers, which may take up `most` bytes."""
        number, sent = next(self._numbers), pieces(request, self.piece)
        same: dict[str, Any] = {"session": self.session, "number": number, "piece": self.piece}
        about |= {**same, "size": len(request)}
        for k, piece in enumerate(sent[:-1]):
            self._settled(self._asked(pack("piece", piece, start=k * self.piece, **about)))
        note = self._asked(pack("run", sent[-1], start=len(request) - len(sent[-1]), **about))
        while note.kind == "working":
            note = self._asked(pack("wait", **same))
        self._settled(note)
        self.worked = _seconds(note)
        size = note.whole("size")
        if size > most:
            raise Malformed(f"the answer has {size} bytes, and {most} can be meant")
        answer = bytearray(note.payload)
        while len(answer) < size:
            wanted = pack("fetch", start=len(answer), **same)
            more = self._settled(self._asked(wanted)).payload
            if not len(more):
                raise Malformed("the answer ends too early")
            answer += more
        if len(answer) > size:
            raise Malformed("the answer is longer than it said")
        return answer

    def _settled(self, note: Note) -> Note:
        if note.kind == "lost":
            raise Lost(str(note.fields.get("reason", ""))[:300])
        if note.kind not in ("done", "noted"):
            raise Malformed(f"the site answered {note.kind[:40]!r}")
        return note

    def _asked(self, request: bytes, tries: int = TRIES, timeout: float | None = None) -> Note:
        timeout = timeout or self.answer_within
        for left in reversed(range(tries)):
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
