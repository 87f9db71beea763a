"""The Graph Network by kernels: the same as `GraphNetwork.forward`, in one type and with few passes.

Two steps are in another order than in the plain version, with the same result: the first layer of phi_e is
applied to nodes, then gathered and added in one pass; and where only the sum of the edges' outputs is needed,
the last layer is applied to that sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cnfgnn.models.edges import Edges, Incidence
from cnfgnn.models.graphnet import MLP, GraphNetwork, GraphNetworkLayer, Mask
from cnfgnn.models.kernels import edges as kernels

GATHERED, SUMMED, WINDOWS = 16, 64, 4  # rows and windows that one program handles
Weights = dict[str, Tensor]


def graph_network(
    gn: GraphNetwork, weights: Iterable[Tensor], h_c: Tensor, graph: Edges, mask: Mask
) -> Tensor:
    """h_c (n b h) -> h_G (n b h) in the type of `weights`, which are given in the order of the module's."""
    w: Weights = dict(zip((name for name, _ in gn.named_parameters()), weights, strict=True))
    v, e, u = mask.nodes(h_c).to(w["output.weight"].dtype), None, None
    for number, block in enumerate(gn.blocks):
        at = {name.removeprefix(f"blocks.{number}."): x for name, x in w.items()}
        assert isinstance(block, GraphNetworkLayer)
        v_new, e, u_new = _layer(block, at, v, e, u, graph, mask, last=number + 1 == len(gn.blocks))
        v = torch.cat([v_new, v], -1)
        u = u_new if u is None or u_new is None else torch.cat([u_new, u], -1)
    return linear(v, w["output.weight"], w["output.bias"])


def _layer(
    block: GraphNetworkLayer,
    w: Weights,
    v: Tensor,
    e: list[Tensor] | None,
    u: Tensor | None,
    graph: Edges,
    mask: Mask,
    last: bool,
) -> tuple[Tensor, list[Tensor] | None, Tensor | None]:
    """One block; `e` holds the outputs of the earlier blocks, latest first, without the edge weights."""
    incoming, e_new = _edges(block.phi_e, w, v, e, u, graph, mask, last)
    nodes: Tensor | int = 1
    if block.mean:
        incoming = incoming / mask.degree(graph).clamp(min=1).to(incoming.dtype)
        nodes = mask.count(len(v))
    inputs = [incoming, v] if u is None else [incoming, v, u.expand(len(v), -1, -1)]
    v_new = mask.nodes(_rest(block.phi_v, w, "phi_v", _hidden(torch.cat(inputs, -1), w, "phi_v.layers.0")))
    u_new = None
    if block.phi_u is not None:
        sums = [incoming.sum(0, keepdim=True) / nodes, v_new.sum(0, keepdim=True) / nodes]
        if u is not None:
            sums.append(u)
        u_new = _rest(block.phi_u, w, "phi_u", _hidden(torch.cat(sums, -1), w, "phi_u.layers.0"))
    outputs = None if e_new is None else [e_new, *(e or [])]
    return v_new, outputs, u_new


def _edges(
    phi_e: MLP,
    w: Weights,
    v: Tensor,
    e: list[Tensor] | None,
    u: Tensor | None,
    graph: Edges,
    mask: Mask,
    last: bool,
) -> tuple[Tensor, Tensor | None]:
    """The sum of e' at each receiver (n b .), and e' (e b .) if another block follows."""
    first, bias = w["phi_e.layers.0.weight"], w["phi_e.layers.0.bias"]
    *of_e, of_weight, of_r, of_s, of_u = first.split(phi_e.parts, dim=1)
    base = None
    if e is not None:  # copy slices: products with rows of odd lengths are far slower
        base = linear(e[0] if len(e) == 1 else torch.cat(e, -1), torch.cat(of_e, dim=1))
    at_nodes = linear(v, torch.cat([of_r, of_s]))
    at_windows = bias[None] if u is None else linear(u[0], of_u.contiguous(), bias)
    x: Tensor = _FirstLayer.apply(base, at_nodes, at_windows, of_weight[:, 0], graph)
    out = len(phi_e.layers) - 1
    for number in range(1, out - 1):
        x = _hidden(x, w, f"phi_e.layers.{number}")
    weight, bias = _of(w, f"phi_e.layers.{out}")
    if not last:
        x = x if out == 1 else _hidden(x, w, f"phi_e.layers.{out - 1}")
        if mask.edge is not None:
            e_new = linear(x, weight, bias).masked_fill(mask.edge, 0)
            return summed(e_new, graph.receivers), e_new
        e_new, incoming = _Output.apply(x, weight, bias, graph.receivers)
        return incoming, e_new
    if mask.edge is not None:
        x = (x if out == 1 else _hidden(x, w, f"phi_e.layers.{out - 1}")).masked_fill(mask.edge, 0)
    if mask.edge is not None or out == 1:
        x = summed(x, graph.receivers)
    else:
        x = _Hidden.apply(x, *_of(w, f"phi_e.layers.{out - 1}"), graph.receivers)
    return linear(x, weight) + mask.degree(graph).to(x.dtype) * bias, None


def _rest(mlp: MLP, w: Weights, name: str, x: Tensor) -> Tensor:
    """The layers after the first."""
    for number in range(1, len(mlp.layers) - 1):
        x = _hidden(x, w, f"{name}.layers.{number}")
    return linear(x, *_of(w, f"{name}.layers.{len(mlp.layers) - 1}"))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W' + b."""
    if bias is None:
        return functional.linear(x, weight)
    y: Tensor = _Linear.apply(x, weight, bias)
    return y


def _hidden(x: Tensor, w: Weights, name: str) -> Tensor:
    y: Tensor = _Hidden.apply(x, *_of(w, name), None)
    return y


def _of(w: Weights, name: str) -> tuple[Tensor, Tensor]:
    return w[f"{name}.weight"], w[f"{name}.bias"]


class _Linear(torch.autograd.Function):
    """x W' + b with a faster gradient of the bias: PyTorch takes four times as long to sum 100,000 rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grads[0].reshape(-1, weight.shape[0]).contiguous()
        r, f = rows.shape
        columns = rows.new_empty(-(-r // SUMMED), f, dtype=torch.float32)
        padded = 1 << (f - 1).bit_length()
        kernels.column_sums[(len(columns),)](rows, columns, r, F=f, PADDED=padded, ROWS=SUMMED)
        grad_x = (rows @ weight).view_as(x) if ctx.needs_input_grad[0] else None
        return grad_x, rows.mT @ x.reshape(r, -1), columns.sum(0).to(weight.dtype)


class _Hidden(torch.autograd.Function):
    """relu(x W' + b), storing only the result; with `ends`, its sum over the edges of each node."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, ends: Incidence | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        y = torch._addmm_activation(bias, rows, weight.mT)
        ctx.save_for_backward(rows, weight, y)
        ctx.shape, ctx.ends = x.shape, ends
        y = y.view(*x.shape[:-1], -1)
        return y if ends is None else _segment_sum(y, ends)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        (r, f), slopes = y.shape, torch.empty_like(y)
        columns = y.new_empty(-(-r // SUMMED), f, dtype=torch.float32)
        receivers = y if ctx.ends is None else ctx.ends.node
        kernels.undo_relu[(len(columns),)](
            grads[0].contiguous(),
            y,
            receivers,
            slopes,
            columns,
            r,
            ctx.shape[1],
            F=f,
            ROWS=SUMMED,
            GATHER=ctx.ends is not None,
        )
        grad_x = (slopes @ weight).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return grad_x, slopes.mT @ x, columns.sum(0).to(weight.dtype), None


class _Output(torch.autograd.Function):
    """The last layer of phi_e, and the sum of its output over the edges of each node."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, ends: Incidence) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.ends = ends
        e = functional.linear(x, weight, bias)
        return e, _segment_sum(e, ends)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (e, b, f) = ctx.saved_tensors, grads[0].shape
        total = grads[0].new_empty(e * b, f)
        columns = total.new_empty(-(-e * b // SUMMED), f, dtype=torch.float32)
        kernels.add_gathered[(len(columns),)](
            grads[0].contiguous(),
            grads[1].contiguous(),
            ctx.ends.node,
            total,
            columns,
            e * b,
            b,
            F=f,
            ROWS=SUMMED,
        )
        return (total @ weight).view_as(x), total.mT @ x.flatten(0, 1), columns.sum(0).to(weight.dtype), None


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
        columns = x.new_empty(n * grid[1], f, dtype=torch.float32)
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
        at_windows = at_nodes[..., :f].sum(dim=0 if ctx.windows > 1 else (0, 1), dtype=torch.float32)
        at_windows = at_windows.view(-1, f).to(x.dtype)
        return slopes if ctx.base else None, at_nodes, at_windows, columns.sum(0).to(x.dtype), None


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


def _segment_sum(x: Tensor, ends: Incidence, out: Tensor | None = None) -> Tensor:
    (_, b, f), n = x.shape, len(ends.offsets) - 1
    out = x.new_empty(n, b, f) if out is None else out
    kernels.segment_sum[(n, -(-b // WINDOWS))](
        x, ends.order, ends.offsets, out, b, out.stride(1), F=f, WINDOWS=WINDOWS, num_warps=8
    )
    return out
