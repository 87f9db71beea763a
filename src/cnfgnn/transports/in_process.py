"""Nodes in the same process: the simulator's transport, and every test's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cnfgnn.algorithm.calls import Call, Payload, for_rows
from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.dispatch import run
from cnfgnn.errors import NodeError


class InProcess:
    """Groups of nodes that together hold rows 0 .. n-1; `away` names groups that do not answer for now."""

    def __init__(self, groups: Sequence[tuple[Tensor, Clients]]) -> None:
        self.groups = list(groups)
        self.sites = [rows for rows, _ in self.groups]
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
                        [call if _whole(where, len(rows)) else for_rows(call, where) for call in calls],
                    ),
                )
            )
            present[where] = True
        replies = [
            _gathered([(where, reply[k]) for where, reply in answers], len(rows)) for k in range(len(calls))
        ]
        return Payload(replies, present)

    def wait(self, answered: Tensor) -> bool:
        """Nobody will come back while we wait for them here."""
        return False


def _gathered(parts: Sequence[tuple[Tensor, Mapping[str, Tensor]]], n: int) -> Mapping[str, Tensor]:
    """Answers of several groups as one, node-major; zeros where nobody answered."""
    if not parts:
        return {}
    rows, first = parts[0]
    if len(parts) == 1 and _whole(rows, n):
        return first
    whole: dict[str, Tensor] = {}
    for name, example in first.items():
        whole[name] = example.new_zeros(n, *example.shape[1:])
        for where, reply in parts:
            whole[name][where.to(example.device)] = reply[name]
    return whole


def _whole(rows: Tensor, n: int) -> bool:
    return len(rows) == n and torch.equal(rows, torch.arange(n))
