"""The guarantee's formulas against known values, numeric integration, simulation and each other."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cnfgnn.privacy.guarantee import (
    DELTA,
    _log_normal_cdf,
    delta,
    detection,
    distance,
    epsilon,
    hidden_change,
    normal_cdf,
    table,
)
from studies import check_guarantee


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


def integrated_delta(epsilon: float, mu: float) -> float:
    """The definition, without any closed form: how much of N(mu, 1) lies above e^epsilon times N(0, 1)."""
    x, spacing = np.linspace(mu - 12, mu + 12, 30_001, retstep=True)
    log_with, log_without = -((x - mu) ** 2) / 2, -(x**2) / 2
    above = -np.exp(log_with) * np.expm1(np.minimum(0, epsilon + log_without - log_with))
    return float(above.sum() * spacing) / math.sqrt(2 * math.pi)


def integrated_epsilon(mu: float, at_delta: float) -> float:
    low, high = 0.0, mu * (mu + 20)
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if integrated_delta(middle, mu) > at_delta else (low, middle)
    return high


@pytest.mark.parametrize("mu", [0.01, 0.2, 1.0, 3.4641, 16.97, 67.88])
def test_epsilon_is_what_numeric_integration_of_the_definition_gives(mu: float) -> None:
    assert epsilon(mu) == pytest.approx(integrated_epsilon(mu, DELTA), rel=1e-5)


@pytest.mark.parametrize("mu", [0.2, 1.0, 4.0])
def test_detection_is_what_numeric_integration_of_the_best_test_gives(mu: float) -> None:
    x, spacing = np.linspace(-12, mu + 12, 30_001, retstep=True)
    larger = np.maximum(np.exp(-(x**2) / 2), np.exp(-((x - mu) ** 2) / 2)) / math.sqrt(2 * math.pi)
    assert detection(mu) == pytest.approx(float(larger.sum() * spacing) / 2, abs=1e-6)


def test_known_values() -> None:
    assert normal_cdf(1.959964) == pytest.approx(0.975, abs=1e-6)
    assert delta(0.0, 1.0) == pytest.approx(2 * normal_cdf(0.5) - 1)  # total variation of two normals
    # the Gaussian mechanism of Balle and Wang (2018): epsilon 1, delta 1e-5 takes sigma 3.7304
    assert epsilon(1 / 3.730632, 1e-5) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("x", [-20.001, -25.0, -37.0])
def test_the_series_for_small_tails_agrees_with_the_tails(x: float) -> None:
    assert _log_normal_cdf(x) == pytest.approx(math.log(math.erfc(-x / math.sqrt(2)) / 2), abs=1e-9)


def test_no_blur_is_no_protection_and_no_change_cannot_be_told() -> None:
    assert epsilon(math.inf) == math.inf
    assert detection(math.inf) == 1
    assert (epsilon(0.0), detection(0.0), delta(1.0, 0.0)) == (0.0, 0.5, 0.0)


@pytest.mark.parametrize("most", [0.55, 0.75, 0.99])
@pytest.mark.parametrize("readings", [1, 12])
def test_the_largest_hidden_change_is_noticed_as_often_as_allowed(most: float, readings: int) -> None:
    change = hidden_change(readings, 5.0, most)
    assert detection(distance(change, readings, 5.0)) == pytest.approx(most, abs=1e-9)


def test_the_table_has_a_row_for_each_event_and_says_it_in_words() -> None:
    rows = table(5.0, (1.0, 20.0), (1, 12))
    assert [(row.change, row.readings) for row in rows] == [(1, 1), (1, 12), (20, 1), (20, 12)]
    assert [row.verdict for row in rows] == ["well hidden", "mostly hidden", "hardly hidden", "not hidden"]
    assert [row.detection for row in rows] == sorted(row.detection for row in rows)


def test_a_reader_can_check_the_guarantee_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """studies/check_guarantee.py computes the same from the definition, by other means."""
    assert "import cnfgnn" not in Path(check_guarantee.__file__).read_text()
    monkeypatch.setattr(check_guarantee, "STEP", 0.005)
    for blur, change, readings in ((5.0, 1.0, 1), (5.0, 5.0, 12), (2.0, 10.0, 6)):
        mu = distance(change, readings, blur)
        assert check_guarantee.mu(blur, change, readings) == pytest.approx(mu, rel=1e-12)
        assert check_guarantee.detection(mu) == pytest.approx(detection(mu), abs=1e-6)
        assert check_guarantee.epsilon(mu) == pytest.approx(epsilon(mu), rel=1e-4)
    trial = check_guarantee.detection_by_trial(5.0, 5.0, 4, 4000, seed=1)
    assert trial == pytest.approx(detection(2.0), abs=0.02)


@pytest.mark.parametrize("given", [[], ["5"], ["5", "1", "0.5"], ["0", "1", "12"], ["five", "1", "12"]])
def test_numbers_that_have_no_guarantee_are_answered_with_how_to_ask(
    given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["check_guarantee.py", *given])
    with pytest.raises(SystemExit) as ended:
        check_guarantee.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("python studies/check_guarantee.py 5 10 12 ")
