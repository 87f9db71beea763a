"""One step of Adam in one pass over weights, gradients and moments."""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _adam(
    w, grad, mean, square, steps, moving, lr, size, grad_m, grad_row, WIDTH: tl.constexpr,
    beta_1: tl.constexpr, beta_2: tl.constexpr, eps: tl.constexpr,
    log_1: tl.constexpr, log_2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, at = column < size, m * size + column
    count, moves = tl.maximum(tl.load(steps + m), 1.0), tl.load(moving + m)
    rate = (moves * tl.load(lr) / (1 - tl.exp(count * log_1))).to(tl.float32)
    root = tl.sqrt(1 - tl.exp(count * log_2)).to(tl.float32)
    new_1, new_2 = ((1 - beta_1) * moves).to(tl.float32), ((1 - beta_2) * moves).to(tl.float32)
    from_grad = at
    if WIDTH:
        from_grad = m * grad_m + column // WIDTH * grad_row + column % WIDTH
    g = tl.load(grad + from_grad, mask=inside, other=0.0)
    a = tl.load(mean + at, mask=inside, other=0.0)
    b = tl.load(square + at, mask=inside, other=0.0)
    a += new_1 * (g - a)
    b += new_2 * (g * g - b)
    tl.store(mean + at, a, mask=inside)
    tl.store(square + at, b, mask=inside)
    weight = tl.load(w + at, mask=inside, other=0.0)
    tl.store(w + at, weight - a / (tl.sqrt(b) / root + eps) * rate, mask=inside)


def adam_step(
    w: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    steps: Tensor,
    moving: Tensor,
    lr: Tensor,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Update w (m, ...) in place; `steps` and `moving` (m,) and the learning rate () are float64.

    The learning rate is read from memory: as a constant, it would recompile the kernel whenever it changes.
    """
    size = w[0].numel()
    rows = _in_rows(grad)
    _adam[(len(w), triton.cdiv(size, BLOCK))](
        w,
        grad.contiguous() if rows is None else rows,
        mean,
        square,
        steps,
        moving,
        lr,
        size,
        *((0, 0) if rows is None else rows.stride()[:2]),
        WIDTH=0 if rows is None else rows.shape[2],
        beta_1=betas[0],
        beta_2=betas[1],
        eps=eps,
        log_1=math.log(betas[0]),
        log_2=math.log(betas[1]),
        BLOCK=BLOCK,
    )


def _in_rows(grad: Tensor) -> Tensor | None:
    """(m a b) that the kernel can read as it is; None if it can only read a contiguous copy.

    The gradients of a GRU are parts of a larger product, and copying them would take half as long as Adam.
    """
    rows = grad.unsqueeze(2) if grad.dim() == 2 else grad
    return None if grad.is_contiguous() or rows.dim() != 3 or rows.stride(2) != 1 else rows
