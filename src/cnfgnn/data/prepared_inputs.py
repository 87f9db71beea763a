"""Further inputs as tensors: scaled, on their device, and cut into the windows of a minibatch."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cnfgnn.data.inputs import Floats, InputCounts, InputSeries, Ints

FARTHEST = 10.0  # standard deviations from its mean: an input beyond them is cut off there


class PreparedInputs:
    """The further inputs of n nodes, scaled and on their device, ready to be cut into minibatches.

    Each node scales each of its inputs by the mean and the standard deviation of its own values over the
    training rows; nothing has to be exchanged for that. An input that does not change in training is zero
    ever after: nothing could be learned about it.
    """

    def __init__(
        self,
        inputs: Sequence[InputSeries],
        rows: Ints,
        nodes: int,
        history: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._inputs, self._history, self._nodes = tuple(inputs), history, nodes
        self._dtype, self._device = dtype, device
        # (n k 2): mean of each input, and one over its standard deviation
        self.scales: Floats = np.stack(
            [np.broadcast_to(_scale(one.values[:, rows]), (nodes, 2)) for one in inputs], axis=1
        )
        self._set()

    @property
    def counts(self) -> InputCounts:
        return InputCounts.of(self._inputs)

    def of_nodes(self, nodes: slice) -> PreparedInputs:
        """Those of some of the nodes: a view."""
        part = copy.copy(self)
        start, stop, _ = nodes.indices(self._nodes)
        part._nodes, part.scales = stop - start, self.scales[nodes]
        part._scaled = [values if len(values) == 1 else values[nodes] for values in self._scaled]
        return part

    def use(self, scales: Floats) -> None:
        """Use the scales (n k 2) of a trained model. A node without them (NaN) keeps its own."""
        self.scales = np.where(np.isnan(scales), self.scales, scales)
        self._set()

    def _set(self) -> None:
        self._scaled: list[Tensor] = []
        for k, one in enumerate(self._inputs):
            rows = len(one.values)  # 1 if its values hold for all nodes
            mean, per_std = self.scales[:rows, k, :1], self.scales[:rows, k, 1:]
            scaled = np.nan_to_num((one.values - mean) * per_std).clip(-FARTHEST, FARTHEST)
            self._scaled.append(torch.tensor(scaled, dtype=self._dtype, device=self._device))

    def batch(self, steps: Tensor) -> Tensor:
        """(n b k): of windows whose rows are `steps` (b t), see `InputCounts.width`."""
        parts = []
        for one, values in zip(self._inputs, self._scaled, strict=True):
            wanted = steps[:, self._history - 1 :] if one.known_ahead else steps[:, : self._history]
            cut = values.index_select(1, wanted.flatten()).view(len(values), *wanted.shape)
            parts.append(cut.expand(self._nodes, -1, -1))
        return torch.cat(parts, dim=-1)


def _scale(values: Floats) -> Floats:
    """(n T) -> (n 2): mean, and one over the standard deviation, which is zero where values do not change."""
    known = ~np.isnan(values)
    count = np.maximum(known.sum(axis=1), 1)
    mean = np.where(known, values, 0.0).sum(axis=1) / count
    square = np.where(known, np.square(values - mean[:, None]), 0.0).sum(axis=1) / count
    std = np.sqrt(square)
    changes = std > 1e-6 * np.maximum(1.0, np.abs(mean))
    return np.stack([mean, np.where(changes, 1 / np.where(changes, std, 1.0), 0.0)], axis=1)
