"""What the owner of a group of nodes computes for itself: forecasts and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cnfgnn.data.windows import Split
from cnfgnn.models.params import rows

if TYPE_CHECKING:
    from cnfgnn.algorithm.clients import Clients


class Owner:
    """Forecasts stay with the owner. Of their errors only sums over all windows leave (`score`)."""

    def __init__(self, nodes: Clients) -> None:
        self.nodes = nodes
        self.h_G: Tensor | None = None  # of the split that is evaluated next
        self.forecasts: Tensor | None = None  # (n t): of the window ahead, in the readings' unit

    @torch.no_grad()
    def forecasts_of(self, split: Split, windows: slice) -> Tensor:
        """y_hat of some windows, scaled: (n b t)."""
        nodes = self.nodes
        batch, _ = nodes.data.batch(split, windows)
        h_G = None if self.h_G is None else self.h_G[:, windows].to(nodes.compute.dtype)
        parts = []
        with nodes.compute.autocast():
            for group in nodes.compute.node_slices(*batch.y.shape[:2]):
                own_h_G = None if h_G is None else h_G[group]
                parts.append(nodes.model.forecast(rows(nodes.theta, group), batch.rows(group), own_h_G))
            return torch.cat(parts)

    @torch.no_grad()
    def summed_errors(self, split: Split) -> Tensor:
        """(n t 8): see `data.series.SUMS`."""
        data = self.nodes.data
        sums = data.inputs.new_zeros(data.nodes, data.horizon, 8, dtype=torch.float64)
        for windows in data.chunks(split):
            sums += data.errors(self.forecasts_of(split, windows), split, windows)
        self.h_G = None  # it was sent for this evaluation; the next one has its own
        return sums

    @torch.no_grad()
    def forecast(self) -> None:
        """Forecast the window ahead; NaN for a node that has no reading in its history."""
        data = self.nodes.data
        y_hat = data.unscaled(self.forecasts_of("test", slice(0, 1)))[:, 0]
        has = data.available["test"]
        self.forecasts = y_hat if has is None else y_hat.masked_fill(~has, torch.nan)
