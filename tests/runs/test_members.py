"""`model.members`: a training of several networks at once, as if each were trained alone, then averaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.pooled import Pooled
from cnfgnn.algorithm.server import Server
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.models.params import Params
from cnfgnn.runs.evaluate import evaluate_run
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import forecast_run
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.train import Unwatched, train_run
from tests.algorithm.test_partition import assert_same, trained
from tests.conftest import network, server, small

K = 2


@pytest.fixture(scope="module")
def hourly() -> Dataset:
    return network(seconds=3600)  # nearly a week: something is usual


def members(method: str, count: int = K, **changes: Any) -> Config:
    once = {"training.client_rounds": 1, "training.server_rounds": 1}
    return small(method, **{**once, "model.members": count, **changes})


def weights(experiment: Experiment) -> tuple[Params, Params]:
    """Of the nodes, and of the Graph Network."""
    strategy = experiment.strategy
    assert isinstance(strategy, Server | Pooled)
    if isinstance(strategy, Server):
        strategy.nodes.flush()
    network = {} if strategy.gn is None else dict(strategy.gn.gn.state_dict())
    return experiment.owners[0][1].nodes.theta, network


def begin_as(alone: Experiment, together: Experiment, k: int) -> None:
    """Begin with the weights of one member."""
    theta, network = weights(together)
    own = {name: w[:, k] for name, w in theta.items()}
    own_network = {
        f"gn.{name.removeprefix(f'networks.{k}.')}": w
        for name, w in network.items()
        if f"networks.{k}." in name
    }
    strategy = alone.strategy
    if isinstance(strategy, Server):
        strategy.nodes.load(own, wire="full")
        if strategy.gn is not None:
            strategy.gn.load_weights(own_network)
    else:
        strategy.go_on_from(own, own_network)


@pytest.mark.parametrize(
    "method",
    [
        "cnfgnn-plus",
        pytest.param("at-fedavg", marks=pytest.mark.slow),
        *("mlp-fedavg", "gru-gn-central", "cnfgnn-private"),  # slow, too
    ],
)
def test_a_training_of_several_members_is_that_of_each_of_them(method: str, hourly: Dataset) -> None:
    together = simulate(hourly, members(method))
    apart = [simulate(hourly, members(method, 1)) for _ in range(K)]
    for k, alone in enumerate(apart):
        begin_as(alone, together, k)
    for experiment in (together, *apart):
        for r_g in (1, 2):
            experiment.strategy.round(r_g)
    theta, network = weights(together)
    for k, alone in enumerate(apart):
        own, own_network = weights(alone)
        assert theta.keys() == own.keys()
        for name, w in own.items():
            torch.testing.assert_close(theta[name][:, k], w, rtol=0, atol=1e-9)
        for name, w in own_network.items():
            torch.testing.assert_close(network[f"networks.{k}.{name}"], w, rtol=0, atol=1e-9)
    first = apart[0].strategy.score("validation").best_known
    assert not torch.allclose(together.strategy.score("validation").best_known, first)


@pytest.mark.slow
def test_however_nodes_are_put_into_groups_members_learn_the_same() -> None:
    config = members("cnfgnn-plus")
    assert_same(trained(config, None), trained(config, [[0, 3], [1, 4, 5], [2]]))


def test_members_send_as_many_times_the_numbers_but_levels_only_once(hourly: Dataset) -> None:
    sent = []
    for count in (1, K):
        config = members("cnfgnn-plus", count, **{"training.wire": "int8"})
        experiment = simulate(hourly, config)
        server(experiment).round(1)
        server(experiment).nodes.flush()
        sent.append({(item.verb, item.direction): b.per_node for item, b in experiment.ledger.items.items()})
    once, more = sent
    assert once.keys() == more.keys()
    model, levels, means = config.model, config.model.level_width, 2 * config.model.level_width
    widths = {
        ("encode", "up"): (model.sent + levels, K * model.sent + levels),
        ("backward", "down"): (model.embedding + means, K * model.embedding + means),
        ("backward", "up"): (1, K),
        ("step", "down"): (model.sent + levels, K * model.sent + levels),
        ("weights", "up"): (1, K),
        ("load", "down"): (1, K),
    }
    for what, amount in once.items():
        before, after = widths.get(what, (1, 1))
        assert more[what] * before == amount * after, what


def test_a_run_with_members_is_saved_and_forecasts_as_it_was_evaluated(
    tmp_path: Path, hourly: Dataset
) -> None:
    run = Run.create(tmp_path / "run", members("cnfgnn-plus"), hourly)
    train_run(run, hourly, Unwatched())
    run = Run.open(tmp_path / "run")
    assert evaluate_run(run, hourly, "validation").overall == run.progress.best.validation
    readings = hourly.readings
    readings.values[-12:] = np.nan_to_num(readings.values[-12:], nan=50.0)
    assert np.isfinite(forecast_run(run, hourly).to_numpy()).all()
