"""The Graph Network as the paper writes it: concatenated inputs for every edge, plain sums."""

from __future__ import annotations

import torch
from torch import Tensor

from cnfgnn.data.graph import Graph
from cnfgnn.models.graphnet import MLP, GraphNetwork


def mlp(module: MLP, x: Tensor) -> Tensor:
    layers = list(module.layers)
    for layer in layers[:-1]:
        x = torch.relu(layer(x))
    out: Tensor = layers[-1](x)
    return out


def graph_network(gn: GraphNetwork, h_c: Tensor, graph: Graph) -> Tensor:
    """(n b h) -> (n b h), edge by edge."""
    senders, receivers = torch.tensor(graph.senders), torch.tensor(graph.receivers)
    n, b = h_c.shape[:2]
    v = h_c
    e = torch.tensor(graph.weights, dtype=h_c.dtype)[:, None, None].expand(-1, b, 1)
    u = h_c.new_zeros(1, b, 0)
    for block in gn.blocks:
        on_edges = [e, v[receivers], v[senders], u.expand(len(senders), -1, -1)]
        e_new = mlp(block.phi_e, torch.cat(on_edges, dim=-1))
        incoming = torch.stack([e_new[receivers == i].sum(0) for i in range(n)])
        v_new = mlp(block.phi_v, torch.cat([incoming, v, u.expand(n, -1, -1)], dim=-1))
        u_in = torch.cat([e_new.sum(0, keepdim=True), v_new.sum(0, keepdim=True), u], dim=-1)
        u_new = mlp(block.phi_u, u_in) if block.phi_u is not None else u.new_zeros(1, b, 0)
        v, e, u = torch.cat([v_new, v], -1), torch.cat([e_new, e], -1), torch.cat([u_new, u], -1)
    out: Tensor = gn.output(v)
    return out
