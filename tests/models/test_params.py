"""Stacked weights are averaged and copied as data."""

from __future__ import annotations

import torch

from cnfgnn.models.params import Packing, models, own, take, weighted_mean


def test_the_mean_is_weighted_by_windows() -> None:
    theta = {"w": torch.tensor([[1.0, 2.0], [3.0, 6.0], [100.0, 100.0]])}
    mean = weighted_mean(theta, torch.tensor([1.0, 3.0, 0.0]))
    assert torch.equal(mean["w"], torch.tensor([[2.5, 5.0]]))


def test_separate_copies_share_no_memory() -> None:
    theta = {"w": torch.zeros(1, 2)}
    copies = own(theta, 3)
    copies["w"][1] += 1
    assert models(copies) == 3
    assert torch.equal(copies["w"], torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))
    assert theta["w"].abs().sum() == 0


def test_taking_rows_of_shared_weights_gives_the_shared_weights() -> None:
    shared, apart = {"w": torch.ones(1, 2)}, {"w": torch.arange(6.0).view(3, 2)}
    assert take(shared, torch.tensor([2]))["w"].shape == (1, 2)
    assert torch.equal(take(apart, torch.tensor([2, 0]))["w"], torch.tensor([[4.0, 5.0], [0.0, 1.0]]))


def test_weights_in_another_type_give_back_the_gradients_of_those_that_were_used() -> None:
    shapes = [(2, 3), (5,), (4, 1)]
    packing = Packing([torch.empty(shape) for shape in shapes])
    parts = [torch.full(shape, k + 1.0) for k, shape in enumerate(shapes)]
    vector = packing.pack(parts).requires_grad_()
    first, _, last = packing.cast(vector, torch.bfloat16)
    assert first.dtype == torch.bfloat16
    assert torch.equal(last, parts[2].bfloat16())
    (grad,) = torch.autograd.grad((3 * first.t().float()).sum() + (first * 2).sum() - last.sum(), vector)
    assert grad.dtype == torch.float32
    expected = [torch.full(shape, value) for shape, value in zip(shapes, (5.0, 0.0, -1.0), strict=True)]
    assert torch.equal(grad, packing.pack(expected))
