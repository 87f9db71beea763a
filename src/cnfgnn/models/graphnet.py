"""The server model: a Graph Network of two layers over the nodes' hidden states (paper, section 3.2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from cnfgnn.models.edges import Edges as Edges
from cnfgnn.models.edges import Incidence as Incidence
from cnfgnn.models.edges import edge_update
from cnfgnn.models.params import uniform


class MLP(nn.Module):
    """Linear layers with ReLU between; the input comes in parts, each as wide as `parts` says.

    The first layer is applied to each part before they are gathered and added, which is the same algebra as
    one product with their concatenation but runs once per node instead of once per edge.
    """

    def __init__(self, parts: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        sizes = [sum(parts), *widths]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(sizes))

    def linear(self, k: int) -> nn.Linear:
        """Layer k."""
        layer = self.layers[k]
        assert isinstance(layer, nn.Linear)
        return layer

    def columns(self, k: int) -> Tensor:
        """The first layer's weight for part k."""
        start = sum(self.parts[:k])
        return self.linear(0).weight[:, start : start + self.parts[k]]

    def part(self, k: int, x: Tensor, bias: bool = False) -> Tensor:
        """What part k of the input adds to the first layer."""
        return product(x, self.columns(k), self.linear(0).bias if bias else None)

    def rest(self, x: Tensor) -> Tensor:
        """From the first layer's sum to the output."""
        for k in range(1, len(self.layers)):
            x = product(torch.relu(x), self.linear(k).weight, self.linear(k).bias)
        return x


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias in the type of x; the weight keeps its own, and so does its gradient."""
    return nn.functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


@dataclass(frozen=True)
class _EdgeState:
    """e' = last(r) of one layer, with its last product still to be done: nobody needs e' itself.

    r  (e b k)  phi_e before its last layer; where it has but one layer, e' itself and `last` is None
    """

    r: Tensor
    last: nn.Linear | None

    def through(self, columns: Tensor) -> Tensor:
        """The weight that takes r to what columns of a later first layer make of e'."""
        return columns if self.last is None else columns @ self.last.weight

    def constant(self, columns: Tensor) -> Tensor | float:
        """What e' adds there whatever r is."""
        return 0.0 if self.last is None else columns @ self.last.bias


class GraphNetworkLayer(nn.Module):
    """One block of Battaglia et al. (2018): e' = phi_e(e, v_r, v_s, u), v' = phi_v(sum e', v, u),
    u' = phi_u(sum e', sum v', u), or means instead of sums; an input that is empty has width 0. The input e
    is the outputs of the `earlier` layers before it, latest first, and the edges' weights."""

    def __init__(
        self, v: int, earlier: int, u: int, widths: Sequence[int], with_global: bool, mean: bool = False
    ) -> None:
        super().__init__()
        out, self.mean = widths[-1], mean
        self.phi_e = MLP([*[out] * earlier, 1, v, v, u], widths)
        self.phi_v = MLP([out, v, u], widths)
        self.phi_u = MLP([out, out, u], widths) if with_global else None

    def forward(
        self, v: Tensor, earlier: Sequence[_EdgeState], u: Tensor | None, edges: Edges, mask: Mask
    ) -> tuple[Tensor, _EdgeState, Tensor | None]:
        """v (n b .), u (1 b .) -> the updates v', e', u'."""
        incoming, e_new = self._on_edges(v, earlier, u, edges, mask)
        phi_v, phi_u = self.phi_v, self.phi_u
        everybody: Tensor | int = 1
        if self.mean:
            incoming = incoming / mask.degree(edges).clamp(min=1).to(v.dtype)
            everybody = mask.count(len(v))
        x = phi_v.part(0, incoming) + phi_v.part(1, v, bias=True)
        v_new = mask.nodes(phi_v.rest(x if u is None else x + phi_v.part(2, u)))
        if phi_u is None:
            return v_new, e_new, None
        x = phi_u.part(0, incoming.sum(0, keepdim=True) / everybody, bias=True)
        x = x + phi_u.part(1, v_new.sum(0, keepdim=True) / everybody)
        return v_new, e_new, phi_u.rest(x if u is None else x + phi_u.part(2, u))

    def _on_edges(
        self, v: Tensor, earlier: Sequence[_EdgeState], u: Tensor | None, edges: Edges, mask: Mask
    ) -> tuple[Tensor, _EdgeState]:
        """The sum of e' at each receiver (n b .), and e'."""
        phi, k = self.phi_e, len(earlier)
        receiving, sending = phi.part(k + 1, v, bias=True), phi.part(k + 2, v)
        for i, e in enumerate(earlier):  # an edge has one receiver: what is the same for all edges goes there
            receiving = receiving + e.constant(phi.columns(i))
        if u is not None:
            receiving = receiving + phi.part(k + 3, u)
        hidden = [phi.linear(layer) for layer in range(1, len(phi.layers) - 1)]
        last = phi.linear(-1) if len(phi.layers) > 1 else None
        sums, r = edge_update(
            edges,
            mask.edge,
            (receiving.to(v.dtype), sending),
            phi.columns(k)[:, 0],
            [(e.r, e.through(phi.columns(i))) for i, e in enumerate(earlier)],
            [(layer.weight, layer.bias) for layer in hidden],
            rectified=last is not None,
        )
        sums = sums.to(v.dtype)
        if last is not None:
            sums = product(sums, last.weight) + mask.degree(edges).to(v.dtype) * last.bias.to(v.dtype)
        return sums, _EdgeState(r, last)


class GraphNetwork(nn.Module):
    """h_G = GN(h_c): layers whose input is concatenated to their output, then a linear map to h_G.

    `u` is empty at the input, and the last layer's global update, which would feed nothing, is left out.
    """

    def __init__(
        self,
        hidden: int = 64,
        embedding: int = 64,
        widths: Sequence[int] = (256, 256, 128),
        layers: int = 2,
        mean: bool = False,
    ) -> None:
        super().__init__()
        v, u = hidden, 0
        blocks = []
        for layer in range(layers):
            blocks.append(GraphNetworkLayer(v, layer, u, widths, layer + 1 < layers, mean))
            v, u = v + widths[-1], u + widths[-1]
        self.blocks = nn.ModuleList(blocks)
        self.output = nn.Linear(v, embedding)

    def init(self, generator: torch.Generator, zero_u: int = 0) -> GraphNetwork:
        """PyTorch's initialisation of linear layers, drawn from our generator; `zero_u` as if the input had a
        `u` of that many zeros.

        Deviation D2: such a u adds nothing to any sum, and the weights that it meets never get a gradient; as
        each layer's input goes along to the next, it does so in every layer. All that is left of it is a
        larger fan-in of each MLP's first product, hence a smaller range to draw its weights from.
        """
        entrances = {module.linear(0) for module in self.modules() if isinstance(module, MLP)}
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    fan = module.in_features + (zero_u if module in entrances else 0)
                    for w in (module.weight, module.bias):
                        w.copy_(uniform(tuple(w.shape), fan, generator))
        return self

    def forward(self, h_c: Tensor, graph: Edges, present: Tensor | None = None) -> Tensor:
        """(n b h) -> h_G (n b h). Nodes that are not `present` (n b) or (n 1) send zero and leave the
        sums, as if the graph had neither them nor their edges."""
        device = h_c.device.type
        bf16 = torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False):  # the type of products is decided here, once for all
            return self._propagated(h_c.bfloat16() if bf16 else h_c, graph, Mask.of(present, graph))

    def _propagated(self, h_c: Tensor, graph: Edges, mask: Mask) -> Tensor:
        v, u = mask.nodes(h_c), None
        earlier: list[_EdgeState] = []
        for block in self.blocks:
            v_new, e_new, u_new = block(v, earlier, u, graph, mask)
            v, earlier = torch.cat([v_new, v], -1), [e_new, *earlier]
            u = u_new if u is None or u_new is None else torch.cat([u_new, u], -1)
        return product(v, self.output.weight, self.output.bias)


@dataclass(frozen=True, eq=False)
class Mask:
    """Zeroes what is absent; filling instead of multiplying, so that a NaN of an absent node stays out."""

    node: Tensor | None = None
    edge: Tensor | None = None

    @classmethod
    def of(cls, present: Tensor | None, graph: Edges) -> Mask:
        if present is None:
            return cls()
        absent = ~present.unsqueeze(-1)
        either = absent.index_select(0, graph.senders.node) | absent.index_select(0, graph.receivers.node)
        return cls(absent, either)

    def nodes(self, x: Tensor) -> Tensor:
        return x if self.node is None else x.masked_fill(self.node, 0)

    def count(self, n: int) -> Tensor | int:
        """How many of n nodes are present, at least 1: (1 b 1), or a number where everybody is."""
        return n if self.node is None else (~self.node).sum(0, keepdim=True).clamp(min=1)

    def degree(self, graph: Edges) -> Tensor:
        """How many edges end at each node: (n 1 1), or (n b 1) where that differs from window to window."""
        if self.edge is None:
            return graph.receivers.offsets.diff()[:, None, None]
        return graph.receivers.sum((~self.edge).to(graph.weights.dtype))
