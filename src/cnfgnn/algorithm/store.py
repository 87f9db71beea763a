"""Where a party saves its own state: the interface, and a store in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from torch import Tensor

from cnfgnn.errors import RunError


class Store(Protocol):
    """Saved states by tag."""

    def write(self, tag: str, tensors: Mapping[str, Tensor], keep: Collection[str]) -> None:
        """Save a state under this tag, then delete all others but those to keep."""

    def read(self, tag: str) -> dict[str, Tensor]:
        """The state with this tag; empty for a site that has none to continue from (see `newest`)."""

    def has(self, tag: str) -> bool:
        """Whether there is a state with this tag."""

    def earlier(self, run: str, tag: str) -> dict[str, Tensor]:
        """The weights in a state of another run, in the order of today's nodes: NaN for a node that took no
        part in it. Empty if nothing is known of that run."""


class MemoryStore:
    """The states of one party, which are gone when the process ends."""

    def __init__(self) -> None:
        self.states: dict[str, dict[str, Tensor]] = {}

    def write(self, tag: str, tensors: Mapping[str, Tensor], keep: Collection[str]) -> None:
        self.states[tag] = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for old in [name for name in self.states if name != tag and name not in keep]:
            del self.states[old]

    def read(self, tag: str) -> dict[str, Tensor]:
        if tag not in self.states:
            raise RunError(f"{tag} in memory", "this checkpoint is missing")
        return {name: tensor.clone() for name, tensor in self.states[tag].items()}

    def has(self, tag: str) -> bool:
        return tag in self.states

    def earlier(self, run: str, tag: str) -> dict[str, Tensor]:
        return {}


class SiteMemoryStore(MemoryStore):
    """A site's states: it may lack some, see `newest`."""

    def read(self, tag: str) -> dict[str, Tensor]:
        known = newest(tag, self.states)
        return {} if known is None else super().read(known)


def newest(tag: str, known: Collection[str]) -> str | None:
    """The state that a site continues from when `tag` is to be restored; None if it has none.

    A site may have been away when the others saved a state. It then continues from the last one that it saved
    before; the phases of a round come before its end.
    """
    if tag in known:
        return tag
    earlier = [other for other in known if other.startswith("round-") and _age(other) < _age(tag)]
    return max(earlier, key=_age, default=None)


def _age(tag: str) -> str:
    return tag if "-phase-" in tag else f"{tag}-phase-~"
