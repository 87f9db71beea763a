"""One step of a GRU layer with hand-written gradients, for the weights of m models side by side.

Automatic differentiation would store a dozen tensors per step and read each of them again. Here activations
are computed in place, and the backward pass only needs the three gates, the state and one product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cnfgnn.models.products import IS_X86, plain, transposed

ALIGNED = 4  # numbers: rows of joined weights and inputs are padded to a multiple of this, see `Cell`


class _Factors(NamedTuple):
    """The weights as the products of every step take them, laid out once for a whole sequence.

    Transposing for each step anew takes a twentieth of a round where each node has its own weights.
    """

    weight: Tensor  # (m 3h h + k), in bf16 if the large products are
    weight_t: Tensor
    weight_n_t: Tensor

    @classmethod
    def of(cls, weight: Tensor, weight_n: Tensor) -> _Factors:
        weight, weight_n = weight.detach(), weight_n.detach()
        if torch.is_autocast_enabled(weight.device.type):
            weight = weight.bfloat16()
        return cls(weight, transposed(weight), transposed(weight_n))


class Cell:
    """The weights of a layer, joined once for all steps; gate order r, z, n and biases as in torch.nn.GRU.

        h' = (1 - z) n + z h,  r and z sigmoid,  n = tanh(i_n + r h_n)

    r, z and h_n are one product with [h; x; 1], i_n is another with [x; 1]. Both inputs end with zeros,
    as many as make the rows of the first a multiple of ALIGNED, which products with them run faster with.
    """

    def __init__(self, theta: Mapping[str, Tensor], prefix: str) -> None:
        weight_ih, weight_hh, bias_ih, bias_hh = (
            theta[f"{prefix}.{name}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        size, inputs = weight_hh.shape[-1], weight_ih.shape[-1]
        zeros = -(size + inputs + 1) % ALIGNED
        of_input = torch.cat([weight_ih, bias_ih[..., None]], dim=-1)
        of_input = nn.functional.pad(of_input, (0, zeros))  # (m 3h k): k = d + 1 + zeros
        r_z = nn.functional.pad(of_input[:, : 2 * size], (0, 0, 0, size))
        bias = nn.functional.pad(bias_hh[..., None], (inputs, zeros))
        self.weight = torch.cat([weight_hh, r_z + bias], dim=-1)  # (m 3h h + k)
        self.weight_n = of_input[:, 2 * size :]  # (m h k)
        self.factors = _Factors.of(self.weight, self.weight_n)
        self.tail = nn.functional.pad(weight_hh.new_ones(1), (0, zeros))  # of every input: [1; 0 ...]

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        """(m B d), (m B h) -> (m B h)."""
        x = torch.cat([x, self.tail.expand(*x.shape[:2], -1)], dim=-1)
        if plain():
            return self._plain_step(x, h)
        new: Tensor = _Step.apply(x, h, self.weight, self.weight_n, self.factors)  # type: ignore[no-untyped-call]
        return new

    def _plain_step(self, x: Tensor, h: Tensor) -> Tensor:
        r, z, h_n = torch.bmm(torch.cat([h, x], dim=-1), self.weight.mT).chunk(3, dim=-1)
        n = torch.tanh(torch.bmm(x, self.weight_n.mT) + torch.sigmoid(r) * h_n)
        return n + torch.sigmoid(z) * (h - n)


class _Step(torch.autograd.Function):
    """One step of the layer.

    The large product runs in bf16 if its factor is in bf16. The gates, the state and the gradients of the
    weights keep their own type: the state accumulates over all steps of a window.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, weight: Tensor, weight_n: Tensor, factors: _Factors
    ) -> Tensor:
        size = h.shape[-1]
        joined = factors.weight.new_empty(*h.shape[:2], weight.shape[-1])
        joined[..., :size], joined[..., size:] = h, x
        with torch.autocast(h.device.type, enabled=False):
            gates = torch.bmm(joined, factors.weight_t).to(h.dtype)  # (m B 3h)
            n = torch.bmm(x, factors.weight_n_t)
        new = activated(gates, n, h)
        ctx.factors = factors
        ctx.save_for_backward(x, h, weight_n, joined, gates, n)
        return new

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, h, weight_n, joined, gates, n = ctx.saved_tensors
        weight = ctx.factors.weight
        (d,), size = grads, h.shape[-1]
        d_gates, d_n = gradients(d, gates, n, h)
        d_gates = d_gates.to(weight.dtype)
        d_joined = torch.bmm(d_gates, weight)
        d_h = torch.addcmul(d_joined[..., :size].to(h.dtype), d, gates[..., size : 2 * size])
        d_x = d_weight = d_weight_n = None
        if ctx.needs_input_grad[0]:
            d_x = torch.bmm(d_n, weight_n).add_(d_joined[..., size:])
        if ctx.needs_input_grad[2]:
            # transposed: with the longer side last, the product takes a fifth less time on x86
            d_weight = torch.bmm(joined.mT, d_gates).mT.to(h.dtype)
            d_weight_n = torch.bmm(d_n.mT, x)
        return d_x, d_h, d_weight, d_weight_n, None


def activated(gates: Tensor, n: Tensor, h: Tensor) -> Tensor:
    """h' (m B h) of the sums of r, z and h_n (m B 3h) and that of i_n (m B h).

    In place, r and z become the gates themselves and i_n becomes n, as `gradients` needs them.
    """
    size = h.shape[-1]
    gates[..., : 2 * size].sigmoid_()
    r, z, h_n = gates.split(size, dim=-1)
    _tanh_(n.addcmul_(r, h_n))
    return torch.lerp(n, h, z)


def gradients(d: Tensor, gates: Tensor, n: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """d loss / d the sums of r, z and h_n, and of i_n, of d = d loss / d h'."""
    aten = torch.ops.aten
    r, z, h_n = gates.split(h.shape[-1], dim=-1)
    d_gates = torch.empty_like(gates)
    d_r, d_z, d_h_n = d_gates.split(h.shape[-1], dim=-1)
    d_n = aten.tanh_backward(torch.addcmul(d, d, z, value=-1), n)
    aten.sigmoid_backward.grad_input(d_n * h_n, r, grad_input=d_r)
    aten.sigmoid_backward.grad_input((h - n).mul_(d), z, grad_input=d_z)
    torch.mul(d_n, r, out=d_h_n)
    return d_gates, d_n


def _tanh_(x: Tensor) -> Tensor:
    """tanh in place; on 64-bit ARM by the sigmoid, which takes half the time: tanh x = 2 sigmoid(2x) - 1.

    The error is that of a float near 1, whatever x is. States are sums of such numbers. On x86, where
    PyTorch's tanh is as fast as its sigmoid, it would take twice the time.
    """
    if x.is_cuda or IS_X86:
        return x.tanh_()
    x.mul_(2).sigmoid_()
    return torch.add(x.new_full((), -1), x, alpha=2, out=x)
