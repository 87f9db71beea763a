"""Nodes in the same process: the transport of the simulator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cnfgnn.algorithm.dispatch import run
from cnfgnn.algorithm.messages.calls import Call, MemoryLimit, Payload, are_all_rows, for_rows, gathered
from cnfgnn.algorithm.owner import Owner
from cnfgnn.errors import NodeError


class InProcess:
    """Groups of nodes that together hold rows 0 .. n-1; `away` names groups that do not answer."""

    def __init__(self, groups: Sequence[tuple[Tensor, Owner]]) -> None:
        self.groups = list(groups)
        self.sites = [rows for rows, _ in self.groups]
        self.memory_limits = [
            MemoryLimit(owner.nodes.name, owner.nodes.memory_limit) for _, owner in self.groups
        ]
        self.away: set[str] = set()
        every = torch.cat(self.sites)
        if not torch.equal(every.sort().values, torch.arange(len(every))):
            raise NodeError("simulator", "join", "groups must hold every row exactly once")

    def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload:
        place = torch.full((sum(map(len, self.sites)),), -1, dtype=torch.long)
        place[rows] = torch.arange(len(rows))
        present = torch.zeros(len(rows), dtype=torch.bool)
        answers: list[tuple[Tensor, list[dict[str, Tensor]]]] = []
        for group, owner in self.groups:
            where = place[group]
            if (where < 0).all() or owner.nodes.name in self.away:
                continue
            if (where < 0).any():
                reason = "only some of its nodes were asked: put the others into a group of their own"
                raise NodeError(owner.nodes.name, calls[-1].verb, reason)
            if are_all_rows(where, len(rows)):
                replies = run(owner, calls)
            else:
                replies = run(owner, [for_rows(call, where) for call in calls])
            answers.append((where, replies))
            present[where] = True
        return Payload(gathered(answers, len(calls), len(rows)), present)

    def wait(self, answered: Tensor) -> bool:
        """Never wait: a group is away until the caller removes it from `away`."""
        return False
