"""The server's connections while it is live: sites that are prepared beside the steps of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.algorithm.messages.verbs import Census, Prepare
from cnfgnn.transports.remote.endpoint import Terms
from cnfgnn.transports.remote.link import Link
from cnfgnn.transports.remote.live_transport import LiveTransport
from cnfgnn.transports.remote.messages import Unreachable
from cnfgnn.transports.remote.transport import Site
from tests.waiting import wait_for


class Nobody:
    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        raise Unreachable("nobody is there")


class Preparing(LiveTransport):
    """Sites that are prepared at once; notes what they were asked."""

    def __init__(self) -> None:
        site = Site("west", torch.arange(3), Link("west", Nobody(), "session"), Sizes(3))
        super().__init__([site], Terms(0, 300, 100, "fp32", "run"))
        self.live = True
        self.asked: list[list[str]] = []

    def _prepare(self, site: Site, calls: Sequence[Call]) -> list[Mapping[str, Tensor]]:
        self.asked.append([call.verb for call in calls])
        return [{"answer": torch.full((3, 1), float(k))} for k in range(len(calls))]

    def present(self, *verbs: str) -> bool:
        """Whether the site is there, asked like this, once it has answered what it was asked before."""
        wait_for(lambda: all(one.replies.done() for one in self._preparing.values()), "the site's answers")
        found = self.exchange([Call(verb) for verb in verbs], torch.arange(3))
        if bool(found.present.all()):
            assert [reply["answer"][0].item() for reply in found.replies] == list(range(len(verbs)))
        return bool(found.present.all())


def test_a_site_that_missed_a_census_while_it_was_prepared_is_prepared_once_more() -> None:
    transport = Preparing()
    try:
        assert not transport.present(Prepare.name)  # it is being prepared
        assert not transport.present(Prepare.name, Census.name)  # a step went by in the meantime
        assert not transport.present(Prepare.name, Census.name)
        assert transport.present(Prepare.name, Census.name)
        assert transport.asked == [[Prepare.name], [Prepare.name, Census.name]]
    finally:
        transport.close()
