"""A plain CNFGNN to measure and to test against: a loop over nodes with torch.nn.GRU, concatenated edges."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cnfgnn.models.graphnet import MLP, Edges, GraphNetwork
from cnfgnn.models.gru import Batch


class NaiveNode(nn.Module):
    """One node's encoder-decoder as one would write it first."""

    def __init__(self, hidden: int = 64, embedding: int = 64) -> None:
        super().__init__()
        self.encoder = nn.GRU(2, hidden, batch_first=True)
        self.decoder = nn.GRU(2, hidden + embedding, batch_first=True)
        self.output = nn.Linear(hidden + embedding, 1)

    def encode(self, x: Tensor) -> Tensor:
        """(b t d) -> (b h)."""
        state: Tensor = self.encoder(x)[1][0]
        return state

    def loss(self, batch: Batch, node: int, h_c: Tensor, h_G: Tensor) -> Tensor:
        """Mean squared error of a node's minibatch, free running."""
        state = torch.cat([h_c, h_G], dim=-1)[None]
        frame, steps = batch.x[node, :, -1:], []
        for t in range(batch.y.shape[2]):
            out, state = self.decoder(frame, state)
            steps.append(self.output(out[:, 0]))
            frame = torch.cat([steps[-1], batch.clock[:, t : t + 1]], dim=-1)[:, None]
        return (torch.cat(steps, dim=-1) - batch.y[node]).square().mean()


def client_step(nodes: list[NaiveNode], adams: list[torch.optim.Adam], batch: Batch, h_G: Tensor) -> None:
    """Phase (1), one minibatch: every node in turn."""
    for i, (node, adam) in enumerate(zip(nodes, adams, strict=True)):
        adam.zero_grad()
        node.loss(batch, i, node.encode(batch.x[i]), h_G[i]).backward()
        adam.step()


def server_step(
    node: NaiveNode, gn: GraphNetwork, adam: torch.optim.Adam, edges: Edges, batch: Batch, h_c: Tensor
) -> None:
    """Phase (3), one minibatch: h_G down, every node's gradient in turn, one step of the graph network."""
    h_G = graph_network(gn, h_c, edges)
    leaf = h_G.detach().requires_grad_()
    for i in range(len(h_c)):
        node.loss(batch, i, h_c[i], leaf[i]).backward(inputs=[leaf])
    adam.zero_grad()
    h_G.backward(leaf.grad)
    adam.step()


def graph_network(gn: GraphNetwork, h_c: Tensor, edges: Edges) -> Tensor:
    """(n b h) -> (n b h), every edge's inputs side by side."""
    senders, receivers, (n, b) = edges.senders.node, edges.receivers.node, h_c.shape[:2]
    v, e, u = h_c, edges.weights.expand(-1, b, 1), h_c.new_zeros(1, b, 0)
    for block in gn.blocks:
        on_edges = [e, v[receivers], v[senders], u.expand(len(senders), -1, -1)]
        e_new = _mlp(block.phi_e, torch.cat(on_edges, dim=-1))
        incoming = e_new.new_zeros(n, b, e_new.shape[-1]).index_add(0, receivers, e_new)
        v_new = _mlp(block.phi_v, torch.cat([incoming, v, u.expand(n, -1, -1)], dim=-1))
        v, e = torch.cat([v_new, v], -1), torch.cat([e_new, e], -1)
        if block.phi_u is not None:
            sums = [e_new.sum(0, keepdim=True), v_new.sum(0, keepdim=True), u]
            u = torch.cat([_mlp(block.phi_u, torch.cat(sums, dim=-1)), u], -1)
    out: Tensor = gn.output(v)
    return out


def _mlp(module: MLP, x: Tensor) -> Tensor:
    layers = list(module.layers)
    for layer in layers[:-1]:
        x = torch.relu(layer(x))
    out: Tensor = layers[-1](x)
    return out
