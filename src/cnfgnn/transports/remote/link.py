"""The server's end of the way to one site: a request in pieces, the wait, the answer in pieces.

A site says within seconds that it is at work, so a request that takes an hour is told apart from a site that
is gone. What was sent twice because its answer was lost is carried out once: requests are numbered. So the
waits are short and the tries many: one that died while it worked is found out by the first try after it began
anew.

Nothing waits for ever. A site of which nothing is heard, neither an answer nor a hello, for `silent_for`
seconds cannot be reached; one that says that it is at work is late after the deadline of its request.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from cnfgnn.transports.remote.header import Malformed
from cnfgnn.transports.remote.messages import PIECE, Channel, Note, Unreachable, legible, pack, pieces, unpack

ANSWER_WITHIN = 4.0  # seconds in which a site must say something, twice as long as it takes to say "working"
SLOWEST = 1 << 19  # bytes a second on the way there and back, in addition
TRIES = 5  # of a note whose answer does not come


def silence(piece: int) -> float:
    """Seconds without a word after which a site is away: 20, or more where pieces are larger than usual.

    On the slowest line a hello waits until a piece in each direction has passed.
    """
    return ANSWER_WITHIN + 2 * max(piece, PIECE) / SLOWEST


class Lost(Exception):
    """The site is there, but does not know its part: it began anew, or is busy with what we gave up on."""


class Late(Exception):
    """The site is still at work on a request after its deadline."""


class Link:
    """One request at a time."""

    worked = 0.0  # seconds that the site says it took for the last one
    verbs: Mapping[str, float] = {}  # of these, for each verb

    def __init__(
        self,
        site: str,
        channel: Channel,
        session: str,
        piece: int = PIECE,
        answer_within: float = ANSWER_WITHIN,
        stopped: Callable[[], bool] = lambda: False,
        silent_for: float | None = None,
    ) -> None:
        self.site, self.channel, self.session = site, channel, session
        self.piece, self.answer_within, self.stopped = piece, answer_within, stopped
        self.silent_for = silence(piece) if silent_for is None else silent_for
        self._numbers = itertools.count(1)
        self._heard = -math.inf  # when the site last said anything, by the monotonic clock
        self._asking: float | None = None  # since when an answer to a note is waited for

    @property
    def silent(self) -> float:
        """Seconds for which the site owes an answer and nothing was heard of it; 0 where it owes none."""
        since = self._asking
        return 0.0 if since is None else max(0.0, time.monotonic() - max(since, self._heard))

    def hello(self, timeout: float | None = None) -> Mapping[str, Any]:
        """What the site says of itself."""
        request = pack("hello", session=self.session)
        said = unpack(self.channel.ask(self.site, request, timeout or self.answer_within)).fields
        self._heard = time.monotonic()
        return said

    def carry(self, request: bytes, most: int, deadline: float = math.inf, **about: Any) -> bytearray:
        """Have calls carried out within so many seconds and bring their answers, of at most `most` bytes."""
        number, sent = next(self._numbers), pieces(request, self.piece)
        same: dict[str, Any] = {"session": self.session, "number": number, "piece": self.piece}
        about |= {**same, "size": len(request)}
        for k, piece in enumerate(sent[:-1]):
            self._settled(self._asked(pack("piece", piece, start=k * self.piece, **about)))
        begun = time.monotonic()
        note = self._asked(pack("run", sent[-1], start=len(request) - len(sent[-1]), **about), most)
        while note.kind == "working":
            if time.monotonic() - begun > deadline:
                raise Late(f"at work for more than {deadline:.0f} s")
            note = self._asked(pack("wait", **same), most)
        self._settled(note)
        self.worked, self.verbs = _seconds(note), _verbs(note, time.monotonic() - begun)
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
        self._asking = time.monotonic()
        try:
            for left in reversed(range(TRIES)):
                if self.stopped():  # whoever is asked may be gone already, or at work for an hour
                    raise Unreachable("the task was stopped")
                try:
                    left_to_it = max(0.1, self.silent_for - self.silent)
                    note = unpack(self.channel.ask(self.site, request, min(timeout, left_to_it)))
                except Unreachable:
                    if not left or self.silent >= self.silent_for:
                        raise
                else:
                    self._heard = time.monotonic()
                    return note
        finally:
            self._asking = None
        raise AssertionError("at least one try")


def _seconds(note: Note) -> float:
    """For the status alone: what cannot be meant is nothing."""
    said = note.fields.get("seconds")
    return float(said) if isinstance(said, int | float) and 0 <= said < 1e9 else 0.0


def _verbs(note: Note, most: float) -> Mapping[str, float]:
    """What the site says that each verb took, which cannot be longer than we waited for all of them."""
    said = note.fields.get("verbs")
    times = said.items() if isinstance(said, dict) else ()
    return {verb: min(float(t), most) for verb, t in times if isinstance(t, int | float) and t >= 0}
