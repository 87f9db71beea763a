"""The weights of nodes as data: a dict of stacked tensors that can be averaged, sent and stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cnfgnn.errors import ConfigError

ALIGNED = 64  # numbers
Params = dict[str, Tensor]
"""Every tensor is (m, ...): m = 1 is one model shared by all nodes, m = n one model per node."""


def models(theta: Mapping[str, Tensor]) -> int:
    """The number of models m: the leading size of the weights."""
    return next(iter(theta.values())).shape[0]


def of_one_model(theta: Params) -> Params:
    """What `init` of a node model returned, if it is the weights of one model."""
    if not isinstance(theta, dict) or not theta:
        raise ConfigError("method", "init of its node model must return a dict of weights")
    for name, w in theta.items():
        if not isinstance(w, Tensor) or w.shape[:1] != (1,) or not w.is_floating_point():
            found = f"{tuple(w.shape)} of {w.dtype}" if isinstance(w, Tensor) else type(w).__name__
            problem = f"the weight {name} of its node model must be floating-point of a shape (1, ...)"
            raise ConfigError("method", f"{problem}, not {found}")
    return theta


def size(theta: Mapping[str, Tensor]) -> int:
    """The number of parameters of one model."""
    return sum(w[0].numel() for w in theta.values())


def part(state: Mapping[str, Tensor], prefix: str, device: torch.device | None = None) -> Params:
    """The tensors of a saved state whose names start with a prefix, without the prefix, on `device`."""
    found = {name.removeprefix(prefix): w for name, w in state.items() if name.startswith(prefix)}
    return found if device is None else {name: w.to(device) for name, w in found.items()}


def own(theta: Mapping[str, Tensor], n: int) -> Params:
    """A separate copy for each of n nodes: (1, ...) or (n, ...) -> (n, ...)."""
    return {name: w.detach().expand(n, *w.shape[1:]).clone() for name, w in theta.items()}


def take(theta: Mapping[str, Tensor], rows: Tensor) -> Params:
    """The weights of some nodes; weights that all nodes share are returned as they are."""
    if models(theta) == 1:
        return dict(theta)
    return {name: w[rows.to(w.device)] for name, w in theta.items()}


def rows(theta: Mapping[str, Tensor], nodes: slice, device: torch.device | None = None) -> Params:
    """Views of the weights of some nodes, to read or to change in place; copies if they are on another
    device."""
    views = {name: w if len(w) == 1 else w[nodes] for name, w in theta.items()}
    return views if device is None else {name: w.to(device) for name, w in views.items()}


def weighted_mean(theta: Mapping[str, Tensor], weight: Tensor) -> Params:
    """sum_i (N_i / N) theta_i: (n, ...) -> (1, ...); `weight` (n,) is normalised to add up to 1."""
    share = weight / weight.sum()
    return {
        name: torch.tensordot(share.to(w), w, dims=1).unsqueeze(0)  # (n) . (n ...) -> (1 ...)
        for name, w in theta.items()
    }


class Packing:
    """The layout of a module's weights in one vector (1 p).

    Each weight starts at a multiple of ALIGNED numbers, which matrix products require to be fast.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.shapes = [w.shape for w in weights]
        self.gaps = [-w.numel() % ALIGNED for w in weights]

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        """Weights, or tensors of the same shapes, as one vector."""
        padding = parts[0].new_zeros(ALIGNED)
        pieces = []
        for part, gap in zip(parts, self.gaps, strict=True):
            pieces += [part.flatten(), padding[:gap]]
        return torch.cat(pieces)[None]

    def cast(self, vector: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """The weights in another type, differentiable: all gradients come back in one pass."""
        return list(_Cast.apply(vector, self, dtype))  # type: ignore[no-untyped-call]

    def views(self, vector: Tensor) -> list[Tensor]:
        """The weights as views of a vector."""
        sizes = []
        for shape, gap in zip(self.shapes, self.gaps, strict=True):
            sizes += [shape.numel(), gap]
        # Not vector[0], whose gradient would be copied into a vector of zeros. Every second piece is padding.
        weights = vector.squeeze(0).split(sizes)[::2]
        return [w.view(shape) for w, shape in zip(weights, self.shapes, strict=True)]


class _Cast(torch.autograd.Function):
    """What `Packing.cast` does; by itself, PyTorch concatenates the gradients first and then casts them."""

    @staticmethod
    def forward(ctx: Any, vector: Tensor, packing: Packing, dtype: torch.dtype) -> tuple[Tensor, ...]:
        ctx.packing, ctx.kind = packing, (vector.shape, vector.dtype)
        ctx.set_materialize_grads(False)
        return tuple(packing.views(vector.to(dtype, copy=True)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None, None]:
        shape, dtype = ctx.kind
        came = [(k, grad.contiguous()) for k, grad in enumerate(grads) if grad is not None]
        vector = torch.zeros(shape, dtype=dtype, device=came[0][1].device)
        views = ctx.packing.views(vector)
        torch._foreach_copy_([views[k] for k, _ in came], [grad for _, grad in came])
        return vector, None, None


def uniform(shape: tuple[int, ...], fan: int, generator: torch.Generator) -> Tensor:
    """U(-1/sqrt(fan), 1/sqrt(fan)), the initialisation that PyTorch uses for GRUs and linear layers.

    It is drawn in float32 on the CPU, so that a seed gives the same model on every device and precision.
    """
    bound = 1 / math.sqrt(fan)
    return torch.empty(shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)
