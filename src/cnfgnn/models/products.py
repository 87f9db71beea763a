"""Batched products, one for each node's own weights, that are fast on every processor."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
_plain: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def plain_operations() -> Iterator[None]:
    """Inside, models use PyTorch's own operations only: slower, but with derivatives of every order."""
    before = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(before)


def plain() -> bool:
    """Whether only PyTorch's own operations may be used."""
    return _plain.get()


def transposed(x: Tensor) -> Tensor:
    """(m i j) -> (m j i), copied if m > 1: on 64-bit ARM, a batched product whose second factor is a
    transposed view takes ten times as long as one with a copy, or longer. A first factor may be a view."""
    return x.mT.contiguous() if len(x) > 1 and not x.is_cuda else x.mT


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(m B i), (m o i), (m o) -> (m B o)."""
    if x.is_cuda or len(x) == 1 or plain():
        return torch.baddbmm(bias[:, None], x, weight.mT)
    y: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return y


class _Linear(torch.autograd.Function):
    """The gradients of a product need transposed factors, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias[:, None], x, transposed(weight))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        d_x = d_weight = d_bias = None
        if ctx.needs_input_grad[0]:
            d_x = torch.bmm(grad, weight)
        if ctx.needs_input_grad[1]:
            d_weight = torch.bmm(grad.mT, x)
        if ctx.needs_input_grad[2]:
            d_bias = grad.sum(dim=1)
        return d_x, d_weight, d_bias
