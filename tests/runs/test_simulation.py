"""Sensors that never trained, readings that are missing, and what judging must leave alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings
from cnfgnn.errors import ConfigError, DataError
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import evaluate, train
from tests.conftest import needs_bf16, network, server, small, transport


def altered(data: Dataset, rows: list[int], by: float) -> Dataset:
    """The same network with some sensors' readings moved."""
    values = data.readings.values.copy()
    values[:, rows] += by
    r = data.readings
    return Dataset(data.name, Readings(r.times, r.ids, values, r.missing, r.positions), data.graph)


# ---- inductive ------------------------------------------------------------------------------------------


def test_the_first_sensors_by_longitude_train(data: Dataset) -> None:
    experiment = simulate(data, small("at-fedavg", **{"training.seen": 0.5}))
    assert experiment.seen is not None
    assert data.readings.positions is not None
    longitude = torch.from_numpy(data.readings.positions[:, 1])
    assert experiment.seen.sum() == 3
    assert longitude[experiment.seen].max() < longitude[~experiment.seen].min()


@pytest.mark.parametrize("method", ["at-fedavg", "sl-fedavg", "gru-fedavg"])
def test_unseen_sensors_have_no_influence_on_training(data: Dataset, method: str) -> None:
    config = small(method, **{"training.seen": 0.5})
    first = simulate(data, config)
    train(first)
    assert first.seen is not None
    unseen = (~first.seen).nonzero().flatten().tolist()
    second = simulate(altered(data, unseen, 17.0), config)
    train(second)
    assert first.scaler == second.scaler
    one, two = server(first).theta_bar, server(second).theta_bar
    assert one is not None
    assert two is not None
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_unseen_sensors_forecast_with_the_averaged_weights(data: Dataset) -> None:
    experiment = simulate(data, small("gru-fedavg", **{"training.seen": 0.5}))
    train(experiment)
    theta_bar = server(experiment).theta_bar
    assert theta_bar is not None
    for name, w in server(experiment).everyone.weights().items():
        assert torch.equal(w, theta_bar[name].expand_as(w))
    scores = evaluate(experiment)
    assert scores.unseen_nodes is not None
    assert math.isfinite(scores.unseen_nodes.rmse)
    assert scores.seen_nodes != scores.unseen_nodes


@pytest.mark.parametrize("method", ["gru-local", "gru-fmtl", "at", "sl", "gru-central"])
def test_methods_without_everybody_s_weights_refuse_unseen_sensors(method: str, data: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"training\.seen"):
        simulate(data, small(method, **{"training.seen": 0.5}))


def test_inductive_training_needs_positions(data: Dataset) -> None:
    r = data.readings
    lost = Dataset("lost", Readings(r.times, r.ids, r.values, r.missing), data.graph)
    with pytest.raises(DataError, match="no positions"):
        simulate(lost, small("at-fedavg", **{"training.seen": 0.5}))


# ---- missing readings -----------------------------------------------------------------------------------


def silent(rows: slice, n: int = 6) -> Dataset:
    """Node 2 has no readings in these rows."""
    data = network(n=n, dropout=0.0)
    values, r = data.readings.values.copy(), data.readings
    values[rows, 2] = np.nan
    return Dataset("silent", Readings(r.times, r.ids, values, np.isnan(values), r.positions), data.graph)


@pytest.mark.parametrize(
    "method", ["at-fedavg", "at", "sl", "sl-fedavg", "gru-fedavg", "gru-fmtl", "gru-local"]
)
def test_a_node_without_any_training_window_takes_part(method: str) -> None:
    experiment = simulate(silent(slice(0, 110)), small(method))
    strategy = server(experiment)
    assert not strategy.nodes.has["train"][2].any()
    before = {name: w[2].clone() for name, w in strategy.nodes.weights().items()}
    progress = train(experiment)
    assert all(math.isfinite(done.loss) for done in progress.history)
    if method in ("at", "sl", "gru-local"):  # it never learnt anything of its own
        after = strategy.nodes.weights()
        assert all(torch.equal(after[name][2], before[name]) for name in before)


def test_averaging_leaves_out_who_has_no_windows() -> None:
    data = silent(slice(0, 150))
    with_silent = simulate(data, small("gru-fedavg"))
    others = simulate(data.select([f"s{i}" for i in (0, 1, 3, 4, 5)]), small("gru-fedavg"))
    for experiment in (with_silent, others):
        train(experiment)
    one, two = server(with_silent).theta_bar, server(others).theta_bar
    assert one is not None
    assert two is not None
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-12)


def test_nobody_trains_on_windows_in_which_nobody_is_heard() -> None:
    data = network(dropout=0.0)
    values, r = data.readings.values.copy(), data.readings
    values[20:60] = np.nan
    hole = Dataset("hole", Readings(r.times, r.ids, values, np.isnan(values), r.positions), data.graph)
    values[190:210] = np.nan  # in the test split
    masked = simulate(hole, small("gru-fedavg")).windows
    as_truth = simulate(hole, small("gru-fedavg", **{"data.missing": "as-truth"})).windows
    # gone: starts 20 .. 54, whose inputs all lie in the hole
    assert masked.starts["train"].tolist() == [*range(20), *range(55, 98)]
    assert as_truth.starts["train"].tolist() == masked.starts["train"].tolist()


def test_data_without_any_reading_has_no_training_windows() -> None:
    data, r = network(), network().readings
    nothing = Readings(r.times, r.ids, np.full_like(r.values, np.nan), np.ones_like(r.missing), r.positions)
    with pytest.raises(DataError, match="no training windows"):
        simulate(Dataset("nothing", nothing, data.graph), small("at-fedavg"))


# ---- refusals -------------------------------------------------------------------------------------------


def test_pooled_methods_refuse_separate_groups(data: Dataset) -> None:
    with pytest.raises(ConfigError, match="pools all readings"):
        simulate(data, small("gru-central"), groups=[[0, 1, 2], [3, 4, 5]])


def test_the_paper_s_direction_turns_every_edge(data: Dataset) -> None:
    straight = simulate(data, small("at-fedavg"))
    turned = simulate(data, small("at-fedavg", **{"graph.direction": "paper"}))
    assert torch.equal(server(straight).graph.senders.node.sort().values, server(turned).graph.receivers.node)
    assert train(straight).best.loss != train(turned).best.loss


def test_one_sensor_alone_can_train() -> None:
    alone = network(n=1, dropout=0.0)
    for method in ("at-fedavg", "sl", "gru-central", "gru-fmtl"):
        assert math.isfinite(train(simulate(alone, small(method))).best.loss)


def losses_by_precision(data: Dataset) -> dict[str, float]:
    losses = {}
    for precision in ("fp32", "bf16"):
        config: Config = small("at-fedavg", **{"compute.precision": precision})
        losses[precision] = train(simulate(data, config)).best.loss
    return losses


@needs_bf16
def test_bf16_stays_near_fp32(data: Dataset) -> None:
    losses = losses_by_precision(data)
    assert losses["bf16"] != losses["fp32"]
    assert abs(losses["bf16"] / losses["fp32"] - 1) < 0.03


def test_a_processor_without_bf16_gives_the_results_of_fp32(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cnfgnn.algorithm.compute.device.multiplies_bf16", lambda: False)
    losses = losses_by_precision(data)
    assert losses["bf16"] == losses["fp32"]


def test_a_graph_without_edges_is_no_obstacle(data: Dataset) -> None:
    empty = np.zeros(0, dtype=np.int64)
    lonely = Dataset("lonely", data.readings, Graph(6, empty, empty, np.zeros(0)))
    for method in ("at-fedavg", "gru-fmtl"):
        assert math.isfinite(train(simulate(lonely, small(method))).best.loss)


# ---- judging, and what is kept --------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "validation"])
def test_judging_changes_nothing_of_training(split: Any, data: Dataset) -> None:
    finals = []
    for judged in (False, True):
        experiment = simulate(data, small("at-fedavg", **{"training.seen": 0.5}))
        strategy = server(experiment)
        strategy.round(1)
        if judged:
            before = experiment.ledger.total("training")
            strategy.score(split)
            assert experiment.ledger.total("training").per_node - before.per_node in (
                0,
                # what waited for the next exchange is counted when it goes: the embeddings of (4)
                experiment.windows.count("train") * 3 * 4 * 8,
            )
        strategy.round(2)
        assert strategy.theta_bar is not None
        finals.append(strategy.theta_bar)
    assert all(torch.equal(finals[0][name], finals[1][name]) for name in finals[0])


def test_forecasts_are_never_fed_the_truth(data: Dataset) -> None:
    """Whatever the coins would say, altering the targets must not change what is forecast."""
    experiment = simulate(data, small("gru-fedavg", **{"training.sampling": 1e9}))
    server(experiment).nodes.flush()
    owner = transport(experiment).groups[0][1]
    clients = owner.nodes
    before = owner.forecasts_of("test", slice(0, 5))
    clients.data.targets = clients.data.targets + 100
    assert torch.equal(owner.forecasts_of("test", slice(0, 5)), before)
    sums = clients.score("test")
    clients.data.targets = clients.data.targets - 100
    assert not torch.equal(clients.score("test"), sums)


def test_windows_a_node_lacks_do_not_reach_the_others_scores(data: Dataset) -> None:
    experiment = simulate(data, small("at-fedavg"))
    train(experiment)
    clients = transport(experiment).groups[0][1].nodes
    before = experiment.strategy.score("train").of_copy
    real = clients.encoded

    def poisoned(theta: Any, split: Any, windows: Any) -> torch.Tensor:
        has = clients.data.heard[split]
        assert has is not None
        return real(theta, split, windows).masked_fill(~has[:, windows, None], 1e6)

    clients.encoded = poisoned  # type: ignore[method-assign]
    assert torch.equal(experiment.strategy.score("train").of_copy, before)


@pytest.mark.parametrize(("state", "steps"), [("fresh", 1), ("kept", 2)])
def test_the_nodes_optimisers_are_fresh_or_kept_from_round_to_round(
    state: str, steps: int, data: Dataset
) -> None:
    experiment = simulate(network(dropout=0.0), small("gru-local", **{"training.optimizer_state": state}))
    strategy = server(experiment)
    for r_g in (1, 2):
        strategy.round(r_g)
    strategy.nodes.flush()
    adam = transport(experiment).groups[0][1].nodes.adam
    assert adam is not None
    assert adam.steps.unique().tolist() == [steps * 2 * len(strategy.client_batches)]


def test_joint_split_learning_keeps_one_adam(data: Dataset) -> None:
    experiment = simulate(network(dropout=0.0), small("sl"))
    strategy = server(experiment)
    strategy.round(1)
    strategy.nodes.flush()
    adam = transport(experiment).groups[0][1].nodes.adam
    assert adam is not None
    assert adam.steps.unique().tolist() == [len(strategy.batches)]


@pytest.mark.parametrize("missing", ["masked", "as-truth"])
def test_rounds_are_compared_by_the_error_that_was_trained_on(missing: str) -> None:
    data, r = network(), network().readings
    values = np.where(r.missing, 0, r.values).astype(np.float32)
    zeros = Dataset("zeros", Readings(r.times, r.ids, values, r.missing, r.positions), data.graph)
    best = train(simulate(zeros, small("gru-fedavg", **{"data.missing": missing}))).best
    kind = best.validation.masked_rmse if missing == "masked" else best.validation.rmse
    assert best.loss == kind**2
    assert best.validation.masked_rmse != best.validation.rmse


def test_windows_that_only_unseen_sensors_have_are_no_training_windows(data: Dataset) -> None:
    experiment = simulate(data, small("gru-fedavg", **{"training.seen": 0.5}))
    assert experiment.seen is not None
    r, values = data.readings, data.readings.values.copy()
    values[20:60, experiment.seen.numpy()] = np.nan
    quiet = Dataset("quiet", Readings(r.times, r.ids, values, np.isnan(values), r.positions), data.graph)
    starts = simulate(quiet, small("gru-fedavg", **{"training.seen": 0.5})).windows.starts["train"]
    assert not ((starts >= 20) & (starts <= 48)).any()


def test_a_reading_that_is_no_number_is_missing_whatever_the_mask_says(data: Dataset) -> None:
    r = data.readings
    forgotten = Readings(r.times, r.ids, r.values, np.zeros_like(r.missing), r.positions)
    assert (forgotten.missing == np.isnan(r.values)).all()
