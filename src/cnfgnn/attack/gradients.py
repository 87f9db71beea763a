"""Use all that crosses in training: hidden states, gradients and each node's weights between averagings.

A gradient that a node returns depends on the readings that it was to forecast, so that it adds equations to
those of the hidden state. In joint split learning nodes change their weights between two averagings. The
server knows the weights at the beginning and at the end, and takes those in between to lie on a straight
line. Where nodes have linear forecasters, it fits them to what it has found so far (`node_forecasts.py`).

So not every number that was received can be explained equally well. The server sees which: each counts by
how far off it usually is, and what gradients add can only help.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cnfgnn.algorithm.messages.randomness import SERVER_BATCHES, Batches, Coins
from cnfgnn.attack.estimates import Estimate
from cnfgnn.attack.from_levels import training_readings
from cnfgnn.attack.inversion import SPREAD, Found, Target, counted, invert, residuals
from cnfgnn.attack.node_forecasts import NodeForecasts
from cnfgnn.attack.recording import Minibatch, Recording
from cnfgnn.attack.replica import DTYPE, Replica, rounding
from cnfgnn.attack.restarts import search
from cnfgnn.attack.whole_series import WRONG
from cnfgnn.errors import RunError
from cnfgnn.models.params import Params
from cnfgnn.models.products import plain_operations

# nodes x windows at a time: derivatives of gradients take megabytes for each
AT_ONCE = {"cpu": 1 << 9, "cuda": 1 << 12}
REFITS = 3  # times that forecasters are fitted, each time to better estimates
DEVIATIONS = 1.4826  # standard deviations of normal errors in the median of their sizes


def with_gradients(
    recording: Recording,
    rows: Tensor,
    device: torch.device,
    iterations: int,
    tick: Callable[[float], None],
) -> dict[str, Estimate]:
    """The readings of the training windows: from hidden states alone ("series-training"), which shows what
    gradients and weights add, and from everything ("gradients")."""
    crossed = _Crossed.of(recording, rows, device)
    levels = training_readings(recording, rows, device, iterations)
    # in units of what rounding leaves open; where nodes learn in between, more is left over in any case
    solved = torch.full((len(rows),), torch.inf if crossed.drifts else WRONG, device=device)
    alone = search(
        lambda nodes: crossed.among(nodes).from_states(),
        crossed.start(levels),
        solved,
        iterations,
        lambda share: tick(share / 2),
    )
    crossed = crossed.weighed(crossed.from_states(), alone)
    alone = invert(crossed.from_states(), alone.series, iterations // 2)
    joint = alone
    step = counted(lambda share: tick(0.5 + share / 2), REFITS * (iterations // 2))
    for _ in range(REFITS):
        crossed = crossed.with_forecasts(joint, levels)
        crossed = crossed.weighed(crossed.from_everything(), joint)
        joint = invert(crossed.from_everything(), joint.series, iterations // 2, step)
    tick(1.0)
    return {
        "series-training": crossed.estimate("series", alone),
        "gradients": crossed.estimate("gradients", joint),
    }


@dataclass(frozen=True, eq=False)
class _Group:
    """The windows of one minibatch, with the weights at its averaging (1, ...), the weights that each node is
    taken to have had (m, ...), and the coins of scheduled sampling."""

    windows: slice
    averaged: Params
    theta: Params
    truth: Tensor | None


@dataclass(frozen=True, eq=False)
class _Crossed:
    """What crossed of the kept training windows (w,), minibatch by minibatch.

    h_c       (n w s)
    h_G       (n w e)
    gradient  (n w e)  of the summed loss: what was received, times the number of targets in the minibatch
    weight    (n w t)  1 where a target counts
    rounding  (n s+e)  what rounding leaves open in each number
    scale     (n s+e)  how far off each number is expected to be: at least as far as rounding leaves open
    forecasts          the linear forecasts of the nodes; None if there are none, or they are not known yet
    """

    replica: Replica
    places: Tensor
    starts: Tensor
    h_c: Tensor
    h_G: Tensor
    gradient: Tensor
    weight: Tensor
    rounding: Tensor
    scale: Tensor
    groups: list[_Group]
    forecasts: NodeForecasts | None = None

    @classmethod
    def of(cls, recording: Recording, rows: Tensor, device: torch.device) -> _Crossed:
        replica = Replica(recording, rows, device)
        kept = [batch for batch in recording.minibatches if len(batch.places) and _complete(batch, rows)]
        if not kept:
            raise RunError(
                "recording", "it holds no minibatch of training that all attacked sensors answered"
            )
        weights = _Weights(recording, replica)
        groups, first = [], 0
        coins = Coins(replica.settings.seed, replica.horizon, replica.settings.sampling, device)
        for batch in kept:
            until = first + len(batch.places)
            averaged, theta = _weights_of(recording, batch, replica)
            groups.append(_Group(slice(first, until), averaged, theta, coins[batch.step]))
            first = until
        h_c = torch.cat([_states(recording, b)[rows] for b in kept], dim=1).to(device, DTYPE)
        received = torch.cat([b.grad_h_G[rows] for b in kept], dim=1).to(device, DTYPE)
        counts = torch.cat([weights.counts(b)[:, None].expand(-1, len(b.places)) for b in kept], dim=1)
        places = torch.cat([b.places for b in kept])
        wire = replica.settings.wire
        open_in_gradient = rounding(received, wire) * counts.mean(dim=1, keepdim=True)
        scale = torch.cat([rounding(h_c, wire), open_in_gradient], dim=1).clamp(min=torch.finfo(DTYPE).tiny)
        return cls(
            replica,
            places.to(device),
            replica.starts("train", places),
            h_c,
            torch.cat([b.h_G[rows] for b in kept], dim=1).to(device, DTYPE),
            received * counts[..., None],
            weights.of(places),
            scale,
            scale,
            groups,
        )

    @property
    def offset(self) -> int:
        return int(self.starts.min())

    @property
    def drifts(self) -> bool:
        """Whether nodes learn between minibatches."""
        return any(group.theta is not group.averaged for group in self.groups)

    def among(self, nodes: Tensor) -> _Crossed:
        """The same of some of the nodes."""
        replica = self.replica
        return _Crossed.of(replica.recording, replica.rows[nodes.cpu()], replica.device)

    def start(self, readings: Tensor | None) -> Tensor:
        """(n T k): where to begin: at the mean, or at estimates (n T) of the readings, NaN where unknown. A
        weekly profile is taken to be what the sensor reads."""
        replica = self.replica
        length = int(self.starts.max()) - self.offset + replica.history + replica.horizon
        begin = torch.zeros(replica.nodes, length, device=replica.device)
        if readings is not None:
            known = replica.scaled(readings[:, self.offset : self.offset + length])
            begin[:, : known.shape[1]] = torch.nan_to_num(known)
        return begin[..., None].repeat(1, 1, 2 if replica.uses_profile else 1)

    def weighed(self, target: Target, found: Found) -> _Crossed:
        """With what is left over of each number at this series as the error that is expected of it.

        The median of its sizes says how large it usually is: readings after the last window are not known
        yet, and what depends on them is far off.
        """
        left_over = residuals(target, found.series).abs().median(dim=1).values  # (n s), in units of `scale`
        scale, numbers = self.scale.clone(), left_over.shape[1]
        scale[:, :numbers] = torch.maximum(
            self.rounding[:, :numbers], DEVIATIONS * left_over * scale[:, :numbers]
        )
        return replace(self, scale=scale)

    def with_forecasts(self, found: Found, readings: Tensor | None) -> _Crossed:
        """With linear forecasters fitted to what was found and, at other rows, to other estimates (n T)."""
        if not self.replica.uses_linear:
            return self
        estimated = self.estimate("", found).readings
        if readings is not None:
            estimated = torch.where(estimated.isnan(), readings, estimated)
        return replace(self, forecasts=NodeForecasts.fitted(self.replica, self.replica.recording, estimated))

    # ---- equations ----------------------------------------------------------------------------------

    def from_states(self) -> Target:
        """The hidden states alone, as if nodes kept the averaged weights."""
        history = self.replica.history
        scale = self.scale[:, None, : self.h_c.shape[-1]]

        def encode(unknown: Tensor, some: slice) -> Tensor:
            parts = []
            for group, of_group, here in self._groups(some):
                profile = unknown[:, here, history:] if self.replica.uses_profile else None
                batch = self.replica.batch(self.starts[of_group], unknown[:, here, :history], profile)
                parts.append(self.replica.encode(group.averaged, batch))
            return torch.cat(parts, dim=1) / scale

        rows, kinds = self.replica.layout(history)
        return Target(self.h_c / scale, self.starts - self.offset, encode, rows, kinds, self._prior)

    def from_everything(self) -> Target:
        """Hidden states and gradients, with the weights that each node is taken to have had."""
        length = self.replica.history + self.replica.horizon
        scale = self.scale[:, None]

        def encode(unknown: Tensor, some: slice) -> Tensor:
            parts = []
            for group, of_group, here in self._groups(some):
                profile = unknown[:, here, length:] if self.replica.uses_profile else None
                parts.append(self._crossing(group, of_group, unknown[:, here, :length], profile))
            return torch.cat(parts, dim=1) / scale

        rows, kinds = self.replica.layout(length)
        received = torch.cat([self.h_c, self.gradient], dim=-1) / scale
        at_once = AT_ONCE.get(self.replica.device.type, AT_ONCE["cuda"])
        return Target(received, self.starts - self.offset, encode, rows, kinds, self._prior, at_once)

    def _crossing(self, group: _Group, windows: slice, readings: Tensor, profile: Tensor | None) -> Tensor:
        """(n b s+e): the hidden states and gradients of some windows of a minibatch."""
        replica, weight = self.replica, self.weight[:, windows]
        batch = replica.batch(self.starts[windows], readings, profile, weight)
        if self.forecasts is not None:
            batch = self.forecasts.added_to(batch, self.places[windows], self.h_G[:, windows])
        with plain_operations():
            h_c = replica.model.encode(group.theta, batch)

            def loss(h_G: Tensor) -> Tensor:
                y_hat = replica.model.decode(group.theta, batch, h_c, h_G, group.truth)
                error = y_hat - batch.y
                error = error.square() if replica.settings.loss == "square" else error.abs()
                return (error * weight).sum()

            gradient = torch.func.grad(loss)(self.h_G[:, windows])
        learned = gradient[..., : replica.settings.model.learned_width]  # that of means is not sent
        return torch.cat([h_c[..., : replica.sent], learned], dim=-1)

    @property
    def _prior(self) -> Tensor:
        return self.h_c.new_full((len(self.h_c),), SPREAD**-2)

    def _groups(self, some: slice) -> list[tuple[_Group, slice, slice]]:
        """The minibatches of some windows: each with its windows, and where these are among `some`."""
        found = []
        for group in self.groups:
            first, until = max(group.windows.start, some.start), min(group.windows.stop, some.stop)
            if first < until:
                here = slice(first - some.start, until - some.start)
                found.append((group, slice(first, until), here))
        return found

    def estimate(self, name: str, found: Found) -> Estimate:
        replica = self.replica
        starts = self.starts.cpu().sort().values
        readings = replica.of_windows(starts, found.series[..., 0])
        return Estimate(name, "train", replica.rows, starts, replica.history, readings)


class _Weights:
    """Which targets count in the nodes' losses: public facts, because the mask of missing readings is."""

    def __init__(self, recording: Recording, replica: Replica) -> None:
        self.replica, settings = replica, replica.settings
        self.has = recording.has["train"][replica.rows].to(replica.device)
        count = replica.windows.count("train")
        self.batches = Batches(settings.seed, SERVER_BATCHES, count, settings.server_batch, replica.device)

    def of(self, places: Tensor) -> Tensor:
        """(n b t) of some training windows."""
        replica, places = self.replica, places.to(self.replica.device)
        ahead = replica.starts("train", places)[:, None] + replica.history
        ahead = ahead + torch.arange(replica.horizon, device=replica.device)
        counts = self.has[:, places, None].expand(-1, -1, replica.horizon)
        if replica.settings.missing == "masked":
            counts = counts & replica.observed[:, ahead]
        return counts.to(DTYPE)

    def counts(self, batch: Minibatch) -> Tensor:
        """(n,): the number of targets in a minibatch, by which a node divides its loss."""
        return self.of(self.batches[batch.draw]).sum(dim=(1, 2)).clamp(min=1)


def _complete(batch: Minibatch, rows: Tensor) -> bool:
    return not bool(batch.grad_h_G[rows].isnan().any())


def _states(recording: Recording, batch: Minibatch) -> Tensor:
    """h_c of a minibatch, sent with it or before it with all training windows."""
    if batch.h_c is not None:
        return batch.h_c
    states = recording.states["train"]
    return states.h_c[:, batch.places - int(states.places[0])]


def _weights_of(recording: Recording, batch: Minibatch, replica: Replica) -> tuple[Params, Params]:
    """The averaged weights before a minibatch, and those that each node is taken to have had in it."""
    interval = recording.intervals[batch.interval]
    averaged = replica.theta(interval.before)
    if not interval.after or not batch.steps:
        return averaged, averaged
    share, own = batch.steps / interval.steps, {name: w[replica.rows] for name, w in interval.after.items()}
    if any(w.isnan().any() for w in own.values()):
        return averaged, averaged
    between = {name: torch.lerp(interval.before[name].float(), w.float(), share) for name, w in own.items()}
    return averaged, replica.theta(between)
