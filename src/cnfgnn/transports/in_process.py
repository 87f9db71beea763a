"""Nodes in the same process: the simulator's transport, and every test's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cnfgnn.algorithm.calls import Call, Payload, Room, for_rows, gathered, whole
from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.dispatch import run
from cnfgnn.errors import NodeError


class InProcess:
    """Groups of nodes that together hold rows 0 .. n-1; `away` names groups that do not answer for now."""

    def __init__(self, groups: Sequence[tuple[Tensor, Clients]]) -> None:
        self.groups = list(groups)
        self.sites = [rows for rows, _ in self.groups]
        self.rooms = [Room(clients.name, clients.room) for _, clients in self.groups]
        self.away: set[str] = set()
        every = torch.cat(self.sites)
        if not torch.equal(every.sort().values, torch.arange(len(every))):
            raise NodeError("simulator", "join", "groups must hold every row exactly once")

    def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload:
        place = torch.full((sum(map(len, self.sites)),), -1, dtype=torch.long)
        place[rows] = torch.arange(len(rows))
        present = torch.zeros(len(rows), dtype=torch.bool)
        answers: list[tuple[Tensor, list[dict[str, Tensor]]]] = []
        for group, clients in self.groups:
            where = place[group]
            if (where < 0).all() or clients.name in self.away:
                continue
            if (where < 0).any():
                raise NodeError(
                    clients.name, calls[-1].verb, "only some of its nodes were asked: split the group"
                )
            answers.append(
                (
                    where,
                    run(
                        clients,
                        [call if whole(where, len(rows)) else for_rows(call, where) for call in calls],
                    ),
                )
            )
            present[where] = True
        replies = [
            gathered([(where, reply[k]) for where, reply in answers], len(rows)) for k in range(len(calls))
        ]
        return Payload(replies, present)

    def wait(self, answered: Tensor) -> bool:
        """Nobody will come back while we wait for them here."""
        return False
