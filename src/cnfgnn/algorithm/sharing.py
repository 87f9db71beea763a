"""How nodes share their weights once a round: not at all, by averaging, or by a pull to their neighbours."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cnfgnn.algorithm.nodes import Nodes
from cnfgnn.data.graph import Graph
from cnfgnn.models.graphnet import Incidence
from cnfgnn.models.params import Params, weighted_mean

Share = Callable[[Nodes], Params | None]
"""Returns the weights that every node now has, if they are the same for all."""
NUMBERS_AT_ONCE = 1 << 24  # edges x parameters: bounds memory


def keep(nodes: Nodes) -> None:
    """Each node goes on with its own weights."""


def average(nodes: Nodes) -> Params | None:
    """FedAvg: theta_bar = sum_i N_i / N theta_i over the nodes that answered, sent back to all."""
    theta = nodes.weights()
    has = nodes.has.get("train")
    windows = torch.ones(len(nodes)) if has is None else has.sum(dim=1).cpu()
    windows = windows.double() * nodes.up
    if windows.sum() == 0:
        return None
    theta_bar = weighted_mean(theta, windows)
    nodes.load(theta_bar)
    return theta_bar


def neighbours(graph: Graph, fmtl_lambda: float) -> Share:
    """FMTL: lambda_1 sum_j a_ij ||w_i - w_j||^2 over outgoing edges without self loops.

    Neighbours stand still during a round, so each node needs only their weighted mean, its anchor.
    It is summed over edges, a few parameters at a time: a matrix of all pairs would grow with n squared.
    """
    edges = graph.senders != graph.receivers
    senders, receivers = torch.tensor(graph.senders[edges]), torch.tensor(graph.receivers[edges])
    weights = torch.tensor(graph.weights[edges])

    def share(nodes: Nodes) -> None:
        theta = nodes.weights()
        a = weights * nodes.up[receivers]  # a neighbour that is away pulls nobody
        degree = torch.zeros(len(nodes), dtype=a.dtype).index_add_(0, senders, a)
        first = next(iter(theta.values()))
        share = (a / degree[senders].clamp(min=1e-12)).to(first)[:, None]
        ends, others = Incidence.of(senders.to(first.device), len(nodes)), receivers.to(first.device)
        width = max(1, NUMBERS_AT_ONCE // max(1, len(a)))

        def mean(w: Tensor) -> Tensor:
            columns = w.flatten(1).split(width, dim=1)
            return torch.cat([ends.sum(share * some[others]) for some in columns], dim=1).view_as(w)

        nodes.pull({name: mean(w) for name, w in theta.items()}, (fmtl_lambda * degree).to(first))

    return share
