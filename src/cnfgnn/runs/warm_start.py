"""Begin a training with the weights of an earlier one, which knew fewer readings.

What is learned is kept: the weights of the nodes, the Graph Network, and the scale of the readings, because
the weights belong to it. What is computed from readings is computed anew: weekly profiles, linear
forecasters, how far forecasts trust the network, and intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cnfgnn.algorithm.experiment import Experiment, fit_to_windows
from cnfgnn.algorithm.methods import method_of, preset
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.pooled import Pooled
from cnfgnn.algorithm.server import Server
from cnfgnn.config.settings import SETTINGS, Config
from cnfgnn.data.series import Scaler
from cnfgnn.data.windows import Windows
from cnfgnn.errors import ConfigError
from cnfgnn.models.params import Params
from cnfgnn.models.plus import SENSOR_EMBEDDING

ROUNDS = "training.rounds"
SHARE_OF_ROUNDS = 1 / 3  # of a training from the beginning; docs/notes.md has the measurement
BATCHES = ("training.client_batch", "training.server_batch")
ARCHITECTURE = ("data.history", "data.horizon", *(key for key in SETTINGS if key.startswith("model.")), "own")


@dataclass(frozen=True)
class Origin:
    """What a run went on from, as its manifest records it.

    run          the folder of the earlier run
    round        the round whose weights it began with
    cold_rounds  rounds of a training from the beginning: a third of them is enough, however often one goes on
    rounds_given whether a person has chosen them; if not, they may adapt to the number of windows again
    """

    run: str
    round: int
    cold_rounds: int
    rounds_given: bool = False


@dataclass(frozen=True, eq=False)
class Weights:
    """What a training leaves to the next one.

    sensors  those that trained, in the order of the rows
    theta    weights of the nodes: one row that all of them share, or a row for each sensor
    server   the saved state with the Graph Network's weights
    scaler   the scale of the readings
    """

    sensors: Sequence[str]
    theta: Params
    server: Mapping[str, Tensor]
    scaler: Scaler

    @classmethod
    def of(cls, experiment: Experiment, sensors: Sequence[str]) -> Weights:
        """The weights that a training in this process has now; all sensors trained, in one group."""
        [(_, owner)] = experiment.owners
        strategy = experiment.strategy
        assert isinstance(strategy, Server | Pooled)
        server = {} if strategy.gn is None else strategy.gn.state()
        theta = owner.nodes.theta
        if isinstance(strategy, Server) and strategy.theta_bar is not None:
            theta = strategy.theta_bar
        kept = {name: w.detach().clone() for name, w in theta.items()}
        return cls(sensors, kept, server, experiment.scaler)


class InOrder:
    """Puts rows of the sensors that trained into the order of other sensors, some of them unknown."""

    def __init__(self, trained: Sequence[str], sensors: Sequence[str]) -> None:
        row_of = {sensor: row for row, sensor in enumerate(trained)}
        self.rows = torch.tensor([row_of.get(sensor, -1) for sensor in sensors])

    def __call__(self, w: Tensor, unknown: float | Tensor) -> Tensor:
        """(n ...), with this value, or these rows (n ...), for sensors that did not train."""
        if isinstance(unknown, Tensor):
            ordered = unknown.to(w).expand(len(self.rows), *w.shape[1:]).clone()
        else:
            ordered = w.new_full((len(self.rows), *w.shape[1:]), unknown)
        known = self.rows >= 0
        ordered[known] = w[self.rows[known]]
        return ordered

    def pooled(self, theta: Params) -> Params:
        """Weights that all sensors share, but for the embedding of each that a pooled model may have."""
        return {name: self(w, 0.0) if name == SENSOR_EMBEDDING else w for name, w in theta.items()}


def go_on_from(experiment: Experiment, weights: Weights, sensors: Sequence[str]) -> None:
    """Give a training in this process the weights of an earlier one, before its first round.

    A sensor that is new begins with the weights that all share. If every sensor has a model of its own, it
    begins with the weights that the seed gives, as in a training from the beginning. What the earlier
    training knew about sensors that are gone is left out.
    """
    in_order, theta = InOrder(weights.sensors, sensors), weights.theta
    if isinstance(experiment.strategy, Pooled):
        theta = in_order.pooled(theta)
    elif method_of(experiment.config.method).sharing != "average":
        _give_own_weights(experiment.owners, theta, in_order)
        theta = {}
    device = experiment.owners[0][1].nodes.compute.device
    experiment.strategy.go_on_from({name: w.to(device) for name, w in theta.items()}, weights.server)


def _give_own_weights(owners: Sequence[tuple[Tensor, Owner]], theta: Params, in_order: InOrder) -> None:
    """Give the nodes of these owners the models that they do not share, without the server."""
    for rows, owner in owners:
        first = owner.nodes.theta  # drawn from the seed, the same for all
        owner.nodes.load(
            {name: in_order(w.to(first[name].device), first[name])[rows] for name, w in theta.items()}
        )


# ---- settings -------------------------------------------------------------------------------------------


def settings_to_go_on(
    earlier: Config, chosen: Sequence[str], origin: Origin | None, rows: int, changes: Mapping[str, Any]
) -> tuple[Config, int]:
    """The settings of a training that goes on, and the rounds of one from the beginning.

    They are the earlier run's, except for `changes`. `chosen` are those that a person had set for the earlier
    run; sizes of minibatches that nobody has set adapt to the number of windows again. Unless `changes` say
    otherwise, there are a third of the rounds of a training from the beginning. `origin` is what the earlier
    run itself went on from, if it did.
    """
    check_same_architecture(earlier, changes)
    method = method_of(earlier.method)
    config = earlier.with_given(chosen)
    if origin is not None:
        kept = config.given if origin.rounds_given else config.given - {ROUNDS}
        config = _without_noting(config.with_given(kept), {ROUNDS: origin.cold_rounds})
    if not method.in_paper:
        defaults = preset(method.name)
        config = _without_noting(config, {k: defaults.setting(k) for k in BATCHES if k not in config.given})
    config = config.with_changes(changes)
    d = config.data
    count = Windows.of(rows, d.history, d.horizon, d.shares).count("train")
    cold = fit_to_windows(config, method, count)
    if ROUNDS in changes:
        return cold, cold.training.rounds if origin is None else origin.cold_rounds
    rounds = math.ceil(SHARE_OF_ROUNDS * cold.training.rounds)
    return cold.with_changes({ROUNDS: rounds}), cold.training.rounds


def _without_noting(config: Config, changes: Mapping[str, Any]) -> Config:
    """Other values for settings that nobody has chosen."""
    return config.with_changes(changes).with_given(config.given)


def check_same_architecture(earlier: Config, changes: Mapping[str, Any]) -> None:
    """Refuse settings for which the earlier weights have the wrong shape or meaning."""
    wanted = earlier.with_changes(changes)
    for key in ("method", *ARCHITECTURE):
        before, now = earlier.setting(key), wanted.setting(key)
        if before != now:
            raise ConfigError(
                key,
                f"is {now}, but the run to go on from was trained with {before}, and its weights fit no other"
                " architecture: leave this setting out, or train without --from",
            )
