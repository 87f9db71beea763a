"""A site's end of the connection: notes in, one request carried out at a time, answers out in pieces."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple, get_args

from cnfgnn.algorithm.dispatch import Answered, answer
from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.number_rules import TAG
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.algorithm.messages.verbs import VERBS
from cnfgnn.algorithm.owner import Owner, may_be_told
from cnfgnn.config.settings import Precision
from cnfgnn.errors import CnfgnnError
from cnfgnn.models.params import Params
from cnfgnn.transports.remote.codec import Answer, decode_calls, encode_answers
from cnfgnn.transports.remote.header import Malformed, Part
from cnfgnn.transports.remote.messages import LARGEST_PIECE, Note, NotPermitted, pack, unpack
from cnfgnn.transports.remote.rounds import Rounds
from cnfgnn.transports.remote.schema import check_calls, read_request
from cnfgnn.transports.remote.values import check_call_values

REPORTS_WORKING_AFTER = 2.0  # seconds of work after which a site answers "working"
MOST_ROWS = 1 << 28  # time steps
MOST_ADDED = 1000  # sensors that joined a live federation at one site
MOST_BYTES = 8 << 30  # of one request


class Terms(NamedTuple):
    """What all sites agree on first: the time steps that windows are numbered by, the precision in which they
    compute, and the training that their saved states belong to. While the federation is live, a site may have
    `added` sensors since: their nodes come after its others."""

    first: int  # seconds since 1970, in the sites' local time
    step: int  # seconds
    rows: int
    precision: str
    run: str
    added: tuple[str, ...] = ()

    @classmethod
    def of(cls, note: Note) -> Terms:
        precision, run = str(note.fields.get("precision")), str(note.fields.get("run"))
        if precision not in get_args(Precision) or not TAG.fullmatch(run):
            raise Malformed("invalid precision or run name")
        added = note.fields.get("added", [])
        texts = isinstance(added, list) and all(isinstance(name, str) for name in added)
        if not texts or len(added) > MOST_ADDED:
            raise Malformed("invalid names of added sensors")
        first, step, rows = note.whole("first"), note.whole("step"), note.whole("rows", MOST_ROWS)
        return cls(first, step, rows, precision, run, tuple(added))

    def fields(self) -> dict[str, Any]:
        """As a note carries them."""
        fields = self._asdict()
        if not self.added:
            del fields["added"]
        return fields


@dataclass
class _Work:
    number: int
    request: bytearray = field(default_factory=bytearray)
    begun: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    answer: bytes = b""
    lost: str | None = None
    refused: str = ""  # why the owner does not permit it
    rounds: int = 0  # of training that it begins
    seconds: float = 0.0  # of work
    verbs: dict[str, float] = field(default_factory=dict)  # seconds of each verb


class Endpoint:
    """Carries out the requests of one server session on a site's nodes.

    `join` makes the nodes with their owner, and `about` describes the site in a hello. The nodes answer from
    the blurred copy, and their owner follows before the answer is sent. The server does not notice if the
    owner fails, except if a state cannot be saved.

    `due` is for a site that is live: it waits a moment until a time step is due after the one in the note.

    `allowed` are the verbs that the task may ask for; None: all. Requests that would begin more than
    `most_rounds` of training, counted since this object was made, are refused, for the reason
    `no_more_rounds`.
    """

    most_rounds: float = math.inf
    no_more_rounds = ""

    def __init__(
        self,
        join: Callable[[Terms], Owner],
        about: Callable[[], Mapping[str, Any]],
        due: Callable[[Note], Mapping[str, Any]] | None = None,
        allowed: Collection[str] | None = None,
    ) -> None:
        self.join, self.about, self.due, self.allowed = join, about, due, allowed
        self.session = ""
        self.owner: Owner | None = None
        self.known: Sizes | None = None
        self._terms: Terms | None = None
        self._work = _Work(0)
        self._rounds = Rounds()
        self._lock = threading.Lock()
        self._ahead: SimpleQueue[tuple[_Work, Terms]] = SimpleQueue()
        # One thread for all work: a thread does not return all of its memory when it ends.
        threading.Thread(target=self._keep_working, name="work", daemon=True).start()

    @property
    def rounds_begun(self) -> int:
        """How many rounds of training the server has begun here."""
        return self._rounds.total

    def answer(self, request: bytes | memoryview) -> bytes:
        """The answer to one note; may be called from any thread."""
        try:
            note = unpack(request)
            if note.kind == "hello":
                busy = self._work.begun and not self._work.done.is_set()
                return pack("hello", **{**self.about(), "clock": time.time(), "busy": busy})
            if note.kind == "due" and self.due is not None:
                return pack("due", **self.due(note))
            if note.kind in ("piece", "run"):
                return self._received(note)
            if note.kind in ("wait", "fetch"):
                return self._continued(note)
            raise Malformed(f"unknown kind of note: {note.kind[:40]!r}")
        except Malformed as problem:
            return pack("lost", reason=str(problem)[:300])

    # ---- requests in pieces --------------------------------------------------------------------------

    def _received(self, note: Note) -> bytes:
        number, size, start = note.whole("number"), note.whole("size"), note.whole("start")
        if size > MOST_BYTES:
            raise Malformed(f"the request has {size} bytes, and {MOST_BYTES} are allowed")
        terms = Terms.of(note)
        session = str(note.fields.get("session"))
        with self._lock:
            work = self._work
            if session != self.session or number != work.number:
                if session == self.session and number < work.number:
                    raise Malformed("an old request arrived late")
                if work.begun and not work.done.is_set():
                    raise Malformed("it is still working on an earlier request")
                self.session, self._work = session, (work := _Work(number))
            if not work.begun:
                if start != len(work.request) and start + len(note.payload) != len(work.request):
                    raise Malformed("a piece is missing")
                if start == len(work.request):
                    work.request += note.payload
                if len(work.request) > size:
                    raise Malformed("the request is longer than announced")
                if note.kind == "piece":
                    return pack("noted")
                if len(work.request) < size:
                    raise Malformed("a piece is missing")
                work.begun = True
                self._ahead.put((work, terms))
        return self._outcome(work, note)

    def _continued(self, note: Note) -> bytes:
        work = self._work
        if note.fields.get("session") != self.session or note.whole("number") != work.number:
            raise Malformed("it does not know this request: it was restarted")
        if note.kind == "wait":
            return self._outcome(work, note)
        return _piece(work, note, note.whole("start"))

    def _outcome(self, work: _Work, note: Note) -> bytes:
        if not work.done.wait(REPORTS_WORKING_AFTER):
            return pack("working")
        if work.lost is not None:
            return pack("lost", reason=work.lost)
        if work.refused:
            return pack("refused", reason=work.refused, rounds=work.rounds)
        return _piece(work, note, 0)

    # ---- the work ------------------------------------------------------------------------------------

    def _keep_working(self) -> None:
        while True:
            self._carry_out(*self._ahead.get())

    def _carry_out(self, work: _Work, terms: Terms) -> None:
        begun = time.perf_counter()
        try:
            work.answer = encode_answers(self._answers(work, terms))
        except Malformed as problem:
            work.lost = str(problem)[:300]
        except NotPermitted as problem:
            work.refused = str(problem)[:300]
        except CnfgnnError as problem:
            work.answer = encode_answers([Answer("join", str(problem)[:300])])
        except Exception as problem:  # say that it failed, but not why: the message may quote a reading
            logging.getLogger(__name__).exception("a request failed")
            work.lost = f"{type(problem).__name__}, see the log of the site"
        finally:
            work.request, work.seconds = bytearray(), time.perf_counter() - begun
            work.done.set()

    def _answers(self, work: _Work, terms: Terms) -> list[Answer]:
        if self.owner is None or terms != self._terms:
            self.owner, self._terms = self.join(terms), terms
            self.known = Sizes(self.owner.nodes.series.nodes)
        owner, known = self.owner, self.known
        assert known is not None

        def check(parts: Sequence[Part]) -> None:
            nonlocal known
            assert known is not None
            first = VERBS.get(parts[0].verb) if parts else None
            if not known.prepared and parts and not (first and first.before_prepare):
                raise Malformed("it has not been prepared")
            known = check_calls(parts, known)
            self._check_permitted(work, parts)

        answers: list[Answer] = []
        calls = decode_calls(work.request, check, MOST_BYTES)
        check_call_values(calls)
        for call in calls:
            begun = time.perf_counter()
            answers.append(self._answered(owner, call))
            work.verbs[call.verb] = work.verbs.get(call.verb, 0.0) + time.perf_counter() - begun
            if answers[-1].problem is not None:
                self.known = Sizes(known.n)  # its state is undefined now: it has to be prepared again
                return answers
        self.known = known
        return answers

    def _check_permitted(self, work: _Work, parts: Sequence[Part]) -> None:
        """Refuse what the owner does not permit, before any of it is carried out."""
        for part in parts:
            if self.allowed is not None and part.verb not in self.allowed:
                raise NotPermitted(f"this task is not one that may ask for {part.verb!r}")
        rounds, work.rounds = self._rounds.begin(map(read_request, parts))
        if work.rounds and rounds.total > self.most_rounds:
            raise NotPermitted(self.no_more_rounds)
        self._rounds = rounds

    def _answered(self, owner: Owner, call: Call) -> Answer:
        try:
            answered = answer(owner.nodes, call)
            reply = answered.reply | self._follow(answered)
        except CnfgnnError as problem:
            return Answer(call.verb, str(problem)[:300])
        return Answer(call.verb, None, answered.request.quantised(reply, owner.nodes.wire))

    def _follow(self, answered: Answered) -> Params:
        assert self.owner is not None
        try:
            return self.owner.follow(*answered)
        except Exception as error:  # it may depend on true readings: the server must not notice
            if may_be_told(answered.request, error):
                raise
            logging.getLogger(__name__).exception("the owner's part of %r failed", answered.request.name)
            return {}


def _piece(work: _Work, note: Note, start: int) -> bytes:
    end = start + note.whole("piece", LARGEST_PIECE)
    took = {verb: round(seconds, 6) for verb, seconds in work.verbs.items()}
    about: dict[str, Any] = {"size": len(work.answer), "seconds": round(work.seconds, 6), "verbs": took}
    return pack("done", memoryview(work.answer)[start:end], **about)
