"""The server's connections to all sites: a `Transport` like that of the simulator.

A site that is unreachable or late, has lost its state or sends an invalid answer is left out of the exchange
and named in the status; the others continue. It takes part again as soon as it answers.
"""

from __future__ import annotations

import math
import operator
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call, MemoryLimit, Payload, sites_with
from cnfgnn.algorithm.messages.quantize import SCALE
from cnfgnn.algorithm.messages.randomness import NODE_WEIGHTS, generator
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.algorithm.messages.verbs import VERBS, Census, Load, Prepare, Weights
from cnfgnn.errors import NodeError
from cnfgnn.transports.remote.conversations import Callers, Conversation, hold_all
from cnfgnn.transports.remote.deadlines import Pace
from cnfgnn.transports.remote.endpoint import Terms
from cnfgnn.transports.remote.header import Malformed
from cnfgnn.transports.remote.link import Late, Link, Lost
from cnfgnn.transports.remote.messages import NotPermitted, Unreachable
from cnfgnn.transports.remote.question import Gathering, Layout, Outgoing, Place, Question, place_of
from cnfgnn.transports.remote.values import check_outgoing, check_values, norm, norms, too_large

PROBED_EVERY = 1.0  # seconds
PROBED_AT_LEAST_EVERY = 10.0  # seconds, for sites that answer requests in the meantime
PROBE_WITHIN = 3.0
SHOWN_AFTER = 5.0  # seconds for which a site holds up the others before the status says so


class Stopped(Exception):
    """The operator stopped the training."""


@dataclass(eq=False)
class Site:
    """A site as the server sees it."""

    name: str
    rows: Tensor
    link: Link
    known: Sizes
    reachable: bool = True
    present: bool = False  # whether it took part in the last exchange
    last_seen: float | None = None  # seconds since 1970
    latency: float | None = None  # seconds of a round trip
    windows: int = 0  # training windows of all its nodes
    refused: int = 0  # answers that were refused
    problem: str = ""  # its last problem
    carried: int = 0  # bytes both ways
    added: tuple[str, ...] = ()  # sensors that joined while the federation is live: its last rows
    memory_limit: int = 0  # bytes of hidden states and embeddings that it may hold; 0: no limit
    late: bool = False  # with its last request
    busy: bool = False  # working, by its last hello
    asked: float | None = None  # when its current request was sent, by the monotonic clock
    deadline: float = 0.0  # seconds for its current request
    pace: Pace = field(default_factory=Pace)
    objection: Callable[[Mapping[str, Any]], str] = lambda hello: ""  # why it cannot take part

    @property
    def usable(self) -> bool:
        """Whether it may be asked; a late site only after it has finished its late request."""
        return self.reachable and not (self.late and self.busy)

    @property
    def holding_up(self) -> str:
        """How a site holds up the others, for the status; empty if it does not."""
        since = self.asked
        seconds = 0.0 if since is None else time.monotonic() - since
        if self.link.silent > SHOWN_AFTER:
            return f"silent for {self.link.silent:.0f} s, left out after {self.link.silent_for:.0f} s"
        if seconds > SHOWN_AFTER:
            return f"working for {seconds:.0f} s, late after {self.deadline:.0f} s"
        return ""


class RemoteTransport:
    """Carries calls to all sites in parallel and waits for every site that can answer."""

    def __init__(
        self,
        sites: Sequence[Site],
        terms: Terms,
        min_sites: int = 1,
        device: torch.device | None = None,
        stopped: Callable[[], bool] = lambda: False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.parties, self.terms, self.min_sites = list(sites), terms, min_sites
        self.sites = [site.rows for site in self.parties]
        self.device, self.stopped, self.changed = device or torch.device("cpu"), stopped, changed
        self.setting_up = True  # during set-up a problem at any site ends the task
        self.waiting = False  # for sites to rejoin
        self.exchanges, self.verb = 0, ""
        self.engine_seconds = 0.0  # of all exchanges
        self.site_seconds = 0.0  # of these, the seconds in which the slowest site was working
        self._norm: float | None = None  # of weights known to be good
        self._callers = Callers(len(self.parties))
        self._asked_before: _Asked | None = None
        self._closed = threading.Event()
        for site in self.parties:  # a thread each, so that a silent site does not delay the others
            threading.Thread(target=self._probe, args=[site], name=f"probe {site.name}", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._callers.close()

    # ---- Transport -----------------------------------------------------------------------------------

    @property
    def memory_limits(self) -> list[MemoryLimit]:
        return [MemoryLimit(site.name, site.memory_limit) for site in self.parties]

    def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload:
        if self.stopped():
            raise Stopped
        check_outgoing(calls)
        begun, self.verb = time.perf_counter(), calls[-1].verb
        asked = self._sites_of(rows, calls[-1].verb)
        self._learn_norm(calls)
        gathering, questions = Gathering(len(calls), len(rows)), Questions(calls)
        took_part = hold_all(
            [self._asked(site, questions, place, gathering) for site, place in asked], self._callers
        )
        if self.stopped():  # sites that were interrupted are not absent
            raise Stopped
        for (site, _), answered in zip(asked, took_part, strict=True):
            site.present = answered
        answers = [(site, place) for site, place in asked if site.present]
        for site in self._refuse_values(answers, calls, gathering):
            site.present = False
        present = np.zeros(len(rows), dtype=np.bool_)
        for site, place in asked:
            present[place] = site.present
        self.site_seconds += max((site.link.worked for site, _ in asked if site.present), default=0.0)
        self.exchanges += 1
        self.engine_seconds += time.perf_counter() - begun
        self.changed()
        replies = zip(calls, gathering.replies, strict=True)
        placed = [self._placed(call.verb, reply) for call, reply in replies]
        return Payload(placed, torch.from_numpy(present))

    def _sites_of(self, rows: Tensor, verb: str) -> list[tuple[Site, Place]]:
        """The sites that have these rows, each with the places of its rows among them."""
        if self._asked_before is not None and self._asked_before.are(rows, self.sites):
            return self._asked_before.places
        place = torch.full((sum(map(len, self.sites)),), -1, dtype=torch.long)
        place[rows] = torch.arange(len(rows))
        asked = []
        for site in self.parties:
            where = place[site.rows]
            if (where >= 0).any():
                if (where < 0).any():
                    raise NodeError(site.name, verb, "only some of its nodes were asked")
                asked.append((site, place_of(where)))
        self._asked_before = _Asked(rows.clone(), list(self.sites), asked)
        return asked

    def wait(self, answered: Tensor) -> bool:
        enough = min(self.min_sites, len(self.parties))
        if sites_with(answered, self.sites) >= enough:
            return False
        self.waiting = True
        self.changed()
        time.sleep(PROBED_EVERY)  # even if all sites can be reached: they may have been refused
        while sum(site.usable for site in self.parties) < enough:
            if self.stopped():
                raise Stopped
            time.sleep(0.1)
        self.waiting = False
        self.changed()
        return True

    # ---- one site ------------------------------------------------------------------------------------

    hears_by_hello = False  # whether hellos carry more than a sign of life, so that all sites get them

    def heard(self, site: Site, hello: Mapping[str, Any]) -> None:
        """A site has answered a hello."""

    def _asked(
        self, site: Site, questions: Questions, place: Place, gathering: Gathering
    ) -> Conversation[bool]:
        """Ask a site; returns whether all of its answers are valid. Their arrays are gathered then."""
        if not site.usable:
            return False
        question = questions.to(site)
        try:
            site.deadline = site.pace.deadline(question.work)
            site.asked = time.monotonic()
            layout = yield from self._carried(site, question, place, gathering)
        except Late as problem:
            site.pace.missed(question.work)
            site.known, site.late, site.busy = Sizes(site.known.n), True, True
            site.problem = f"is late with {question.verb!r} ({problem}): left out until it has finished"
            return False
        except (Unreachable, NotPermitted) as problem:  # its hellos tell when it takes part again
            site.reachable = site.late = False
            refused = isinstance(problem, NotPermitted)
            site.problem = str(problem) if refused else f"cannot be reached ({problem})"
            return False
        except Lost as problem:
            site.known = Sizes(site.known.n)
            if not site.late:
                site.problem = f"has lost its state ({problem})"
            return False
        except Malformed as problem:
            self._refuse(site, question.verb, str(problem))
            return False
        finally:
            site.asked = None
        site.last_seen, site.late = time.time(), False
        if layout.failed:
            site.known = Sizes(site.known.n)
            if self.setting_up:
                raise NodeError(site.name, layout.failed, layout.problem)
            self._refuse(site, layout.failed, layout.problem)
            return False
        site.pace.learn(question.work, site.link.verbs)
        site.known = question.known_after
        return True

    def _carried(
        self, site: Site, question: Question, place: Place, gathering: Gathering
    ) -> Conversation[Layout]:
        request = question.message(place)
        terms = self.terms._replace(added=site.added)
        answer = yield from site.link.conversation(
            request, question.largest_answer, site.deadline, **terms.fields()
        )
        site.carried += len(request) + len(answer)
        layout = question.layout(answer)
        gathering.put(place, layout, answer)
        return layout

    def _refuse(self, site: Site, verb: str, reason: str) -> None:
        site.refused += 1
        site.problem = str(NodeError(site.name, verb, reason))
        site.known = Sizes(site.known.n)  # it is prepared again before it is asked anything else

    def _refuse_values(
        self, answered: Sequence[tuple[Site, Place]], calls: Sequence[Call], gathering: Gathering
    ) -> list[Site]:
        """Refuse answers with impossible values or implausibly large weights; returns the sites."""
        verb, reply, reasons = calls[-1].verb, gathering.replies[-1], dict[str, str]()
        try:
            _check_values(calls, gathering.replies)  # all sites at once: nearly always nothing is wrong
        except Malformed:
            for site, place in answered:
                try:
                    _check_values(calls, gathering.of_site(place))
                except Malformed as problem:
                    reasons[site.name] = str(problem)
        if verb == Weights.name and reply:
            each = norms(reply).numpy()
            largest = {s.name: float(each[p].max()) for s, p in answered if s.name not in reasons}
            reasons |= too_large(largest, self._norm)
        for site, place in answered:
            if site.name in reasons:
                self._refuse(site, verb, reasons[site.name])
                gathering.drop(place)
            elif verb == Census.name:
                site.windows = int(reply["has.train"][place].sum())
        return [site for site, _ in answered if site.name in reasons]

    def _learn_norm(self, calls: Sequence[Call]) -> None:
        for call in calls:
            if call.verb == Load.name:
                self._norm = norm(call.tensors)
            elif call.verb == Prepare.name:
                request = Prepare.read(call.numbers)
                self._norm = norm(request.model().init(generator(request.settings.seed, NODE_WEIGHTS)))

    def _placed(self, verb: str, reply: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Hidden states and gradients go to the device of the Graph Network."""
        states = VERBS[verb].states
        return {
            name: tensor.to(self.device) if name.removesuffix(SCALE) in states else tensor
            for name, tensor in reply.items()
        }

    def _probe(self, site: Site) -> None:
        """Send a site a hello every second: that is how it is noticed when it rejoins. A site that answers
        requests anyway gets one less often: the hellos of hundreds of sites would delay the exchanges."""
        probed = -math.inf
        while not self._closed.wait(PROBED_EVERY):
            if site.holding_up:
                self.changed()
            now = time.monotonic()
            if not self.hears_by_hello and not needs_hello(site, now - probed):
                continue
            probed = now
            begun = time.perf_counter()
            try:
                hello = site.link.hello(PROBE_WITHIN)
            except (Unreachable, Malformed):
                continue
            site.latency, site.last_seen = time.perf_counter() - begun, time.time()
            site.busy = hello.get("busy") is True
            self.heard(site, hello)
            if objection := site.objection(hello):
                site.problem = objection
            site.reachable = not objection


def needs_hello(site: Site, since: float) -> bool:
    """Whether a site that had its last hello so many seconds ago gets another one now."""
    answers_anyway = site.present and site.link.quiet < PROBED_EVERY
    return not answers_anyway or since >= PROBED_AT_LEAST_EVERY


class Questions:
    """The same calls to sites of several sizes."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._outgoing = Outgoing(calls)
        self._asked: dict[int, Question] = {}  # by the identity of what is known of a site

    def to(self, site: Site) -> Question:
        """What to ask a site: of sites of which the same is known, the same."""
        if (question := self._asked.get(id(site.known))) is None:
            for question in self._asked.values():
                if question.known == site.known:
                    site.known = question.known
                    return question
            question = self._asked[id(site.known)] = Question(self._outgoing, site.known)
        return question


class _Asked(NamedTuple):
    """The rows that were asked last, those of all sites, and the places of each site that was asked."""

    rows: Tensor
    sites: list[Tensor]
    places: list[tuple[Site, Place]]

    def are(self, rows: Tensor, sites: Sequence[Tensor]) -> bool:
        """Whether these are the same, and the sites have the same rows."""
        same = len(sites) == len(self.sites) and all(map(operator.is_, sites, self.sites))
        return same and torch.equal(rows, self.rows)


def _check_values(calls: Sequence[Call], replies: Sequence[Mapping[str, Tensor]]) -> None:
    for call, reply in zip(calls, replies, strict=True):
        check_values(call.verb, reply)
