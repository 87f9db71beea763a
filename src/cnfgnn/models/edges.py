"""The edge update of the Graph Network with hand-written gradients; a round spends most of its time here.

Only the layers of phi_e between the first and the last run once per edge. The first is applied to each part
of the input before the parts are gathered and added, the last after the sum over the edges of a node. Both
are linear, so the result is the same with an eighth of the rows at METR-LA's degree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from cnfgnn.data.graph import Graph
from cnfgnn.models.products import IS_X86


@dataclass(frozen=True, eq=False)
class Incidence:
    """The node at one end of each edge, prepared to gather from nodes and to sum into them.

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
        """(e b k) -> (n b k), added in a fixed order on every device: a resumed run must be bit-exact.

        bf16 is summed in float32, because the sum at a node with many edges would stop growing.
        """
        if not x.is_cuda:  # embedding_bag adds in float32, row after row
            sums: Tensor = embedding_bag(self.order, x.flatten(1), self.offsets[:-1], mode="sum")
            return sums.view(len(sums), *x.shape[1:])
        x = x.float() if x.dtype == torch.bfloat16 else x
        return torch.segment_reduce(  # not with atomic adds, whose order varies
            x.index_select(0, self.order), "sum", offsets=self.offsets, axis=0, unsafe=True
        )


@dataclass(frozen=True, eq=False)
class Edges:
    """A Graph as tensors on one device.

    weights  (e 1 1)  the input edge features
    degree   (n 1 1)  the number of edges that end at each node
    """

    senders: Incidence
    receivers: Incidence
    weights: Tensor
    degree: Tensor

    @classmethod
    def of(cls, graph: Graph, device: torch.device, dtype: torch.dtype) -> Edges:
        def ends(node: Any) -> Incidence:
            return Incidence.of(torch.tensor(node, device=device), graph.nodes)

        weights = torch.tensor(graph.weights, device=device, dtype=dtype)
        receivers = ends(graph.receivers)
        degree = receivers.offsets.diff()[:, None, None].to(dtype)
        return cls(ends(graph.senders), receivers, weights[:, None, None], degree)

    def gathered(self, receiving: Tensor, sending: Tensor, by_weight: Tensor) -> Tensor:
        """receiving[receiver] + sending[sender] + weight * by_weight: (n b k), (n b k), (k,) -> (e b k)."""
        if receiving.is_cuda:
            x = receiving.index_select(0, self.receivers.node) + sending.index_select(0, self.senders.node)
            return x.addcmul_(self.weights.to(x), by_weight)
        # One pass: for each edge, add three rows of one table.
        n, *size = receiving.shape
        table = torch.cat([receiving, sending, by_weight.expand(1, *size)]).flatten(1)
        rows = torch.stack(
            [self.receivers.node, n + self.senders.node, torch.full_like(self.senders.node, 2 * n)], dim=1
        )
        weights = self.weights[:, :, 0].to(table)
        shares = torch.cat([torch.ones_like(weights).expand(-1, 2), weights], dim=1)
        x = embedding_bag(rows, table, per_sample_weights=shares, mode="sum")
        return x.view(len(x), *size)


@dataclass(frozen=True)
class _Shape:
    """How many tensors of each kind EdgeUpdate gets, and whether a ReLU follows its products.

    It does unless phi_e has only one layer, which is linear.
    """

    earlier: int
    hidden: int
    rectified: bool

    def split(self, tensors: Sequence[Any]) -> tuple[Sequence[Any], ...]:
        """earlier, composed, weights, biases."""
        a, b = 2 * self.earlier, self.hidden
        return tensors[: a // 2], tensors[a // 2 : a], tensors[a : a + b], tensors[a + b : a + 2 * b]


class EdgeUpdate(torch.autograd.Function):
    """phi_e up to its last layer, and its sum over each node's incoming edges.

        r_1 = relu(receiving[receiver] + sending[sender] + weight * by_weight + sum_k earlier_k composed_k^T)
        r_l = relu(r_(l-1) weight_l^T + bias_l)

    Products and stored activations have the type of `receiving`; weights and their gradients keep their own.
    An edge that is `absent` has r = 0, and so its gradients are 0 too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        edges: Edges,
        absent: Tensor | None,
        shape: _Shape,
        receiving: Tensor,
        sending: Tensor,
        by_weight: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """-> sums (n b k), r (e b k)."""
        earlier, composed, weights, biases = shape.split(tensors)
        r = edges.gathered(receiving, sending, by_weight.to(receiving.dtype))
        size = r.shape[:2]
        r = r.flatten(0, 1)
        for x, weight in zip(earlier, composed, strict=True):
            r.addmm_(x.flatten(0, 1), weight.to(r.dtype).t())
        kept = [r.relu_() if shape.rectified else r]
        for weight, bias in zip(weights, biases, strict=True):
            kept.append(rectified(kept[-1], weight.to(r.dtype), bias.to(r.dtype)))
        r = kept[-1].unflatten(0, size)
        if absent is not None:
            r.masked_fill_(absent, 0)
        ctx.edges, ctx.absent, ctx.shape, ctx.hidden = edges, absent, shape, len(kept) - 1
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *kept[:-1], r)
        return edges.receivers.sum(r), r

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        edges, shape = ctx.edges, ctx.shape
        split = len(ctx.saved_tensors) - ctx.hidden - 1
        earlier, composed, weights, _ = shape.split(ctx.saved_tensors[:split])
        *kept, r = ctx.saved_tensors[split:]
        size = r.shape[:2]
        kept.append(r.flatten(0, 1))
        d = _arriving(grads[0], grads[1], r, edges).flatten(0, 1)
        d_weights, d_biases = [], []
        for weight, below, above in zip(weights[::-1], kept[-2::-1], kept[:0:-1], strict=True):
            d = _through_relu(d, above)
            d_weights.append((d.t() @ below).to(weight.dtype))
            # First a fast sum by node, then one in full precision.
            d_biases.append(edges.receivers.sum(d.unflatten(0, size)).sum((0, 1), dtype=weight.dtype))
            d = d @ weight.to(d.dtype)
        if shape.rectified:
            d = _through_relu(d, kept[0])
        elif ctx.absent is not None:
            d = d.view(r.shape).masked_fill(ctx.absent, 0).flatten(0, 1)
        d_composed = [(d.t() @ x.flatten(0, 1)).to(w.dtype) for x, w in zip(earlier, composed, strict=True)]
        d_earlier = [
            (d @ weight.to(d.dtype)).view_as(x) if needed else None
            for x, weight, needed in zip(earlier, composed, ctx.needs_input_grad[6:], strict=False)
        ]
        d = d.unflatten(0, size)
        d_by_weight = edges.weights[:, :, 0].t().to(d) @ d.flatten(1)  # (1 e) @ (e bk)
        return (
            *[None] * 3,
            edges.receivers.sum(d).to(d.dtype),
            edges.senders.sum(d).to(d.dtype),
            d_by_weight.view(d.shape[1:]).sum(0, dtype=edges.weights.dtype),
            *d_earlier,
            *d_composed,
            *d_weights[::-1],
            *d_biases[::-1],
        )


def _arriving(d_sums: Tensor | None, d_r: Tensor | None, r: Tensor, edges: Edges) -> Tensor:
    """d loss / d r (e b k): through the sums at receivers, and through later blocks that use r."""
    if d_sums is None:
        return torch.zeros_like(r) if d_r is None else d_r.to(r.dtype, copy=True)
    d = d_sums.to(r.dtype).index_select(0, edges.receivers.node)
    return d if d_r is None else d.add_(d_r)


def rectified(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(x weight^T + bias); on x86 in one pass if PyTorch has oneDNN's private operator for it.

    On 64-bit ARM that operator has less than half the speed of a product and a ReLU after it, and a product
    that starts from the bias is up to a tenth slower than one to which the bias is added.
    """
    in_one = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if IS_X86 else None
    if x.is_cuda:
        return torch.addmm(bias, x, weight.t()).relu_()
    if in_one is None or x.dtype == torch.float64:
        return torch.mm(x, weight.t()).add_(bias).relu_()
    y: Tensor = in_one(x, weight.contiguous(), bias, "relu", [], "")
    return y


def _through_relu(d: Tensor, r: Tensor) -> Tensor:
    """d where r > 0, else 0; in place, because allocating a large tensor takes longer than the arithmetic."""
    masked: Tensor = torch.ops.aten.threshold_backward.grad_input(d, r, 0, grad_input=d)
    return masked


def edge_update(
    edges: Edges,
    absent: Tensor | None,
    ends: tuple[Tensor, Tensor],
    by_weight: Tensor,
    earlier: Sequence[tuple[Tensor, Tensor]],
    hidden: Sequence[tuple[Tensor, Tensor]],
    rectified: bool,
) -> tuple[Tensor, Tensor]:
    """EdgeUpdate with its tensors in pairs: (earlier r, composed weight) and (weight, bias)."""
    shape = _Shape(len(earlier), len(hidden), rectified)
    pairs = [*zip(*earlier, strict=True), *zip(*hidden, strict=True)]
    tensors = [tensor for group in pairs for tensor in group]
    sums, r = EdgeUpdate.apply(edges, absent, shape, *ends, by_weight, *tensors)  # type: ignore[no-untyped-call]
    return sums, r
