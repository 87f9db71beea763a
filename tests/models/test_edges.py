"""The edge update equals the paper's phi_e and a sum, for any graph, number of layers and precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.naive import graph_network
from torch import Tensor

from cnfgnn.data.graph import Graph
from cnfgnn.models.edges import Edges, Incidence, edge_update
from cnfgnn.models.graphnet import GraphNetwork
from tests.conftest import needs_bf16
from tests.models.test_graphnet import random_graph

CPU = torch.device("cpu")
GRAPHS = {
    "one edge": Graph(2, np.array([0]), np.array([1]), np.array([0.7])),
    "one node": Graph(1, np.array([0]), np.array([0]), np.array([1.0])),
    "no edges": Graph(3, np.array([], dtype=np.int64), np.array([], dtype=np.int64), np.array([])),
    "isolated nodes": Graph(6, np.array([1, 4, 4]), np.array([4, 1, 4]), np.array([0.2, 0.4, 0.6])),
    "busy": random_graph(9, 1, 0.9),
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("widths", [(6,), (7, 6), (9, 8, 7), (5, 6, 7, 8)])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_any_depth_equals_the_plain_network(graph: Graph, widths: tuple[int, ...], layers: int) -> None:
    gn = GraphNetwork(5, 4, widths, layers).init(torch.Generator().manual_seed(1)).double()
    edges, h_c = Edges.of(graph, CPU, torch.float64), random(graph.nodes, 3, 5).requires_grad_()
    fast, plain = gn(h_c, edges), graph_network(gn, h_c, edges)
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-10)
    probe = random(*fast.shape, seed=2)
    wanted = [h_c, *(w for w in gn.parameters() if w.numel())]
    one = torch.autograd.grad(fast, wanted, probe, allow_unused=True, materialize_grads=True)
    two = torch.autograd.grad(plain, wanted, probe, allow_unused=True, materialize_grads=True)
    for ours, theirs in zip(one, two, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("widths", [(6,), (7, 6), (9, 8, 7)])
def test_gradients_of_a_graph_with_absent_nodes_are_those_of_the_graph_without_them(
    widths: tuple[int, ...],
) -> None:
    graph, rows = random_graph(7, 3), torch.tensor([0, 2, 3, 5, 6])
    gn = GraphNetwork(5, 4, widths).init(torch.Generator().manual_seed(1)).double()
    present = torch.zeros(7, 1, dtype=torch.bool).index_fill(0, rows, True)
    h_c = random(7, 3, 5).masked_fill(~present[..., None], torch.nan)
    masked = gn(h_c, Edges.of(graph, CPU, torch.float64), present)[rows]
    without = gn(h_c[rows], Edges.of(graph.subgraph(rows.numpy()), CPU, torch.float64))
    weights, probe = list(gn.parameters()), random(*without.shape, seed=2)
    for a, b in zip(
        torch.autograd.grad(masked, weights, probe, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(without, weights, probe, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("absent", [None, torch.tensor([True, False, False, True, False])[:, None, None]])
def test_hand_written_gradients_are_the_numerical_ones(absent: Tensor | None) -> None:
    edges = Edges(
        Incidence.of(torch.tensor([2, 0, 2, 1, 2]), 4),
        Incidence.of(torch.tensor([0, 1, 1, 3, 3]), 4),
        random(5, 1, 1),
        torch.tensor([1, 2, 0, 2])[:, None, None],
    )
    inputs = [random(*s, seed=k).requires_grad_() for k, s in enumerate([(4, 2, 3), (4, 2, 3), (3,)])]
    more = [random(*s, seed=9 + k).requires_grad_() for k, s in enumerate([(5, 2, 2), (3, 2), (4, 3), (4,)])]

    def update(*x: Tensor) -> tuple[Tensor, Tensor]:
        return edge_update(edges, absent, (x[0], x[1]), x[2], [(x[3], x[4])], [(x[5], x[6])], rectified=True)

    assert torch.autograd.gradcheck(update, (*inputs, *more))


def test_a_long_sum_in_bf16_keeps_growing() -> None:
    ends = Incidence.of(torch.zeros(1000, dtype=torch.int64), 1)
    assert ends.sum(torch.ones(1000, 2, 3, dtype=torch.bfloat16)).float().min() == 1000


@needs_bf16
def test_products_in_bf16_are_close_to_float32() -> None:
    graph, gn = random_graph(12, 5, 0.5), GraphNetwork().init(torch.Generator().manual_seed(1))
    edges, h_c = Edges.of(graph, CPU, torch.float32), random(12, 8, 64).float()

    def outcome(bf16: bool) -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            h_G = gn(h_c, edges).float()
        probe = random(*h_G.shape, seed=2).float()
        return [h_G, *torch.autograd.grad(h_G, list(gn.blocks[0].phi_e.parameters()), probe)]

    (rough_h_G, *rough), (exact_h_G, *exact) = outcome(True), outcome(False)
    assert (rough_h_G - exact_h_G).norm() < 0.01 * exact_h_G.norm()
    for ours, theirs in zip(rough, exact, strict=True):
        assert ours.dtype == torch.float32
        # rounding turns some rectifiers on or off, whoever multiplies: torch.autocast is as far away
        assert (ours - theirs).norm() < 0.15 * theirs.norm()
