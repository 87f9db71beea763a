"""Nodes that learn together: as many as fit into memory with their weights, gradients and optimisers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cnfgnn.algorithm.compute.adam import Adam
from cnfgnn.algorithm.compute.working_memory import NodeMemory
from cnfgnn.algorithm.fmtl import Pull
from cnfgnn.algorithm.forecaster import Forecaster
from cnfgnn.data.batch import Batch
from cnfgnn.data.prepared_series import PreparedSeries
from cnfgnn.models.params import Params


@dataclass(frozen=True)
class LearningGroup:
    """The `nodes` of a larger group, with what they learn from; only `theta` and `adam` change."""

    nodes: slice
    theta: Params
    adam: Adam
    data: PreparedSeries
    h_G: Tensor | None
    forecaster: Forecaster
    memory: NodeMemory
    regulariser: Pull | None

    def learn(self, windows: Tensor, h_G: Tensor | None, truth: Tensor | None) -> None:
        """One minibatch: every node takes a step along the gradient of its own loss."""
        for few in self.memory.within(self.data.nodes, len(windows)):
            batch = self.data.of_nodes(few).batch("train", windows, rows_of(h_G, few))
            theta = {name: w.detach()[few].requires_grad_() for name, w in self.theta.items()}
            losses = self.forecaster.losses(theta, batch, rows_of(h_G, few), truth)
            gradients = torch.autograd.grad(losses.sum(), list(theta.values()))
            grads = dict(zip(theta, gradients, strict=True))
            if self.regulariser is not None:
                first = self.nodes.start
                self.regulariser.add(theta, grads, slice(first + few.start, first + few.stop))
            self.adam.step(theta, grads, active(batch), few)


def rows_of(x: Tensor | None, nodes: slice) -> Tensor | None:
    """Some rows of an array that may be absent."""
    return None if x is None else x[nodes]


def active(batch: Batch) -> Tensor | None:
    """(n,): the nodes that have at least one of the targets; None if all have all of them."""
    return None if batch.weight is None else batch.weight.amax(dim=(1, 2)) > 0
