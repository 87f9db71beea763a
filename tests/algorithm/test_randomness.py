"""Whoever draws, draws the same."""

from __future__ import annotations

import math

import pytest
import torch

from cnfgnn.algorithm.messages.randomness import (
    CLIENT_BATCHES,
    Batches,
    Coins,
    Draw,
    generator,
    mix,
    truth_probability,
)

CPU = torch.device("cpu")


def test_the_mixed_number_never_changes() -> None:
    # Checkpoints, sites of different versions and published runs rest on it.
    assert mix(0) == 0xE220A8397B1DCDAF  # splitmix64's first number from state 0
    assert mix(1, 2, 3) == 0x6AE515C1C0AC7E37
    assert len({mix(a, b) for a in range(30) for b in range(30)}) == 900
    assert mix(1, 2) != mix(2, 1)


def test_an_epoch_takes_every_window_once() -> None:
    batches = Batches(7, CLIENT_BATCHES, 50, 16, CPU)
    draws = list(batches.epoch(3, 1))
    assert len(draws) == len(batches) == 4
    windows = torch.cat([batches[draw] for draw in draws])
    assert torch.equal(windows.sort().values, torch.arange(50))
    assert [len(batches[draw]) for draw in draws] == [16, 16, 16, 2]


def test_two_parties_draw_the_same_windows_in_any_order() -> None:
    one, other = (Batches(7, CLIENT_BATCHES, 50, 16, CPU) for _ in range(2))
    for draw in (Draw(2, 0, 3), Draw(1, 0, 0), Draw(2, 0, 3)):
        assert torch.equal(one[draw], other[draw])
    assert torch.equal(one[Draw(5, 1, 2)], other[Draw(5, 1, 2)])


def test_rounds_epochs_seeds_and_uses_differ() -> None:
    def first(seed: int, purpose: int, r_g: int, epoch: int) -> tuple[int, ...]:
        return tuple(Batches(seed, purpose, 50, 16, CPU)[Draw(r_g, epoch, 0)].tolist())

    assert (
        len({first(1, 3, 1, 0), first(2, 3, 1, 0), first(1, 4, 1, 0), first(1, 3, 2, 0), first(1, 3, 1, 1)})
        == 5
    )


def test_generators_are_independent_of_the_global_one() -> None:
    torch.manual_seed(0)
    one = torch.rand(3, generator=generator(1, 2))
    torch.manual_seed(99)
    assert torch.equal(one, torch.rand(3, generator=generator(1, 2)))


def test_the_truth_becomes_rarer_as_dcrnn_has_it() -> None:
    assert truth_probability(0, 1000) == 1000 / 1001
    assert math.isclose(truth_probability(5000, 1000), 1000 / (1000 + math.e**5))
    assert truth_probability(10**9, 1000) < 1e-200
    assert truth_probability(0, 0) == 0


@pytest.mark.slow
def test_coins_fall_as_often_as_the_probability_says() -> None:
    step, k = 6900, 1000.0
    tosses = [Coins(seed, 12, k, CPU)[step] for seed in range(400)]
    share = torch.stack([t for t in tosses if t is not None]).float().mean().item()
    assert abs(share - truth_probability(step, k)) < 0.03  # 0.5 +- 2 standard deviations


def test_free_running_needs_no_coins() -> None:
    assert Coins(1, 12, 0.0, CPU)[5] is None
    assert Coins(1, 12, 1000.0, CPU)[10**6] is None


def test_coins_do_not_depend_on_which_were_asked_for_before() -> None:
    coins = Coins(3, 12, 1000.0, CPU)
    first = coins[700]
    assert coins[100] is not None
    assert first is not None
    again = coins[700]
    assert again is not None
    assert torch.equal(first, again)
