"""Forecasts of a group of nodes and their errors: one computation, for the copy and for the true readings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cnfgnn.algorithm.compute import Compute
from cnfgnn.config.settings import Loss
from cnfgnn.data.batch import Batch
from cnfgnn.data.series import SUMS, PreparedSeries
from cnfgnn.data.windows import Split
from cnfgnn.models.gru import NodeModel
from cnfgnn.models.params import Params, rows
from cnfgnn.models.plus import PlusModel


@dataclass(frozen=True)
class Forecaster:
    """The node model with the precision and the loss of a run. Weights and readings are arguments."""

    model: NodeModel | PlusModel
    compute: Compute
    loss: Loss

    def losses(
        self, theta: Params, batch: Batch, h_G: Tensor | None, truth: Tensor | None, h_c: Tensor | None = None
    ) -> Tensor:
        """(n,): each node's mean squared or absolute error over the targets it has, on scaled values."""
        with self.compute.autocast():
            return batch.losses(self.model.forecast(theta, batch, h_G, truth, h_c), self.loss)

    @torch.no_grad()
    def forecasts(
        self, theta: Params, data: PreparedSeries, h_G: Tensor | None, split: Split, windows: slice
    ) -> Tensor:
        """y_hat of some windows of a split, scaled: (n b t). `h_G` is that of all windows of the split."""
        batch, _ = data.batch(split, windows)
        if h_G is not None:
            h_G = h_G[:, windows].to(self.compute.dtype)
        parts = []
        with self.compute.autocast():
            for group in self.compute.node_slices(*batch.y.shape[:2]):
                own_h_G = None if h_G is None else h_G[group]
                parts.append(self.model.forecast(rows(theta, group), batch.rows(group), own_h_G))
            return torch.cat(parts)

    @torch.no_grad()
    def summed_errors(self, theta: Params, data: PreparedSeries, h_G: Tensor | None, split: Split) -> Tensor:
        """(n t 8): see `data.series.SUMS`."""
        sums = data.inputs.new_zeros(data.nodes, data.horizon, len(SUMS), dtype=torch.float64)
        for windows in data.chunks(split):
            sums += data.errors(self.forecasts(theta, data, h_G, split, windows), split, windows)
        return sums
