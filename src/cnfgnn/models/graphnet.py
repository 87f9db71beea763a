"""The server's model: a Graph Network over the hidden states of the nodes (paper, section 3.2.2)."""

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
    """Linear layers with ReLU between them; the input is given in parts of the widths `parts`.

    The first layer is applied to each part separately, before the parts are gathered and added. That equals
    one product with their concatenation, but runs once per node instead of once per edge.
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
        """The columns of the first layer's weight that belong to part k."""
        start = sum(self.parts[:k])
        return self.linear(0).weight[:, start : start + self.parts[k]]

    def part(self, k: int, x: Tensor, bias: bool = False) -> Tensor:
        """The contribution of part k of the input to the first layer."""
        return product(x, self.columns(k), self.linear(0).bias if bias else None)

    def rest(self, x: Tensor) -> Tensor:
        """From the first layer's sum to the output."""
        for k in range(1, len(self.layers)):
            x = product(torch.relu(x), self.linear(k).weight, self.linear(k).bias)
        return x


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias in the type of x; the weight and its gradient keep their own type."""
    return nn.functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


@dataclass(frozen=True)
class _EdgeState:
    """e' = last(r) of one block; the last product is left out, because nothing needs e' itself.

    r     (e b k)  the output of phi_e before its last layer, or e' itself if phi_e has only one
    last           the last layer of phi_e, or None
    """

    r: Tensor
    last: nn.Linear | None

    def through(self, columns: Tensor) -> Tensor:
        """The weight that maps r to what `columns` of a later first layer map e' to."""
        return columns if self.last is None else columns @ self.last.weight

    def constant(self, columns: Tensor) -> Tensor | float:
        """The part of that which does not depend on r."""
        return 0.0 if self.last is None else columns @ self.last.bias


class GraphNetworkLayer(nn.Module):
    """One block of Battaglia et al. (2018).

        e' = phi_e(e, v_r, v_s, u),  v' = phi_v(sum e', v, u),  u' = phi_u(sum e', sum v', u)

    With `mean`, means take the place of the sums. An empty input has width 0. The input e consists of the
    outputs of the `earlier` blocks, latest first, and the weights of the edges.
    """

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
        nodes: Tensor | int = 1
        if self.mean:
            incoming = incoming / mask.degree(edges).clamp(min=1).to(v.dtype)
            nodes = mask.count(len(v))
        x = phi_v.part(0, incoming) + phi_v.part(1, v, bias=True)
        v_new = mask.nodes(phi_v.rest(x if u is None else x + phi_v.part(2, u)))
        if phi_u is None:
            return v_new, e_new, None
        x = phi_u.part(0, incoming.sum(0, keepdim=True) / nodes, bias=True)
        x = x + phi_u.part(1, v_new.sum(0, keepdim=True) / nodes)
        return v_new, e_new, phi_u.rest(x if u is None else x + phi_u.part(2, u))

    def _on_edges(
        self, v: Tensor, earlier: Sequence[_EdgeState], u: Tensor | None, edges: Edges, mask: Mask
    ) -> tuple[Tensor, _EdgeState]:
        """The sum of e' at each receiver (n b .), and e'."""
        phi, k = self.phi_e, len(earlier)
        receiving, sending = phi.part(k + 1, v, bias=True), phi.part(k + 2, v)
        for i, e in enumerate(earlier):  # constants of an edge are added at its receiver
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
    """h_G = GN(h_c): blocks whose input is concatenated to their output, then a linear map to h_G.

    `u` is empty at the input. The last block has no global update, because nothing would use it.
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
        """Draw the weights from `generator` as PyTorch initialises linear layers.

        With `zero_u`, draw them as if the input had a `u` of that many zeros. Deviation D2: such a u adds
        nothing to any sum, and its weights never get a gradient. The input of each block is passed on to the
        next, so this holds for every block. All that remains of u is a larger fan-in of the first product of
        each MLP, and so a smaller range of its initial weights.
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
        """(n b h) -> h_G (n b h).

        Nodes that are not `present` (n b) or (n 1) are masked out, as if neither they nor their edges were in
        the graph; their h_G is zero.
        """
        device = h_c.device.type
        bf16 = torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False):  # the type of all products is chosen here
            return self._propagated(h_c.bfloat16() if bf16 else h_c, graph, Mask.of(present, graph))

    def _propagated(self, h_c: Tensor, graph: Edges, mask: Mask) -> Tensor:
        v, u = mask.nodes(h_c), None
        earlier: list[_EdgeState] = []
        for block in self.blocks:
            v_new, e_new, u_new = block(v, earlier, u, graph, mask)
            v, earlier = torch.cat([v_new, v], -1), [e_new, *earlier]
            u = u_new if u is None or u_new is None else torch.cat([u_new, u], -1)
        return mask.nodes(product(v, self.output.weight, self.output.bias))


def means(x: Tensor, graph: Edges, present: Tensor | None = None) -> Tensor:
    """(n b k) -> (n b 2k): the mean of x over a node's neighbours, by the weights of edges, and over all.

    Only nodes that are present count; others get means, too, because a silent sensor is forecast with them.
    A node without neighbours gets the mean over all nodes.
    """
    mask = Mask.of(present, graph)
    x = mask.nodes(x)
    everyone = x.sum(0, keepdim=True) / mask.count(len(x))
    to_others = (graph.senders.node != graph.receivers.node).to(x.dtype)[:, None, None]
    weights = (graph.weights.to(x.dtype).abs() * to_others).expand(-1, x.shape[1], 1)
    if mask.node is not None:
        weights = weights.masked_fill(mask.node.index_select(0, graph.senders.node), 0)
    weight = graph.receivers.sum(weights.contiguous())
    total = graph.receivers.sum(weights * x.index_select(0, graph.senders.node))
    near = torch.where(weight > 0, total / weight.clamp(min=torch.finfo(x.dtype).tiny), everyone)
    return torch.cat([near, everyone.expand_as(near)], dim=-1)


@dataclass(frozen=True, eq=False)
class Mask:
    """Sets absent nodes and edges to zero by filling: multiplying would keep the NaN of an absent node."""

    node: Tensor | None = None
    edge: Tensor | None = None

    @classmethod
    def of(cls, present: Tensor | None, graph: Edges) -> Mask:
        """The mask of the nodes that are not present, and of all edges that touch them."""
        if present is None:
            return cls()
        absent = ~present.unsqueeze(-1)
        either = absent.index_select(0, graph.senders.node) | absent.index_select(0, graph.receivers.node)
        return cls(absent, either)

    def nodes(self, x: Tensor) -> Tensor:
        """x (n b .) with the rows of absent nodes set to zero."""
        return x if self.node is None else x.masked_fill(self.node, 0)

    def count(self, n: int) -> Tensor | int:
        """The number of nodes present, at least 1: (1 b 1), or n if all are present."""
        return n if self.node is None else (~self.node).sum(0, keepdim=True).clamp(min=1)

    def degree(self, graph: Edges) -> Tensor:
        """The number of edges that end at each node: (n 1 1), or (n b 1) if it depends on the window."""
        if self.edge is None:
            return graph.degree
        return graph.receivers.sum((~self.edge).to(graph.weights.dtype))
