"""Node weights are data: a dict of stacked tensors that can be averaged, sent and stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

ALIGNED = 64
Params = dict[str, Tensor]
"""Every tensor is (m, ...): m = 1 is one model shared by all nodes, m = n one model per node."""


def models(theta: Mapping[str, Tensor]) -> int:
    """m, read off the weights."""
    return next(iter(theta.values())).shape[0]


def size(theta: Mapping[str, Tensor]) -> int:
    """The number of parameters of one model."""
    return sum(w[0].numel() for w in theta.values())


def part(state: Mapping[str, Tensor], prefix: str, device: torch.device | None = None) -> Params:
    """What a saved state holds under a prefix, which is taken off; moved to a device if one is given."""
    found = {name.removeprefix(prefix): w for name, w in state.items() if name.startswith(prefix)}
    return found if device is None else {name: w.to(device) for name, w in found.items()}


def is_personal(name: str) -> bool:
    """Whether weights of this name belong to one node and never leave it."""
    return ".personal." in name


def shared(theta: Mapping[str, Tensor]) -> Params:
    """The weights that nodes may share."""
    return {name: w for name, w in theta.items() if not is_personal(name)}


def with_personal(loaded: Params, before: Mapping[str, Tensor], n: int) -> Params:
    """Weights that came, with what is personal among those before, should it not have come too; one row for
    each of n nodes, also where all begin alike."""
    mine = {name: w for name, w in before.items() if is_personal(name)} | loaded
    return {
        **shared(mine),
        **{k: w.expand(n, *w.shape[1:]).clone() for k, w in mine.items() if is_personal(k)},
    }


def own(theta: Mapping[str, Tensor], n: int) -> Params:
    """A copy of its own for each of n nodes: (1, ...) or (n, ...) -> (n, ...)."""
    return {name: w.detach().expand(n, *w.shape[1:]).clone() for name, w in theta.items()}


def take(theta: Mapping[str, Tensor], rows: Tensor) -> Params:
    """The weights of some nodes; shared weights are theirs already."""
    if models(theta) == 1:
        return dict(theta)
    return {name: w[rows.to(w.device)] for name, w in theta.items()}


def rows(theta: Mapping[str, Tensor], some: slice) -> Params:
    """The weights of some nodes in place, to be read or changed there."""
    return {name: w if len(w) == 1 else w[some] for name, w in theta.items()}


def weighted_mean(theta: Mapping[str, Tensor], weight: Tensor) -> Params:
    """sum_i (N_i / N) theta_i: (n, ...) -> (1, ...); weight is (n,) and need not add up to 1."""
    share = weight / weight.sum()
    return {
        name: torch.tensordot(share.to(w), w, dims=1).unsqueeze(0)  # (n) . (n ...) -> (1 ...)
        for name, w in theta.items()
    }


class Packing:
    """How a module's weights lie in one vector (1 p): each begins at a multiple of ALIGNED numbers, as
    products want it."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.shapes = [w.shape for w in weights]
        self.gaps = [-w.numel() % ALIGNED for w in weights]

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        nothing = parts[0].new_zeros(ALIGNED)
        both = zip(parts, self.gaps, strict=True)
        return torch.cat([x for part, gap in both for x in (part.flatten(), nothing[:gap])])[None]

    def views(self, vector: Tensor) -> list[Tensor]:
        sizes = [
            size for shape, gap in zip(self.shapes, self.gaps, strict=True) for size in (shape.numel(), gap)
        ]
        return [x.view(shape) for x, shape in zip(vector[0].split(sizes)[::2], self.shapes, strict=True)]


def uniform(shape: tuple[int, ...], fan: int, generator: torch.Generator) -> Tensor:
    """U(-1/sqrt(fan), 1/sqrt(fan)), PyTorch's own initialisation of GRUs and linear layers.

    Drawn in float32 on the CPU whatever the run's device and precision, so that a seed means one model.
    """
    bound = 1 / math.sqrt(fan)
    return torch.empty(shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)
