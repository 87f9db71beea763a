"""The extended node model: it can also use the sensor's identity, its weekly profile, the calendar, and gaps.

With `model.members`, a node has k such models side by side, and a forecast is the mean of theirs. Each weight
then has one more axis, (m k ...), and each product is one batched GEMM over models and members. The members
never see each other: each has its own part of h_c and h_G, and learns from its own error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cnfgnn.config.settings import ModelConfig
from cnfgnn.data.batch import Batch
from cnfgnn.data.inputs import NO_INPUTS, InputCounts
from cnfgnn.forecasters.linear import squashed
from cnfgnn.forecasters.weekly_profile import SLOTS, WEEKDAYS
from cnfgnn.models.cell import Cell
from cnfgnn.models.gru import EncoderDecoder, NodeModel
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
    def members(self) -> int:
        """Networks side by side whose forecasts are averaged."""
        return self.config.members

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
        """Width of a member's decoder state, which starts as [h_c ; h_G]; with a linear forecast, if all
        steps are forecast at once, as [h_c ; h_G ; linear forecast]."""
        alone = replace(self.config, members=1)
        linear = alone.linear and alone.decoder == "direct"
        return alone.state_width + alone.embedding_width + (self.horizon if linear else 0)

    @property
    def features(self) -> int:
        """Inputs of the encoder: of one frame for a GRU, of the whole window for a perceptron."""
        config = self.config
        of_a_reading, readings = (2, 1) if config.encoder == "gru" else (1, self.history)
        context = 2 * config.calendar + config.personal + (self.horizon if config.profile else 0)
        return (of_a_reading + config.gaps) * readings + context + self.others

    def init(self, generator: torch.Generator) -> Params:
        """One model (m = 1). Members are drawn one after the other: the first is the one that a model without
        others has."""
        if self.members == 1:
            return self._drawn(generator)
        members = [self._drawn(generator) for _ in range(self.members)]
        return {name: torch.stack([theta[name] for theta in members], dim=1) for name in members[0]}

    def _drawn(self, generator: torch.Generator) -> Params:
        """The initial weights of one member."""
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
        """h_c: (n b h). What is sent comes first: the levels, and the beginning of each member's part."""
        h = self._encoded(theta, batch)
        parts = [h[:, 0]]
        if self.members > 1:
            sent = self.config.sent_by_member
            parts = [_side_by_side(h[..., :sent]), _side_by_side(h[..., sent:])]
        if self.config.levels:
            parts = [levels(batch.x[..., 0]).to(h.dtype), *parts]
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]

    def _encoded(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """What the encoder of each member makes of the readings and the context: (n k b h)."""
        n, b, t = batch.x.shape[:3]
        m, size = theta["output.weight"].shape[0], (n, self.members, b)
        context = self._context(theta, batch)
        if self.config.encoder == "gru":
            parts = [self._for_each(batch.x), context[..., None, :].expand(*size, t, -1)]
            if self.config.gaps:
                assert batch.gaps is not None
                parts.append(self._for_each(batch.gaps[..., None]))
            frames = _fold(torch.cat(parts, dim=-1), m)
            cell = Cell(_stacked(theta, "encoder.0"), "encoder.0")
            h = frames.new_zeros(*frames.shape[:2], self.config.hidden)
            for frame in frames.unbind(2):
                h = cell.step(frame, h)
            return _unfold(h, size)
        parts = [self._for_each(batch.x[..., 0]), context]
        if self.config.gaps:
            assert batch.gaps is not None
            parts.append(self._for_each(batch.gaps))
        if self.others:
            assert batch.others is not None
            parts.append(self._for_each(batch.others))
        h = _fold(torch.cat(parts, dim=-1), m)
        for layer in range(HIDDEN_LAYERS):
            above = torch.relu(_linear(theta, f"encoder.{layer}", h))
            h = above if layer == 0 else h + above
        return _unfold(h, size)

    def _context(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Inputs of the encoder besides readings: (n k b c), where c may be 0."""
        n, b = batch.x.shape[:2]
        size = (n, self.members, b)
        parts = [batch.x.new_zeros(*size, 0)]
        if self.config.profile:
            assert batch.usual_change is not None
            parts.append(self._for_each(batch.usual_change[..., 1:]))
        if self.config.calendar:
            assert batch.moment is not None
            slot, weekday = batch.moment.unbind(-1)
            for name, place in (("encoder.slot", slot), ("encoder.weekday", weekday)):
                parts.append(self._by_member(theta[name])[:, :, place].expand(*size, -1))
        if self.config.personal:
            parts.append(self._by_member(theta[SENSOR_EMBEDDING]).expand(*size, -1))
        return torch.cat(parts, dim=-1)

    def _for_each(self, x: Tensor) -> Tensor:
        """What all members of a node get: (n b ...) -> (n k b ...)."""
        return x[:, None].expand(-1, self.members, *[-1] * (x.dim() - 1))

    def _by_member(self, w: Tensor) -> Tensor:
        """A matrix of weights with the axis of members even if there is only one: (m k i j)."""
        return w.reshape(len(w), self.members, *w.shape[-2:])

    # ---- decoder ------------------------------------------------------------------------------------

    def decoded(
        self,
        theta: Mapping[str, Tensor],
        batch: Batch,
        h_c: Tensor,
        h_G: Tensor | None,
        truth: Tensor | None = None,
    ) -> Tensor:
        """What each member forecasts (k n b t): step by step as in the paper, or all steps at once."""
        n, b = batch.y.shape[:2]
        m, size = theta["output.weight"].shape[0], (n, self.members, b)
        start, simple = self._start(batch, h_c, h_G), self._simple_forecast(batch)
        if self.config.decoder == "autoregressive":
            return self._one_by_one(theta, batch, start, truth, simple).transpose(0, 1)
        if self.config.linear:
            assert batch.linear_change is not None
            start = torch.cat([start, self._for_each(batch.linear_change.to(start.dtype))], dim=-1)
        folded = _fold(start, m)
        state = folded + torch.relu(_linear(theta, "decoder.0", folded))
        y_hat = self._out(theta, _unfold(state, size)).transpose(0, 1)
        return y_hat if simple is None else y_hat + simple

    def _start(self, batch: Batch, h_c: Tensor, h_G: Tensor | None) -> Tensor:
        """[h_c ; h_G] of each member, with the levels and their means, which all have: (n k b h)."""
        config, (n, b) = self.config, batch.y.shape[:2]
        if self.embedding and h_G is None:
            h_G = h_c.new_zeros(n, b, self.embedding)
        if self.members == 1:
            return (torch.cat([h_c, h_G], dim=-1) if self.embedding and h_G is not None else h_c)[:, None]
        first, sent = config.level_width, config.sent_width
        parts = [
            self._for_each(h_c[..., :first]),
            _apart(h_c[..., first:sent], self.members),
            _apart(h_c[..., sent:], self.members),
        ]
        if self.embedding and h_G is not None:
            learned = config.learned_width
            parts.append(_apart(h_G[..., :learned], self.members))
            parts.append(self._for_each(h_G[..., learned:]))
        return torch.cat(parts, dim=-1)

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
        """(n k b h) -> (n k b t)."""
        n, b, steps = batch.y.shape
        m, size = theta["output.weight"].shape[0], (n, self.members, b)
        cell, state = Cell(_stacked(theta, "decoder.0"), "decoder.0"), _fold(state, m)
        frame = batch.x[:, None, :, -1].expand(*size, -1)
        y_hat: list[Tensor] = []
        for t in range(steps):
            if t > 0:
                value = y_hat[-1]
                if truth is not None:
                    fed = NodeModel.fed(batch, truth, t, n)
                    fed = fed[:, None] if fed.dim() else fed
                    value = torch.where(fed, batch.y[:, None, :, t - 1 : t], value)
                frame = torch.cat([value, batch.clock[:, t - 1 : t].expand(*size, 1)], dim=-1)
            state = cell.step(_fold(frame, m), state)
            out = self._out(theta, _unfold(state, size))
            y_hat.append(out if simple is None else out + simple[:, None, :, t : t + 1])
        return torch.cat(y_hat, dim=-1)

    def _out(self, theta: Mapping[str, Tensor], state: Tensor) -> Tensor:
        """(n k b h) -> (n k b t): the output layer."""
        size = (state.shape[0], state.shape[1], state.shape[2])
        with torch.autocast(state.device.type, enabled=False):
            folded = _fold(state.to(theta["output.weight"].dtype), theta["output.weight"].shape[0])
            return _unfold(_linear(theta, "output", folded), size)


Size = tuple[int, int, int]
"""Nodes, members and windows."""


def _fold(x: Tensor, m: int) -> Tensor:
    """(n k b ...) -> (mk B ...): join the nodes into one batch if they share one model of each member."""
    n, k = x.shape[:2]
    if m == n:
        return x.flatten(0, 1)
    return x.transpose(0, 1).reshape(k, -1, *x.shape[3:])


def _unfold(x: Tensor, size: Size) -> Tensor:
    """(mk B ...) -> (n k b ...)."""
    n, k, b = size
    if len(x) == n * k:
        return x.reshape(n, k, b, *x.shape[2:])
    return x.reshape(k, n, b, *x.shape[2:]).transpose(0, 1)


def _side_by_side(x: Tensor) -> Tensor:
    """(n k b h) -> (n b kh)."""
    return x.transpose(1, 2).flatten(2)


def _apart(x: Tensor, members: int) -> Tensor:
    """(n b kh) -> (n k b h)."""
    return x.reshape(*x.shape[:2], members, x.shape[-1] // members).transpose(1, 2)


def _linear(theta: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """(mk B i) -> (mk B o)."""
    weight, bias = theta[f"{name}.weight"], theta[f"{name}.bias"]
    return linear(x, weight.reshape(-1, *weight.shape[-2:]), bias.reshape(-1, bias.shape[-1]))


def _stacked(theta: Mapping[str, Tensor], layer: str) -> Params:
    """The weights of a GRU layer, members stacked: (m k ...) -> (mk ...)."""
    found = {name: w for name, w in theta.items() if name.startswith(f"{layer}.")}
    sizes = {name: w.shape[-2:] if "weight" in name else w.shape[-1:] for name, w in found.items()}
    return {name: w.reshape(-1, *sizes[name]) for name, w in found.items()}


def _gru(name: str, inputs: int, h: int, generator: torch.Generator) -> Params:
    shapes = {"weight_ih": (3 * h, inputs), "weight_hh": (3 * h, h), "bias_ih": (3 * h,), "bias_hh": (3 * h,)}
    return {f"{name}.{part}": uniform((1, *shape), h, generator) for part, shape in shapes.items()}
