"""Where an owner keeps its own state; how, in memory or in files, is not the algorithm's business."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class Store(Protocol):
    """Where an owner keeps its own state."""

    def write(self, tag: str, tensors: Mapping[str, Tensor]) -> None: ...

    def read(self, tag: str) -> dict[str, Tensor]: ...
