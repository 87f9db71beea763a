"""The Graph Network equals the paper's, and absent nodes are masked out."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from benchmarks.naive import graph_network
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.compute.learner import GraphLearner
from cnfgnn.algorithm.messages.randomness import SERVER_WEIGHTS, generator
from cnfgnn.config.settings import ModelConfig
from cnfgnn.data.graph import Graph
from cnfgnn.models.graphnet import MLP, Edges, GraphNetwork

CPU = torch.device("cpu")


def random_graph(n: int, seed: int, density: float = 0.4) -> Graph:
    rng = np.random.default_rng(seed)
    return Graph.from_matrix(rng.random((n, n)) * (rng.random((n, n)) < density))


def edges(graph: Graph) -> Edges:
    return Edges.of(graph, CPU, torch.float64)


def network(seed: int = 0) -> GraphNetwork:
    return GraphNetwork(5, 4, (9, 8, 7)).init(torch.Generator().manual_seed(seed)).double()


def states(n: int, b: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, b, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_number_of_parameters_equals_the_papers() -> None:
    assert sum(w.numel() for w in GraphNetwork().parameters()) == 941_760


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 8), seed=st.integers(0, 1000), density=st.floats(0, 1))
def test_values_and_gradients_equal_a_plain_implementation(n: int, seed: int, density: float) -> None:
    graph, gn = random_graph(n, seed, density), network(seed)
    h_c = states(n, seed=seed).requires_grad_()
    fast, plain = gn(h_c, edges(graph)), graph_network(gn, h_c, edges(graph))
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-12)
    weights = [w for w in gn.parameters() if w.numel()]
    probe = torch.randn_like(fast)
    one = torch.autograd.grad((fast * probe).sum(), [h_c, *weights], allow_unused=True)
    two = torch.autograd.grad((plain * probe).sum(), [h_c, *weights], allow_unused=True)
    for a, b in zip(one, two, strict=True):
        zeros = torch.zeros(())
        torch.testing.assert_close(
            zeros if a is None else a, zeros.expand_as(a) if b is None else b, atol=1e-11, rtol=0
        )


def test_absent_nodes_and_their_edges_are_masked_out() -> None:
    graph, gn, h_c = random_graph(7, 3), network(), states(7)
    h_c[[1, 4]] = torch.nan  # whatever an absent node's row holds, it must not matter
    present = torch.ones(7, 1, dtype=torch.bool)
    present[[1, 4]] = False
    rows = torch.tensor([0, 2, 3, 5, 6])
    expected = gn(h_c[rows], edges(graph.subgraph(rows.numpy())))
    torch.testing.assert_close(gn(h_c, edges(graph), present)[rows], expected, rtol=0, atol=1e-12)


def test_a_node_may_be_absent_in_some_windows_only() -> None:
    graph, gn, h_c = random_graph(6, 5), network(), states(6, b=2)
    present = torch.ones(6, 2, dtype=torch.bool)
    present[3, 1] = False
    h_G = gn(h_c, edges(graph), present)
    torch.testing.assert_close(h_G[:, :1], gn(h_c[:, :1], edges(graph)))
    rows = torch.tensor([0, 1, 2, 4, 5])
    torch.testing.assert_close(h_G[rows, 1:], gn(h_c[rows, 1:], edges(graph.subgraph(rows.numpy()))))


def test_the_order_of_nodes_does_not_matter() -> None:
    graph, gn, h_c = random_graph(6, 8), network(), states(6)
    order = torch.tensor([4, 0, 5, 1, 3, 2])
    renumbered = gn(h_c[order], edges(graph.subgraph(order.numpy())))
    torch.testing.assert_close(renumbered, gn(h_c, edges(graph))[order], rtol=0, atol=1e-12)


def test_information_flows_from_sender_to_receiver_only() -> None:
    gn = GraphNetwork(5, 4, (9, 8, 7), layers=1).init(torch.Generator().manual_seed(0)).double()
    graph = Graph(3, np.array([0]), np.array([1]), np.array([1.0]))
    h_c = states(3).requires_grad_()
    h_G = gn(h_c, edges(graph))
    assert torch.autograd.grad(h_G[1].sum(), h_c, retain_graph=True)[0][0].abs().sum() > 0
    assert torch.autograd.grad(h_G[0].sum(), h_c)[0][1].abs().sum() == 0


# ---- a `u` of zeros at the input (Deviation D2) ---------------------------------------------------------


def first_products(gn: GraphNetwork) -> list[nn.Linear]:
    """Of every edge, node and global update."""
    return [mlp.linear(0) for mlp in gn.modules() if isinstance(mlp, MLP)]


def with_columns(gn: GraphNetwork, width: int) -> GraphNetwork:
    """The network as one that takes u apart from its other inputs: more columns at the end of each first
    product, which stand for a u that is zero from the first layer on."""
    wide = copy.deepcopy(gn)
    for mlp in wide.modules():
        if isinstance(mlp, MLP):
            old = mlp.linear(0)
            mlp.layers[0] = new = nn.Linear(old.in_features + width, old.out_features).to(old.weight)
            with torch.no_grad():
                new.weight[:, : old.in_features] = old.weight
                new.bias.copy_(old.bias)
    return wide


def test_zeros_at_the_input_shrink_the_range_of_every_first_product_and_nothing_else() -> None:
    plain = GraphNetwork().init(torch.Generator().manual_seed(0))
    other = GraphNetwork().init(torch.Generator().manual_seed(0), zero_u=64)
    first = first_products(other)
    assert len(first) == 5
    for linear in first:
        bound = (linear.in_features + 64) ** -0.5
        for w in (linear.weight, linear.bias):
            assert 0.95 * bound < w.abs().max() <= bound
    narrowed = {id(w) for linear in first for w in (linear.weight, linear.bias)}
    for one, two in zip(plain.parameters(), other.parameters(), strict=True):
        assert id(two) in narrowed or torch.equal(one, two)


def test_without_zeros_weights_are_drawn_as_in_pytorch() -> None:
    drawn = GraphNetwork().init(torch.Generator().manual_seed(0))
    for module in drawn.modules():
        if isinstance(module, nn.Linear):
            assert module.in_features**-0.5 * 0.95 < module.weight.abs().max() <= module.in_features**-0.5


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_explicit_columns_for_zeros_change_neither_outputs_nor_gradients(layers: int) -> None:
    gn = GraphNetwork(5, 4, (9, 8, 7), layers).init(torch.Generator().manual_seed(0), zero_u=5).double()
    wide, graph, h_c = with_columns(gn, 5), edges(random_graph(6, 2)), states(6)
    fast, plain = gn(h_c, graph), graph_network(wide, h_c, graph, zero_u=5)
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-12)
    probe = torch.randn_like(fast)
    (fast * probe).sum().backward()
    (plain * probe).sum().backward()
    for one, two in zip(gn.parameters(), wide.parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None)
        if one.grad is not None and two.grad is not None and one.numel():
            columns = one.shape[-1]
            torch.testing.assert_close(two.grad[..., :columns], one.grad, rtol=0, atol=1e-11)
            assert (two.grad[..., columns:] == 0).all()


def test_with_columns_for_zeros_it_has_as_many_parameters_as_the_published_code() -> None:
    wide = with_columns(GraphNetwork(), 64)
    assert sum(w.numel() for w in wide.parameters()) == 1_023_680


def test_the_setting_reaches_the_weights_and_its_zeros_are_as_wide_as_h_c() -> None:
    def drawn(**changes: str) -> GraphNetwork:
        model = ModelConfig(hidden=6, embedding=3, gn_widths=(8, 4), **changes)  # type: ignore[arg-type]
        return GraphLearner(model, 1e-3, 5, Compute(CPU)).gn

    expected = GraphNetwork(6, 3, (8, 4)).init(generator(5, SERVER_WEIGHTS), zero_u=6)
    for one, two in zip(drawn(global_input="zero").parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, two)
    expected.init(generator(5, SERVER_WEIGHTS))
    for one, two in zip(drawn().parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, two)
