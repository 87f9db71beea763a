"""The server's end of the connection to one site: a request in pieces, the wait, the answer in pieces.

A site answers "working" within seconds, so that a request that takes an hour is not mistaken for a site that
is gone. Requests are numbered: one that is sent twice, because its answer was lost, is carried out once. That
allows short timeouts and many tries, and a site that crashed while working is noticed on the first try after
its restart.

Nothing waits forever. A site that sends neither an answer nor a hello for `silent_for` seconds is
unreachable. A site that keeps answering "working" is late after the deadline of its request.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from cnfgnn.config.declarations import is_number
from cnfgnn.transports.remote.conversations import Conversation, Sent, hold
from cnfgnn.transports.remote.header import Malformed
from cnfgnn.transports.remote.messages import (
    PIECE,
    Buffer,
    Channel,
    Note,
    NotPermitted,
    Unreachable,
    legible,
    pack,
    pieces,
    unpack,
)

ANSWER_WITHIN = 4.0  # seconds in which a site must answer, twice the time after which it answers "working"
SLOWEST = 1 << 19  # bytes per second of the slowest line: the time for sending comes on top
TRIES = 5  # to send a note that is not answered


def silence(piece: int) -> float:
    """Seconds of silence after which a site is unreachable: 20, or more if pieces are larger than usual.

    On the slowest line a hello has to wait until one piece in each direction has passed.
    """
    return ANSWER_WITHIN + 2 * max(piece, PIECE) / SLOWEST


class Lost(Exception):
    """The site answers, but lacks its state: it was restarted, or still works on a request we gave up on."""


class Late(Exception):
    """The site is still working on a request after its deadline."""


class Link:
    """A connection for one request at a time."""

    worked = 0.0  # seconds that the site reports for the last request
    verbs: Mapping[str, float] = {}  # of these, the seconds of each verb

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
        self._heard = -math.inf  # when the site last answered, by the monotonic clock
        self._asking: float | None = None  # since when an answer to a note is awaited

    @property
    def silent(self) -> float:
        """Seconds for which an answer has been overdue; 0 if none is awaited."""
        since = self._asking
        return 0.0 if since is None else max(0.0, time.monotonic() - max(since, self._heard))

    @property
    def quiet(self) -> float:
        """Seconds since the site last answered anything."""
        return time.monotonic() - self._heard

    def hello(self, timeout: float | None = None) -> Mapping[str, Any]:
        """What the site reports about itself."""
        return self._told("hello", timeout or self.answer_within).fields

    def due(self, timeout: float, **about: Any) -> Mapping[str, Any]:
        """What a live site reports once a time step is due that is later than `after`, or after a moment."""
        return self._accepted(self._told("due", timeout, **about), "due").fields

    def _told(self, kind: str, timeout: float, **about: Any) -> Note:
        request = pack(kind, session=self.session, **about)
        answer = unpack(self.channel.ask(self.site, request, timeout))
        self._heard = time.monotonic()
        return answer

    def carry(self, request: bytes, most: int, deadline: float = math.inf, **about: Any) -> Buffer:
        """Have a request carried out within the deadline; returns the answer, of at most `most` bytes."""
        return hold(self.conversation(request, most, deadline, **about))

    def conversation(
        self, request: bytes, most: int, deadline: float = math.inf, **about: Any
    ) -> Conversation[Buffer]:
        """The notes that `carry` sends and the answers that it waits for."""
        number, sent = next(self._numbers), pieces(request, self.piece)
        same: dict[str, Any] = {"session": self.session, "number": number, "piece": self.piece}
        about |= {**same, "size": len(request)}
        for k, piece in enumerate(sent[:-1]):
            self._accepted((yield from self._asked(pack("piece", piece, start=k * self.piece, **about))))
        begun = time.monotonic()
        start = len(request) - len(sent[-1])
        note = yield from self._asked(pack("run", sent[-1], start=start, **about), most)
        while note.kind == "working":
            if time.monotonic() - begun > deadline:
                raise Late(f"working for more than {deadline:.0f} s")
            note = yield from self._asked(pack("wait", **same), most)
        self._accepted(note)
        self.worked, self.verbs = _seconds(note), _verbs(note, time.monotonic() - begun)
        size = note.whole("size")
        if size > most:
            raise Malformed(f"the answer has {size} bytes, and at most {most} are possible")
        if len(note.payload) == size:
            return note.payload
        answer = bytearray(note.payload)
        while len(answer) < size:
            wanted = pack("fetch", start=len(answer), **same)
            more = self._accepted((yield from self._asked(wanted, size))).payload
            if not len(more):
                raise Malformed("the answer is truncated")
            answer += more
        if len(answer) > size:
            raise Malformed("the answer is longer than announced")
        return answer

    def _accepted(self, note: Note, *kinds: str) -> Note:
        """The same note if the site carried out what it was sent; otherwise an error."""
        if note.kind == "lost":
            raise Lost(legible(note.fields.get("reason", "")))
        if note.kind == "refused":
            raise NotPermitted(legible(note.fields.get("reason", "")))
        if note.kind not in (kinds or ("done", "noted")):
            raise Malformed(f"the site answered {legible(note.kind, 40)!r}")
        return note

    def _asked(self, request: bytes, most: int = 0) -> Conversation[Note]:
        """The site's answer, with a payload of up to `most` bytes or a piece of it."""
        timeout = self.answer_within + (len(request) + min(most, self.piece)) / SLOWEST
        self._asking = time.monotonic()
        try:
            for left in reversed(range(TRIES)):
                if self.stopped():  # do not wait for a site that may be gone, or busy for an hour
                    raise Unreachable("the task was stopped")
                try:
                    time_left = max(0.1, self.silent_for - self.silent)
                    note = unpack((yield Sent(self.channel, self.site, request, min(timeout, time_left))))
                except Unreachable:
                    if not left or self.silent >= self.silent_for:
                        raise
                else:
                    self._heard = time.monotonic()
                    return note
        finally:
            self._asking = None
        raise AssertionError("TRIES must be at least 1")


def _seconds(note: Note) -> float:
    """Only shown in the status: an invalid value counts as 0."""
    seconds = note.fields.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 1e9 else 0.0


def _verbs(note: Note, most: float) -> Mapping[str, float]:
    """The seconds that the site reports for each verb: at most as long as we waited for all of them."""
    reported = note.fields.get("verbs")
    if not isinstance(reported, dict):
        return {}
    return {verb: min(float(t), most) for verb, t in reported.items() if is_number(t) and t >= 0}
