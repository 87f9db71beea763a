"""The node model: a GRU encoder-decoder as pure functions of its weights (paper, section 3.2.1).

Weights of n nodes are stacked on axis 0. If all nodes share one model (m = 1), the nodes are folded into the
batch and each product is one large GEMM; if each node has its own (m = n), it is one batched GEMM.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cnfgnn.data.batch import Batch
from cnfgnn.models import kernels
from cnfgnn.models.cell import Cell
from cnfgnn.models.params import Params, models, uniform
from cnfgnn.models.products import linear


class EncoderDecoder(ABC):
    """A node model: it encodes past readings as h_c, and decodes h_c and h_G into a forecast."""

    @property
    @abstractmethod
    def hidden(self) -> int:
        """Width of h_c, or of one of its `layers`."""

    @property
    def layers(self) -> int:
        """States of `hidden` numbers in h_c, side by side."""
        return 1

    @property
    @abstractmethod
    def embedding(self) -> int:
        """Width of h_G; 0 without a graph."""

    @abstractmethod
    def init(self, generator: torch.Generator) -> Params:
        """The initial weights of one model (m = 1)."""

    @abstractmethod
    def encode(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """h_c (n b h)."""

    @abstractmethod
    def decode(
        self,
        theta: Mapping[str, Tensor],
        batch: Batch,
        h_c: Tensor,
        h_G: Tensor | None,
        truth: Tensor | None = None,
    ) -> Tensor:
        """y_hat (n b t)."""

    def forecast(
        self,
        theta: Mapping[str, Tensor],
        batch: Batch,
        h_G: Tensor | None,
        truth: Tensor | None = None,
        h_c: Tensor | None = None,
    ) -> Tensor:
        """y_hat (n b t); pass `h_c` if it is known already."""
        return self.decode(theta, batch, self.encode(theta, batch) if h_c is None else h_c, h_G, truth)


@dataclass(frozen=True)
class NodeModel(EncoderDecoder):
    """The paper's encoder and decoder; `embedding` is the width of h_G, 0 for baselines without a graph."""

    hidden: int = 64
    layers: int = 1
    embedding: int = 64
    features: int = 2

    def init(self, generator: torch.Generator) -> Params:
        """One model (m = 1), initialised like torch.nn.GRU and torch.nn.Linear."""
        theta: Params = {}
        for part, h in (("encoder", self.hidden), ("decoder", self.state)):
            for layer in range(self.layers):
                d = self.features if layer == 0 else h
                for name, shape in (
                    ("weight_ih", (3 * h, d)),
                    ("weight_hh", (3 * h, h)),
                    ("bias_ih", (3 * h,)),
                    ("bias_hh", (3 * h,)),
                ):
                    theta[f"{part}.{layer}.{name}"] = uniform((1, *shape), h, generator)
        theta["output.weight"] = uniform((1, 1, self.state), self.state, generator)
        theta["output.bias"] = uniform((1, 1), self.state, generator)
        return theta

    @property
    def state(self) -> int:
        """The width of the decoder's state, which starts as [h_c ; h_G]."""
        return self.hidden + self.embedding

    def encode(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """h_c, the encoder's final states of all layers side by side: (n b t d) -> (n b layers*h)."""
        x = batch.x
        n, b = x.shape[:2]
        if self._fits_kernels(x):
            from cnfgnn.models.kernels import sequences

            h_c = sequences.encode(fold(x, models(theta)), sequences.Weights.of(theta, "encoder.0"))
            return h_c.reshape(n, b, -1)
        inputs = list(fold(x, models(theta)).unbind(2))  # t of (m B d)
        finals = []
        for layer in range(self.layers):
            cell = Cell(theta, f"encoder.{layer}")
            h = x.new_zeros(*inputs[0].shape[:2], self.hidden)
            for t, below in enumerate(inputs):
                inputs[t] = h = cell.step(below, h)
            finals.append(h)
        return torch.cat(finals, dim=-1).reshape(n, b, -1)

    def decode(
        self,
        theta: Mapping[str, Tensor],
        batch: Batch,
        h_c: Tensor,
        h_G: Tensor | None,
        truth: Tensor | None = None,
    ) -> Tensor:
        """y_hat (n b t): each step gets the forecast of the previous step as its input.

        Scheduled sampling: where `truth` (t,) is set, a step gets the true previous reading instead, unless
        that reading is missing.
        """
        n, b, steps = batch.y.shape
        m = models(theta)
        states = list(fold(h_c, m).chunk(self.layers, dim=-1))
        if self.embedding:
            h_G = h_c.new_zeros(n, b, self.embedding) if h_G is None else h_G
            states = [torch.cat([states[0], fold(h_G, m)], dim=-1)]
        if self._fits_kernels(batch.x):
            return self._decode_by_kernel(theta, batch, states[0], truth).reshape(n, b, steps)
        cells = [Cell(theta, f"decoder.{layer}") for layer in range(self.layers)]
        clock = fold(batch.clock.expand(n, b, steps), m)
        value = fold(batch.x[:, :, -1, :1], m)  # (m B 1): the first step gets the last observed frame
        frame = fold(batch.x[:, :, -1], m)
        y_hat: list[Tensor] = []
        for t in range(steps):
            if t > 0:
                value = y_hat[-1]
                if truth is not None:
                    value = torch.where(
                        self.fed(batch, truth, t, m), fold(batch.y[:, :, t - 1 : t], m), value
                    )
                frame = torch.cat([value, clock[..., t - 1 : t]], dim=-1)
            below = frame
            for layer, cell in enumerate(cells):
                states[layer] = below = cell.step(below, states[layer])
            with torch.autocast(below.device.type, enabled=False):  # no bf16: forecasts are fed back
                y_hat.append(linear(below, theta["output.weight"], theta["output.bias"]))
        return torch.cat(y_hat, dim=-1).reshape(n, b, steps)

    def _fits_kernels(self, x: Tensor) -> bool:
        """Whether the kernels can run this model: in bf16, with one layer whose weights fit on chip."""
        fit = self.layers == 1 and self.state <= kernels.WIDEST
        return fit and torch.is_autocast_enabled(x.device.type) and kernels.available(x.device)

    def _decode_by_kernel(
        self, theta: Mapping[str, Tensor], batch: Batch, start: Tensor, truth: Tensor | None
    ) -> Tensor:
        """`decode` by a kernel, starting from [h_c ; h_G]: (m B h) -> (m B t)."""
        from cnfgnn.models.kernels import sequences

        m, (n, b, steps) = models(theta), batch.y.shape
        last = batch.x[:, :, -1]  # (n b d)
        clock = torch.cat([last[..., 1:], batch.clock.expand(n, b, steps)[..., :-1]], dim=-1)
        fed = None
        if truth is not None:
            where = truth.expand(1, 1, steps)
            if batch.weight is not None:  # of the previous reading
                where = where & fold(batch.weight.roll(1, dims=-1) > 0, m)
            fed = sequences.Fed(fold(batch.y, m), where)
        return sequences.decode(
            start,
            fold(last[..., 0], m),
            fold(clock, m),
            fed,
            sequences.Weights.of(theta, "decoder.0"),
            (theta["output.weight"], theta["output.bias"]),
        )

    @staticmethod
    def fed(batch: Batch, truth: Tensor, t: int, m: int) -> Tensor:
        """Where step t gets the true previous reading as its input."""
        if batch.weight is None:
            return truth[t]
        return truth[t] & fold(batch.weight[:, :, t - 1 : t] > 0, m)


def fold(x: Tensor, m: int) -> Tensor:
    """(n b ...) -> (m B ...): join the nodes into one batch if they share one model."""
    return x if m == x.shape[0] else x.reshape(1, -1, *x.shape[2:])
