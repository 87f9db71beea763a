"""The GRU kernels as differentiable functions: what `NodeModel` calls where they are available and faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cnfgnn.models.kernels import gru

ENCODER = 16  # sequences a program of the encoder takes; see `_block` for the decoder's


class Weights(NamedTuple):
    """The weights of one GRU layer: (m 3h d), (m 3h h), (m 3h), (m 3h)."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor

    @classmethod
    def of(cls, theta: Mapping[str, Tensor], prefix: str) -> Weights:
        return cls(*(theta[f"{prefix}.{name}"] for name in cls._fields))


class Fed(NamedTuple):
    """The truth (m b t) that is fed where `where` (m b t, any of them 1 wide) says so."""

    truth: Tensor
    where: Tensor


def encode(x: Tensor, cell: Weights) -> Tensor:
    """The last state of a GRU over the frames x: (m b t 2) -> (m b h)."""
    save = torch.is_grad_enabled() and any(w.requires_grad for w in cell)
    state: Tensor = _Encode.apply(x, *cell, save)
    return state


def decode(
    start: Tensor, value: Tensor, clock: Tensor, fed: Fed | None, cell: Weights, output: tuple[Tensor, Tensor]
) -> Tensor:
    """Forecasts of a GRU that is fed its own: (m b h), (m b), (m b t) -> (m b t)."""
    save = torch.is_grad_enabled() and (start.requires_grad or cell.weight_hh.requires_grad)
    y_hat: Tensor = _Decode.apply(start, *cell, *output, value, clock, fed, save)
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
        gru.encode_forward[_grid(m, b, ENCODER)](
            *(x, *cell, states, gates, final, b, *x.stride()),
            **{
                "T": t,
                "H": h,
                "BLOCK": ENCODER,
                "SAVE": save,
                "exact": "ieee",
                "num_warps": 8,
                "num_stages": 1,
            },
        )
        ctx.save_for_backward(w_hh, states, gates)
        return final

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        w_hh, states, gates = ctx.saved_tensors
        m, t, b, _ = states.shape
        h = w_hh.shape[-1]
        gru.encode_backward[_grid(m, b, ENCODER)](
            *(grads[0].contiguous(), w_hh.contiguous(), states, gates, b),
            **{"T": t, "H": h, "BLOCK": ENCODER, "exact": "ieee", "num_warps": 4, "num_stages": 3},
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
        block = _block(m, b)
        truth, where, strides = _fed(fed, y_hat)
        gru.decode_forward[_grid(m, b, block)](
            *(start.contiguous(), value.contiguous(), clock.contiguous(), where, truth),
            *(*weights, b_out.contiguous(), states, gates, y_hat, b, *strides),
            **{"T": t, "H": h, "BLOCK": block, "SAVE": save, "FED": fed is not None},
            **{"exact": "ieee", "num_warps": 8, "num_stages": 1},
        )
        ctx.save_for_backward(w_ih, w_hh, w_out, states, gates, where)
        ctx.fed, ctx.strides, ctx.learn = fed is not None, strides, w_hh.requires_grad
        return y_hat

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *weights, states, gates, where = ctx.saved_tensors
        (m, t, b, _), h = gates.shape, weights[1].shape[-1]
        block = _block(m, b)
        grid = _grid(m, b, block)
        grad_start = grads[0].new_empty(m, b, h)
        rows = grads[0].new_empty(m, grid[0] // m, h + 1)  # of the output layer, one of each program
        gru.decode_backward[grid](
            *(
                grads[0].contiguous(),
                where,
                *(w.contiguous() for w in weights),
                states,
                gates,
                grad_start,
                rows,
            ),
            *(b, *ctx.strides[:2]),
            **{"T": t, "H": h, "BLOCK": block, "FED": ctx.fed, "LEARN": ctx.learn},
            **{"exact": "ieee", "num_warps": 8, "num_stages": 3},
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
    """All weights of a cell at once: one product of slopes and what they multiplied, over all steps."""
    a, b = slopes.flatten(1, 2).mT, states.flatten(1, 2)
    half = a.dtype == torch.bfloat16
    product = torch.bmm(a, b, torch.float32) if half else torch.bmm(a, b)  # (m 4h h+16)
    frames = product[..., h:]
    at_input = torch.cat([frames[:, h : 3 * h], frames[:, :h]], dim=1)  # gates r, z, n
    weight_ih = torch.stack([at_input[..., :2].sum(-1), at_input[..., 2:4].sum(-1)], dim=-1)
    return weight_ih, product[:, h:, :h], at_input[..., 4], frames[:, h:, 4]


def _fed(fed: Fed | None, like: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Truth, where it is fed, and how far apart their rows lie: (m b) of each."""
    if fed is None:
        return like, like, (0, 0, 0, 0)
    truth = fed.truth if fed.truth.stride(-1) == 1 else fed.truth.contiguous()
    where = fed.where.expand(truth.shape)
    where = (where if where.stride(-1) == 1 else where.contiguous()).view(torch.uint8)
    return truth, where, (*where.stride()[:2], *truth.stride()[:2])


def _kind(x: Tensor) -> torch.dtype:
    """The products' type; the kernels' own tests ask for float32 by leaving autocast off."""
    return torch.bfloat16 if torch.is_autocast_enabled(x.device.type) else torch.float32


def _block(m: int, b: int) -> int:
    """Sequences a program takes: 32, or fewer where that would leave most multiprocessors without work."""
    return 32 if m * -(-b // 32) >= 100 else 16


def _grid(m: int, b: int, block: int) -> tuple[int]:
    """In one dimension: of the others there may be 65,535 only."""
    return (m * -(-b // block),)
