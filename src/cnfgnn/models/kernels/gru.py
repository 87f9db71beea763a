"""GRU sequences in one launch: a program keeps a model's weights and the states of some sequences on chip.

Each kernel runs over all steps; `cnfgnn.models.gru` is the plain version that it is tested against. Products
have the type of the `states` buffer (bf16 on a GPU), states and gates are float32.

The two features of an input frame and the biases also go through products, as 16 more columns of the state:
the value and the time of day, each split into its rounded part and the remainder, and two ones for a bias and
its remainder. So their contribution has the precision of float32 although the products have not.

    states  (m t b h+16)  for each step: the state before it | its frame
    gates   (m t b 4h)    for each step: n, r, z and the contribution of the state to n. The backward pass
                          replaces each by its gradient before the activation: of n with respect to the input,
                          of r, of z, and of n with respect to the state
"""

from __future__ import annotations

import triton
import triton.language as tl

FRAME = 16  # columns of a frame: the smallest size of a product


@triton.jit
def _place(B, BLOCK: tl.constexpr):
    """The model of this program, and its sequences: (BLOCK,)."""
    tiles = tl.cdiv(B, BLOCK)
    m, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    return m.to(tl.int64), (tile * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)


@triton.jit
def _tanh(x, quick: tl.constexpr):
    """With `quick`, the processor's own approximation, whose error is a quarter of bf16's rounding."""
    if quick:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _sigmoid(x, quick: tl.constexpr):
    if quick:
        return 0.5 + 0.5 * _tanh(0.5 * x, True)
    return tl.sigmoid(x)


@triton.jit
def _frame(value, clock, kind: tl.constexpr):
    """(b,), (b,) -> (b 16): what the weights of `_at_input` and `_at_bias` expect."""
    column = tl.arange(0, 16)[None, :]
    near, near_clock = value.to(kind).to(tl.float32), clock.to(kind).to(tl.float32)
    frame = tl.where(column == 0, near[:, None], tl.where(column == 1, (value - near)[:, None], 0.0))
    frame = tl.where(column == 2, near_clock[:, None], frame)
    frame = tl.where(column == 3, (clock - near_clock)[:, None], frame)
    return tl.where((column == 4) | (column == 5), 1.0, frame).to(kind)


@triton.jit
def _at_bias(bias, frame, kind: tl.constexpr):
    """(16 h): the weights `frame` of a frame, with a bias (h,) in the rows that are multiplied by ones."""
    row = tl.arange(0, 16)[:, None]
    near = bias.to(kind).to(tl.float32)
    frame = tl.where(row == 4, near[None, :], frame)
    return tl.where(row == 5, (bias - near)[None, :], frame).to(kind)


@triton.jit
def _at_input(w_ih, bias, gate: tl.constexpr, H: tl.constexpr, kind: tl.constexpr):
    """(16 h): the input weights of a gate and its bias."""
    row, unit = tl.arange(0, 16)[:, None], tl.arange(0, H)[None, :]
    weights = tl.load(w_ih + (gate * H + unit) * 2 + row // 2, mask=row < 4, other=0.0)
    return _at_bias(bias, weights, kind)


@triton.jit
def _bias(b, gate: tl.constexpr, H: tl.constexpr):
    return tl.load(b + gate * H + tl.arange(0, H))


@triton.jit
def _at_state(w_hh, gate: tl.constexpr, H: tl.constexpr, kind: tl.constexpr):
    """(h h): the state weights of a gate, one row per unit of the new state."""
    return tl.load(w_hh + (gate * H + tl.arange(0, H)[:, None]) * H + tl.arange(0, H)[None, :]).to(kind)


@triton.jit
def _of_state(w_hh, H: tl.constexpr, kind: tl.constexpr):
    """The state weights of r, z and n."""
    return _at_state(w_hh, 0, H, kind), _at_state(w_hh, 1, H, kind), _at_state(w_hh, 2, H, kind)


@triton.jit
def _of_frame(w_ih, b_ih, b_hh, H: tl.constexpr, kind: tl.constexpr):
    """The weights of a frame for r, z, n and the state's contribution to n, which gets only a bias."""
    X_r = _at_input(w_ih, _bias(b_ih, 0, H) + _bias(b_hh, 0, H), 0, H, kind)
    X_z = _at_input(w_ih, _bias(b_ih, 1, H) + _bias(b_hh, 1, H), 1, H, kind)
    X_n = _at_input(w_ih, _bias(b_ih, 2, H), 2, H, kind)
    X_h = _at_bias(_bias(b_hh, 2, H), tl.zeros((16, H), tl.float32), kind)
    return X_r, X_z, X_n, X_h


@triton.jit
def _gates(h, frame, W_r, W_z, W_n, X_r, X_z, X_n, X_h, exact: tl.constexpr):
    """r, z, n and the state's contribution to n; state (b h) and frame (b 16) have the products' type."""
    quick: tl.constexpr = h.dtype == tl.bfloat16
    r = tl.dot(h, tl.trans(W_r), tl.dot(frame, X_r, input_precision=exact), input_precision=exact)
    z = tl.dot(h, tl.trans(W_z), tl.dot(frame, X_z, input_precision=exact), input_precision=exact)
    r, z = _sigmoid(r, quick), _sigmoid(z, quick)
    from_state = tl.dot(h, tl.trans(W_n), tl.dot(frame, X_h, input_precision=exact), input_precision=exact)
    n = _tanh(tl.dot(frame, X_n, input_precision=exact) + r * from_state, quick)
    return r, z, n, from_state


@triton.jit
def encode_forward(
    x, w_ih, w_hh, b_ih, b_hh, states, gates, final,
    B, x_m, x_b, x_t, x_d,
    T: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr, SAVE: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    """The last state (m b h) from frames x (m b t 2), starting at zero."""
    kind: tl.constexpr = states.dtype.element_ty
    W: tl.constexpr = H + 16
    m, rows = _place(B, BLOCK)
    inside, unit = rows < B, tl.arange(0, H)[None, :]
    W_r, W_z, W_n = _of_state(w_hh + m * 3 * H * H, H, kind)
    X_r, X_z, X_n, X_h = _of_frame(w_ih + m * 6 * H, b_ih + m * 3 * H, b_hh + m * 3 * H, H, kind)
    h = tl.zeros((BLOCK, H), tl.float32)
    x += m * x_m + rows * x_b
    for t in range(T):
        value = tl.load(x + t * x_t, mask=inside, other=0.0).to(tl.float32)
        clock = tl.load(x + t * x_t + x_d, mask=inside, other=0.0).to(tl.float32)
        frame, before = _frame(value, clock, kind), h.to(kind)
        if SAVE:
            at = states + ((m * T + t) * B + rows[:, None]) * W
            tl.store(at + unit, before, mask=inside[:, None])
            tl.store(at + H + tl.arange(0, 16)[None, :], frame, mask=inside[:, None])
        r, z, n, from_state = _gates(before, frame, W_r, W_z, W_n, X_r, X_z, X_n, X_h, exact)
        if SAVE:
            _keep(gates + ((m * T + t) * B + rows[:, None]) * 4 * H + unit, n, r, z, from_state, inside, H)
        h = n + z * (h - n)
    tl.store(final + (m * B + rows[:, None]) * H + unit, h, mask=inside[:, None])


@triton.jit
def decode_forward(
    start, value, clock, fed, truth, w_ih, w_hh, b_ih, b_hh, w_out, b_out, states, gates, y_hat,
    B, f_m, f_b, y_m, y_b,
    T: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr, SAVE: tl.constexpr, FED: tl.constexpr,
    exact: tl.constexpr,
):  # fmt: skip
    """Forecasts (m b t) from a state (m b h) and the last reading (m b).

    Each step gets the previous forecast as its input, or the truth (m b t) where `fed` (m b t) is set.
    `clock` (m b t) is the second feature of each frame.
    """
    kind: tl.constexpr = states.dtype.element_ty
    W: tl.constexpr = H + 16
    m, rows = _place(B, BLOCK)
    inside, unit = rows < B, tl.arange(0, H)[None, :]
    W_r, W_z, W_n = _of_state(w_hh + m * 3 * H * H, H, kind)
    X_r, X_z, X_n, X_h = _of_frame(w_ih + m * 6 * H, b_ih + m * 3 * H, b_hh + m * 3 * H, H, kind)
    bias = tl.load(b_out + m)
    w_out += m * H
    sequence = m * B + rows
    h = tl.load(start + sequence[:, None] * H + unit, mask=inside[:, None], other=0.0).to(tl.float32)
    last = tl.load(value + sequence, mask=inside, other=0.0).to(tl.float32)
    for t in range(T):
        if FED:  # noqa: SIM102 - the first is known at compile time, the second at run time
            if t > 0:
                true = tl.load(truth + m * y_m + rows * y_b + t - 1, mask=inside, other=0.0).to(tl.float32)
                is_fed = tl.load(fed + m * f_m + rows * f_b + t, mask=inside, other=0)
                last = tl.where(is_fed != 0, true, last)
        time = tl.load(clock + sequence * T + t, mask=inside, other=0.0).to(tl.float32)
        frame, before = _frame(last, time, kind), h.to(kind)
        if SAVE:
            at = states + ((m * (T + 1) + t) * B + rows[:, None]) * W
            tl.store(at + unit, before, mask=inside[:, None])
            tl.store(at + H + tl.arange(0, 16)[None, :], frame, mask=inside[:, None])
        r, z, n, from_state = _gates(before, frame, W_r, W_z, W_n, X_r, X_z, X_n, X_h, exact)
        if SAVE:
            _keep(gates + ((m * T + t) * B + rows[:, None]) * 4 * H + unit, n, r, z, from_state, inside, H)
        h = n + z * (h - n)
        last = tl.sum(h * tl.load(w_out + unit), axis=1) + bias
        tl.store(y_hat + sequence * T + t, last, mask=inside)
    if SAVE:
        at = states + ((m * (T + 1) + T) * B + rows[:, None]) * W
        tl.store(at + unit, h.to(kind), mask=inside[:, None])


@triton.jit
def _keep(at, n, r, z, from_state, inside, H: tl.constexpr):
    """Store four blocks side by side, in the type of the buffer."""
    kind: tl.constexpr = at.dtype.element_ty
    tl.store(at, n.to(kind), mask=inside[:, None])
    tl.store(at + H, r.to(kind), mask=inside[:, None])
    tl.store(at + 2 * H, z.to(kind), mask=inside[:, None])
    tl.store(at + 3 * H, from_state.to(kind), mask=inside[:, None])


@triton.jit
def _slopes(g, h, at, inside, H: tl.constexpr):
    """The gradients of the gates, and the part of g that passes directly to the previous state.

    g is d loss / d new state (b h), h the previous state, and the gates are stored at `at`. The gradients are
    those of n with respect to the input, of r, of z, and of n with respect to the state.
    """
    n = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(at + H, mask=inside, other=0.0).to(tl.float32)
    z = tl.load(at + 2 * H, mask=inside, other=0.0).to(tl.float32)
    from_state = tl.load(at + 3 * H, mask=inside, other=0.0).to(tl.float32)
    d_z = g * (h.to(tl.float32) - n) * z * (1 - z)
    d_n = g * (1 - z) * (1 - n * n)
    return d_n, d_n * from_state * r * (1 - r), d_z, d_n * r, g * z


@triton.jit
def _through(g, d_r, d_z, d_h, W_r, W_z, W_n, exact: tl.constexpr):
    """d loss / d previous state: g, plus the gradients through the products of the state."""
    kind: tl.constexpr = W_r.dtype
    g = tl.dot(d_r.to(kind), W_r, g, input_precision=exact)
    g = tl.dot(d_z.to(kind), W_z, g, input_precision=exact)
    return tl.dot(d_h.to(kind), W_n, g, input_precision=exact)


@triton.jit
def encode_backward(
    grad, w_hh, states, gates, B,
    T: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    """From d loss / d last state (m b h) to the gradients of all gates."""
    kind: tl.constexpr = states.dtype.element_ty
    m, rows = _place(B, BLOCK)
    within, unit = rows < B, tl.arange(0, H)[None, :]
    inside = within[:, None]
    W_r, W_z, W_n = _of_state(w_hh + m * 3 * H * H, H, kind)
    g = tl.load(grad + (m * B + rows[:, None]) * H + unit, mask=inside, other=0.0).to(tl.float32)
    for back in range(T):
        step = (m * T + T - 1 - back) * B + rows[:, None]
        h = tl.load(states + step * (H + 16) + unit, mask=inside, other=0.0)
        at = gates + step * 4 * H + unit
        d_n, d_r, d_z, d_h, g = _slopes(g, h, at, inside, H)
        _keep(at, d_n, d_r, d_z, d_h, within, H)
        g = _through(g, d_r, d_z, d_h, W_r, W_z, W_n, exact)


@triton.jit
def decode_backward(
    grad_y, fed, w_ih, w_hh, w_out, states, gates, grad_start, grad_out,
    B, f_m, f_b,
    T: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr, FED: tl.constexpr, LEARN: tl.constexpr,
    exact: tl.constexpr,
):  # fmt: skip
    """From d loss / d forecast (m b t) to the gradient of the initial state (m b h).

    With LEARN also the gradients of all gates, and for the output layer one row (h+1) per program.
    """
    kind: tl.constexpr = states.dtype.element_ty
    m, rows = _place(B, BLOCK)
    within, unit = rows < B, tl.arange(0, H)[None, :]
    inside = within[:, None]
    W_r, W_z, W_n = _of_state(w_hh + m * 3 * H * H, H, kind)
    at_value = w_ih + m * 6 * H + 2 * unit  # the weights of the reading in a frame, gate after gate
    w_out += m * H
    sequence = m * B + rows
    g = tl.zeros((BLOCK, H), tl.float32)
    to_value = tl.zeros((BLOCK,), tl.float32)  # gradient of this forecast through the next step
    of_output = tl.zeros((BLOCK, H), tl.float32)
    of_bias = tl.zeros((BLOCK,), tl.float32)
    for back in range(T):
        t = T - 1 - back
        slope = tl.load(grad_y + sequence * T + t, mask=within, other=0.0).to(tl.float32) + to_value
        before = states + ((m * (T + 1) + t) * B + rows[:, None]) * (H + 16) + unit
        if LEARN:
            after = tl.load(before + B * (H + 16), mask=inside, other=0.0).to(tl.float32)
            of_output += slope[:, None] * after
            of_bias += slope
        g += slope[:, None] * tl.load(w_out + unit)
        at = gates + ((m * T + t) * B + rows[:, None]) * 4 * H + unit
        d_n, d_r, d_z, d_h, g = _slopes(g, tl.load(before, mask=inside, other=0.0), at, inside, H)
        if LEARN:
            _keep(at, d_n, d_r, d_z, d_h, within, H)
        to_input = d_r * tl.load(at_value) + d_z * tl.load(at_value + 2 * H) + d_n * tl.load(at_value + 4 * H)
        to_value = tl.sum(to_input, axis=1)
        if FED:
            is_fed = tl.load(fed + m * f_m + rows * f_b + t, mask=within, other=0)
            to_value = tl.where(is_fed != 0, 0.0, to_value)
        g = _through(g, d_r, d_z, d_h, W_r, W_z, W_n, exact)
    tl.store(grad_start + sequence[:, None] * H + unit, g, mask=inside)
    if LEARN:
        row = grad_out + tl.program_id(0) * (H + 1)
        tl.store(row + tl.arange(0, H), tl.sum(of_output, axis=0))
        tl.store(row + H, tl.sum(of_bias, axis=0))
