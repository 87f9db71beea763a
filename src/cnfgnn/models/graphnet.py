"""The server model: a Graph Network of two layers over the nodes' hidden states (paper, section 3.2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cnfgnn.data.graph import Graph
from cnfgnn.models.params import uniform


@dataclass(frozen=True, eq=False)
class Incidence:
    """Which node each edge touches at one of its ends, ready to gather from nodes and to sum into them.

    node     (e,)    the node of each edge
    order    (e,)    edges sorted by node
    offsets  (n+1,)  where each node's edges begin in that order
    """

    node: Tensor
    order: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, node: Tensor, n: int) -> Incidence:
        counts = torch.bincount(node, minlength=n)
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return cls(node, torch.argsort(node, stable=True), offsets)

    def sum(self, x: Tensor) -> Tensor:
        """(e ...) -> (n ...): in a fixed order on every device, because resuming is bit-exact.

        Half precision is summed in float32: a busy node's sum would stop growing.
        """
        x = x.float() if x.dtype == torch.bfloat16 else x
        if x.is_cuda:  # atomic adds would come in any order
            return torch.segment_reduce(
                x.index_select(0, self.order), "sum", offsets=self.offsets, axis=0, unsafe=True
            )
        n = len(self.offsets) - 1
        return x.new_zeros(n, *x.shape[1:]).index_add_(0, self.node, x)


class _Gather(torch.autograd.Function):
    """v[node] forward, a sum over each node's edges backward."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, ends: Incidence) -> Tensor:
        ctx.ends = ends
        return v.index_select(0, ends.node)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.ends.sum(grads[0].contiguous()), None


class _Sum(torch.autograd.Function):
    """A sum over each node's edges forward, grad[node] backward: the transpose of _Gather."""

    @staticmethod
    def forward(ctx: Any, e: Tensor, ends: Incidence) -> Tensor:
        ctx.ends = ends
        return ends.sum(e)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].index_select(0, ctx.ends.node), None


def gathered(v: Tensor, ends: Incidence) -> Tensor:
    """Each edge's node at one end: (n ...) -> (e ...)."""
    e: Tensor = _Gather.apply(v, ends)  # type: ignore[no-untyped-call]
    return e


def summed(e: Tensor, ends: Incidence) -> Tensor:
    """Each node's sum over its edges: (e ...) -> (n ...)."""
    v: Tensor = _Sum.apply(e, ends)  # type: ignore[no-untyped-call]
    return v


@dataclass(frozen=True, eq=False)
class Edges:
    """A Graph as tensors on one device; weights (e 1 1) are the input edge features."""

    senders: Incidence
    receivers: Incidence
    weights: Tensor

    @classmethod
    def of(cls, graph: Graph, device: torch.device, dtype: torch.dtype) -> Edges:
        def ends(node: Any) -> Incidence:
            return Incidence.of(torch.tensor(node, device=device), graph.nodes)

        weights = torch.tensor(graph.weights, device=device, dtype=dtype)
        return cls(ends(graph.senders), ends(graph.receivers), weights[:, None, None])


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

    def part(self, k: int, x: Tensor, bias: bool = False) -> Tensor:
        """What part k of the input adds to the first layer."""
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        start = sum(self.parts[:k])
        weight = first.weight[:, start : start + self.parts[k]]
        return nn.functional.linear(x, weight, first.bias if bias else None)

    def rest(self, x: Tensor) -> Tensor:
        """From the first layer's sum to the output."""
        for layer in list(self.layers)[1:]:
            x = layer(torch.relu(x))
        return x


class GraphNetworkLayer(nn.Module):
    """One block of Battaglia et al. (2018): e' = phi_e(e, v_r, v_s, u), v' = phi_v(sum e', v, u),
    u' = phi_u(sum e', sum v', u); an input that is empty has width 0."""

    def __init__(self, v: int, e: int, u: int, widths: Sequence[int], with_global: bool) -> None:
        super().__init__()
        out = widths[-1]
        self.phi_e = MLP([e, v, v, u], widths)
        self.phi_v = MLP([out, v, u], widths)
        self.phi_u = MLP([out, out, u], widths) if with_global else None

    def forward(
        self, v: Tensor, e: Tensor, u: Tensor | None, edges: Edges, mask: Mask
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """v (n b .), e (e b .), u (1 b .) -> the updates v', e', u'."""
        phi_e, phi_v = self.phi_e, self.phi_v
        x = (
            phi_e.part(0, e, bias=True)
            + gathered(phi_e.part(1, v), edges.receivers)
            + gathered(phi_e.part(2, v), edges.senders)
        )
        e_new = mask.edges(phi_e.rest(x if u is None else x + phi_e.part(3, u)))
        incoming = summed(e_new, edges.receivers)
        x = phi_v.part(0, incoming) + phi_v.part(1, v, bias=True)
        v_new = mask.nodes(phi_v.rest(x if u is None else x + phi_v.part(2, u)))
        if self.phi_u is None:
            return v_new, e_new, None
        x = self.phi_u.part(0, incoming.sum(0, keepdim=True), bias=True)
        x = x + self.phi_u.part(1, v_new.sum(0, keepdim=True))
        return v_new, e_new, self.phi_u.rest(x if u is None else x + self.phi_u.part(2, u))


class GraphNetwork(nn.Module):
    """h_G = GN(h_c): layers whose input is concatenated to their output, then a linear map to h_G.

    `u` is empty at the input, and the last layer's global update, which would feed nothing, is left out.
    """

    def __init__(
        self, hidden: int = 64, embedding: int = 64, widths: Sequence[int] = (256, 256, 128), layers: int = 2
    ) -> None:
        super().__init__()
        v, e, u = hidden, 1, 0
        blocks = []
        for layer in range(layers):
            blocks.append(GraphNetworkLayer(v, e, u, widths, with_global=layer + 1 < layers))
            v, e, u = v + widths[-1], e + widths[-1], u + widths[-1]
        self.blocks = nn.ModuleList(blocks)
        self.output = nn.Linear(v, embedding)

    def init(self, generator: torch.Generator) -> GraphNetwork:
        """PyTorch's initialisation of linear layers, drawn from our generator."""
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    for w in (module.weight, module.bias):
                        w.copy_(uniform(tuple(w.shape), module.in_features, generator))
        return self

    def forward(self, h_c: Tensor, graph: Edges, present: Tensor | None = None) -> Tensor:
        """(n b h) -> h_G (n b h). Nodes that are not `present` (n b) or (n 1) send zero and leave the
        sums, as if the graph had neither them nor their edges."""
        mask = Mask.of(present, graph)
        v = mask.nodes(h_c)
        e = graph.weights.to(h_c.dtype).expand(-1, h_c.shape[1], -1)
        u: Tensor | None = None
        for block in self.blocks:
            v_new, e_new, u_new = block(v, e, u, graph, mask)
            v, e = torch.cat([v_new, v.to(v_new.dtype)], -1), torch.cat([e_new, e.to(e_new.dtype)], -1)
            u = u_new if u is None or u_new is None else torch.cat([u_new, u], -1)
        h_G: Tensor = self.output(v)
        return h_G


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

    def edges(self, x: Tensor) -> Tensor:
        return x if self.edge is None else x.masked_fill(self.edge, 0)
