"""The Graph Network by kernels: the same as `GraphNetwork.forward`, in one type and with few passes.

Two steps are in another order than the formulas of `GraphNetworkLayer`, with the same result: the first layer
of phi_e is applied to nodes, then gathered and added in one pass; and its last layer is applied to the sums
over the edges of a node, and multiplied into the first layer of the next block, so that e' itself is never
computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from cnfgnn.models.edges import Edges, Incidence
from cnfgnn.models.graphnet import MLP, GraphNetwork, GraphNetworkLayer, Mask
from cnfgnn.models.kernels import edges as kernels

GATHERED, ADDED, SUMMED, WINDOWS = 4, 16, 64, 4  # rows and windows that one program handles
TILE, PROGRAMS, TILES = 4, 2048, 64  # rows at a time; programs that keep a GPU busy; the most tiles for one
Weights = dict[str, Tensor]


class _EdgeState(NamedTuple):
    """e' = last(r) of one block, as in `cnfgnn.models.graphnet`: r (e b k), and the last layer of phi_e."""

    r: Tensor
    weight: Tensor
    bias: Tensor


def graph_network(
    gn: GraphNetwork, weights: Iterable[Tensor], h_c: Tensor, graph: Edges, mask: Mask
) -> Tensor:
    """h_c (n b h) -> h_G (n b h) in the type of `weights`, which are given in the order of the module's."""
    w: Weights = dict(zip((name for name, _ in gn.named_parameters()), weights, strict=True))
    v, u = mask.nodes(h_c).to(w["output.weight"].dtype), None
    e: list[_EdgeState] = []
    for number, block in enumerate(gn.blocks):
        at = {name.removeprefix(f"blocks.{number}."): x for name, x in w.items()}
        assert isinstance(block, GraphNetworkLayer)
        v_new, e_new, u_new = _layer(block, at, v, e, u, graph, mask)
        v, e = torch.cat([v_new, v], -1), [e_new, *e]
        u = u_new if u is None or u_new is None else torch.cat([u_new, u], -1)
    return linear(v, w["output.weight"], w["output.bias"])


def _layer(
    block: GraphNetworkLayer,
    w: Weights,
    v: Tensor,
    earlier: list[_EdgeState],
    u: Tensor | None,
    graph: Edges,
    mask: Mask,
) -> tuple[Tensor, _EdgeState, Tensor | None]:
    """One block; `earlier` are the outputs of the blocks before it, latest first."""
    incoming, e_new = _edges(block.phi_e, w, v, earlier, u, graph, mask)
    if block.mean:
        incoming = incoming / mask.degree(graph).clamp(min=1).to(incoming.dtype)
    inputs = [incoming, v] if u is None else [incoming, v, _at_every_node(u, len(v))]
    v_new = mask.nodes(_rest(block.phi_v, w, "phi_v", _hidden(torch.cat(inputs, -1), w, "phi_v.layers.0")))
    u_new = None
    if block.phi_u is not None:
        sums = [_over_nodes(incoming), _over_nodes(v_new)]
        if block.mean:
            sums = [total / mask.count(len(v)) for total in sums]
        if u is not None:
            sums.append(u)
        u_new = _rest(block.phi_u, w, "phi_u", _hidden(torch.cat(sums, -1), w, "phi_u.layers.0"))
    return v_new, e_new, u_new


def _edges(
    phi_e: MLP,
    w: Weights,
    v: Tensor,
    earlier: list[_EdgeState],
    u: Tensor | None,
    graph: Edges,
    mask: Mask,
) -> tuple[Tensor, _EdgeState]:
    """The sum of e' at each receiver (n b .), and e'."""
    first, bias = w["phi_e.layers.0.weight"], w["phi_e.layers.0.bias"]
    *of_e, of_weight, of_r, of_s, of_u = first.split(phi_e.parts, dim=1)
    base = None
    if earlier:
        # copy slices: products with rows of odd lengths are slow
        of_e = [columns.contiguous() for columns in of_e]
        through = _side_by_side([columns @ e.weight for e, columns in zip(earlier, of_e, strict=True)])
        for e, columns in zip(earlier, of_e, strict=True):
            bias = torch.addmv(bias, columns, e.bias)
        base = linear(_side_by_side([e.r for e in earlier]), through)
    at_nodes = linear(v, torch.cat([of_r, of_s]))
    at_windows = bias[None] if u is None else linear(u.squeeze(0), of_u.contiguous(), bias)
    r: Tensor = _FirstLayer.apply(base, at_nodes, at_windows, of_weight.squeeze(1), graph)
    out = len(phi_e.layers) - 1
    for number in range(1, out - 1):
        r = _hidden(r, w, f"phi_e.layers.{number}")
    if out > 1 and mask.edge is None:
        r, incoming = _Hidden.apply(r, *_of(w, f"phi_e.layers.{out - 1}"), graph.receivers)
    else:
        r = r if out == 1 else _hidden(r, w, f"phi_e.layers.{out - 1}")
        r = r if mask.edge is None else r.masked_fill(mask.edge, 0)
        incoming = summed(r, graph.receivers)
    weight, bias = _of(w, f"phi_e.layers.{out}")
    return linear(incoming, weight, bias, mask.degree(graph)), _EdgeState(r, weight, bias)


def _rest(mlp: MLP, w: Weights, name: str, x: Tensor) -> Tensor:
    """The layers after the first."""
    for number in range(1, len(mlp.layers) - 1):
        x = _hidden(x, w, f"{name}.layers.{number}")
    return linear(x, *_of(w, f"{name}.layers.{len(mlp.layers) - 1}"))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, times: Tensor | None = None) -> Tensor:
    """x W' + b, or x W' + times b."""
    if bias is None:
        return functional.linear(x, weight)
    y: Tensor = _Linear.apply(x, weight, bias, times)
    return y


def _side_by_side(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, -1) if len(parts) > 1 else parts[0]


def _hidden(x: Tensor, w: Weights, name: str) -> Tensor:
    y: Tensor = _Hidden.apply(x, *_of(w, name), None)[0]
    return y


def _of(w: Weights, name: str) -> tuple[Tensor, Tensor]:
    return w[f"{name}.weight"], w[f"{name}.bias"]


class _Linear(torch.autograd.Function):
    """x W' + b, or x W' + times b with `times` (n b 1).

    PyTorch takes four times as long for the gradient of the bias, the sum of 100,000 rows.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, times: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.times = None if times is None else times.expand(*x.shape[:2], 1)
        if ctx.times is None:
            return functional.linear(x, weight, bias)
        y, f, rows = functional.linear(x, weight), len(weight), x.shape[0] * x.shape[1]
        kernels.add_times[(-(-rows // ADDED),)](
            y, ctx.times, bias, rows, x.shape[1], *ctx.times.stride()[:2], F=f, PADDED=_padded(f), ROWS=ADDED
        )
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grads[0].reshape(-1, weight.shape[0])
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        (r, f), times = rows.shape, ctx.times
        columns = rows.new_empty(-(-r // SUMMED), f, dtype=torch.float32)
        kernels.column_sums[(len(columns),)](
            rows,
            rows if times is None else times,
            columns,
            r,
            x.shape[1],
            rows.stride(0),
            *((0, 0) if times is None else times.stride()[:2]),
            F=f,
            PADDED=_padded(f),
            ROWS=SUMMED,
            TIMES=times is not None,
        )
        grad_x = (rows @ weight).view_as(x) if ctx.needs_input_grad[0] else None
        return grad_x, rows.mT @ x.reshape(r, -1), _total(columns, weight.dtype), None


def _padded(f: int) -> int:
    """The next power of two."""
    return 1 << (f - 1).bit_length()


class _Hidden(torch.autograd.Function):
    """relu(x W' + b), storing only the result; and with `ends`, its sum over the edges of each node."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, ends: Incidence | None
    ) -> tuple[Tensor, Tensor | None]:
        rows = x.reshape(-1, x.shape[-1])
        y = torch._addmm_activation(bias, rows, weight.mT)
        ctx.save_for_backward(rows, weight, y)
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.ends = x.shape, ends
        y = y.view(*x.shape[:-1], -1)
        return y, None if ends is None else _segment_sum(y, ends)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        (r, f), slopes = y.shape, torch.empty_like(y)
        tiles = min(TILES, 1 << max(0, (r // (TILE * PROGRAMS)).bit_length() - 1))
        columns = y.new_empty(-(-r // (TILE * tiles)), f, dtype=torch.float32)
        dense, at_nodes = (None if grad is None else grad.contiguous() for grad in grads)
        kernels.undo_relu[(len(columns),)](
            y if dense is None else dense,
            y if at_nodes is None else at_nodes,
            y,
            y if ctx.ends is None else ctx.ends.node,
            slopes,
            columns,
            r,
            ctx.shape[1],
            F=f,
            ROWS=TILE,
            TILES=tiles,
            DENSE=dense is not None,
            GATHER=at_nodes is not None,
            num_warps=1,
        )
        grad_x = (slopes @ weight).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return grad_x, slopes.mT @ x, _total(columns, weight.dtype), None


class _FirstLayer(torch.autograd.Function):
    """The first layer of phi_e: the sum of the contributions of nodes, windows and edges."""

    @staticmethod
    def forward(
        ctx: Any, base: Tensor | None, at_nodes: Tensor, at_windows: Tensor, column: Tensor, graph: Edges
    ) -> Tensor:
        b, f, e = at_nodes.shape[1], at_nodes.shape[2] // 2, len(graph.weights)
        x = at_nodes.new_empty(e, b, f)
        kernels.first_layer[(-(-e * b // GATHERED),)](
            x if base is None else base,
            at_nodes,
            at_windows,
            graph.weights,
            column.contiguous(),
            graph.receivers.node,
            graph.senders.node,
            x,
            e * b,
            b,
            f if len(at_windows) > 1 else 0,
            F=f,
            ROWS=GATHERED,
            BASE=base is not None,
            num_warps=2,
        )
        ctx.save_for_backward(x)
        ctx.graph, ctx.windows, ctx.base = graph, len(at_windows), base is not None
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,), graph = ctx.saved_tensors, ctx.graph
        (_, b, f), n = x.shape, len(graph.receivers.offsets) - 1
        slopes, at_nodes = torch.empty_like(x), x.new_empty(n, b, 2 * f)
        grid = (n, -(-b // WINDOWS))
        columns = x.new_empty(n * grid[1], 2 * f, dtype=torch.float32)
        kernels.undo_first_layer[grid](
            grads[0].contiguous(),
            x,
            graph.weights,
            graph.receivers.order,
            graph.receivers.offsets,
            slopes,
            at_nodes,
            columns,
            b,
            2 * f,
            F=f,
            WINDOWS=WINDOWS,
            num_warps=2,
        )
        _segment_sum(slopes, graph.senders, at_nodes[..., f:])
        column, at_windows = _total(columns, x.dtype).view(2, f)
        at_windows = _sum_over_first(at_nodes, f) if ctx.windows > 1 else at_windows[None]
        return slopes if ctx.base else None, at_nodes, at_windows, column, None


class _Summed(torch.autograd.Function):
    """The sum over the edges of each node."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ends: Incidence) -> Tensor:
        ctx.ends = ends
        return _segment_sum(x.contiguous(), ends)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].index_select(0, ctx.ends.node), None


def summed(x: Tensor, ends: Incidence) -> Tensor:
    """The sum over the edges of each node: (e b f) -> (n b f)."""
    out: Tensor = _Summed.apply(x, ends)
    return out


class _OverNodes(torch.autograd.Function):
    """The sum over all nodes: (n b f) -> (1 b f)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.nodes = len(x)
        return _sum_over_first(x.contiguous(), x.shape[-1])[None]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].expand(ctx.nodes, -1, -1)


def _over_nodes(x: Tensor) -> Tensor:
    out: Tensor = _OverNodes.apply(x)
    return out


class _AtEveryNode(torch.autograd.Function):
    """The same at all nodes: (1 b f) -> (n b f); copied, because concatenating is slow otherwise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, nodes: int) -> Tensor:
        return x.expand(nodes, -1, -1).contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad, (_, b, f) = grads[0], grads[0].shape
        between = grad.stride(1)  # more than f in a part of what was concatenated
        if grad.stride() != (b * between, between, 1):
            grad = grad.contiguous()
        return _sum_over_first(grad, f)[None], None


def _at_every_node(x: Tensor, nodes: int) -> Tensor:
    out: Tensor = _AtEveryNode.apply(x, nodes)
    return out


def _sum_over_first(x: Tensor, f: int) -> Tensor:
    """(n b .) -> (b f): the sum of the first f columns over n; PyTorch takes three times as long."""
    (n, b, _), out = x.shape, x.new_empty(x.shape[1], f)
    kernels.sum_over_first[(b, -(-f // 32))](x, out, n, b, x.stride(1), F=f, COLUMNS=32, ROWS=64)
    return out


def _total(columns: Tensor, dtype: torch.dtype) -> Tensor:
    """(r f) -> (f,): the sum of what programs have summed up each for itself."""
    (r, f), out = columns.shape, columns.new_empty(columns.shape[1], dtype=dtype)
    kernels.sum_over_first[(1, -(-f // 8))](
        columns, out, r, 1, f, F=f, COLUMNS=8, ROWS=min(512, _padded(r)), num_warps=8
    )
    return out


def _segment_sum(x: Tensor, ends: Incidence, out: Tensor | None = None) -> Tensor:
    (_, b, f), n = x.shape, len(ends.offsets) - 1
    out = x.new_empty(n, b, f) if out is None else out
    kernels.segment_sum[(n, -(-b // WINDOWS))](
        x, ends.order, ends.offsets, out, b, out.stride(1), F=f, WINDOWS=WINDOWS, num_warps=8
    )
    return out
