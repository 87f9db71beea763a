"""h_c of all training windows at the server: stored in phase (2), or encoded again minibatch by minibatch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from cnfgnn.algorithm.memory_plan import StateFormat
from cnfgnn.algorithm.nodes import Nodes
from cnfgnn.algorithm.randomness import Batches, Draw


class Encodings(Protocol):
    """`encodings[draw]` is h_c (n b h) of a minibatch, and the mask of nodes that sent it: (n b), (n 1), or
    None if all nodes did.

    `pieces` are draws that together cover every window once; None stands for all windows at once.
    """

    @property
    def pieces(self) -> Iterable[Draw | None]: ...

    def __getitem__(self, draw: Draw | None) -> tuple[Tensor, Tensor | None]: ...


class Stored:
    """Sent once and stored: sites that leave or rejoin later make no difference."""

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


class Recomputed:
    """Nothing is stored: nodes encode a minibatch whenever it is needed."""

    def __init__(self, nodes: Nodes, batches: Batches) -> None:
        self.nodes, self.batches = nodes, batches

    @property
    def pieces(self) -> Iterable[Draw]:
        return self.batches.epoch(0, 0)  # the same in every round, so that a resumed run uses the same pieces

    def __getitem__(self, draw: Draw | None) -> tuple[Tensor, Tensor | None]:
        h_c = self.nodes.encode(draw)
        return h_c, self.nodes.present("train", slice(None) if draw is None else self.batches[draw])


def encodings(state_format: StateFormat, nodes: Nodes, batches: Batches, dtype: torch.dtype) -> Encodings:
    """Phase (2), in the format that was chosen at set-up; if h_c is stored, it is stored in this type."""
    if state_format == "recomputed":
        return Recomputed(nodes, batches)
    return Stored(nodes, batches, dtype)
