"""What travels between server and nodes, and the interface of whatever carries it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Number = int | float | str | bool


class MemoryLimit(NamedTuple):
    """How many bytes of hidden states and embeddings a site may hold; 0 means that it sets no limit."""

    site: str
    bytes: int = 0


@dataclass(frozen=True)
class Call:
    """One verb with its arguments, as it travels.

    A tensor is (1, ...) if it is the same for all nodes, else it has a row per node. `mean_by` (n,) does not
    travel: a group that holds all nodes may then answer with one row, the mean of all by these weights.
    """

    verb: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    mean_by: Tensor | None = None


@dataclass(frozen=True)
class Payload:
    """The answers of the nodes: for each call named tensors with a row per node, zeros for absent ones."""

    replies: Sequence[Mapping[str, Tensor]]
    present: Tensor  # (rows,) bool

    def joined(self, later: Payload, places: Tensor) -> Payload:
        """With the answers of the nodes in these places, which were asked later."""
        replies, present = [], self.present.clone()
        present[places] = later.present
        for first, second in zip(self.replies, later.replies, strict=True):
            both = dict(first)
            for name, rows in second.items():
                all_rows = both.get(name, rows.new_zeros(len(present), *rows.shape[1:])).clone()
                all_rows[places.to(rows.device)] = rows
                both[name] = all_rows
            replies.append(both)
        return Payload(replies, present)


class Transport(Protocol):
    """Carries calls to the nodes.

    `sites` holds the rows of each site and `memory_limits` the limit of each. `exchange` runs the calls in
    order on every site that has one of `rows`, and answers node-major. `wait` returns False if the rows that
    answered are enough to continue with; otherwise it returns True once more sites can be asked.
    """

    @property
    def sites(self) -> Sequence[Tensor]: ...

    @property
    def memory_limits(self) -> Sequence[MemoryLimit]: ...

    def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload: ...

    def wait(self, answered: Tensor) -> bool: ...


def for_rows(call: Call, rows: Tensor) -> Call:
    """The call with each per-node tensor cut down to these rows."""
    tensors = {
        name: tensor if tensor.shape[0] == 1 else tensor[rows.to(tensor.device)]
        for name, tensor in call.tensors.items()
    }
    return Call(call.verb, call.numbers, tensors)


def gathered(
    answered: Sequence[tuple[Tensor, Sequence[Mapping[str, Tensor]]]], calls: int, n: int
) -> list[Mapping[str, Tensor]]:
    """The answers of several groups to so many calls as one, node-major; zeros for nodes that did not answer.
    Each group has its rows and an answer to each call."""
    return [_joined([(where, replies[k]) for where, replies in answered], n) for k in range(calls)]


def _joined(parts: Sequence[tuple[Tensor, Mapping[str, Tensor]]], n: int) -> Mapping[str, Tensor]:
    if not parts:
        return {}
    rows, first = parts[0]
    if len(parts) == 1 and are_all_rows(rows, n):
        return first
    joined: dict[str, Tensor] = {}
    for name, example in first.items():
        joined[name] = example.new_zeros(n, *example.shape[1:])
        for where, reply in parts:
            joined[name][where.to(example.device)] = reply[name].to(example.device)
    return joined


def are_all_rows(rows: Tensor, n: int) -> bool:
    """Whether these are all n rows, in order."""
    return len(rows) == n and torch.equal(rows, torch.arange(n))


def sites_with(rows: Tensor, sites: Sequence[Tensor]) -> int:
    """How many of the sites have one of these rows."""
    if len(sites) == 1:
        return int(len(rows) > 0)
    sizes = torch.tensor([len(site) for site in sites])
    site_of_row = torch.empty(int(sizes.sum()), dtype=torch.long)
    site_of_row[torch.cat(list(sites))] = torch.arange(len(sites)).repeat_interleave(sizes)
    return len(site_of_row[rows].unique())
