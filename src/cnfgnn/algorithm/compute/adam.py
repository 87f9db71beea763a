"""Adam over stacked node weights: it is element-wise, so that one Adam over all rows is one per node."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from cnfgnn.models import kernels
from cnfgnn.models.params import Params, models

BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8


class Adam:
    """Kingma & Ba's update with the constants of torch.optim.Adam.

    Each row counts its own steps, because a node without a window in a minibatch takes no step. The learning
    rate is a tensor that is changed in place, so that a recorded or compiled step uses the new rate.
    """

    def __init__(self, theta: Mapping[str, Tensor], lr: float) -> None:
        self.mean = {name: torch.zeros(w.shape, dtype=w.dtype, device=w.device) for name, w in theta.items()}
        self.square = {name: torch.zeros_like(w) for name, w in self.mean.items()}
        first = next(iter(theta.values()))
        self.steps = torch.zeros(models(theta), dtype=torch.float64, device=first.device)
        self.rate = torch.full((), lr, dtype=torch.float64, device=first.device)

    @classmethod
    def of_nodes(cls, theta: Mapping[str, Tensor], n: int, lr: float, home: torch.device) -> Adam:
        """For n nodes with weights of their own or one for all; the state is on the device `home`."""
        shapes = {name: w.new_zeros(1, device=home).expand(n, *w.shape[1:]) for name, w in theta.items()}
        return cls(shapes, lr)

    def rows(self, rows: slice, device: torch.device) -> Adam:
        """For some nodes: a view, or a copy if the state is on another device (see `put`)."""
        part = copy.copy(self)
        part.mean = {name: w[rows].to(device) for name, w in self.mean.items()}
        part.square = {name: w[rows].to(device) for name, w in self.square.items()}
        part.steps, part.rate = self.steps[rows].to(device), self.rate.to(device)
        return part

    def put(self, rows: slice, part: Adam) -> None:
        """Keep the state of some nodes, which learned on another device."""
        for name in self.mean:
            self.mean[name][rows] = part.mean[name]
            self.square[name][rows] = part.square[name]
        self.steps[rows] = part.steps

    def set_rate(self, lr: float) -> None:
        """Continue with another learning rate."""
        self.rate.fill_(lr)

    @torch.no_grad()
    def step(
        self,
        theta: Params,
        grads: Mapping[str, Tensor],
        active: Tensor | None = None,
        rows: slice = slice(None),
    ) -> None:
        """Change theta (m, ...) in place; rows that are not `active` (m,) stay exactly as they are.

        All arguments are for these `rows` of the weights that Adam was made for.
        """
        taken = self.steps[rows]
        moving = torch.ones_like(taken) if active is None else active.to(taken)
        taken += moving
        if kernels.available(taken.device) and all(w.dtype == torch.float32 for w in theta.values()):
            from cnfgnn.models.kernels.adam import adam_step

            for name, w in theta.items():
                moments = self.mean[name][rows], self.square[name][rows]
                # a pooled model has one row, except for the embedding of each sensor
                counts = taken.expand(len(w)).contiguous(), moving.expand(len(w)).contiguous()
                adam_step(w, grads[name], *moments, *counts, self.rate, (BETA_1, BETA_2), EPS)
            return
        steps = taken.clamp(min=1)
        new_1, new_2 = (1 - BETA_1) * moving, (1 - BETA_2) * moving
        rate = moving * self.rate / (1 - BETA_1**steps)
        root = (1 - BETA_2**steps).sqrt()
        for name, w in theta.items():
            row = (-1, *[1] * (w.dim() - 1))
            mean, square, grad = self.mean[name][rows], self.square[name][rows], grads[name]
            mean.lerp_(grad, new_1.view(row).to(w))
            square.lerp_(grad * grad, new_2.view(row).to(w))
            scale = square.sqrt().div_(root.view(row).to(w)).add_(EPS)
            w.sub_(torch.div(mean, scale, out=scale).mul_(rate.view(row).to(w)))

    def state(self) -> dict[str, Tensor]:
        """Flat and named, for a checkpoint."""
        parts = {"mean": self.mean, "square": self.square}
        flat = {f"{part}.{name}": w for part, tensors in parts.items() for name, w in tensors.items()}
        return flat | {"steps": self.steps}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """In place, so that a recorded step continues with the same tensors."""
        for name in self.mean:
            self.mean[name].copy_(state[f"mean.{name}"])
            self.square[name].copy_(state[f"square.{name}"])
        self.steps.copy_(state["steps"])
