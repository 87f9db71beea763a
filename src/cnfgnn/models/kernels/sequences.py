"""The GRU kernels as differentiable functions, which `NodeModel` calls where they are available."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from cnfgnn.models import kernels
from cnfgnn.models.kernels import gru

WIDTHS = (16, 32, 64, kernels.WIDEST)  # widths of states that the products allow
NARROW = 64  # up to this width, four warps and 16 sequences per program are fastest in the backward pass


class Weights(NamedTuple):
    """The weights of one GRU layer: (m 3h d), (m 3h h), (m 3h), (m 3h)."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor

    @classmethod
    def of(cls, theta: Mapping[str, Tensor], prefix: str) -> Weights:
        """The weights of the layer `prefix` of a model."""
        return cls(*(theta[f"{prefix}.{name}"] for name in cls._fields))

    def widened(self, by: int) -> Weights:
        """The same layer with additional units, whose weights are zero: their states stay zero."""
        if by == 0:
            return self

        def gates(w: Tensor, pad: tuple[int, ...]) -> Tensor:
            return functional.pad(w.unflatten(1, (3, -1)), pad).flatten(1, 2)

        weight_ih, weight_hh, bias_ih, bias_hh = self
        return Weights(
            gates(weight_ih, (0, 0, 0, by)),
            gates(weight_hh, (0, by, 0, by)),
            gates(bias_ih, (0, by)),
            gates(bias_hh, (0, by)),
        )


class Fed(NamedTuple):
    """The true readings (m b t), and where to feed them: (m b t), where each size may be 1."""

    truth: Tensor
    where: Tensor


def encode(x: Tensor, cell: Weights) -> Tensor:
    """The last state of a GRU over the frames x: (m b t 2) -> (m b h)."""
    save = torch.is_grad_enabled() and any(w.requires_grad for w in cell)
    h = cell.weight_hh.shape[-1]
    state: Tensor = _Encode.apply(x, *cell.widened(_missing(h)), save)
    return state[..., :h]


def decode(
    start: Tensor, value: Tensor, clock: Tensor, fed: Fed | None, cell: Weights, output: tuple[Tensor, Tensor]
) -> Tensor:
    """Forecasts of a GRU that gets its own forecasts as input: (m b h), (m b), (m b t) -> (m b t)."""
    save = torch.is_grad_enabled() and (start.requires_grad or cell.weight_hh.requires_grad)
    by = _missing(start.shape[-1])
    start, weight = (functional.pad(x, (0, by)) if by else x for x in (start, output[0]))
    y_hat: Tensor = _Decode.apply(start, *cell.widened(by), weight, output[1], value, clock, fed, save)
    return y_hat


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, save: bool
    ) -> Tensor:
        (m, b, t, _), h = x.shape, w_hh.shape[-1]
        states = x.new_empty((m, t, b, h + gru.FRAME) if save else (1,), dtype=_kind(x))
        gates = x.new_empty((m, t, b, 4 * h) if save else (1,), dtype=_kind(x))
        final = x.new_empty(m, b, h)
        cell = [w.contiguous() for w in (w_ih, w_hh, b_ih, b_hh)]
        block = _block(m, b, h)
        gru.encode_forward[_grid(m, b, block)](
            x,
            *cell,
            states,
            gates,
            final,
            b,
            *x.stride(),
            T=t,
            H=h,
            BLOCK=block,
            SAVE=save,
            exact="ieee",
            num_warps=8,
            num_stages=1,
        )
        ctx.save_for_backward(w_hh, states, gates)
        return final

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        w_hh, states, gates = ctx.saved_tensors
        m, t, b, _ = states.shape
        h = w_hh.shape[-1]
        block, warps = _block(m, b, h), 4 if h <= NARROW else 8
        gru.encode_backward[_grid(m, b, block)](
            grads[0].contiguous(),
            w_hh.contiguous(),
            states,
            gates,
            b,
            T=t,
            H=h,
            BLOCK=block,
            exact="ieee",
            num_warps=warps,
            num_stages=3,
        )
        return None, *_weight_gradients(gates, states, h), None


class _Decode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        start: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor,
        b_hh: Tensor,
        w_out: Tensor,
        b_out: Tensor,
        value: Tensor,
        clock: Tensor,
        fed: Fed | None,
        save: bool,
    ) -> Tensor:
        (m, b, h), t = start.shape, clock.shape[-1]
        weights = [w.contiguous() for w in (w_ih, w_hh, b_ih, b_hh, w_out)]
        states = start.new_empty((m, t + 1, b, h + gru.FRAME) if save else (1,), dtype=_kind(start))
        gates = start.new_empty((m, t, b, 4 * h) if save else (1,), dtype=_kind(start))
        y_hat = start.new_empty(m, b, t)
        block = _block(m, b, h)
        truth, where, strides = _fed(fed, y_hat)
        gru.decode_forward[_grid(m, b, block)](
            start.contiguous(),
            value.contiguous(),
            clock.contiguous(),
            where,
            truth,
            *weights,
            b_out.contiguous(),
            states,
            gates,
            y_hat,
            b,
            *strides,
            T=t,
            H=h,
            BLOCK=block,
            SAVE=save,
            FED=fed is not None,
            exact="ieee",
            num_warps=8,
            num_stages=1,
        )
        ctx.save_for_backward(w_ih, w_hh, w_out, states, gates, where)
        ctx.fed, ctx.strides, ctx.learn = fed is not None, strides, w_hh.requires_grad
        return y_hat

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *weights, states, gates, where = ctx.saved_tensors
        (m, t, b, _), h = gates.shape, weights[1].shape[-1]
        block = _block(m, b, h)
        grid = _grid(m, b, block)
        grad_start = grads[0].new_empty(m, b, h)
        rows = grads[0].new_empty(m, grid[0] // m, h + 1)  # of the output layer, one per program
        gru.decode_backward[grid](
            grads[0].contiguous(),
            where,
            *(w.contiguous() for w in weights),
            states,
            gates,
            grad_start,
            rows,
            b,
            *ctx.strides[:2],
            T=t,
            H=h,
            BLOCK=block,
            FED=ctx.fed,
            LEARN=ctx.learn,
            exact="ieee",
            num_warps=8,
            num_stages=3,
        )
        if not ctx.learn:
            return grad_start, *[None] * 10
        output = rows.sum(1)
        return (
            grad_start,
            *_weight_gradients(gates, states[:, :t], h),
            output[:, None, :h],
            output[:, h:],
            *[None] * 4,
        )


def _weight_gradients(slopes: Tensor, states: Tensor, h: int) -> tuple[Tensor, ...]:
    """The gradients of all weights of a layer: one product of the gates' gradients and inputs."""
    a, b = slopes.flatten(1, 2).mT, states.flatten(1, 2)
    half = a.dtype == torch.bfloat16
    product = torch.bmm(a, b, torch.float32) if half else torch.bmm(a, b)  # (m 4h h+16)
    frames = product[..., h:]
    at_input = torch.cat([frames[:, h : 3 * h], frames[:, :h]], dim=1)  # gates r, z, n
    weight_ih = torch.stack([at_input[..., :2].sum(-1), at_input[..., 2:4].sum(-1)], dim=-1)
    return weight_ih, product[:, h:, :h], at_input[..., 4], frames[:, h:, 4]


def _fed(fed: Fed | None, like: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """The true readings, where to feed them, and the strides of the axes m and b of both."""
    if fed is None:
        return like, like, (0, 0, 0, 0)
    truth = fed.truth if fed.truth.stride(-1) == 1 else fed.truth.contiguous()
    where = fed.where.expand(truth.shape)
    where = (where if where.stride(-1) == 1 else where.contiguous()).view(torch.uint8)
    return truth, where, (*where.stride()[:2], *truth.stride()[:2])


def _missing(h: int) -> int:
    """The number of units that a state of h units lacks to the next allowed width."""
    return next(width for width in WIDTHS if width >= h) - h


def _kind(x: Tensor) -> torch.dtype:
    """The type of products; the tests of the kernels turn autocast off to get float32."""
    return torch.bfloat16 if torch.is_autocast_enabled(x.device.type) else torch.float32


def _block(m: int, b: int, h: int) -> int:
    """Sequences per program: 32, or 16 where 32 would leave most multiprocessors idle."""
    return 32 if h > NARROW and m * -(-b // 32) >= 100 else 16


def _grid(m: int, b: int, block: int) -> tuple[int]:
    """The grid has one dimension, because the others are limited to 65,535 programs."""
    return (m * -(-b // block),)
