"""Operations on edges in one pass each: gather from nodes and add, sum into nodes, backward through a ReLU.

Rows are (edge, window) or (node, window) pairs, with windows varying fastest. Sums are taken in float32 and
in a fixed order, so that runs are reproducible bit for bit.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def first_layer(
    base, at_nodes, at_windows, weights, column, receivers, senders, out,
    R, b, window_stride,
    F: tl.constexpr, ROWS: tl.constexpr, BASE: tl.constexpr,
):  # fmt: skip
    """out (e b f) = relu(base + at_nodes[receiver, :f] + at_nodes[sender, f:] + at_windows + weight c)."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    inside, unit = rows < R, tl.arange(0, F)[None, :]
    edge, window = rows // b, rows % b
    receiver = tl.load(receivers + edge, mask=inside, other=0)
    sender = tl.load(senders + edge, mask=inside, other=0)
    weight = tl.load(weights + edge, mask=inside, other=0.0).to(tl.float32)
    inside = inside[:, None]
    at = (receiver * b + window)[:, None] * (2 * F) + unit
    x = tl.load(at_nodes + at, mask=inside, other=0.0).to(tl.float32)
    at = (sender * b + window)[:, None] * (2 * F) + F + unit
    x += tl.load(at_nodes + at, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(at_windows + (window * window_stride)[:, None] + unit, mask=inside, other=0.0).to(tl.float32)
    x += weight[:, None] * tl.load(column + unit).to(tl.float32)
    if BASE:
        x += tl.load(base + rows[:, None] * F + unit, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + rows[:, None] * F + unit, tl.maximum(x, 0.0).to(out.dtype.element_ty), mask=inside)


@triton.jit
def segment_sum(
    x, order, offsets, out, b, out_stride,
    F: tl.constexpr, WINDOWS: tl.constexpr,
):  # fmt: skip
    """out (n b .)[:f] = the sum of x (e b f) over the edges of each node."""
    node = tl.program_id(0).to(tl.int64)
    window = tl.program_id(1) * WINDOWS + tl.arange(0, WINDOWS)
    inside, unit = (window < b)[:, None], tl.arange(0, F)[None, :]
    begin, end = tl.load(offsets + node), tl.load(offsets + node + 1)
    total = tl.zeros((WINDOWS, F), tl.float32)
    for position in range(begin, end):
        edge = tl.load(order + position)
        total += tl.load(x + (edge * b + window)[:, None] * F + unit, mask=inside, other=0.0).to(tl.float32)
    at = out + (node * b + window)[:, None] * out_stride + unit
    tl.store(at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def undo_first_layer(
    grad, y, weights, order, offsets, slopes, out, columns, b, out_stride,
    F: tl.constexpr, WINDOWS: tl.constexpr,
):  # fmt: skip
    """slopes (e b f) = grad where y > 0, else 0; out = their sum over the edges of each node.

    Each program also writes a row (2f) with its sums of weight * slope and of slope.
    """
    node = tl.program_id(0).to(tl.int64)
    window = tl.program_id(1) * WINDOWS + tl.arange(0, WINDOWS)
    inside, unit = (window < b)[:, None], tl.arange(0, F)[None, :]
    begin, end = tl.load(offsets + node), tl.load(offsets + node + 1)
    total = tl.zeros((WINDOWS, F), tl.float32)
    weighted = tl.zeros((WINDOWS, F), tl.float32)
    for position in range(begin, end):
        edge = tl.load(order + position)
        at = (edge * b + window)[:, None] * F + unit
        slope = tl.load(grad + at, mask=inside, other=0.0)
        slope = tl.where(tl.load(y + at, mask=inside, other=0.0) > 0, slope, 0.0)
        tl.store(slopes + at, slope, mask=inside)
        total += slope.to(tl.float32)
        weighted += tl.load(weights + edge).to(tl.float32) * slope.to(tl.float32)
    at = out + (node * b + window)[:, None] * out_stride + unit
    tl.store(at, total.to(out.dtype.element_ty), mask=inside)
    row = columns + (node * tl.num_programs(1) + tl.program_id(1)) * (2 * F) + tl.arange(0, F)
    tl.store(row, tl.sum(weighted, axis=0))
    tl.store(row + F, tl.sum(total, axis=0))


@triton.jit
def undo_relu(
    grad, at_nodes, y, receivers, slopes, columns, R, b,
    F: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, DENSE: tl.constexpr, GATHER: tl.constexpr,
):  # fmt: skip
    """slopes (r f) = grad where y > 0, else 0; each program also writes a row (f) with their sum.

    With GATHER, an edge also gets the gradient of the sum at its receiver, `at_nodes` (n b f). Without DENSE
    it has no other.
    """
    unit = tl.arange(0, F)[None, :]
    total = tl.zeros((ROWS, F), tl.float32)
    for tile in range(TILES):
        rows = ((tl.program_id(0) * TILES + tile) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        within, at = rows < R, rows[:, None] * F + unit
        inside = within[:, None]
        slope = tl.zeros((ROWS, F), tl.float32)
        if DENSE:
            slope += tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        if GATHER:
            came = tl.load(receivers + rows // b, mask=within, other=0) * b + rows % b
            slope += tl.load(at_nodes + came[:, None] * F + unit, mask=inside, other=0.0).to(tl.float32)
        slope = tl.where(tl.load(y + at, mask=inside, other=0.0) > 0, slope, 0.0)
        tl.store(slopes + at, slope.to(slopes.dtype.element_ty), mask=inside)
        total += slope
    tl.store(columns + tl.program_id(0) * F + tl.arange(0, F), tl.sum(total, axis=0))


@triton.jit
def sum_over_first(
    x, out, n, b, row_stride,
    F: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """out (b f) = the sum of x (n b .)[:f] over n; a program takes one b and some columns."""
    window, unit = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)  # summed up once at the end: its threads need not wait
    for begin in range(0, n, ROWS):
        node = (begin + tl.arange(0, ROWS)).to(tl.int64)
        inside = (node < n)[:, None] & (unit < F)[None, :]
        at = (node * b + window)[:, None] * row_stride + unit[None, :]
        total += tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + window * F + unit, tl.sum(total, axis=0).to(out.dtype.element_ty), mask=unit < F)


@triton.jit
def column_sums(
    x, times, columns, R, b, row_stride, t_n, t_b,
    F: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    """Each program writes a row (f) with the sum of its rows of x (r f); f is padded to a power of two.

    With TIMES, each row is multiplied by the number of its node and window in `times` (n b).
    """
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    within, unit = rows < R, tl.arange(0, PADDED)
    inside = within[:, None] & (unit < F)[None, :]
    values = tl.load(x + rows[:, None] * row_stride + unit[None, :], mask=inside, other=0.0).to(tl.float32)
    if TIMES:
        number = tl.load(times + rows // b * t_n + rows % b * t_b, mask=within, other=0.0).to(tl.float32)
        values *= number[:, None]
    tl.store(columns + tl.program_id(0) * F + unit, tl.sum(values, axis=0), mask=unit < F)


@triton.jit
def add_times(
    y, times, bias, R, b, t_n, t_b,
    F: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """y (r f) += times (n b) bias (f), in place."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    within, unit = rows < R, tl.arange(0, PADDED)
    inside = within[:, None] & (unit < F)[None, :]
    number = tl.load(times + rows // b * t_n + rows % b * t_b, mask=within, other=0.0).to(tl.float32)
    add = number[:, None] * tl.load(bias + unit, mask=unit < F, other=0.0).to(tl.float32)[None, :]
    at = y + rows[:, None] * F + unit[None, :]
    total = tl.load(at, mask=inside, other=0.0).to(tl.float32) + add
    tl.store(at, total.to(y.dtype.element_ty), mask=inside)
