"""Smoothers bring blurred readings nearer to the true ones, with and without a colluding sensor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cnfgnn.attack.denoising import smoothed_by_network
from cnfgnn.attack.smoothing import bridged, smoothed_by_noise, smoothed_like

SIGMA = 5.0


def readings(nodes: int = 5, rows: int = 2000) -> Tensor:
    """Slow waves with a level of their own: neighbouring readings are alike."""
    generator = torch.Generator().manual_seed(0)
    phase = 6 * torch.rand(nodes, 1, generator=generator, dtype=torch.float64)
    level = 50 + 5 * torch.randn(nodes, 1, generator=generator, dtype=torch.float64)
    t = torch.arange(rows, dtype=torch.float64)
    return level + 12 * torch.sin(t / 30 + phase) + 4 * torch.sin(t / 11 + 2 * phase)


def blurred(truth: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return truth + SIGMA * torch.randn(truth.shape, generator=generator, dtype=torch.float64)


def rmse(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).square().mean().sqrt())


def test_a_colluding_sensor_teaches_how_to_smooth_the_others() -> None:
    truth = readings()
    copy = blurred(truth)
    found = smoothed_like(copy, copy[-1], truth[-1])
    assert 4.8 < rmse(copy[:-1], truth[:-1]) < 5.2
    assert rmse(found[:-1], truth[:-1]) < 0.4 * SIGMA


def test_the_size_of_the_noise_alone_is_nearly_enough() -> None:
    truth = readings()
    copy = blurred(truth)
    found = smoothed_by_noise(copy, torch.full((len(copy),), SIGMA))
    taught = smoothed_like(copy, copy[-1], truth[-1])
    assert rmse(found[:-1], truth[:-1]) < 1.2 * rmse(taught[:-1], truth[:-1])


@pytest.mark.slow
def test_a_network_learns_from_blurred_readings_alone() -> None:
    """What sensors have in common helps it: it comes nearer than a smoother of each series."""
    truth = readings()[:1] + torch.linspace(-9, 9, 6, dtype=torch.float64)[:, None]
    copy, there = blurred(truth), torch.ones(truth.shape, dtype=torch.bool)
    there[:, 500:520] = False
    sigma, clock = torch.full((6,), SIGMA), torch.arange(truth.shape[1]) % 288 / 288
    found = smoothed_by_network(copy, there, sigma, clock, torch.device("cpu"), steps=150)
    assert rmse(found[there], truth[there]) < 0.9 * rmse(smoothed_by_noise(copy, sigma)[there], truth[there])
    assert torch.equal(found[~there], copy[~there])


def test_without_noise_nothing_is_smoothed_away() -> None:
    truth = readings()
    generator = torch.Generator().manual_seed(2)
    truth = truth + torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    assert rmse(smoothed_by_noise(truth, torch.zeros(len(truth))), truth) < 1e-3
    assert rmse(smoothed_like(truth, truth[-1], truth[-1]), truth) < 1e-3


def test_what_was_not_estimated_stays_unknown() -> None:
    truth = readings()
    copy = blurred(truth)
    copy[:, :100] = torch.nan
    for found in (
        smoothed_like(copy, copy[-1], truth[-1]),
        smoothed_by_noise(copy, torch.full((len(copy),), SIGMA)),
    ):
        assert found[:, :100].isnan().all()
        assert rmse(found[:-1, 100:], truth[:-1, 100:]) < 0.5 * SIGMA


def test_gaps_are_bridged_by_straight_lines() -> None:
    estimate = torch.tensor([[torch.nan, 1.0, 9.0, 9.0, 4.0, 5.0]], dtype=torch.float64)
    observed = torch.tensor([[True, True, False, False, True, True]])
    expected = torch.tensor([[torch.nan, 1.0, 2.0, 3.0, 4.0, 5.0]], dtype=torch.float64)
    torch.testing.assert_close(bridged(estimate, observed), expected, equal_nan=True)
