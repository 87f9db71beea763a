"""Forecasts of a group of nodes and their errors: one computation, for the copy and for the true readings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.config.settings import Loss
from cnfgnn.data.batch import Batch
from cnfgnn.data.prepared_series import SUMS, PreparedSeries
from cnfgnn.data.windows import Split
from cnfgnn.models.gru import EncoderDecoder
from cnfgnn.models.params import Params, rows

# Windows without overlap that count against what the network adds to linear forecasts. With a single one, the
# network makes forecasts of river levels 8 % worse (docs/notes.md).
DOUBT = 4.0


@dataclass(frozen=True)
class Forecaster:
    """The node model with the precision and the loss of a run. Weights and readings are arguments."""

    model: EncoderDecoder
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
        self,
        theta: Params,
        data: PreparedSeries,
        h_G: Tensor | None,
        split: Split,
        windows: slice,
        trust: Tensor | None = None,
    ) -> Tensor:
        """y_hat of some windows of a split, scaled: (n b t). `h_G` is that of all windows of the split. With
        `trust` (n,), only this share of what the network adds to the linear forecast is taken, and no
        forecast is lower than readings can be."""
        if h_G is not None:
            h_G = h_G[:, windows].to(self.compute.dtype)
        batch = data.batch(split, windows, h_G)
        parts = []
        with self.compute.autocast():
            for group in self.compute.node_slices(*batch.y.shape[:2]):
                own_h_G = None if h_G is None else h_G[group]
                own_theta = rows(theta, group, self.compute.device)
                parts.append(self.model.forecast(own_theta, batch.rows(group), own_h_G))
            y_hat = torch.cat(parts)
        if trust is None or batch.linear_forecast is None:
            return y_hat
        share = trust.to(y_hat.dtype).view(-1, 1, 1)
        return data.at_least_floor(torch.lerp(batch.linear_forecast, y_hat, share))

    @torch.no_grad()
    def summed_errors(
        self,
        theta: Params,
        data: PreparedSeries,
        h_G: Tensor | None,
        split: Split,
        trust: Tensor | None = None,
    ) -> Tensor:
        """(n t 8): see `data.prepared_series.SUMS`."""
        sums = data.inputs.new_zeros(data.nodes, data.horizon, len(SUMS), dtype=torch.float64)
        for windows in data.chunks(split):
            y_hat = self.forecasts(theta, data, h_G, split, windows, trust)
            sums += data.errors(y_hat, split, windows)
        return sums

    @torch.no_grad()
    def trust(self, theta: Params, data: PreparedSeries, h_G: Tensor | None) -> Tensor:
        """(n,): how much of what the network adds to a node's linear forecast to take: a share from 0 to 1,
        and 1 where the network adds nothing.

        It is the share with the lowest error on validation windows, of the kind that was trained on, times
        `_certainty`: the fewer validation windows, the more of what helped there is chance, and the round was
        chosen by them, too.
        """
        judge = _SquaredErrors(data) if self.loss == "square" else _AbsoluteErrors(data)
        windows_with_targets = data.inputs.new_zeros(data.nodes, dtype=torch.float64)
        for windows in data.chunks("validation"):
            y_hat = self.forecasts(theta, data, h_G, "validation", windows)
            embeddings = None if h_G is None else h_G[:, windows].to(self.compute.dtype)
            batch = data.batch("validation", windows, embeddings)
            assert batch.linear_forecast is not None
            weight = y_hat.new_ones(()) if batch.weight is None else batch.weight
            left_over, added = batch.y - batch.linear_forecast, y_hat - batch.linear_forecast
            judge.add(left_over.double(), added.double(), weight)
            counted = weight.expand_as(y_hat).amax(dim=-1) > 0
            windows_with_targets += counted.sum(dim=1)
        return judge.best_share(_certainty(windows_with_targets, data.length))


def _certainty(windows: Tensor, length: int) -> Tensor:
    """How much of a share to take that was found best on so many windows of a length: (n,) from 0 to 1.

    Windows that overlap tell almost the same, so that only one in `length` counts. The share is the one that
    would be best if `DOUBT` more windows, which share no reading with the others or with each other, had been
    no better with the network than without: a ridge penalty.
    """
    independent = windows / length
    return independent / (independent + DOUBT)


class _SquaredErrors:
    """Squared errors of a linear forecast plus a share of what is added to it: a parabola in the share."""

    def __init__(self, data: PreparedSeries) -> None:
        self.along = data.inputs.new_zeros(data.nodes, dtype=torch.float64)
        self.square = torch.zeros_like(self.along)

    def add(self, left_over: Tensor, added: Tensor, weight: Tensor) -> None:
        """Errors of the linear forecast, and what the network adds to it, of some windows: (n b t)."""
        self.along += (weight * added * left_over).sum(dim=(1, 2))
        self.square += (weight * added.square()).sum(dim=(1, 2))

    def best_share(self, certainty: Tensor) -> Tensor:
        share = (certainty * self.along / self.square.clamp(min=1e-300)).clamp(0, 1)
        return torch.where(self.square > 0, share, 1.0)


class _AbsoluteErrors:
    """The same with absolute errors, which have no closed form: of some shares, the one with the lowest."""

    def __init__(self, data: PreparedSeries) -> None:
        # From 1 down: where the network adds nothing, all are equal and the first is taken.
        self.shares = torch.linspace(1, 0, 21, dtype=torch.float64, device=data.inputs.device)
        self.sums = data.inputs.new_zeros(len(self.shares), data.nodes, dtype=torch.float64)

    def add(self, left_over: Tensor, added: Tensor, weight: Tensor) -> None:
        """As `_SquaredErrors.add`."""
        for sums, share in zip(self.sums, self.shares, strict=True):
            sums += (weight * (left_over - share * added).abs()).sum(dim=(1, 2))

    def best_share(self, certainty: Tensor) -> Tensor:
        share = certainty * self.shares[self.sums.argmin(dim=0)]
        return torch.where(self.sums[0] == self.sums[-1], 1.0, share)
