"""The guarantee's formulas against known values, simulation and each other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cnfgnn.privacy.guarantee import delta, detection, distance, epsilon, normal_cdf, table


def test_the_distance_grows_with_the_change_and_the_root_of_its_length() -> None:
    assert distance(5, 1, 5) == 1
    assert distance(-5, 4, 5) == 2
    assert distance(0, 100, 0) == 0
    assert math.isinf(distance(1, 1, 0))


def test_the_best_attacker_of_a_simulation_is_as_right_as_the_formula_says() -> None:
    rng = np.random.default_rng(0)
    sigma, change, readings = 5.0, 3.0, 4
    truth = rng.random(200_000) < 0.5
    seen = rng.normal(0, sigma, (len(truth), readings)) + change * truth[:, None]
    guess = seen.sum(1) > change * readings / 2  # the likelihood ratio test
    expected = detection(distance(change, readings, sigma))
    assert (guess == truth).mean() == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(len(truth)))


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0, 10.0, 40.0])
def test_epsilon_is_the_least_that_reaches_delta(mu: float) -> None:
    found = epsilon(mu, 1e-6)
    assert delta(found, mu) <= 1e-6
    if found > 0:
        assert delta(0.999 * found, mu) > 1e-6


def test_known_values() -> None:
    assert normal_cdf(1.959964) == pytest.approx(0.975, abs=1e-6)
    assert delta(0.0, 1.0) == pytest.approx(2 * normal_cdf(0.5) - 1)  # total variation of two normals
    # the Gaussian mechanism of Balle and Wang (2018): epsilon 1, delta 1e-5 takes sigma 3.7304
    assert epsilon(1 / 3.730632, 1e-5) == pytest.approx(1.0, abs=1e-4)


def test_no_blur_is_no_protection_and_no_change_cannot_be_told() -> None:
    assert epsilon(math.inf) == math.inf
    assert detection(math.inf) == 1
    assert (epsilon(0.0), detection(0.0), delta(1.0, 0.0)) == (0.0, 0.5, 0.0)


def test_the_table_has_a_row_for_each_event_and_says_it_in_words() -> None:
    rows = table(5.0, (1.0, 20.0), (1, 12))
    assert [(row.change, row.readings) for row in rows] == [(1, 1), (1, 12), (20, 1), (20, 12)]
    assert rows[0].verdict == "hardly better than a coin toss"
    assert rows[-1].verdict == "it cannot be hidden"
    assert [row.detection for row in rows] == sorted(row.detection for row in rows)
