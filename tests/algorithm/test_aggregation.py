"""Weights are averaged by windows, or drawn to outgoing neighbours as FMTL's formula says."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch

from cnfgnn.algorithm import aggregation
from cnfgnn.algorithm.aggregation import average, neighbours
from cnfgnn.algorithm.messages.nodes import Nodes
from cnfgnn.algorithm.server import Server
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.models.params import Params
from cnfgnn.runs.simulation import simulate
from tests.conftest import small

LAMBDA = 0.3
GRAPH = Graph(  # asymmetric, with loops, and node 3 hears but is never heard
    4,
    np.array([0, 0, 1, 2, 0, 1, 3, 2]),
    np.array([1, 2, 0, 1, 0, 1, 3, 3]),
    np.array([0.5, 0.25, 0.9, 0.4, 1.0, 1.0, 1.0, 0.7]),
)


class Wire:
    """Nodes of which only the weights matter."""

    def __init__(self, theta: Params, up: list[bool] | None = None) -> None:
        self.theta, self.up = theta, torch.tensor(up or [True] * 4)
        self.has: dict[str, torch.Tensor] = {}
        self.told: Params = {}
        self.weight = torch.zeros(0)

    def __len__(self) -> int:
        return len(self.up)

    def weights(self, mean_by: torch.Tensor | None = None) -> Params:
        return {
            name: w * self.up.view(-1, 1, 1) for name, w in self.theta.items()
        }  # absent rows come as zeros

    def pull(self, anchor: Params, weight: torch.Tensor) -> None:
        self.told, self.weight = anchor, weight

    def load(self, theta: Params) -> None:
        self.told = theta


def weights() -> Params:
    return {"w": torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}


def test_the_pull_is_the_gradient_of_fmtl_s_penalty() -> None:
    theta = weights()
    wire = Wire(theta)
    neighbours(GRAPH, LAMBDA)(cast(Nodes, wire))
    moving = theta["w"].clone().requires_grad_()
    penalty = torch.zeros((), dtype=torch.float64)
    for i, j, a in zip(GRAPH.senders, GRAPH.receivers, GRAPH.weights, strict=True):
        if i != j:
            penalty = penalty + LAMBDA * a * (moving[i] - theta["w"][j]).square().sum()
    expected = torch.autograd.grad(penalty, moving)[0]
    actual = 2 * wire.weight[:, None, None] * (theta["w"] - wire.told["w"])
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    assert wire.weight[3] == 0  # no outgoing edge but the loop


@pytest.mark.parametrize("at_once", [1, 50, 1 << 24])
def test_anchors_are_those_of_the_matrix_of_all_pairs(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation, "NUMBERS_AT_ONCE", at_once)
    rng, n = np.random.default_rng(0), 30
    matrix = np.where(rng.random((n, n)) < 0.2, rng.random((n, n)), 0.0)
    matrix[3] = 0  # a node without outgoing edges
    senders, receivers = np.nonzero(matrix)
    theta = {"w": torch.randn(n, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}
    wire = Wire(theta, [True] * n)
    neighbours(Graph(n, senders, receivers, matrix[senders, receivers]), LAMBDA)(cast(Nodes, wire))
    a = torch.tensor(matrix - np.diag(np.diag(matrix)))
    degree = a.sum(1)
    torch.testing.assert_close(wire.weight, LAMBDA * degree, rtol=0, atol=1e-12)
    expected = (a / degree.clamp(min=1e-12)[:, None]) @ theta["w"].flatten(1)
    torch.testing.assert_close(wire.told["w"].flatten(1), expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_anchors_of_many_nodes_need_no_matrix_of_all_pairs() -> None:
    n = 200_000  # the matrix would take 298 GiB
    senders = np.arange(n).repeat(5)
    receivers = (senders + np.tile([1, 2, 3, 4, 5], n)) % n
    wire = Wire({"w": torch.ones(n, 4, 2)}, [True] * n)
    neighbours(Graph(n, senders, receivers, np.ones(len(senders))), LAMBDA)(cast(Nodes, wire))
    torch.testing.assert_close(wire.told["w"], torch.ones(n, 4, 2))
    torch.testing.assert_close(wire.weight, torch.full((n,), 5 * LAMBDA))


def test_nodes_add_the_pull_to_their_own_gradient(data: Dataset) -> None:
    experiment = simulate(data, small("gru-fmtl"))
    server, clients = experiment.strategy, experiment.owners[0][1].nodes
    assert isinstance(server, Server)
    server.nodes.flush()
    clients.theta = clients.joint.own_weights(clients.theta)
    anchor = {name: torch.randn_like(w) for name, w in clients.theta.items()}
    weight = torch.arange(6.0, dtype=torch.float64)
    clients.pull(anchor, weight)
    grads = {name: torch.zeros_like(w) for name, w in clients.theta.items()}
    assert clients.regulariser is not None
    clients.regulariser.add(clients.theta, grads, slice(None))
    moving = {name: w.detach().clone().requires_grad_() for name, w in clients.theta.items()}
    rows = sum(((w - anchor[name]).flatten(1).square().sum(1) * weight).sum() for name, w in moving.items())
    assert isinstance(rows, torch.Tensor)
    for name, expected in zip(moving, torch.autograd.grad(rows, list(moving.values())), strict=True):
        torch.testing.assert_close(grads[name], expected)


def test_a_neighbour_that_is_away_pulls_nobody() -> None:
    theta = weights()
    wire = Wire(theta, [True, False, True, True])
    neighbours(GRAPH, LAMBDA)(cast(Nodes, wire))
    torch.testing.assert_close(wire.told["w"][0], theta["w"][2])  # of 1 and 2 only 2 is left
    assert wire.weight[0] == LAMBDA * 0.25


def test_the_average_weighs_by_the_number_of_windows() -> None:
    theta = weights()
    wire = Wire(theta, [True, True, False, True])
    has = torch.zeros(4, 10, dtype=torch.bool)
    has[0, :2] = has[1, :6] = has[2, :] = True
    wire.has = {"train": has}
    average(cast(Nodes, wire))
    expected = (2 * theta["w"][0] + 6 * theta["w"][1]) / 8
    torch.testing.assert_close(wire.told["w"][0], expected)
