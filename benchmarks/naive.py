"""A plain CNFGNN to compare with: a loop over nodes with torch.nn.GRU, and concatenated edge inputs.

It is the straightforward implementation of a round, phase by phase, in float32 and without scheduled
sampling. It is given minibatches that are already cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.server import Alternating
from cnfgnn.data.batch import Batch
from cnfgnn.data.windows import Split
from cnfgnn.models.graphnet import MLP, Edges, GraphNetwork


class NaiveNode(nn.Module):
    """One node's encoder and decoder, written in the straightforward way."""

    def __init__(self, hidden: int = 64, embedding: int = 64) -> None:
        super().__init__()
        self.encoder = nn.GRU(2, hidden, batch_first=True)
        self.decoder = nn.GRU(2, hidden + embedding, batch_first=True)
        self.output = nn.Linear(hidden + embedding, 1)

    def encode(self, x: Tensor) -> Tensor:
        """(b t d) -> (b h)."""
        state: Tensor = self.encoder(x)[1][0]
        return state

    def decode(self, batch: Batch, node: int, h_c: Tensor, h_G: Tensor) -> Tensor:
        """A node's forecasts without scheduled sampling: (b t)."""
        state = torch.cat([h_c, h_G], dim=-1)[None]
        frame, steps = batch.x[node, :, -1:], []
        for t in range(batch.y.shape[2]):
            out, state = self.decoder(frame, state)
            steps.append(self.output(out[:, 0]))
            frame = torch.cat([steps[-1], batch.clock[:, t : t + 1]], dim=-1)[:, None]
        return torch.cat(steps, dim=-1)

    def loss(self, batch: Batch, node: int, h_c: Tensor, h_G: Tensor) -> Tensor:
        """Mean squared error of a node's minibatch."""
        return (self.decode(batch, node, h_c, h_G) - batch.y[node]).square().mean()


class NaiveRound:
    """A round of at-fedavg in pieces that can be timed separately."""

    def __init__(self, strategy: Alternating, clients: Clients) -> None:
        self.server, self.clients = strategy, clients
        model, device, self.n = clients.settings.model, clients.compute.device, clients.series.nodes
        self.nodes = [NaiveNode(model.hidden, model.embedding).to(device) for _ in range(self.n)]
        self.adams = [torch.optim.Adam(node.parameters(), lr=1e-3) for node in self.nodes]
        assert strategy.gn is not None
        self.gn = strategy.gn.gn
        self.gn_adam = torch.optim.Adam(self.gn.parameters(), lr=1e-3)
        self.embedding = model.embedding

    def pieces(self) -> dict[str, tuple[Callable[[], object], float]]:
        """For each phase, a function that runs one minibatch (or as many windows), and how many it has.

        The last minibatch of an epoch may be smaller than the others: it counts as a part of one.
        """
        s, data = self.server, self.clients.data
        client, server = s.client_batches, s.batches
        validated = len(data.starts["validation"])
        chunk = min(server.size, validated)
        trained = client[next(client.epoch(1, 0))]
        served = server[next(server.epoch(1, 0))]
        validation = torch.arange(chunk, device=trained.device)
        h_c = torch.randn(self.n, len(served), self.clients.settings.model.hidden, device=trained.device)
        return {
            "(1) update": (lambda: self.update(trained), s.client_rounds * client.windows / len(trained)),
            "average": (lambda: average(self.nodes), 1),
            "(2) encode": (lambda: self.encode("train", trained), client.windows / len(trained)),
            "(3) split": (lambda: self.split(served, h_c), s.server_rounds * server.windows / len(served)),
            "(4) embed": (lambda: self.embed(h_c), server.windows / len(served)),
            "validate": (lambda: self.validate(validation), validated / chunk),
        }

    def update(self, windows: Tensor) -> None:
        """Phase (1), one minibatch: one node after another."""
        batch = self.clients.data.batch("train", windows)
        h_G = torch.zeros(len(windows), self.embedding, device=windows.device)
        for i, (node, adam) in enumerate(zip(self.nodes, self.adams, strict=True)):
            adam.zero_grad()
            node.loss(batch, i, node.encode(batch.x[i]), h_G).backward()
            adam.step()

    @torch.no_grad()
    def encode(self, split: Split, windows: Tensor) -> Tensor:
        """Phase (2): h_c of some windows, one node after another."""
        batch = self.clients.data.batch(split, windows)
        return torch.stack([node.encode(batch.x[i]) for i, node in enumerate(self.nodes)])

    def split(self, windows: Tensor, h_c: Tensor) -> None:
        """Phase (3), one minibatch: h_G, the nodes' gradients one by one, a step of the Graph Network."""
        batch = self.clients.data.batch("train", windows)
        h_G = graph_network(self.gn, h_c, self.server.graph)
        leaf = h_G.detach().requires_grad_()
        for i, node in enumerate(self.nodes):
            node.loss(batch, i, h_c[i], leaf[i]).backward(inputs=[leaf])
        self.gn_adam.zero_grad()
        h_G.backward(leaf.grad)
        self.gn_adam.step()

    @torch.no_grad()
    def embed(self, h_c: Tensor) -> Tensor:
        """Phase (4): h_G of some windows."""
        return graph_network(self.gn, h_c, self.server.graph)

    @torch.no_grad()
    def validate(self, windows: Tensor) -> Tensor:
        """Validate some windows: encode, embed and decode one node after another."""
        batch = self.clients.data.batch("validation", windows)
        h_c = self.encode("validation", windows)
        h_G = self.embed(h_c)
        errors = [node.loss(batch, i, h_c[i], h_G[i]) for i, node in enumerate(self.nodes)]
        return torch.stack(errors)


def average(nodes: Sequence[nn.Module]) -> None:
    """Replace the weights of all nodes by their mean."""
    states = [node.state_dict() for node in nodes]
    mean = {name: sum(state[name] for state in states) / len(states) for name in states[0]}
    for node in nodes:
        node.load_state_dict(mean)


def graph_network(gn: GraphNetwork, h_c: Tensor, edges: Edges, zero_u: int = 0) -> Tensor:
    """(n b h) -> (n b h), with the inputs of every edge concatenated; `u` starts as zeros."""
    senders, receivers, (n, b) = edges.senders.node, edges.receivers.node, h_c.shape[:2]
    v, e, u = h_c, edges.weights.expand(-1, b, 1), h_c.new_zeros(1, b, zero_u)
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
