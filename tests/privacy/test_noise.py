"""The noise of blurred copies: always the same, never the same twice, normal and independent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cnfgnn.errors import ConfigError
from cnfgnn.privacy.guarantee import normal_cdf
from cnfgnn.privacy.noise import blurred, grid, key_from_seed, new_key, standard_normal

KEY = bytes(range(32))
CRITICAL = 2.2  # times 1 / sqrt(count): the distance that one fair sample in 8000 exceeds
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
    """By chance, two of 300,000 would be the same less than once in 100,000 trials."""
    of_sensors = [standard_normal(KEY, f"s{i}", TIMES) for i in range(50)]
    second_by_second = TIMES[0] + np.arange(100_000).astype("timedelta64[s]")
    draws = np.concatenate([*of_sensors, standard_normal(KEY, "s", second_by_second)])
    assert len(np.unique(draws)) == len(draws) == 300_000


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


@pytest.fixture(scope="module")
def many() -> np.ndarray:
    """Draws of 50 sensors with similar names at 4000 times: (50 4000)."""
    return np.stack([standard_normal(KEY, f"sensor {i}", TIMES) for i in range(50)])


def test_draws_have_the_moments_of_a_normal_variable(many: np.ndarray) -> None:
    """Within four standard errors: a fair stream fails once in 16,000 keys, and this key is fixed."""
    count = many.size
    assert abs(many.mean()) < 4 / np.sqrt(count)
    assert abs(many.var() - 1) < 4 * np.sqrt(2 / count)
    assert abs((many**3).mean()) < 4 * np.sqrt(15 / count)
    assert abs((many**4).mean() - 3) < 4 * np.sqrt(96 / count)
    assert abs((many**6).mean() - 15) < 4 * np.sqrt((10395 - 225) / count)


def test_draws_are_distributed_like_a_normal_variable(many: np.ndarray) -> None:
    """Kolmogorov and Smirnov: all together, each sensor, and each time."""
    assert greatest_distance(many.ravel()) < CRITICAL / np.sqrt(many.size)
    for draws in [*many, *many.T[::40]]:
        assert greatest_distance(draws) < CRITICAL / np.sqrt(len(draws))


def greatest_distance(draws: np.ndarray) -> float:
    """Between the distribution function of these draws and that of a normal variable."""
    expected = np.array([normal_cdf(x) for x in np.sort(draws)])
    steps = np.arange(len(draws) + 1) / len(draws)
    return float(max((steps[1:] - expected).max(), (expected - steps[:-1]).max()))


@pytest.mark.parametrize("function", [lambda z: z, lambda z: z**2 - 1, np.sign], ids=["z", "square", "sign"])
def test_draws_are_independent(many: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> None:
    """Of each other's value, size and sign: at other times, at other sensors, and at both."""
    x = function(many)
    x = x / x.std()
    for lag in (1, 2, 3, 12, 144, 288, 2016):
        assert abs((x[:, lag:] * x[:, :-lag]).mean()) < 4 / np.sqrt(x[:, lag:].size)
        assert abs((x[1:, lag:] * x[:-1, :-lag]).mean()) < 4 / np.sqrt(x[1:, lag:].size)
    between = np.corrcoef(x)[np.triu_indices(len(x), 1)]
    assert np.abs(between).max() < 4.5 / np.sqrt(x.shape[1])  # the largest of 1225
    assert np.sqrt((between**2).mean()) == pytest.approx(1 / np.sqrt(x.shape[1]), rel=0.1)


def test_a_poor_stream_would_be_noticed(many: np.ndarray) -> None:
    """A test of the tests."""
    rng = np.random.default_rng(1)
    assert greatest_distance(rng.uniform(-np.sqrt(3), np.sqrt(3), 4000)) > CRITICAL / np.sqrt(4000)
    assert greatest_distance(1.2 * many[0]) > CRITICAL / np.sqrt(4000)
    repeated = many.copy()
    repeated[1] = repeated[0]
    with pytest.raises(AssertionError):
        test_draws_are_independent(repeated, lambda z: z)


def test_one_bit_of_the_key_changes_every_draw() -> None:
    draws = standard_normal(KEY, "s1", TIMES)
    for bit in (0, 100, 255):
        changed = (int.from_bytes(KEY) ^ (1 << bit)).to_bytes(32)
        others = standard_normal(changed, "s1", TIMES)
        assert not np.isclose(draws, others, atol=1e-9).any()
        assert abs(np.corrcoef(draws, others)[0, 1]) < 4 / np.sqrt(len(draws))


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
