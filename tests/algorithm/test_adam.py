"""One Adam over stacked rows is one torch.optim.Adam per node."""

from __future__ import annotations

import torch

from cnfgnn.algorithm.compute.adam import Adam


def gradients(steps: int, n: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 3, 2, generator=generator, dtype=torch.float64) for _ in range(steps)]


def test_rows_move_as_under_their_own_torch_adam() -> None:
    n = 3
    start = torch.randn(n, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    theta = {"w": start.clone()}
    stacked = Adam(theta, 1e-2)
    rows = [start[i].clone().requires_grad_() for i in range(n)]
    apart = [torch.optim.Adam([row], lr=1e-2) for row in rows]
    for grad in gradients(7, n):
        stacked.step(theta, {"w": grad})
        for i in range(n):
            rows[i].grad = grad[i].clone()
            apart[i].step()
    torch.testing.assert_close(theta["w"], torch.stack([row.detach() for row in rows]), rtol=0, atol=1e-14)


def test_a_row_that_is_not_active_stays_and_counts_no_step() -> None:
    theta, alone = {"w": torch.ones(2, 3, 2).double()}, {"w": torch.ones(1, 3, 2).double()}
    stacked, single = Adam(theta, 1e-2), Adam(alone, 1e-2)
    for k, grad in enumerate(gradients(6, 2)):
        active = torch.tensor([True, k % 2 == 0])
        before = theta["w"][1].clone()
        stacked.step(theta, {"w": torch.where(active[:, None, None], grad, 0.0)}, active)
        if k % 2 == 0:
            single.step(alone, {"w": grad[1:]})
        else:
            assert torch.equal(theta["w"][1], before)
    torch.testing.assert_close(theta["w"][1:], alone["w"], rtol=0, atol=1e-15)


def test_a_restored_state_goes_on_to_the_bit() -> None:
    grads = gradients(6, 2)
    theta = {"w": torch.ones(2, 3, 2).double()}
    adam = Adam(theta, 1e-2)
    for grad in grads[:3]:
        adam.step(theta, {"w": grad})
    copy = {"w": theta["w"].clone()}
    restored = Adam(copy, 1e-2)
    restored.load(adam.state())
    for grad in grads[3:]:
        adam.step(theta, {"w": grad})
        restored.step(copy, {"w": grad})
    assert torch.equal(theta["w"], copy["w"])
