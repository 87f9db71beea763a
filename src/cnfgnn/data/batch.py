"""A minibatch: some windows of a group of nodes, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cnfgnn.config.settings import Loss as Loss


@dataclass(frozen=True)
class Batch:
    """b windows of n nodes.

    x       (n b t d)  input frames: scaled reading, time of day
    y       (n b t)    scaled truth
    clock   (b t)      time of day of the targets, which everybody knows
    weight  (n b t)    1 where a target counts, 0 where it is missing; None if all count
    moment  (b 2)      of the last input: which slot of the day, which day of the week
    gaps    (n b t)    1 where an input is missing; None where nobody asks
    usual   (n b t)    what the node usually reads at the targets' times, less its last reading; or None
    """

    x: Tensor
    y: Tensor
    clock: Tensor
    weight: Tensor | None = None
    moment: Tensor | None = None
    gaps: Tensor | None = None
    usual: Tensor | None = None

    def rows(self, some: slice) -> Batch:
        """The same windows of some nodes."""

        def of(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[some]

        return Batch(
            *(self.x[some], self.y[some], self.clock),
            *(of(self.weight), self.moment, of(self.gaps), of(self.usual)),
        )

    def losses(self, y_hat: Tensor, kind: Loss = "square") -> Tensor:
        """(n,): each node's mean squared or absolute error over the targets it has, on scaled values."""
        error = y_hat.to(self.y.dtype) - self.y
        error = error.square() if kind == "square" else error.abs()
        if self.weight is None:
            return error.mean(dim=(1, 2))
        return (error * self.weight).sum(dim=(1, 2)) / self.weight.sum(dim=(1, 2)).clamp(min=1)
