"""How nodes share their weights: not at all, by averaging, or by a pull toward their neighbours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.fmtl import NUMBERS_AT_ONCE, ToEach
from cnfgnn.algorithm.messages.ledger import Bytes, Item
from cnfgnn.algorithm.messages.nodes import Nodes
from cnfgnn.data.graph import Graph
from cnfgnn.models.graphnet import Incidence
from cnfgnn.models.params import Params, models, size, take, weighted_mean

Share = Callable[[Nodes], Params | None]
"""Returns the weights that every node now has, if all have the same."""


def keep(nodes: Nodes) -> None:
    """Each node continues with its own weights."""


def average(nodes: Nodes) -> Params | None:
    """FedAvg: theta_bar = sum_i N_i / N theta_i over the nodes that answered, sent back to all."""
    has = nodes.has.get("train")
    windows = (torch.ones(len(nodes)) if has is None else has.sum(dim=1).cpu()).double()
    theta = nodes.weights(mean_by=windows if windows.sum() > 0 else None)
    if models(theta) < len(nodes):  # averaged already, as groups of nodes finished
        return nodes.load(theta)
    windows = windows * nodes.up
    if windows.sum() == 0:
        return None
    return nodes.load(weighted_mean(theta, windows))


def neighbours(graph: Graph, fmtl_lambda: float) -> Share:
    """FMTL: lambda_1 sum_j a_ij ||w_i - w_j||^2 over outgoing edges without self loops.

    The neighbours' weights are fixed during a round, so each node needs only their weighted mean, its anchor.
    It is summed over edges, a few parameters at a time: a matrix of all pairs would grow with n squared.
    """
    edges = graph.senders != graph.receivers
    senders, receivers = torch.tensor(graph.senders[edges]), torch.tensor(graph.receivers[edges])
    weights = torch.tensor(graph.weights[edges])

    def share(nodes: Nodes) -> None:
        theta = nodes.weights()
        a = weights * nodes.up[receivers]  # absent neighbours do not count
        degree = torch.zeros(len(nodes), dtype=a.dtype).index_add_(0, senders, a)
        first = next(iter(theta.values()))
        share = (a / degree[senders].clamp(min=1e-12)).to(first)[:, None]
        ends, others = Incidence.of(senders.to(first.device), len(nodes)), receivers.to(first.device)
        width = max(1, NUMBERS_AT_ONCE // max(1, len(a)))

        def mean(w: Tensor) -> Tensor:
            pieces = w.flatten(1).split(width, dim=1)
            return torch.cat([ends.sum(share * piece[others]) for piece in pieces], dim=1).view_as(w)

        nodes.pull({name: mean(w) for name, w in theta.items()}, (fmtl_lambda * degree).to(first))

    return share


def each_neighbour(graph: Graph, fmtl_lambda: float, rows: Tensor, clients: Clients) -> Share:
    """FMTL with the published code's norm, lambda sum_j a_ij ||w_i - w_j||: a study, for the simulator alone.

    Every node needs the weights of each of its neighbours in every minibatch. No verb carries them, so this
    takes the one group that holds all nodes (in the order `rows`) and counts the bytes that would be sent.
    """
    graph = graph.subgraph(rows.numpy())
    edges = np.flatnonzero(graph.senders != graph.receivers)
    edges = edges[np.argsort(graph.senders[edges], kind="stable")]
    ends = [torch.tensor(end[edges]) for end in (graph.senders, graph.receivers)]
    weights = torch.tensor(fmtl_lambda * graph.weights[edges])

    def share(nodes: Nodes) -> None:
        device = clients.compute.device
        # a copy: the nodes go on learning
        others = {name: w.to(device) for name, w in take(nodes.weights(), rows).items()}
        first = next(iter(others.values()))
        senders, receivers = (end.to(first.device) for end in ends)
        clients.regulariser = ToEach(others, senders, receivers, weights.to(first))
        moved = len(edges) * size(others) * first.element_size()  # one model along each edge
        nodes.ledger.add(Item("training", "pull", "down"), Bytes(moved, moved))

    return share
