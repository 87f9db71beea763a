"""The extended node model: it can also use the sensor's identity, its weekly profile, the calendar, and gaps.

Weights with `.personal.` in their name belong to one node and stay with its owner: they are never averaged
and never sent. They have one row per node and start at zero. Weights without them stand for a model in which
they are zero: this is how hidden states for the server are computed, and how a sensor that has not trained is
forecast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cnfgnn.config.settings import ModelConfig
from cnfgnn.data.batch import Batch
from cnfgnn.data.inputs import NO_INPUTS, InputCounts
from cnfgnn.data.weekly_profile import SLOTS, WEEKDAYS
from cnfgnn.models.cell import Cell
from cnfgnn.models.gru import EncoderDecoder, NodeModel, fold
from cnfgnn.models.params import Params, uniform
from cnfgnn.models.products import linear

HIDDEN_LAYERS = 2  # of the perceptron encoder
LARGEST_LEVEL = 3.0  # standard deviations
LEVEL_HALF_LIVES = (0.5, 3.0)  # steps after which a reading counts half in each level


def levels(readings: Tensor) -> Tensor:
    """(n b t) -> (n b 2): averages of the past readings in which later ones count more, squashed, so that a
    faulty sensor cannot dominate a mean."""
    age = torch.arange(readings.shape[-1] - 1, -1, -1, dtype=readings.dtype, device=readings.device)
    weights = torch.stack([0.5 ** (age / half_life) for half_life in LEVEL_HALF_LIVES], dim=-1)  # (t 2)
    return LARGEST_LEVEL * torch.tanh(readings @ (weights / weights.sum(dim=0)) / LARGEST_LEVEL)


def node_model(
    model: ModelConfig, history: int, horizon: int, inputs: InputCounts = NO_INPUTS
) -> NodeModel | PlusModel:
    """The paper's node model, or the extended one where the settings ask for more."""
    if model.extensions:
        others = inputs.width(history, horizon) if model.takes_inputs else 0
        return PlusModel(model, history, horizon, others)
    return NodeModel(model.hidden, model.layers, model.embedding)


@dataclass(frozen=True)
class PlusModel(EncoderDecoder):
    """Encoder and decoder of one node, with the same functions as `NodeModel`."""

    config: ModelConfig
    history: int
    horizon: int
    others: int = 0  # numbers of further inputs in a window

    layers = 1

    @property
    def hidden(self) -> int:
        """Width of h_c."""
        return self.config.state_width

    @property
    def embedding(self) -> int:
        """Width of h_G."""
        return self.config.embedding_width

    @property
    def state(self) -> int:
        """Width of the decoder's state, which starts as [h_c ; h_G]; with a linear forecast, if all steps are
        forecast at once, as [h_c ; h_G ; linear forecast]."""
        linear = self.config.linear and self.config.decoder == "direct"
        return self.hidden + self.embedding + (self.horizon if linear else 0)

    @property
    def features(self) -> int:
        """Inputs of the encoder: of one frame for a GRU, of the whole window for a perceptron."""
        config = self.config
        of_a_reading, readings = (2, 1) if config.encoder == "gru" else (1, self.history)
        context = 2 * config.calendar + config.personal + (self.horizon if config.profile else 0)
        return (of_a_reading + config.gaps) * readings + context + self.others

    def init(self, generator: torch.Generator) -> Params:
        """One model (m = 1); personal weights start at zero."""
        config, h = self.config, self.config.hidden
        theta: Params = {}
        if config.encoder == "gru":
            theta |= _gru("encoder.0", self.features, h, generator)
        else:
            for layer in range(HIDDEN_LAYERS):
                inputs = self.features if layer == 0 else h
                theta[f"encoder.{layer}.weight"] = uniform((1, h, inputs), inputs, generator)
                theta[f"encoder.{layer}.bias"] = uniform((1, h), inputs, generator)
        if config.calendar:
            theta["encoder.slot"] = uniform((1, SLOTS, config.calendar), 100, generator)
            theta["encoder.weekday"] = uniform((1, WEEKDAYS, config.calendar), 100, generator)
        if config.personal:
            theta["encoder.personal.embedding"] = torch.zeros(1, 1, config.personal)
        if config.decoder == "autoregressive":
            theta |= _gru("decoder.0", 2, self.state, generator)
        else:
            theta["decoder.0.weight"] = uniform((1, self.state, self.state), self.state, generator)
            theta["decoder.0.bias"] = uniform((1, self.state), self.state, generator)
        steps = 1 if config.decoder == "autoregressive" else self.horizon
        theta["output.weight"] = uniform((1, steps, self.state), self.state, generator)
        theta["output.bias"] = uniform((1, steps), self.state, generator)
        if config.linear:  # training begins with the linear forecast alone
            theta["output.weight"].zero_()
            theta["output.bias"].zero_()
        if config.personal_head:
            theta["output.personal.weight"] = torch.zeros(1, steps, self.state)
            theta["output.personal.bias"] = torch.zeros(1, steps)
        return theta

    # ---- encoder ------------------------------------------------------------------------------------

    def encode(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """h_c: (n b h)."""
        h = self._encoded(theta, batch)
        return torch.cat([levels(batch.x[..., 0]).to(h.dtype), h], dim=-1) if self.config.levels else h

    def _encoded(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """What the encoder makes of the readings and the context: (n b h)."""
        n, b, t = batch.x.shape[:3]
        m = theta["output.weight"].shape[0]
        context = self._context(theta, batch)
        if self.config.encoder == "gru":
            parts = [batch.x, context[:, :, None].expand(n, b, t, -1)]
            if self.config.gaps:
                assert batch.gaps is not None
                parts.append(batch.gaps[..., None])
            frames = fold(torch.cat(parts, dim=-1), m)
            cell = Cell(theta, "encoder.0")
            h = frames.new_zeros(*frames.shape[:2], self.config.hidden)
            for frame in frames.unbind(2):
                h = cell.step(frame, h)
            return h.reshape(n, b, -1)
        parts = [batch.x[..., 0], context]
        if self.config.gaps:
            assert batch.gaps is not None
            parts.append(batch.gaps)
        if self.others:
            assert batch.others is not None
            parts.append(batch.others)
        h = fold(torch.cat(parts, dim=-1), m)
        for layer in range(HIDDEN_LAYERS):
            above = torch.relu(_linear(theta, f"encoder.{layer}", h))
            h = above if layer == 0 else h + above
        return h.reshape(n, b, -1)

    def _context(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Inputs of the encoder besides readings: (n b k), where k may be 0."""
        n, b = batch.x.shape[:2]
        parts = [batch.x.new_zeros(n, b, 0)]
        if self.config.profile:
            assert batch.profile_change is not None
            parts.append(batch.profile_change)
        if self.config.calendar:
            assert batch.moment is not None
            slot, weekday = batch.moment.unbind(-1)
            for name, place in (("encoder.slot", slot), ("encoder.weekday", weekday)):
                parts.append(theta[name][:, place].expand(n, b, -1))
        if self.config.personal:
            embedding = theta.get("encoder.personal.embedding", batch.x.new_zeros(1, 1, self.config.personal))
            parts.append(embedding.expand(n, b, -1))
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
        """y_hat (n b t): step by step as in the paper, or all steps at once."""
        n, b, steps = batch.y.shape
        start = h_c
        if self.embedding:
            start = torch.cat([h_c, h_c.new_zeros(n, b, self.embedding) if h_G is None else h_G], dim=-1)
        simple = self._simple_forecast(batch)
        if self.config.decoder == "autoregressive":
            return self._one_by_one(theta, batch, start, truth, simple).reshape(n, b, steps)
        if self.config.linear:
            assert batch.linear_change is not None
            start = torch.cat([start, batch.linear_change.to(start.dtype)], dim=-1)
        folded = fold(start, theta["output.weight"].shape[0])
        state = folded + torch.relu(_linear(theta, "decoder.0", folded))
        y_hat = self._out(theta, state.reshape(n, b, -1))
        return y_hat if simple is None else y_hat + simple

    def _simple_forecast(self, batch: Batch) -> Tensor | None:
        """What the network forecasts the difference from: (n b t), or None."""
        if not (self.config.change or self.config.linear):
            return None
        return batch.linear_forecast if self.config.linear else batch.x[:, :, -1, :1].expand_as(batch.y)

    def _one_by_one(
        self,
        theta: Mapping[str, Tensor],
        batch: Batch,
        state: Tensor,
        truth: Tensor | None,
        simple: Tensor | None,
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
            y_hat.append(out if simple is None else out + simple[..., t : t + 1])
        return torch.cat(y_hat, dim=-1)

    def _out(self, theta: Mapping[str, Tensor], state: Tensor) -> Tensor:
        """(n b h) -> (n b t): the shared output layer, plus the node's own correction."""
        n, b = state.shape[:2]
        with torch.autocast(state.device.type, enabled=False):
            state = state.to(theta["output.weight"].dtype)
            folded = fold(state, theta["output.weight"].shape[0])
            y_hat = _linear(theta, "output", folded).reshape(n, b, -1)
            if "output.personal.weight" in theta:
                weight = theta["output.personal.weight"].expand(n, -1, -1)
                bias = theta["output.personal.bias"].expand(n, -1)
                y_hat = y_hat + linear(state, weight, bias)
        return y_hat


def _linear(theta: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """(m B i) -> (m B o)."""
    return linear(x, theta[f"{name}.weight"], theta[f"{name}.bias"])


def _gru(name: str, inputs: int, h: int, generator: torch.Generator) -> Params:
    shapes = {"weight_ih": (3 * h, inputs), "weight_hh": (3 * h, h), "bias_ih": (3 * h,), "bias_hh": (3 * h,)}
    return {f"{name}.{part}": uniform((1, *shape), h, generator) for part, shape in shapes.items()}
