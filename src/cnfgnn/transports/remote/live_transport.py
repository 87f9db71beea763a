"""The server's connections while it is live: slow or rejoining sites delay no one.

A training waits for a site that works. A live forecast does not: a site that does not answer within seconds
is left out of this step. A site that rejoins has to be prepared again, which may take a minute: that happens
beside the steps of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call, Payload, for_rows, gathered
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.algorithm.messages.verbs import Prepare
from cnfgnn.transports.remote.conversations import hold
from cnfgnn.transports.remote.deadlines import Pace, Work
from cnfgnn.transports.remote.question import Gathering, place_of
from cnfgnn.transports.remote.schema import CallHeader
from cnfgnn.transports.remote.transport import Questions, RemoteTransport, Site, Stopped

Replies = Sequence[Mapping[str, Tensor]]
LEFT_OUT_AFTER = 3.0  # seconds in which a site has to answer in a step


class Preparing(NamedTuple):
    """A site that is being prepared: what it was asked, and its answers once they are there."""

    verbs: Sequence[str]
    replies: Future[Replies | None]


class LivePace(Pace):
    """Little time for the requests of a step, and the usual one to prepare a site."""

    def deadline(self, work: Work) -> float:
        return super().deadline(work) if Prepare.name in work else LEFT_OUT_AFTER


class LiveTransport(RemoteTransport):
    """Once it is `live`, sites that rejoin are prepared in the background, and late ones are left out."""

    hears_by_hello = True  # of new sensors

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.live = False
        self.told: dict[str, Any] = {}  # what each site tells about its new sensors, unchecked
        self._preparing: dict[str, Preparing] = {}
        self._background = ThreadPoolExecutor(max(1, len(self.parties)), "prepare")

    def begin(self) -> None:
        """Use live timeouts from now on."""
        self.live = True
        for site in self.parties:
            site.link.silent_for = LEFT_OUT_AFTER
            site.pace = LivePace()

    def close(self) -> None:
        super().close()
        self._background.shutdown(wait=False, cancel_futures=True)

    def heard(self, site: Site, hello: Mapping[str, Any]) -> None:
        self.told[site.name] = hello.get("new_sensors")

    def is_being_prepared(self, site: Site) -> bool:
        return site.name in self._preparing

    def add(self, site: Site, sensors: Sequence[str]) -> None:
        """Give a site rows for further sensors, after all others; it has to be prepared again."""
        n = sum(map(len, self.sites))
        site.rows = torch.cat([site.rows, torch.arange(n, n + len(sensors))])
        site.added, site.known = (*site.added, *sensors), Sizes(len(site.rows))
        self.sites[:] = [party.rows for party in self.parties]

    def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload:
        if not self.live or not _prepares(calls):
            return super().exchange(calls, rows)
        if self.stopped():
            raise Stopped
        present, joined = torch.zeros(len(rows), dtype=torch.bool), []
        for site in self.parties:
            where = torch.isin(rows, site.rows).nonzero().flatten()
            if len(where) and (replies := self._prepared(site, [for_rows(call, where) for call in calls])):
                present[where] = True
                joined.append((where, replies))
        return Payload(gathered(joined, len(calls), len(rows)), present)

    def _prepared(self, site: Site, calls: Sequence[Call]) -> Replies | None:
        """The site's answers if it is prepared by now; otherwise it soon will be."""
        under_way, verbs = self._preparing.get(site.name), [call.verb for call in calls]
        if under_way is None:
            if site.usable:
                replies = self._background.submit(self._prepare, site, calls)
                self._preparing[site.name] = Preparing(verbs, replies)
            return None
        if not under_way.replies.done():
            return None
        del self._preparing[site.name]
        # A site that missed the census may be behind by now, too: then all are asked for one, once more.
        return under_way.replies.result() if under_way.verbs == verbs else None

    def _prepare(self, site: Site, calls: Sequence[Call]) -> Replies | None:
        """Ask one site alone; returns its answers if they are valid."""
        place, gathering = place_of(torch.arange(len(site.rows))), Gathering(len(calls), len(site.rows))
        if not hold(self._asked(site, Questions(calls), place, gathering)):
            return None
        return None if self._refuse_values([(site, place)], calls, gathering) else gathering.replies


def _prepares(calls: Sequence[CallHeader]) -> bool:
    return any(call.verb == Prepare.name for call in calls)
