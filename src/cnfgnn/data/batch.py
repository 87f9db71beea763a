"""A minibatch: some windows of a group of nodes, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import l1_loss, mse_loss

from cnfgnn.config.settings import Loss as Loss


@dataclass(frozen=True)
class Batch:
    """b windows of n nodes.

    x               (n b t d)  inputs: scaled reading and time of day
    y               (n b t)    scaled targets
    clock           (b t)      time of day of the targets, known in advance
    weight          (n b t)    1 where a target counts, 0 where it is missing; None if all count
    moment          (b 2)      slot of the day and day of the week of the last input
    gaps            (n b t)    how old the reading is that fills a gap: 0 where one was observed, toward 1
                               with age; None if the model does not use it
    usual_change  (n b 1 + t)  what the node usually reads at the last step and at the targets, minus its
                               last reading; None if the model does not use it
    linear_change   (n b t)    what the node's linear forecaster adds to its last reading; None if the model
                               does not use it
    others          (n b k)    further inputs: the past of each variable, each covariate now and ahead; None
                               if there are none
    """

    x: Tensor
    y: Tensor
    clock: Tensor
    weight: Tensor | None = None
    moment: Tensor | None = None
    gaps: Tensor | None = None
    usual_change: Tensor | None = None
    linear_change: Tensor | None = None
    others: Tensor | None = None

    @property
    def linear_forecast(self) -> Tensor | None:
        """What the nodes' linear forecasters forecast: (n b t); None if the model does not use it."""
        return None if self.linear_change is None else self.x[:, :, -1, :1] + self.linear_change

    @property
    def observed(self) -> Tensor:
        """(n b t): which targets count."""
        return torch.ones_like(self.y) if self.weight is None else self.weight

    def rows(self, nodes: slice) -> Batch:
        """The same windows of some of the nodes."""

        def select(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[nodes]

        return Batch(
            x=self.x[nodes],
            y=self.y[nodes],
            clock=self.clock,
            weight=select(self.weight),
            moment=self.moment,
            gaps=select(self.gaps),
            usual_change=select(self.usual_change),
            linear_change=select(self.linear_change),
            others=select(self.others),
        )

    def losses(self, y_hat: Tensor, kind: Loss = "square") -> Tensor:
        """(n,): each node's mean squared or absolute error over the targets that count, on scaled values.

        `y_hat` is (n b t); axes before these three stay in the result.
        """
        y_hat = y_hat.to(self.y.dtype)
        error = (mse_loss if kind == "square" else l1_loss)(y_hat, self.y.expand_as(y_hat), reduction="none")
        if self.weight is None:
            return error.mean(dim=(-2, -1))
        return (error * self.weight).sum(dim=(-2, -1)) / self.weight.sum(dim=(1, 2)).clamp(min=1)
