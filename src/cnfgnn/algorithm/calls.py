"""What travels between server and nodes, and the one thing that must carry it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Number = int | float | str | bool


class Room(NamedTuple):
    """What a site can hold of hidden states and embeddings, by what its owner says; 0 bytes: anything."""

    site: str
    bytes: int = 0


@dataclass(frozen=True)
class Call:
    """One verb with its arguments; a tensor is (1, ...) if all nodes get the same, else a row per node."""

    verb: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Payload:
    """The nodes' answers: for each call named tensors, a row per node asked, zeros where it was absent."""

    replies: Sequence[Mapping[str, Tensor]]
    present: Tensor  # (rows,) bool

    def joined(self, late: Payload, places: Tensor) -> Payload:
        """With the answers of those in these places, who were asked again."""
        replies, present = [], self.present.clone()
        present[places] = late.present
        for first, second in zip(self.replies, late.replies, strict=True):
            whole = dict(first)
            for name, rows in second.items():
                everybody = whole.get(name, rows.new_zeros(len(present), *rows.shape[1:])).clone()
                everybody[places.to(rows.device)] = rows
                whole[name] = everybody
            replies.append(whole)
        return Payload(replies, present)


class Transport(Protocol):
    """Carries calls to the nodes. `sites` holds each site's rows, and `rooms` what each of them can hold;
    `exchange` runs the calls in order on every site that has one of `rows`, and answers node-major. `wait`
    says whether those rows are too few to go on with, and if so returns only when more can be asked."""

    @property
    def sites(self) -> Sequence[Tensor]: ...

    @property
    def rooms(self) -> Sequence[Room]: ...

    def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload: ...

    def wait(self, answered: Tensor) -> bool: ...


def for_rows(call: Call, rows: Tensor) -> Call:
    """The call with each per-node tensor cut down to these rows."""
    tensors = {k: t if t.shape[0] == 1 else t[rows.to(t.device)] for k, t in call.tensors.items()}
    return Call(call.verb, call.numbers, tensors)


def gathered(parts: Sequence[tuple[Tensor, Mapping[str, Tensor]]], n: int) -> Mapping[str, Tensor]:
    """Answers of several groups as one, node-major; zeros where nobody answered."""
    if not parts:
        return {}
    rows, first = parts[0]
    if len(parts) == 1 and whole(rows, n):
        return first
    everybody: dict[str, Tensor] = {}
    for name, example in first.items():
        everybody[name] = example.new_zeros(n, *example.shape[1:])
        for where, reply in parts:
            everybody[name][where.to(example.device)] = reply[name]
    return everybody


def whole(rows: Tensor, n: int) -> bool:
    """Whether these are all n rows, in order."""
    return len(rows) == n and torch.equal(rows, torch.arange(n))
