"""Sites that are away: rounds go on without them, and they come back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.owner import Owner
from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import NodeError
from cnfgnn.models.graphnet import Edges
from cnfgnn.runs.simulation import simulate
from tests.conftest import network, server, small, transport


def away_in_its_second_round(method: str, data: Dataset) -> Experiment:
    """Three sites after two rounds, of which the second went without the one in the middle."""
    experiment = simulate(data, small(method), groups=[[0, 1], [2, 3], [4, 5]])
    strategy = server(experiment)
    for r_g, away in ((1, set()), (2, {"site-1"})):
        transport(experiment).away = away
        strategy.round(r_g)
        strategy.nodes.flush()
    return experiment


@pytest.mark.parametrize("method", ["at-fedavg", "at", "sl-fedavg", "gru-fedavg", "gru-fmtl"])
def test_rounds_go_on_without_a_site_that_is_away(method: str, data: Dataset) -> None:
    experiment = away_in_its_second_round(method, data)
    strategy = server(experiment)
    assert strategy.nodes.up.tolist() == [True, True, False, False, True, True]
    transport(experiment).away = set()
    strategy.round(3)
    assert torch.isfinite(strategy.score("test").told).all()
    assert strategy.nodes.up.all()


def test_weights_are_averaged_over_those_who_answered(data: Dataset) -> None:
    experiment = simulate(data, small("gru-fedavg"), groups=[[0, 1, 2], [3, 4, 5]])
    strategy = server(experiment)
    strategy.nodes.flush()
    transport(experiment).away = {"site-1"}
    strategy.round(1)
    config = small("gru-fedavg")
    alone = simulate(data.select(data.readings.ids[:3]), config)
    # the same scale for both, or their losses differ
    clients = transport(alone).groups[0][1].nodes
    server(alone).nodes.flush()
    clients.data = transport(experiment).groups[0][1].nodes.data
    server(alone).round(1)
    one, two = strategy.theta_bar, server(alone).theta_bar
    assert one is not None
    assert two is not None
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-12)


def test_when_nobody_answers_the_error_says_so(data: Dataset) -> None:
    experiment = simulate(data, small("gru-fedavg"))
    transport(experiment).away = {"site-0"}
    with pytest.raises(NodeError, match="no site answered"):
        experiment.strategy.round(1)


def test_a_returning_site_gets_the_weights_everybody_has(data: Dataset) -> None:
    experiment = away_in_its_second_round("at-fedavg", data)
    strategy = server(experiment)
    transport(experiment).away = set()
    strategy.score("validation")
    theta_bar = strategy.theta_bar
    assert theta_bar is not None
    for name, w in transport(experiment).groups[1][1].nodes.theta.items():
        assert torch.equal(w, theta_bar[name])


def test_a_site_that_was_not_there_at_the_start_can_join(data: Dataset) -> None:
    experiment = simulate(data, small("at-fedavg"), groups=[[0, 1], [2, 3], [4, 5]])
    strategy = server(experiment)
    transport(experiment).away = {"site-2"}  # before it was told how to prepare
    strategy.round(1)
    transport(experiment).away = set()
    strategy.round(2)
    assert torch.isfinite(strategy.score("test").told).all()
    assert strategy.nodes.up.all()


def test_a_site_that_comes_back_in_the_middle_of_a_round_stays_out_of_the_graph(data: Dataset) -> None:
    """Its h_c is not there: the others must get the embeddings of the graph without it."""
    experiment = simulate(network(dropout=0.0), small("at"), groups=[[0, 1], [2, 3], [4, 5]])
    strategy, carrier = server(experiment), transport(experiment)
    strategy.nodes.flush()
    assert strategy.gn is not None
    real, h_c, sent = carrier.exchange, [], []

    def exchange(calls: Any, rows: torch.Tensor) -> Any:
        carrier.away = {"site-1"} if calls[-1].verb == "encode" else set()
        payload = real(calls, rows)
        if calls[-1].verb == "encode":
            h_c.append(payload.replies[-1]["h_c"])
        sent.extend(call.tensors["h_G"] for call in calls if call.verb == "embed")
        return payload

    carrier.exchange = exchange  # type: ignore[method-assign]
    strategy.round(1)
    strategy.nodes.flush()
    rest = torch.tensor([0, 1, 4, 5])
    edges = Edges.of(data.graph.subgraph(rest.numpy()), torch.device("cpu"), torch.float64)
    expected = strategy.gn.propagate(h_c[0][rest], edges, None)
    torch.testing.assert_close(sent[0][rest], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["sl", "sl-fedavg"])
def test_a_lost_half_of_a_minibatch_is_left_out(method: str, data: Dataset) -> None:
    experiment = simulate(data, small(method), groups=[[0, 1, 2], [3, 4, 5]])
    strategy = server(experiment)
    strategy.nodes.flush()
    carrier = transport(experiment)
    real = carrier.exchange

    def exchange(calls: Any, rows: torch.Tensor) -> Any:
        carrier.away = {"site-1"} if calls[-1].verb == "backward" else set()
        return real(calls, rows)

    carrier.exchange = exchange  # type: ignore[method-assign]
    before = {name: w.clone() for name, w in carrier.groups[1][1].nodes.weights().items()}
    strategy.round(1)
    strategy.nodes.flush()
    after = carrier.groups[1][1].nodes.weights()
    if method == "sl":
        assert all(torch.equal(after[name], before[name]) for name in before)
    assert torch.isfinite(strategy.score("validation").told).all()


def test_the_ledger_counts_only_those_who_were_there(data: Dataset) -> None:
    moved = []
    for away in (set(), {"site-1"}):
        experiment = simulate(data, small("gru-fedavg"), groups=[[0, 1, 2], [3, 4, 5]])
        server(experiment).nodes.flush()
        transport(experiment).away = away
        server(experiment).round(1)
        server(experiment).nodes.flush()
        moved.append(experiment.ledger.total("training"))
    assert moved[1].per_node * 2 == moved[0].per_node
    assert moved[1].per_site * 2 == moved[0].per_site


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["at-fedavg", "at", "sl", "sl-fedavg", "gru-local", "gru-fedavg", "gru-fmtl"]
)
def test_a_site_that_lost_everything_but_its_saved_state_catches_up_to_the_last_bit(
    method: str, data: Dataset
) -> None:
    ends = []
    for restarts in (False, True):
        experiment = simulate(data, small(method), groups=[[0, 1], [2, 3], [4, 5]])
        strategy, carrier = server(experiment), transport(experiment)
        strategy.round(1)
        strategy.score("validation")
        strategy.save("round-1", ())
        if restarts:
            rows, old = carrier.groups[1]
            nodes = Clients(old.nodes.series, old.nodes.compute, old.nodes.store, old.nodes.name)
            carrier.groups[1] = rows, Owner(nodes, old.truth, old.store, old.tells)
            strategy.nodes.up[rows] = False  # what a transport says of a site that does not know its part
        strategy.round(2)
        ends.append(strategy.score("test").told)
        assert ("recovery" in {item.purpose for item in experiment.ledger.items}) == restarts
    assert torch.equal(*ends)


def test_a_site_that_missed_the_census_is_counted_when_it_comes(data: Dataset) -> None:
    experiment = simulate(data, small("at-fedavg"), groups=[[0, 1], [2, 3], [4, 5]])
    nodes = server(experiment).nodes
    has = {split: has.clone() for split, has in nodes.has.items()}
    for split in nodes.has:
        nodes.has[split][2:4] = False
    nodes.up[2:4] = nodes._counted[2:4] = False
    nodes.weights()
    assert nodes.up.all()
    assert all(torch.equal(nodes.has[split], has[split]) for split in has)


@pytest.mark.slow
def test_too_few_sites_are_waited_for_and_asked_again(data: Dataset) -> None:
    """Those who answered are not asked twice; those who come back are told what they missed."""
    undisturbed = simulate(data, small("at-fedavg"), groups=[[0, 1], [2, 3], [4, 5]])
    experiment = simulate(data, small("at-fedavg"), groups=[[0, 1], [2, 3], [4, 5]])
    for one in (undisturbed, experiment):
        server(one).round(1)
        server(one).score("validation")
        server(one).save("round-1", ())
    carrier, waited = transport(experiment), []

    def wait(answered: torch.Tensor) -> bool:
        few = len(answered) < 6
        if few:
            carrier.away = set()
            waited.append(answered.tolist())
        return few

    carrier.wait = wait  # type: ignore[method-assign]
    carrier.away = {"site-0", "site-2"}
    for one in (undisturbed, experiment):
        server(one).round(2)
    assert waited == [[2, 3]]
    assert torch.equal(server(experiment).score("test").told, server(undisturbed).score("test").told)


def test_whoever_comes_back_as_nodes_are_to_learn_begins_with_everybodys_weights(data: Dataset) -> None:
    """It is taught in the very exchange that carries the update: else it would learn from old ones."""
    experiment = simulate(data, small("gru-fedavg"), groups=[[0, 1], [2, 3], [4, 5]])
    strategy, carrier = server(experiment), transport(experiment)
    real, told = carrier.exchange, []

    def exchange(calls: Any, rows: torch.Tensor) -> Any:
        told.append([call.verb for call in calls])
        return real(calls, rows)

    strategy.round(1)
    strategy.save("round-1", ())
    strategy.nodes.up[2:4] = False
    carrier.exchange = exchange  # type: ignore[method-assign]
    strategy.round(2)
    assert told[0] == ["prepare", "restore", "load"]
    assert told[1] == ["update", "weights"]
