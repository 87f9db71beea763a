"""How nodes share their weights once a round: not at all, by averaging, or by a pull to their neighbours."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cnfgnn.algorithm.nodes import Nodes
from cnfgnn.data.graph import Graph
from cnfgnn.models.params import Params, weighted_mean

Share = Callable[[Nodes], Params | None]
"""Returns the weights that every node now has, if they are the same for all."""


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
    """
    edges = graph.senders != graph.receivers
    senders, receivers = torch.tensor(graph.senders[edges]), torch.tensor(graph.receivers[edges])
    weights = torch.tensor(graph.weights[edges])

    def share(nodes: Nodes) -> None:
        theta = nodes.weights()
        a = weights * nodes.up[receivers]  # a neighbour that is away pulls nobody
        degree = torch.zeros(len(nodes), dtype=a.dtype).index_add_(0, senders, a)
        first = next(iter(theta.values()))
        mix = torch.zeros(len(nodes), len(nodes), dtype=a.dtype)
        mix[senders, receivers] = a / degree[senders].clamp(min=1e-12)
        mix = mix.to(first)
        anchor = {name: (mix @ w.flatten(1)).view_as(w) for name, w in theta.items()}
        nodes.pull(anchor, (fmtl_lambda * degree).to(first))

    return share
