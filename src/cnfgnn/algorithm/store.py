"""Where an owner keeps its own state: the interface, and a store in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from torch import Tensor

from cnfgnn.errors import RunError


class Store(Protocol):
    """States under names (tags)."""

    def write(self, tag: str, tensors: Mapping[str, Tensor], keep: Collection[str]) -> None:
        """Keep a state under this name, then forget all others but those named."""

    def read(self, tag: str) -> dict[str, Tensor]:
        """The state of that name; nothing where an owner may lack one, because it joined later."""


class MemoryStore:
    """States of one owner, gone with the process."""

    def __init__(self) -> None:
        self.states: dict[str, dict[str, Tensor]] = {}

    def write(self, tag: str, tensors: Mapping[str, Tensor], keep: Collection[str]) -> None:
        self.states[tag] = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for old in [name for name in self.states if name != tag and name not in keep]:
            del self.states[old]

    def read(self, tag: str) -> dict[str, Tensor]:
        if tag not in self.states:
            raise RunError(f"{tag} in memory", "this state is missing")
        return {name: tensor.clone() for name, tensor in self.states[tag].items()}


class SiteMemoryStore(MemoryStore):
    """A site's: see `newest`."""

    def read(self, tag: str) -> dict[str, Tensor]:
        known = newest(tag, self.states)
        return {} if known is None else super().read(known)


def newest(tag: str, known: Collection[str]) -> str | None:
    """The state that a site goes on from when it is asked for `tag`; None where it has none to go on from.

    A site may have been away when the others kept a state. It then goes on from the last one that it kept
    before that; a round's phases come before its end.
    """
    if tag in known:
        return tag
    earlier = [other for other in known if other.startswith("round-") and _age(other) < _age(tag)]
    return max(earlier, key=_age, default=None)


def _age(tag: str) -> str:
    return tag if "-phase-" in tag else f"{tag}-phase-~"
