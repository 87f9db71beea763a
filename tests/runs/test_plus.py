"""What cnfgnn-plus has beyond the paper's method, where it meets data, rounds and runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.errors import RunError
from cnfgnn.models.graphnet import Edges, GraphNetwork
from cnfgnn.runs.evaluate import evaluate_run, restore_best
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import forecast_run
from cnfgnn.runs.scores import SUMS, Scores
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.train import Unwatched, train_run
from cnfgnn.studies.plan import Case, runs_of
from tests.conftest import network, server, small


def hourly(rows: int = 400) -> Dataset:
    """More than two weeks of readings: there is a usual week to be known."""
    data = network(rows=rows)
    times = np.datetime64("2024-01-01T00:00:00") + np.arange(rows).astype("timedelta64[h]")
    return replace(data, readings=replace(data.readings, times=times))


def last(data: Dataset, rows: int) -> Dataset:
    r = data.readings
    return replace(
        data, readings=replace(r, times=r.times[-rows:], values=r.values[-rows:], missing=r.missing[-rows:])
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder, data = tmp_path_factory.mktemp("plus") / "run", hourly()
    train_run(Run.create(folder, small("cnfgnn-plus"), data), data, Unwatched())
    return Run.open(folder)


def test_a_sensor_s_usual_week_is_kept_with_the_run_and_found_again(run: Run) -> None:
    data = hourly()
    data.readings.values[-12:] = np.nan_to_num(data.readings.values[-12:], nan=50.0)  # nobody is silent
    data = replace(data, readings=replace(data.readings, missing=np.isnan(data.readings.values)))
    whole, recent = forecast_run(run, data), forecast_run(run, last(data, 200))
    np.testing.assert_allclose(whole, recent, rtol=1e-9)
    assert np.isfinite(forecast_run(run, last(data, 12)).to_numpy()).all()  # no day before: the week alone
    kept = run.store("site-0").read(run.progress.best.tag)["usual_weeks"]
    assert kept.shape == (6, 7, 288)
    assert kept.isfinite().any(dim=(1, 2)).all()


@pytest.mark.parametrize("method", ["gru-gn-central", "mlp-central", "cnfgnn-plus-central"])
def test_a_pooled_run_keeps_usual_weeks_too(method: str, tmp_path: Path) -> None:
    data = hourly()
    data.readings.values[-12:] = np.nan_to_num(data.readings.values[-12:], nan=50.0)
    data = replace(data, readings=replace(data.readings, missing=np.isnan(data.readings.values)))
    run = Run.create(tmp_path / "run", small(method, **{"model.profile": True}), data)
    train_run(run, data, Unwatched())
    run = Run.open(run.folder)
    np.testing.assert_allclose(forecast_run(run, data), forecast_run(run, last(data, 200)), rtol=1e-9)
    assert evaluate_run(run, data, "validation").overall == run.progress.best.validation
    assert method != "cnfgnn-plus-central" or restore_best(run, data).owners[0][1].trust is not None


def test_every_split_is_judged_as_in_training(run: Run) -> None:
    judged = evaluate_run(run, hourly(), "validation").overall
    assert judged == run.progress.best.validation


def test_a_new_sensor_goes_by_its_own_readings_or_expects_no_change(run: Run) -> None:
    data = hourly()
    new = replace(data, readings=replace(data.readings, ids=("new", *data.readings.ids[1:])))
    known = forecast_run(run, data)
    with_past, without = forecast_run(run, new), forecast_run(run, last(new, 13))
    for forecasts in (with_past, without):
        assert np.isfinite(forecasts["new"]).all()
        assert not np.allclose(forecasts["new"], known["s0"])  # it has no embedding and no head
    assert not np.allclose(with_past["new"], without["new"])


def test_the_profile_is_told_to_the_model_and_changes_what_it_learns() -> None:
    data = hourly()
    scores = []
    for profile in (True, False):
        strategy = server(simulate(data, small("cnfgnn-plus", **{"model.profile": profile})))
        strategy.round(1)
        scores.append(strategy.score("validation").told)
    assert not torch.allclose(*scores)


@pytest.mark.parametrize("method", ["gru-local", "at"])
def test_nodes_that_do_not_average_learn_the_same_however_a_round_is_cut(method: str, data: Dataset) -> None:
    weights = []
    for every in (0, 3):
        experiment = simulate(data, small(method, **{"training.average_every": every}))
        for r_g in (1, 2):
            server(experiment).round(r_g)
        server(experiment).nodes.flush()
        weights.append(experiment.owners[0][1].nodes.theta)
    for name, w in weights[0].items():
        assert torch.equal(w, weights[1][name]), name


@pytest.mark.parametrize("method", ["gru-fedavg", "mlp-fedavg", "at-fedavg", "sl-fedavg", "cnfgnn-plus"])
def test_weights_are_averaged_as_often_as_is_asked_for(method: str, data: Dataset) -> None:
    sent = {}
    for every in (0, 2, 10_000):
        experiment = simulate(data, small(method, **{"training.average_every": every}))
        strategy = server(experiment)
        strategy.round(1)
        strategy.nodes.flush()
        items = experiment.ledger.items.items()
        sent[every] = sum(b.per_node for item, b in items if item.verb == "weights")
        assert strategy.theta_bar is not None
        for name, w in strategy.theta_bar.items():  # a round ends with everybody having the same
            assert torch.equal(experiment.owners[0][1].nodes.theta[name].to(w), w), name
    minibatches = strategy.minibatches
    if "sl" not in method and "plus" not in method:
        minibatches = strategy.client_rounds * len(strategy.client_batches)
    assert sent[10_000] == sent[0]
    assert sent[2] == sent[0] * -(-minibatches // 2)


def test_rounds_of_a_run_on_absolute_errors_are_compared_by_them() -> None:
    sums = torch.zeros(1, 1, len(SUMS))
    for name, value in {"square": 8.0, "absolute": 2.0, "count": 2.0}.items():
        sums[..., SUMS.index(name)] = value
        sums[..., SUMS.index(f"masked_{name}")] = value * 3 if name != "count" else value
    scores = Scores(sums)
    losses = [scores.loss(masked, kind) for masked in (False, True) for kind in ("square", "absolute")]
    assert losses == pytest.approx([4.0, 1.0, 12.0, 3.0])


def star(k: int) -> Edges:
    """k nodes send to node 0."""
    senders = np.arange(1, k + 1)
    graph = Graph(k + 1, senders, np.zeros(k, dtype=np.int64), np.full(k, 0.5))
    return Edges.of(graph, torch.device("cpu"), torch.float64)


@pytest.mark.parametrize("mean", [True, False])
def test_in_a_graph_network_of_means_alike_neighbours_are_as_one(mean: bool) -> None:
    gn = GraphNetwork(3, 2, (5, 4), 2, mean).init(torch.Generator().manual_seed(1)).double()
    pair = torch.randn(2, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    alone, twice = gn(pair, star(1))[0], gn(torch.cat([pair, pair]), doubled())
    torch.testing.assert_close(twice[0], twice[2])
    assert torch.allclose(alone, twice[0]) == mean


def doubled() -> Edges:
    """Nodes 0 and 2 each receive from 1 and 3."""
    senders, receivers = np.array([1, 3, 1, 3]), np.array([0, 0, 2, 2])
    return Edges.of(Graph(4, senders, receivers, np.full(4, 0.5)), torch.device("cpu"), torch.float64)


def test_means_are_of_those_who_are_there() -> None:
    gn = GraphNetwork(3, 2, (5, 4), 2, True).init(torch.Generator().manual_seed(1)).double()
    h = torch.randn(3, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    present = torch.tensor([[True], [True], [False]])
    torch.testing.assert_close(gn(h, star(2), present)[:2], gn(h[:2], star(1)))


def test_a_run_whose_rates_fall_over_its_rounds_is_another_one_with_more_rounds(tmp_path: Path) -> None:
    data = network()
    config = small("cnfgnn-plus")
    Run.create(tmp_path / "cnfgnn-plus-seed1", config, data)
    case = Case("cnfgnn-plus", "63k", config)
    assert runs_of(case, [1], tmp_path, data, tmp_path)
    longer = replace(case, config=config.with_changes({"training.rounds": 9}))
    with pytest.raises(RunError, match="other settings"):
        runs_of(longer, [1], tmp_path, data, tmp_path)
