"""A method for cnfgnn: each node attends to its neighbours instead of adding up what they say."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import cnfgnn
from cnfgnn.models.graphnet import Edges, Mask


@dataclass(frozen=True)
class Settings:
    """What `cnfgnn settings --method neighbour-attention` lists under [own]."""

    heads: int = cnfgnn.setting(2, "Number of attention heads.", at_least=1, at_most=64)
    units: int = cnfgnn.setting(16, "Width of each head.", at_least=1, at_most=1024)


class Attention(nn.Module):
    """v + sum over neighbours s of softmax(q . k_s) value_s, with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, v: Tensor, graph: Edges, mask: Mask) -> Tensor:
        query, key, value = (f(v).unflatten(-1, (self.heads, -1)) for f in (self.query, self.key, self.value))
        at_receiver = query.index_select(0, graph.receivers.node)
        at_sender = key.index_select(0, graph.senders.node)
        # Bounded, so that no maximum over the neighbours has to be subtracted before the exponential.
        score = 4 * torch.tanh((at_receiver * at_sender).mean(-1))  # (e b heads)
        weight = score.exp() * graph.weights.to(v).abs()
        if mask.edge is not None:
            weight = weight.masked_fill(mask.edge, 0)
        message = (weight[..., None] * value.index_select(0, graph.senders.node)).flatten(2)
        total = graph.receivers.sum(weight).clamp(min=1e-6)
        mean = graph.receivers.sum(message).unflatten(-1, (self.heads, -1)) / total[..., None]
        return mask.nodes(v + mean.flatten(2))


class AttentionNetwork(nn.Module):
    """h_c (n b h) -> h_G (n b embedding)."""

    def __init__(self, model: cnfgnn.ModelConfig, own: Settings) -> None:
        super().__init__()
        width = own.heads * own.units
        self.first = nn.Linear(model.sent_width, width)
        self.layers = nn.ModuleList(Attention(width, own.heads) for _ in range(model.gn_layers))
        self.last = nn.Linear(width, model.embedding)

    def forward(self, h_c: Tensor, graph: Edges, present: Tensor | None = None) -> Tensor:
        mask = Mask.of(present, graph)  # nodes that are away must leave no trace
        v = mask.nodes(torch.relu(self.first(mask.nodes(h_c))))
        for layer in self.layers:
            v = layer(v, graph, mask)
        return self.last(v)


METHOD = cnfgnn.Method(
    "neighbour-attention",
    "Neighbour attention",
    strategy="alternating",
    sharing="average",
    graph_network=True,
    settings={"model.hidden": 32, "model.embedding": 16},
    own=Settings,
    network=AttentionNetwork,
)
