"""Where an owner keeps its own state; how, in memory or in files, is not the algorithm's business."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from torch import Tensor


class Store(Protocol):
    """States under names (tags)."""

    def write(self, tag: str, tensors: Mapping[str, Tensor], keep: Collection[str]) -> None:
        """Keep a state under this name, then forget all others but those named."""

    def read(self, tag: str) -> dict[str, Tensor]:
        """The state of that name; nothing where an owner may lack one, because it joined later."""
