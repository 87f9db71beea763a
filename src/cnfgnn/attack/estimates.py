"""What an attack returns: its estimate of the readings, in their unit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cnfgnn.data.windows import Split


@dataclass(frozen=True, eq=False)
class Estimate:
    """An attack's estimate of the readings of some windows.

    name      of the attack
    split     the split that the windows belong to
    rows      (n,)     the nodes
    starts    (w,)     the first row of each window
    history            readings in a window
    readings  (n T)    float64, NaN at rows of no window
    """

    name: str
    split: Split
    rows: Tensor
    starts: Tensor
    history: int
    readings: Tensor

    @property
    def inputs(self) -> Tensor:
        """(w t): the rows of each window's readings."""
        return self.starts[:, None] + torch.arange(self.history)

    def by_window(self) -> Tensor:
        """(n w t)."""
        return self.readings[:, self.inputs]

    def with_readings(self, name: str, readings: Tensor) -> Estimate:
        """Another estimate of the same readings."""
        return replace(self, name=name, readings=readings)
