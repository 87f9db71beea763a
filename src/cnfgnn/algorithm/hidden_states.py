"""h_c of all training windows at the server: stored in phase (2), or encoded again minibatch by minibatch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from cnfgnn.algorithm.messages.nodes import Nodes
from cnfgnn.algorithm.messages.randomness import Batches, Draw
from cnfgnn.algorithm.messages.settings import StateFormat

AT_ONCE = 16 << 20  # bytes of h_c that are asked for in one exchange; one minibatch may have more

Encoded = tuple[Tensor, Tensor | None]
"""h_c (n b h), and the mask of nodes that sent it: (n b), (n 1), or None if all nodes did."""


class Encodings(Protocol):
    """h_c of the training windows: `encodings[draw]` is that of one minibatch."""

    def __getitem__(self, draw: Draw) -> Encoded: ...

    def pieces(self) -> Iterator[tuple[Draw | None, Encoded]]:
        """Draws that together cover every window once, with their h_c; None stands for all windows."""
        ...

    def backward(self, h_G: Tensor, draw: Draw, step: int, following: Draw | None) -> Tensor:
        """The nodes' gradients with respect to h_G; h_c of the minibatch that follows may come with them."""
        ...


class Stored:
    """Sent once and stored: sites that leave or rejoin later make no difference."""

    def __init__(self, nodes: Nodes, batches: Batches, dtype: torch.dtype) -> None:
        self.h_c, self.nodes, self.batches = nodes.encode().to(dtype), nodes, batches
        self.present = nodes.present("train")

    def __getitem__(self, draw: Draw) -> Encoded:
        windows, present = self.batches[draw], self.present
        if present is not None and present.shape[1] > 1:
            present = present[:, windows.to(present.device)]
        return self.h_c[:, windows], present

    def pieces(self) -> Iterator[tuple[Draw | None, Encoded]]:
        yield None, (self.h_c, self.present)

    def backward(self, h_G: Tensor, draw: Draw, step: int, following: Draw | None) -> Tensor:
        return self.nodes.backward(h_G, draw, step)


class Recomputed:
    """Nothing is stored: nodes encode a minibatch whenever it is needed.

    The weights of the nodes do not change meanwhile, so h_c of a minibatch can come with the gradients of the
    one before it, or with h_c of its neighbours: over a slow line, it is exchanges that take time.
    """

    def __init__(self, nodes: Nodes, batches: Batches) -> None:
        self.nodes, self.batches = nodes, batches
        self._ahead: tuple[Draw, Encoded] | None = None  # of the minibatch that comes next

    def __getitem__(self, draw: Draw) -> Encoded:
        if self._ahead is None or self._ahead[0] != draw:
            return self._masked(self.nodes.encode(draw), draw)
        encoded, self._ahead = self._ahead[1], None
        return encoded

    def pieces(self) -> Iterator[tuple[Draw | None, Encoded]]:
        # the same draws in every round, so that a resumed run uses the same pieces
        waiting = list(self.batches.epoch(0, 0))
        at_once = 1
        while waiting:
            some, waiting = waiting[:at_once], waiting[at_once:]
            encoded = [
                self._masked(h_c, draw) for h_c, draw in zip(self.nodes.encode_each(some), some, strict=True)
            ]
            yield from zip(some, encoded, strict=True)
            at_once = max(1, AT_ONCE // max(1, encoded[0][0].nbytes))

    def backward(self, h_G: Tensor, draw: Draw, step: int, following: Draw | None) -> Tensor:
        if following is None:
            return self.nodes.backward(h_G, draw, step)
        grad_h_G, h_c = self.nodes.backward_and_encode(h_G, draw, step, following)
        self._ahead = following, self._masked(h_c, following)
        return grad_h_G

    def _masked(self, h_c: Tensor, draw: Draw) -> Encoded:
        return h_c, self.nodes.present("train", self.batches[draw])


def encodings(state_format: StateFormat, nodes: Nodes, batches: Batches, dtype: torch.dtype) -> Encodings:
    """Phase (2), in the format that was chosen at set-up; if h_c is stored, it is stored in this type."""
    if state_format == "recomputed":
        return Recomputed(nodes, batches)
    return Stored(nodes, batches, dtype)
