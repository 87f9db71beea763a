"""The ledger counts what the paper's formulas say, and the formulas give the published totals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cnfgnn.algorithm.messages.cost import GIB, Size, operations, training_bytes
from cnfgnn.algorithm.methods import METHODS
from cnfgnn.data.dataset import Dataset
from cnfgnn.models.gru import NodeModel
from cnfgnn.models.params import size as parameters
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import train
from cnfgnn.studies.published import (
    AT_METR_LA_AS_LISTED,
    COSTS,
    GFLOPS_ON_DEVICE,
    NETWORKS,
    Cost,
)
from tests.conftest import small


@pytest.mark.parametrize("cost", COSTS, ids=lambda c: f"{c.data}-{c.method}-{c.parameters}")
def test_formulas_reproduce_the_published_totals(cost: Cost) -> None:
    network = NETWORKS[cost.data]
    size = Size(network.nodes, network.edges, cost.parameters, network.train * 64)
    assert round(training_bytes(cost.method, size, cost.rounds, cost.server_rounds) / GIB, 3) == cost.gib


def test_at_on_metr_la_was_published_with_other_rounds_than_it_lists() -> None:
    network, cost = NETWORKS["metr-la"], AT_METR_LA_AS_LISTED
    size = Size(network.nodes, network.edges, cost.parameters, network.train * 64)
    assert round(training_bytes(cost.method, size, cost.rounds, cost.server_rounds) / GIB, 3) == cost.gib


@pytest.mark.parametrize(
    ("row", "model"),
    [
        (("gru-fmtl", "63k"), NodeModel(100, 1, 0)),
        (("gru-fmtl", "727k"), NodeModel(200, 2, 0)),
        (("at-fedavg", "63k"), NodeModel()),
    ],
)
def test_operations_summed_over_metr_la_are_the_published_ones(
    row: tuple[str, str], model: NodeModel
) -> None:
    assert round(NETWORKS["metr-la"].nodes * operations(model) / 1e9, 3) == GFLOPS_ON_DEVICE[row]


@pytest.mark.parametrize("groups", [None, [[0, 4], [1, 2, 3], [5]]])
@pytest.mark.parametrize(
    ("method", "server_rounds"),
    [
        *(("at", 1), ("at", 3), ("at-fedavg", 1), ("at-fedavg", 3)),
        *(("sl", 1), ("sl-fedavg", 1), ("gru-fedavg", 1), ("gru-local", 1)),
    ],
)
def test_the_ledger_equals_the_formula_to_the_byte(
    data: Dataset, method: str, server_rounds: int, groups: list[list[int]] | None
) -> None:
    changes: dict[str, Any] = {"compute.precision": "fp32", "training.server_rounds": server_rounds}
    if METHODS[method].graph_network:
        changes["model.embedding"] = 5  # as wide as h_c: the formulas have one hidden state size
    experiment = simulate(data, small(method, **changes), groups)
    progress = train(experiment)
    model = experiment.config.model
    theta = NodeModel(model.hidden, model.layers, model.embedding).init(torch.Generator())
    hidden = experiment.windows.count("train") * model.hidden
    size = Size(data.graph.nodes, data.graph.edges - data.graph.loops, parameters(theta), hidden)
    expected = training_bytes(method, size, len(progress.history), server_rounds)
    assert experiment.ledger.total("training").per_node == expected


def test_a_star_moves_other_bytes_for_fmtl_than_the_peers_of_the_formula(data: Dataset) -> None:
    experiment = simulate(data, small("gru-fmtl", **{"compute.precision": "fp32"}))
    train(experiment)
    theta = NodeModel(5, 1, 0).init(torch.Generator())
    per_round = 2 * 6 * parameters(theta) * 4 + 6 * 4  # weights up, anchors down, and how hard to pull
    assert experiment.ledger.total("training").per_node == 2 * per_round


def test_evaluation_is_kept_apart_from_training(data: Dataset) -> None:
    experiment = simulate(data, small("at-fedavg"))
    before = experiment.ledger.total("training")
    experiment.strategy.score("validation")
    assert experiment.ledger.total("training") == before
    assert experiment.ledger.total("evaluation").per_node > 0
