"""The extended node model: it can also use the sensor's identity, its usual readings, the calendar, and the
age of readings that fill gaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cnfgnn.config.settings import ModelConfig
from cnfgnn.data.batch import Batch
from cnfgnn.data.inputs import NO_INPUTS, InputCounts
from cnfgnn.forecasters.linear import squashed
from cnfgnn.forecasters.weekly_profile import SLOTS, WEEKDAYS
from cnfgnn.models.cell import Cell
from cnfgnn.models.gru import EncoderDecoder, NodeModel, fold
from cnfgnn.models.params import Params, uniform
from cnfgnn.models.products import linear

HIDDEN_LAYERS = 2  # of the perceptron encoder
SENSOR_EMBEDDING = "encoder.sensor"  # zero at first, and for a sensor that has not trained
LEVEL_HALF_LIVES = (0.5, 3.0)  # steps after which a reading counts half in each level


def levels(readings: Tensor) -> Tensor:
    """(n b t) -> (n b 2): averages of the past readings in which later ones count more, squashed."""
    age = torch.arange(readings.shape[-1] - 1, -1, -1, dtype=readings.dtype, device=readings.device)
    weights = torch.stack([0.5 ** (age / half_life) for half_life in LEVEL_HALF_LIVES], dim=-1)  # (t 2)
    return squashed(readings @ (weights / weights.sum(dim=0)))


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
        """Width of the decoder's state, which starts as [h_c ; h_G]; with a linear forecast, if all steps
        are forecast at once, as [h_c ; h_G ; linear forecast]."""
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
        """One model (m = 1)."""
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
            theta[SENSOR_EMBEDDING] = torch.zeros(1, 1, config.personal)
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
        return theta

    # ---- encoder ------------------------------------------------------------------------------------

    def encode(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """h_c: (n b h). What is sent comes first: the levels, and the beginning of what was learned."""
        h = self._encoded(theta, batch)
        return torch.cat([levels(batch.x[..., 0]).to(h.dtype), h], dim=-1) if self.config.levels else h

    def _encoded(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """What the encoder makes of the readings and the context: (n b h)."""
        n, _, t = batch.x.shape[:3]
        m, context = theta["output.weight"].shape[0], self._context(theta, batch)
        if self.config.encoder == "gru":
            parts = [batch.x, context[:, :, None].expand(-1, -1, t, -1)]
            if self.config.gaps:
                assert batch.gaps is not None
                parts.append(batch.gaps[..., None])
            frames = fold(torch.cat(parts, dim=-1), m)
            cell = Cell(theta, "encoder.0")
            h = frames.new_zeros(*frames.shape[:2], self.config.hidden)
            for frame in frames.unbind(2):
                h = cell.step(frame, h)
            return _unfold(h, n)
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
        return _unfold(h, n)

    def _context(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Inputs of the encoder besides readings: (n b c), where c may be 0."""
        n, b = batch.x.shape[:2]
        parts = [batch.x.new_zeros(n, b, 0)]
        if self.config.profile:
            assert batch.usual_change is not None
            parts.append(batch.usual_change[..., 1:])
        if self.config.calendar:
            assert batch.moment is not None
            slot, weekday = batch.moment.unbind(-1)
            for name, place in (("encoder.slot", slot), ("encoder.weekday", weekday)):
                parts.append(theta[name][:, place].expand(n, -1, -1))
        if self.config.personal:
            parts.append(theta[SENSOR_EMBEDDING].expand(n, b, -1))
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
        n, b = batch.y.shape[:2]
        m, simple = theta["output.weight"].shape[0], self._simple_forecast(batch)
        parts = [h_c]
        if self.embedding:
            parts.append(h_c.new_zeros(n, b, self.embedding) if h_G is None else h_G)
        if self.config.decoder == "autoregressive":
            return self._one_by_one(theta, batch, torch.cat(parts, dim=-1), truth, simple)
        if self.config.linear:
            assert batch.linear_change is not None
            parts.append(batch.linear_change.to(h_c.dtype))
        folded = fold(torch.cat(parts, dim=-1), m)
        state = folded + torch.relu(_linear(theta, "decoder.0", folded))
        y_hat = self._out(theta, _unfold(state, n))
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
        """(n b h) -> (n b t)."""
        n, b, steps = batch.y.shape
        m = theta["output.weight"].shape[0]
        cell, state = Cell(theta, "decoder.0"), fold(state, m)
        frame = batch.x[:, :, -1]
        y_hat: list[Tensor] = []
        for t in range(steps):
            if t > 0:
                value = y_hat[-1]
                if truth is not None:
                    value = torch.where(NodeModel.fed(batch, truth, t, n), batch.y[..., t - 1 : t], value)
                frame = torch.cat([value, batch.clock[:, t - 1 : t].expand(n, b, 1)], dim=-1)
            state = cell.step(fold(frame, m), state)
            out = self._out(theta, _unfold(state, n))
            y_hat.append(out if simple is None else out + simple[..., t : t + 1])
        return torch.cat(y_hat, dim=-1)

    def _out(self, theta: Mapping[str, Tensor], state: Tensor) -> Tensor:
        """(n b h) -> (n b t): the output layer."""
        with torch.autocast(state.device.type, enabled=False):
            folded = fold(state.to(theta["output.weight"].dtype), theta["output.weight"].shape[0])
            return _unfold(_linear(theta, "output", folded), len(state))


def _unfold(x: Tensor, n: int) -> Tensor:
    """(m B ...) -> (n b ...)."""
    return x if len(x) == n else x.reshape(n, -1, *x.shape[2:])


def _linear(theta: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """(m B i) -> (m B o)."""
    return linear(x, theta[f"{name}.weight"], theta[f"{name}.bias"])


def _gru(name: str, inputs: int, h: int, generator: torch.Generator) -> Params:
    shapes = {"weight_ih": (3 * h, inputs), "weight_hh": (3 * h, h), "bias_ih": (3 * h,), "bias_hh": (3 * h,)}
    return {f"{name}.{part}": uniform((1, *shape), h, generator) for part, shape in shapes.items()}
