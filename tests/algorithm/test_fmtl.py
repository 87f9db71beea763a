"""FMTL with the published code's norm: the gradient of its formula, in the simulator alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cnfgnn.algorithm import fmtl
from cnfgnn.algorithm.fmtl import ToAnchor, ToEach, pull_of
from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import ConfigError
from cnfgnn.federation.task import check_federated
from cnfgnn.models.gru import NodeModel
from cnfgnn.models.params import Params
from cnfgnn.models.params import size as parameters
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import train
from cnfgnn.testing import check_resume
from tests.conftest import server, small

LAMBDA = 0.01
PLAIN: dict[str, Any] = {"training.fmtl_norm": "plain", "training.fmtl_lambda": LAMBDA}


def weights(seed: int) -> Params:
    drawn = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(4, 3, 2, generator=drawn, dtype=torch.float64),
        "b": torch.randn(4, 5, generator=drawn, dtype=torch.float64),
    }


def pull(others: Params) -> ToEach:
    senders, receivers = torch.tensor([0, 0, 1, 3]), torch.tensor([1, 2, 0, 2])  # of node 2 none goes out
    return ToEach(others, senders, receivers, torch.tensor([0.5, 0.25, 0.9, 0.4], dtype=torch.float64))


def by_autograd(each: ToEach, theta: Params) -> Params:
    """The gradient of the formula, edge after edge."""
    moving = {name: w.clone().requires_grad_() for name, w in theta.items()}
    penalty = torch.zeros((), dtype=torch.float64)
    for i, j, a in zip(each.senders, each.receivers, each.weights, strict=True):
        apart = [(w[i] - each.others[name][j]).flatten() for name, w in moving.items()]
        penalty = penalty + a * torch.linalg.vector_norm(torch.cat(apart))
    return dict(zip(moving, torch.autograd.grad(penalty, list(moving.values())), strict=True))


@pytest.mark.parametrize("at_once", [1, 8, 1 << 24])
@pytest.mark.parametrize("groups", [[slice(None)], [slice(0, 1), slice(1, 3), slice(3, 4)]])
def test_the_pull_is_the_gradient_of_the_plain_norm(
    groups: list[slice], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fmtl, "NUMBERS_AT_ONCE", at_once)
    theta, each = weights(0), pull(weights(1))
    expected = by_autograd(each, theta)
    for some in groups:
        part = {name: w[some].clone().requires_grad_() for name, w in theta.items()}
        grads = {name: torch.ones_like(w).detach() for name, w in part.items()}
        each.add(part, grads, some)
        for name, grad in grads.items():
            torch.testing.assert_close(grad, 1 + expected[name][some], rtol=0, atol=1e-12)


def test_equal_weights_do_not_pull() -> None:
    theta = {name: w[:1].expand_as(w).clone() for name, w in weights(0).items()}
    grads = {name: torch.zeros_like(w) for name, w in theta.items()}
    pull(theta).add(theta, grads, slice(None))
    assert all((grad == 0).all() for grad in grads.values())


def test_nodes_are_drawn_to_what_their_neighbours_were_after_the_last_round(data: Dataset) -> None:
    experiment = simulate(data, small("gru-fmtl", **PLAIN))
    clients = experiment.owners[0][1].nodes
    experiment.strategy.round(1)
    each = clients.regulariser
    assert isinstance(each, ToEach)
    found = {name: w.clone() for name, w in each.others.items()}
    assert all(torch.equal(found[name], w) for name, w in clients.theta.items())
    pairs = zip(each.senders.tolist(), each.receivers.tolist(), each.weights.tolist(), strict=True)
    graph = data.graph
    weighed = zip(graph.senders, graph.receivers, LAMBDA * graph.weights, strict=True)
    assert sorted(pairs) == sorted((i, j, a) for i, j, a in weighed if i != j)
    clients.update(2, 1, 0)
    assert all(torch.equal(found[name], w) for name, w in each.others.items())  # they stood still
    assert not torch.equal(found["output.bias"], clients.theta["output.bias"])


def test_the_pull_changes_what_is_learnt_and_more_of_it_holds_nodes_together(data: Dataset) -> None:
    def apart(strength: float) -> float:
        changes = PLAIN | {"training.fmtl_lambda": strength, "training.rounds": 3}
        experiment = simulate(data, small("gru-fmtl", **changes))
        train(experiment)
        return sum(float(w.var(0).sum()) for w in server(experiment).everyone.weights().values())

    assert apart(1.0) < 0.9 * apart(0.0)


@pytest.mark.parametrize("order", [None, [3, 0, 5, 1, 4, 2]])
def test_nodes_may_be_numbered_in_any_order_as_long_as_they_are_together(
    data: Dataset, order: list[int] | None
) -> None:
    config = small("gru-fmtl", **PLAIN)
    losses = []
    for groups in (None, None if order is None else [order]):
        progress = train(simulate(data, config, groups))
        losses.append([done.loss for done in progress.history])
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)


def test_nodes_in_several_groups_are_refused_by_the_setting_s_name(data: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"training\.fmtl_norm") as refusal:
        simulate(data, small("gru-fmtl", **PLAIN), [[0, 1, 2], [3, 4, 5]])
    assert "one group" in str(refusal.value)
    simulate(data, small("gru-local", **PLAIN), [[0, 1, 2], [3, 4, 5]])  # which has no neighbours
    with pytest.raises(ConfigError, match=r"training\.fmtl_norm: plain is only possible in the simulator"):
        check_federated(small("gru-fmtl", **PLAIN))


def test_along_each_edge_one_model_is_counted(data: Dataset) -> None:
    experiment = simulate(data, small("gru-fmtl", **PLAIN, **{"compute.precision": "fp32"}))
    train(experiment)
    model = 4 * parameters(NodeModel(5, 1, 0).init(torch.Generator()))
    edges = data.graph.edges - data.graph.loops
    assert experiment.ledger.total("training").per_node == 2 * (6 + edges) * model  # up, and down


@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path, optimizer_state: str) -> None:
    check_resume("gru-fmtl", tmp_path, **PLAIN, **{"training.optimizer_state": optimizer_state})


def test_a_state_brings_back_the_pull_it_holds() -> None:
    cpu, others = torch.device("cpu"), weights(0)
    each = pull_of(pull(others).state(), cpu)
    assert isinstance(each, ToEach)
    anchored = pull_of(ToAnchor(others, torch.arange(4.0)).state(), cpu)
    assert isinstance(anchored, ToAnchor)
    assert torch.equal(anchored.weight, torch.arange(4.0))
    theta = weights(1)
    for one, two in ((each, pull(others)), (anchored, ToAnchor(others, torch.arange(4.0)))):
        found = [{name: torch.zeros_like(w) for name, w in theta.items()} for _ in range(2)]
        one.add(theta, found[0], slice(None))
        two.add(theta, found[1], slice(None))
        assert all(torch.equal(found[0][name], found[1][name]) for name in theta)
    assert pull_of({"theta.w": others["w"]}, cpu) is None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_runs_in_less_precision(data: Dataset, precision: str) -> None:
    progress = train(simulate(data, small("gru-fmtl", **PLAIN, **{"compute.precision": precision})))
    reference = train(simulate(data, small("gru-fmtl", **PLAIN)))
    assert np.isfinite(progress.best.loss)
    assert progress.best.loss == pytest.approx(reference.best.loss, rel=0.03)
