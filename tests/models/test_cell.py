"""A step with hand-written gradients equals torch.nn.GRUCell."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cnfgnn.models.cell import Cell
from cnfgnn.models.products import plain_operations
from tests.conftest import needs_bf16

NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(m: int, d: int, h: int) -> dict[str, Tensor]:
    shapes = [(m, 3 * h, d), (m, 3 * h, h), (m, 3 * h), (m, 3 * h)]
    return {f"c.{name}": random(*s, seed=k) for k, (name, s) in enumerate(zip(NAMES, shapes, strict=True))}


@pytest.mark.parametrize(("m", "b", "d", "h"), [(3, 5, 2, 4), (1, 7, 2, 3), (2, 1, 6, 5)])
def test_states_and_gradients_equal_torch(m: int, b: int, d: int, h: int) -> None:
    theta = {name: w.requires_grad_() for name, w in weights(m, d, h).items()}
    x, state = random(m, b, d, seed=5).requires_grad_(), random(m, b, h, seed=6).requires_grad_()
    ours = Cell(theta, "c").step(x, state)
    cells = [nn.GRUCell(d, h).double() for _ in range(m)]
    theirs = torch.stack(
        [
            torch.func.functional_call(cell, {n: theta[f"c.{n}"][i] for n in NAMES}, (x[i], state[i]))
            for i, cell in enumerate(cells)
        ]
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    wanted, probe = [x, state, *theta.values()], random(m, b, h, seed=7)
    for a, c in zip(
        torch.autograd.grad(ours, wanted, probe), torch.autograd.grad(theirs, wanted, probe), strict=True
    ):
        torch.testing.assert_close(a, c, rtol=0, atol=1e-10)


def test_the_state_is_the_same_with_the_tanh_of_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    theta, x, state = weights(2, 3, 5), random(2, 7, 3, seed=5), random(2, 7, 5, seed=6)
    states = []
    for is_x86 in (True, False):
        monkeypatch.setattr("cnfgnn.models.cell.IS_X86", is_x86)
        states.append(Cell(theta, "c").step(x, state))
    torch.testing.assert_close(*states, rtol=0, atol=1e-14)


@needs_bf16
def test_bf16_is_close_to_float32_and_keeps_a_float32_state() -> None:
    theta = {name: (w.float() / 8).requires_grad_() for name, w in weights(2, 2, 64).items()}
    x, state = random(2, 32, 2, seed=5).float(), random(2, 32, 64, seed=6).float().requires_grad_()

    def outcome(bf16: bool) -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            new = Cell(theta, "c").step(x, state)
        return [new, *torch.autograd.grad(new.square().sum(), [state, *theta.values()])]

    for rough, exact in zip(outcome(True), outcome(False), strict=True):
        assert rough.dtype == torch.float32
        assert (rough - exact).norm() < 0.02 * exact.norm()


def test_plain_operations_give_the_same_step() -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = {"weight_ih": (12, 2), "weight_hh": (12, 4), "bias_ih": (12,), "bias_hh": (12,)}
    theta = {
        f"encoder.0.{name}": torch.randn(2, *shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    x = torch.randn(2, 5, 2, generator=generator, dtype=torch.float64)
    h = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)
    cell = Cell(theta, "encoder.0")
    with plain_operations():
        plain = cell.step(x, h)
    torch.testing.assert_close(plain, cell.step(x, h))
