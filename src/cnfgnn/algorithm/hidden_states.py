"""h_c of all training windows as the server sees it: kept since phase (2), or asked for piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from cnfgnn.algorithm.memory_plan import How
from cnfgnn.algorithm.nodes import Nodes
from cnfgnn.algorithm.randomness import Batches, Draw


class Encodings(Protocol):
    """encodings[draw] is h_c (n b h) of a minibatch, and whose there is: (n b), (n 1) or None if everybody's.

    `pieces` together are all windows, each once; None stands for all at once.
    """

    @property
    def pieces(self) -> Iterable[Draw | None]: ...

    def __getitem__(self, draw: Draw | None) -> tuple[Tensor, Tensor | None]: ...


class Kept:
    """Sent once and kept: who goes or comes later changes nothing."""

    def __init__(self, nodes: Nodes, batches: Batches, dtype: torch.dtype) -> None:
        self.h_c, self.batches = nodes.encode().to(dtype), batches
        self.present = nodes.present("train")
        self.pieces = (None,)

    def __getitem__(self, draw: Draw | None) -> tuple[Tensor, Tensor | None]:
        if draw is None:
            return self.h_c, self.present
        windows, present = self.batches[draw], self.present
        if present is not None and present.shape[1] > 1:
            present = present[:, windows.to(present.device)]
        return self.h_c[:, windows], present


class Asked:
    """Nothing is kept: nodes encode a minibatch whenever it is needed."""

    def __init__(self, nodes: Nodes, batches: Batches) -> None:
        self.nodes, self.batches = nodes, batches

    @property
    def pieces(self) -> Iterable[Draw]:
        return self.batches.epoch(0, 0)  # the same in every round: what is resumed must be cut as it was

    def __getitem__(self, draw: Draw | None) -> tuple[Tensor, Tensor | None]:
        h_c = self.nodes.encode(draw)
        return h_c, self.nodes.present("train", slice(None) if draw is None else self.batches[draw])


def encodings(how: How, nodes: Nodes, batches: Batches, dtype: torch.dtype) -> Encodings:
    """Phase (2), the way that the run's set-up chose; what is kept, in this type."""
    return Asked(nodes, batches) if how == "recomputed" else Kept(nodes, batches, dtype)
