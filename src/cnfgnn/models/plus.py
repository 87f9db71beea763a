"""The node model with what the paper's does not know: which sensor it is, what is usual, what is missing.

Weights whose name holds `.personal.` belong to one node and stay there: they are never averaged and never
sent, one row per node, and zero where a sensor has not trained, so that a new one forecasts like everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from cnfgnn.data.batch import Batch
from cnfgnn.data.weekly_profile import SLOTS, WEEKDAYS
from cnfgnn.models.cell import Cell
from cnfgnn.models.gru import EncoderDecoder, NodeModel, fold
from cnfgnn.models.options import Options
from cnfgnn.models.params import Params, uniform

HIDDEN_LAYERS = 2  # of a perceptron


def model_told(numbers: Mapping[str, Any]) -> NodeModel | PlusModel:
    """The model that `prepare` tells nodes to have."""
    options = Options(**{f.name: numbers[f.name] for f in fields(Options)})
    sizes = {name: numbers[name] for name in ("hidden", "layers", "embedding", "history", "horizon")}
    return node_model(**sizes, options=options)


def node_model(
    hidden: int, layers: int, embedding: int, history: int, horizon: int, options: Options
) -> NodeModel | PlusModel:
    """The paper's model, or the one with more."""
    if options.paper:
        return NodeModel(hidden, layers, embedding)
    return PlusModel(hidden, embedding, history, horizon, options)


@dataclass(frozen=True)
class PlusModel(EncoderDecoder):
    """Encoder and decoder of one node; the same functions as `NodeModel` has."""

    hidden: int
    embedding: int
    history: int
    horizon: int
    options: Options

    layers = 1

    @property
    def state(self) -> int:
        return self.hidden + self.embedding

    @property
    def features(self) -> int:
        """Of one input frame of a GRU, or of all of them for a perceptron."""
        o = self.options
        of_a_reading, readings = (2, 1) if o.encoder == "gru" else (1, self.history)
        context = 2 * o.calendar + o.personal + (self.horizon if o.profile else 0)
        return (of_a_reading + o.gaps) * readings + context

    def init(self, generator: torch.Generator) -> Params:
        """One model (m = 1); what is personal begins with nothing."""
        o, h = self.options, self.hidden
        theta: Params = {}
        if o.encoder == "gru":
            theta |= _gru("encoder.0", self.features, h, generator)
        else:
            for layer in range(HIDDEN_LAYERS):
                inputs = self.features if layer == 0 else h
                theta[f"encoder.{layer}.weight"] = uniform((1, h, inputs), inputs, generator)
                theta[f"encoder.{layer}.bias"] = uniform((1, h), inputs, generator)
        if o.calendar:
            theta["encoder.slot"] = uniform((1, SLOTS, o.calendar), 100, generator)
            theta["encoder.weekday"] = uniform((1, WEEKDAYS, o.calendar), 100, generator)
        if o.personal:
            theta["encoder.personal.embedding"] = torch.zeros(1, 1, o.personal)
        if o.decoder == "autoregressive":
            theta |= _gru("decoder.0", 2, self.state, generator)
        else:
            theta["decoder.0.weight"] = uniform((1, self.state, self.state), self.state, generator)
            theta["decoder.0.bias"] = uniform((1, self.state), self.state, generator)
        steps = 1 if o.decoder == "autoregressive" else self.horizon
        theta["output.weight"] = uniform((1, steps, self.state), self.state, generator)
        theta["output.bias"] = uniform((1, steps), self.state, generator)
        if o.personal_head:
            theta["output.personal.weight"] = torch.zeros(1, steps, self.state)
            theta["output.personal.bias"] = torch.zeros(1, steps)
        return theta

    # ---- encoder ------------------------------------------------------------------------------------

    def encode(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """h_c: (n b h)."""
        n, b, t = batch.x.shape[:3]
        m = theta["output.weight"].shape[0]
        context = self._context(theta, batch)
        if self.options.encoder == "gru":
            parts = [batch.x, context[:, :, None].expand(n, b, t, -1)]
            if self.options.gaps:
                assert batch.gaps is not None
                parts.append(batch.gaps[..., None])
            frames = fold(torch.cat(parts, dim=-1), m)
            cell = Cell(theta, "encoder.0")
            h = frames.new_zeros(*frames.shape[:2], self.hidden)
            for frame in frames.unbind(2):
                h = cell.step(frame, h)
            return h.reshape(n, b, -1)
        parts = [batch.x[..., 0], context]
        if self.options.gaps:
            assert batch.gaps is not None
            parts.append(batch.gaps)
        h = fold(torch.cat(parts, dim=-1), m)
        for layer in range(HIDDEN_LAYERS):
            above = torch.relu(_linear(theta, f"encoder.{layer}", h))
            h = above if layer == 0 else h + above
        return h.reshape(n, b, -1)

    def _context(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """What is known besides readings: (n b k), k may be 0."""
        n, b = batch.x.shape[:2]
        parts = [batch.x.new_zeros(n, b, 0)]
        if self.options.profile:
            assert batch.profile_change is not None
            parts.append(batch.profile_change)
        if self.options.calendar:
            assert batch.moment is not None
            slot, weekday = batch.moment.unbind(-1)
            for name, place in (("encoder.slot", slot), ("encoder.weekday", weekday)):
                parts.append(theta[name][:, place].expand(n, b, -1))
        if self.options.personal:
            parts.append(theta["encoder.personal.embedding"].expand(n, b, -1))
        return torch.cat(parts, dim=-1)

    # ---- decoder ------------------------------------------------------------------------------------

    def decode(
        self,
        theta: Mapping[str, Tensor],
        batch: Batch,
        h_c: Tensor,
        h_G: Tensor | None,
        truth: Tensor | None = None,
    ) -> Tensor:
        """y_hat: -> (n b t); as the paper's, or all steps at once."""
        n, b, steps = batch.y.shape
        start = h_c
        if self.embedding:
            start = torch.cat([h_c, h_c.new_zeros(n, b, self.embedding) if h_G is None else h_G], dim=-1)
        last = batch.x[:, :, -1, :1]  # (n b 1)
        if self.options.decoder == "direct":
            m = theta["output.weight"].shape[0]
            folded = fold(start, m)
            state = folded + torch.relu(_linear(theta, "decoder.0", folded))
            y_hat = self._out(theta, state.reshape(n, b, -1))
            return y_hat + last if self.options.change else y_hat
        return self._one_by_one(theta, batch, start, truth, last).reshape(n, b, steps)

    def _one_by_one(
        self, theta: Mapping[str, Tensor], batch: Batch, state: Tensor, truth: Tensor | None, last: Tensor
    ) -> Tensor:
        n, b, steps = batch.y.shape
        m = theta["output.weight"].shape[0]
        cell, state = Cell(theta, "decoder.0"), fold(state, m)
        frame = batch.x[:, :, -1]
        y_hat: list[Tensor] = []
        for t in range(steps):
            if t > 0:
                value = y_hat[-1]
                if truth is not None:
                    fed = NodeModel.fed(batch, truth, t, n)
                    value = torch.where(fed, batch.y[:, :, t - 1 : t], value)
                frame = torch.cat([value, batch.clock[:, t - 1 : t].expand(n, b, 1)], dim=-1)
            state = cell.step(fold(frame, m), state)
            out = self._out(theta, state.reshape(n, b, -1))
            y_hat.append(out + last if self.options.change else out)
        return torch.cat(y_hat, dim=-1)

    def _out(self, theta: Mapping[str, Tensor], state: Tensor) -> Tensor:
        """(n b h) -> (n b t): everybody's last layer, and what the node adds to it."""
        n, b = state.shape[:2]
        with torch.autocast(state.device.type, enabled=False):
            state = state.to(theta["output.weight"].dtype)
            folded = fold(state, theta["output.weight"].shape[0])
            y_hat = _linear(theta, "output", folded).reshape(n, b, -1)
            if self.options.personal_head:
                weight = theta["output.personal.weight"].expand(n, -1, -1)
                y_hat = y_hat + state @ weight.mT + theta["output.personal.bias"][:, None]
        return y_hat


def _linear(theta: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """(m B i) -> (m B o)."""
    return torch.baddbmm(theta[f"{name}.bias"][:, None], x, theta[f"{name}.weight"].mT)


def _gru(name: str, inputs: int, h: int, generator: torch.Generator) -> Params:
    shapes = {"weight_ih": (3 * h, inputs), "weight_hh": (3 * h, h), "bias_ih": (3 * h,), "bias_hh": (3 * h,)}
    return {f"{name}.{part}": uniform((1, *shape), h, generator) for part, shape in shapes.items()}
