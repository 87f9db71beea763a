"""Products for weights of several nodes are those of PyTorch, with the same gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cnfgnn.models.products import linear, plain_operations, transposed

SIZES = [(1, 6, 4, 3), (5, 6, 4, 3)]


def factors(m: int, b: int, i: int, o: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    shapes = ((m, b, i), (m, o, i), (m, o))
    return [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("size", SIZES)
def test_a_product_and_its_gradients_are_those_of_pytorch(size: tuple[int, int, int, int]) -> None:
    x, weight, bias = factors(*size)
    expected = x @ weight.mT + bias[:, None]
    found = linear(x, weight, bias)
    torch.testing.assert_close(found, expected)
    along = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, [x, weight, bias], along),
        torch.autograd.grad(expected, [x, weight, bias], along),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_only_the_gradients_that_are_needed_are_computed() -> None:
    x, weight, bias = factors(*SIZES[1])
    (grad,) = torch.autograd.grad(linear(x.detach(), weight, bias.detach()).sum(), weight)
    torch.testing.assert_close(grad, x.detach().sum(dim=1, keepdim=True).expand_as(weight))


def test_plain_operations_can_be_vectorised() -> None:
    x, weight, bias = (tensor.detach() for tensor in factors(*SIZES[1]))
    with plain_operations():
        jacobian = torch.func.jacrev(lambda weight: linear(x, weight, bias))(weight)
    assert jacobian.shape == (5, 6, 3, 5, 3, 4)


def test_what_is_transposed_lies_in_order() -> None:
    x = torch.randn(3, 4, 5)
    assert torch.equal(transposed(x), x.mT)
    assert transposed(x).is_contiguous()
