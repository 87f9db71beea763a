"""The bytes that cross between server and nodes, counted at the verbs so that no algorithm has to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Purpose = Literal["set-up", "training", "evaluation", "recovery"]
Direction = Literal["up", "down"]


@dataclass(frozen=True)
class Bytes:
    """Per node, as the paper counts: a shared tensor once for each node. Per site, as a network carries it: a
    shared tensor once for each site."""

    per_node: int = 0
    per_site: int = 0

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.per_node + other.per_node, self.per_site + other.per_site)


class Item(NamedTuple):
    purpose: Purpose
    verb: str
    direction: Direction


class Ledger:
    """Bytes of arrays by purpose, verb and direction. Numbers beside them (round, step) are not counted."""

    def __init__(self) -> None:
        self.items: dict[Item, Bytes] = {}

    def add(self, item: Item, amount: Bytes) -> None:
        self.items[item] = self.items.get(item, Bytes()) + amount

    def total(self, purpose: Purpose = "training") -> Bytes:
        return sum((b for item, b in self.items.items() if item.purpose == purpose), Bytes())

    def state(self) -> list[list[str | int]]:
        """As plain lists, for a manifest."""
        return [[*item, b.per_node, b.per_site] for item, b in sorted(self.items.items())]

    def load(self, state: list[list[str | int]]) -> None:
        self.items = {
            Item(purpose, verb, direction): Bytes(int(per_node), int(per_site))  # type: ignore[arg-type]
            for purpose, verb, direction, per_node, per_site in state
        }
