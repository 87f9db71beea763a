"""The noise of blurred copies: always the same, never the same twice, normal and independent."""

from __future__ import annotations

import numpy as np
import pytest

from cnfgnn.errors import ConfigError
from cnfgnn.privacy.noise import blurred, grid, key_from_seed, new_key, standard_normal

KEY = bytes(range(32))
TIMES = np.datetime64("2024-01-01T00:00:00") + 300 * np.arange(4000).astype("timedelta64[s]")


def test_known_answers() -> None:
    """A change of the stream would give every reading a second copy: these numbers may never change."""
    assert standard_normal(KEY, "s1", TIMES[:3]).tolist() == pytest.approx(KNOWN["s1"], abs=1e-12)
    assert standard_normal(KEY, "sensor ü", TIMES[:3]).tolist() == pytest.approx(KNOWN["sensor ü"], abs=1e-12)
    assert key_from_seed(1).hex() == KNOWN_KEY


def test_a_draw_depends_on_key_sensor_and_time_alone() -> None:
    draws = standard_normal(KEY, "s1", TIMES)
    some = standard_normal(KEY, "s1", TIMES[100:200])
    np.testing.assert_array_equal(draws[100:200], some)
    assert not np.isclose(draws, standard_normal(KEY, "s2", TIMES)).any()
    assert not np.isclose(draws, standard_normal(key_from_seed(0), "s1", TIMES)).any()
    assert not np.isclose(draws[1:], draws[:-1]).any()


def test_no_draw_occurs_twice() -> None:
    draws = np.concatenate([standard_normal(KEY, f"s{i}", TIMES) for i in range(10)])
    assert len(np.unique(draws)) == len(draws)


def test_names_that_run_into_each_other_are_told_apart() -> None:
    assert not np.isclose(standard_normal(KEY, "1", TIMES), standard_normal(KEY, "11", TIMES)).any()
    assert np.isfinite(standard_normal(KEY, "", TIMES[:1])).all()


def test_draws_are_normal_and_independent_across_sensors_and_times() -> None:
    draws = np.stack([standard_normal(KEY, f"s{i}", TIMES) for i in range(25)])  # 100,000 of them
    count = draws.size
    assert abs(draws.mean()) < 4 / np.sqrt(count)
    assert abs(draws.var() - 1) < 4 * np.sqrt(2 / count)
    inside = [(np.abs(draws) < limit).mean() for limit in (0.6744898, 1.0, 1.959964, 2.575829)]
    assert inside == pytest.approx([0.5, 0.6826895, 0.95, 0.99], abs=4 * 0.5 / np.sqrt(count))
    between_sensors = np.corrcoef(draws)[np.triu_indices(len(draws), 1)]
    assert np.abs(between_sensors).max() < 5 / np.sqrt(draws.shape[1])
    for lag in (1, 2, 12, 288):
        correlation = (draws[:, lag:] * draws[:, :-lag]).mean()
        assert abs(correlation) < 4 / np.sqrt(count)


@pytest.mark.parametrize("sigma", [0.03, 1.0, 5.0, 300.0])
def test_a_copy_lies_on_the_grid_and_as_far_away_as_sigma_says(sigma: float) -> None:
    values = np.linspace(20, 70, len(TIMES), dtype=np.float32)
    copy = blurred(values, standard_normal(KEY, "s1", TIMES), sigma)
    assert sigma / 512 <= grid(sigma) <= sigma / 256
    steps = copy.astype(np.float64) / grid(sigma)
    np.testing.assert_array_equal(steps, np.round(steps))
    assert np.std(copy - values) == pytest.approx(sigma, rel=0.05)


def test_without_blur_the_copy_is_the_reading() -> None:
    values = np.float32([1.1, 2.2])
    assert blurred(values, np.zeros(2), 0.0).tolist() == values.tolist()


@pytest.mark.parametrize("sigma", [-1.0, 1e-300, float("nan"), float("inf")])
def test_a_sigma_that_makes_no_noise_is_refused(sigma: float) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.blur: must be 0 or at least"):
        blurred(np.float32([1.0]), np.zeros(1), sigma)


def test_keys_are_long_and_never_the_same() -> None:
    assert len(new_key()) == 32
    assert new_key() != new_key()


KNOWN = {
    "s1": [-0.6867110023843911, -0.42223243691433476, 0.8008461991858598],
    "sensor ü": [-1.56917351668435, 0.2960476859934721, 0.5749903197268025],
}
KNOWN_KEY = "5001872d83dd5ff2d5c31028f7479c63eeba169fa092fc5582fdb65812a3e9ee"
