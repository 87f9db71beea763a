"""The server's connections to all sites: a `Transport` like that of the simulator.

A site that is unreachable or late, has lost its state or sends an invalid answer is left out of the exchange
and named in the status; the others continue. It takes part again as soon as it answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cnfgnn.algorithm.calls import Call, MemoryLimit, Payload, for_rows, gathered
from cnfgnn.algorithm.quantize import SCALE
from cnfgnn.algorithm.randomness import NODE_WEIGHTS, generator
from cnfgnn.algorithm.shapes import Sizes
from cnfgnn.algorithm.verbs import VERBS, Census, Load, Prepare, Weights
from cnfgnn.errors import NodeError
from cnfgnn.transports.remote.codec import Answer, decode_answers, encode_calls
from cnfgnn.transports.remote.deadlines import Pace
from cnfgnn.transports.remote.endpoint import Terms
from cnfgnn.transports.remote.header import Malformed
from cnfgnn.transports.remote.link import Late, Link, Lost
from cnfgnn.transports.remote.messages import Unreachable
from cnfgnn.transports.remote.schema import after, check_answers, largest_answer
from cnfgnn.transports.remote.values import check_outgoing, check_values, norm, too_large

PROBED_EVERY = 1.0  # seconds
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
        self._pool = ThreadPoolExecutor(max(1, len(self.parties)), "exchange")
        self._closed = threading.Event()
        for site in self.parties:  # a thread each, so that a silent site does not delay the others
            threading.Thread(target=self._probe, args=[site], name=f"probe {site.name}", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- Transport -----------------------------------------------------------------------------------

    @property
    def memory_limits(self) -> list[MemoryLimit]:
        return [MemoryLimit(site.name, site.memory_limit) for site in self.parties]

    def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload:
        if self.stopped():
            raise Stopped
        check_outgoing(calls)
        place = torch.full((sum(map(len, self.sites)),), -1, dtype=torch.long)
        place[rows] = torch.arange(len(rows))
        asked = [(site, place[site.rows]) for site in self.parties if (place[site.rows] >= 0).any()]
        for site, where in asked:
            if (where < 0).any():
                raise NodeError(site.name, calls[-1].verb, "only some of its nodes were asked")
        begun, self.verb = time.perf_counter(), calls[-1].verb
        self._learn_norm(calls)
        cut = [(site, where, [for_rows(call, where) for call in calls]) for site, where in asked]
        found = list(self._pool.map(lambda one: self._asked(one[0], one[2]), cut))
        if self.stopped():  # sites that were interrupted are not absent
            raise Stopped
        self._refuse_too_large([site for site, _ in asked], found)
        present = torch.zeros(len(rows), dtype=torch.bool)
        parts = []
        for (site, where), answers in zip(asked, found, strict=True):
            site.present = answers is not None
            if answers is not None:
                present[where] = True
                parts.append((where, answers))
        there = [site.link.worked for site, _ in asked if site.present]
        self.site_seconds += max(there, default=0.0)
        replies = [
            gathered([(where, answers[k].tensors) for where, answers in parts], len(rows))
            for k in range(len(calls))
        ]
        self.exchanges += 1
        self.engine_seconds += time.perf_counter() - begun
        self.changed()
        placed = [self._placed(call.verb, reply) for call, reply in zip(calls, replies, strict=True)]
        return Payload(placed, present)

    def wait(self, answered: Tensor) -> bool:
        enough = min(self.min_sites, len(self.parties))
        there = sum(bool(torch.isin(site.rows, answered).any()) for site in self.parties)
        if there >= enough:
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

    def heard(self, site: Site, hello: Mapping[str, Any]) -> None:
        """A site has answered a hello."""

    def _asked(self, site: Site, calls: Sequence[Call]) -> list[Answer] | None:
        """The site's answers if all of them are valid, else None."""
        if not site.usable:
            return None
        try:
            site.deadline = site.pace.deadline(calls, site.known)
            site.asked = time.monotonic()
            answers = self._carried(site, calls)
        except Late as problem:
            site.pace.missed(calls)
            site.known, site.late, site.busy = Sizes(site.known.n), True, True
            site.problem = f"is late with {calls[-1].verb!r} ({problem}): left out until it has finished"
            return None
        except Unreachable as problem:
            site.reachable, site.late, site.problem = False, False, f"cannot be reached ({problem})"
            return None
        except Lost as problem:
            site.known = Sizes(site.known.n)
            if not site.late:
                site.problem = f"has lost its state ({problem})"
            return None
        except Malformed as problem:
            self._refuse(site, calls[-1].verb, str(problem))
            return None
        finally:
            site.asked = None
        site.last_seen, site.late = time.time(), False
        if answers[-1].problem is not None:
            site.known = Sizes(site.known.n)
            if self.setting_up:
                raise NodeError(site.name, answers[-1].verb, answers[-1].problem)
            self._refuse(site, answers[-1].verb, answers[-1].problem)
            return None
        site.pace.learn(calls, site.known, site.link.verbs)
        site.known = after(calls, site.known)
        if calls[-1].verb == Census.name:
            site.windows = int(answers[-1].tensors["has.train"].sum())
        return answers

    def _carried(self, site: Site, calls: Sequence[Call]) -> list[Answer]:
        request = encode_calls(calls)
        most = largest_answer(calls, site.known)
        terms = self.terms._replace(added=site.added)
        answer = site.link.carry(request, most, site.deadline, **terms.fields())
        site.carried += len(request) + len(answer)
        answers = decode_answers(answer, lambda parts: check_answers(parts, calls, site.known))
        check_values(answers)
        return answers

    def _refuse(self, site: Site, verb: str, reason: str) -> None:
        site.refused += 1
        site.problem = str(NodeError(site.name, verb, reason))
        site.known = Sizes(site.known.n)  # it is prepared again before it is asked anything else

    def _refuse_too_large(self, sites: Sequence[Site], found: list[list[Answer] | None]) -> None:
        """Leave out sites whose weights are implausibly large."""
        weights = {
            site.name: answers[-1].tensors
            for site, answers in zip(sites, found, strict=True)
            if answers is not None and answers[-1].verb == Weights.name
        }
        reasons = too_large(weights, self._norm)
        for k, site in enumerate(sites):
            if site.name in reasons:
                self._refuse(site, Weights.name, reasons[site.name])
                found[k] = None

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
        """Send a site a hello every second: that is how it is noticed when it rejoins."""
        while not self._closed.wait(PROBED_EVERY):
            if site.holding_up:
                self.changed()
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
