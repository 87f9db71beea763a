"""h_G of many windows is computed a few at a time, recorded only where that pays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cnfgnn.algorithm.compute import learner
from cnfgnn.algorithm.compute.cuda_graphs import Replay
from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.config.settings import ModelConfig
from cnfgnn.data.graph import Graph
from cnfgnn.models.graphnet import Edges

CPU = torch.device("cpu")


def edges(n: int) -> Edges:
    return Edges.of(Graph.from_matrix(torch.ones(n, n).numpy()), CPU, torch.float64)


def test_many_windows_keep_their_recordings_and_few_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live service asks for one window at a time, and may load another model in another thread."""
    made: list[Replay] = []
    used: list[Replay] = []

    class Counted(Replay):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            made.append(self)

        def __call__(self, *inputs: Tensor | None) -> Tensor | None:
            used.append(self)
            return super().__call__(*inputs)

    monkeypatch.setattr(learner, "Replay", Counted)
    monkeypatch.setattr(learner, "ROWS_AT_ONCE", {"cpu": 3 * (16 + 4)})
    gn = learner.GraphLearner(
        ModelConfig(hidden=6, embedding=3, gn_widths=(8, 4)), 1e-3, 5, Compute(CPU, torch.float64)
    )
    graph, h_c = edges(4), torch.randn(4, 8, 6, dtype=torch.float64)
    with torch.no_grad():
        whole = gn.network(h_c, graph, None)
    for windows, passes in ((8, 3), (3, 0), (1, 0), (7, 3), (0, 0)):
        used.clear()
        h_G = gn.propagate(h_c[:, :windows], graph, None)
        torch.testing.assert_close(h_G, whole[:, :windows], rtol=0, atol=1e-12)
        assert len(used) == passes
    assert len(made) == 1
    gn.propagate(h_c, edges(4), None)  # another graph needs recordings of its own
    assert len(made) == 2
    assert used[-1] is made[1]
