"""FMTL's regulariser at the nodes: what the weights of neighbours add to a node's own gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from cnfgnn.models.graphnet import Incidence
from cnfgnn.models.params import Params, part

NUMBERS_AT_ONCE = 1 << 24  # edges x parameters: bounds memory


class Pull(Protocol):
    def add(self, theta: Params, grads: Params, rows: slice) -> None:
        """Add the pull to the gradients of some of the nodes, given their weights."""

    def state(self) -> Params:
        """Flat and named, for a checkpoint."""


class ToAnchor:
    """lambda_1 sum_j a_ij ||w_i - w_j||^2 has the gradient 2 lambda_1 d_i (w_i - anchor_i).

    anchor  (n, ...)  the weighted mean of each node's neighbours
    weight  (n,)      lambda_1 d_i
    """

    def __init__(self, anchor: Params, weight: Tensor) -> None:
        self.anchor, self.weight = anchor, weight

    def add(self, theta: Params, grads: Params, rows: slice) -> None:
        for name, w in theta.items():
            weight = self.weight[rows].to(w).view(-1, *[1] * (w.dim() - 1))
            grads[name] = grads[name] + 2 * weight * (w.detach() - self.anchor[name][rows].to(w.device))

    def state(self) -> Params:
        return {f"anchor.{name}": w for name, w in self.anchor.items()} | {"anchor_weight": self.weight}


class ToEach:
    """Deviation D5: lambda sum_j a_ij ||w_i - w_j||, the norm over all weights of a node, has the gradient
    lambda sum_j a_ij (w_i - w_j) / ||w_i - w_j||, taken as 0 where w_i = w_j. An anchor is not enough
    here: the share of each neighbour depends on w_i, which moves in every minibatch.

    others     (n, ...)  every node's weights at the start of the round
    senders    (e,)      i of each edge, ascending
    receivers  (e,)      j of each edge
    weights    (e,)      lambda a_ij
    """

    def __init__(self, others: Params, senders: Tensor, receivers: Tensor, weights: Tensor) -> None:
        self.others, self.senders, self.receivers, self.weights = others, senders, receivers, weights
        n = next(iter(others.values())).shape[0]
        self.offsets = Incidence.of(senders, n).offsets
        self._starts: list[int] = self.offsets.tolist()  # a recorded step must not read these from the device

    @torch.no_grad()
    def add(self, theta: Params, grads: Params, rows: slice) -> None:
        start, stop, _ = rows.indices(len(self._starts) - 1)
        edges = slice(self._starts[start], self._starts[stop])
        if edges.start == edges.stop:
            return
        i, j = self.senders[edges] - start, self.receivers[edges]
        squares = torch.zeros_like(self.weights[edges])
        for name, w in sorted(theta.items()):  # in a fixed order, because a restored state may have another
            for apart in self._apart(name, w, i, j):
                squares += apart.square().sum(1)
        norm = squares.sqrt()
        share = (self.weights[edges] / norm).masked_fill_(norm == 0, 0)[:, None]
        order = torch.arange(len(i), device=i.device)  # edges are sorted by sender
        ends = Incidence(i, order, self.offsets[start : stop + 1] - edges.start)
        for name, w in theta.items():
            pull = torch.cat([ends.sum(share * apart) for apart in self._apart(name, w, i, j)], dim=1)
            grads[name] = grads[name] + pull.view_as(w)

    def _apart(self, name: str, w: Tensor, i: Tensor, j: Tensor) -> Iterator[Tensor]:
        """w_i - w_j of each edge, a few parameters at a time: (e p)."""
        width = max(1, NUMBERS_AT_ONCE // len(i))
        both = zip(w.flatten(1).split(width, 1), self.others[name].flatten(1).split(width, 1), strict=True)
        return (mine.index_select(0, i) - theirs.index_select(0, j) for mine, theirs in both)

    def state(self) -> Params:
        state = {f"others.{name}": w for name, w in self.others.items()}
        state["edges.senders"] = self.senders
        state["edges.receivers"] = self.receivers
        state["edges.weights"] = self.weights
        return state


def pull_of(state: Mapping[str, Tensor], device: torch.device) -> Pull | None:
    """The pull in a checkpoint, if there is one."""
    if anchor := part(state, "anchor.", device):
        return ToAnchor(anchor, state["anchor_weight"].to(device))
    if others := part(state, "others.", device):
        edges = part(state, "edges.", device)
        return ToEach(others, edges["senders"], edges["receivers"], edges["weights"])
    return None
