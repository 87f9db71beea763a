"""`training.wire`: hidden states and gradients in two bytes each, wherever nodes are."""

from __future__ import annotations

import pytest
import torch

from cnfgnn.data.dataset import Dataset
from cnfgnn.simulation import simulate
from tests.conftest import server, small

STATES = {"encode", "backward", "embed", "step"}


@pytest.mark.parametrize("method", ["at-fedavg", "sl-fedavg"])
def test_hidden_states_and_gradients_take_two_bytes_and_weights_as_many_as_before(
    method: str, data: Dataset
) -> None:
    moved = []
    for wire in ("full", "bf16"):
        experiment = simulate(data, small(method, **{"training.wire": wire}))
        server(experiment).round(1)
        server(experiment).score("validation")
        moved.append({item: amount.per_node for item, amount in experiment.ledger.items.items()})
    full, narrow = moved
    assert full.keys() == narrow.keys()
    for item, amount in full.items():
        assert narrow[item] * (4 if item.verb in STATES else 1) == amount, item  # nodes compute in float64


@pytest.mark.parametrize("method", ["at-fedavg", "sl"])
def test_narrow_states_give_nearly_the_same_result_however_nodes_are_grouped(
    method: str, data: Dataset
) -> None:
    scores = {}
    for wire, groups in (("full", None), ("bf16", None), ("bf16", [[0, 1], [2, 3, 4], [5]])):
        experiment = simulate(data, small(method, **{"training.wire": wire}), groups=groups)
        for r_g in (1, 2):
            server(experiment).round(r_g)
        scores[wire, groups is None] = server(experiment).score("test")
    torch.testing.assert_close(scores["bf16", True], scores["bf16", False], rtol=1e-3, atol=1e-2)
    assert not torch.equal(scores["bf16", True], scores["full", True])
    torch.testing.assert_close(scores["bf16", True], scores["full", True], rtol=0.02, atol=0.5)
