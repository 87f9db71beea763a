"""The noise of blurred copies: always the same, never the same twice, normal and independent."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from cnfgnn.errors import ConfigError
from cnfgnn.privacy import noise
from cnfgnn.privacy.guarantee import normal_cdf
from cnfgnn.privacy.noise import blurred, grid, key_from_seed, new_key, normal_of_bits, standard_normal

KEY = bytes(range(32))
KNOWN = json.loads(Path(__file__).with_name("noise_vectors.json").read_text(encoding="utf-8"))
CRITICAL = 2.2  # times 1 / sqrt(count): the distance that one fair sample in 8000 exceeds
TIMES = np.datetime64("2024-01-01T00:00:00") + 300 * np.arange(4000).astype("timedelta64[s]")


def test_known_answers_to_the_last_bit() -> None:
    """On every processor and in every version. The file has draws, copies of a reading of 61.25, what bits
    become, and a digest of many draws."""
    for sensor, draws in KNOWN["draws"].items():
        assert [draw.hex() for draw in standard_normal(KEY, sensor, TIMES[: len(draws)]).tolist()] == draws
    for sigma, copies in KNOWN["copies of 61.25"].items():
        values = np.full(len(copies), 61.25, dtype=np.float32)
        assert (
            blurred(values, standard_normal(KEY, "s1", TIMES[: len(copies)]), float(sigma)).tolist() == copies
        )
    of_radius, of_angle, draws = zip(*KNOWN["radius bits, angle bits, draw"], strict=True)
    found = normal_of_bits(np.array(of_radius), np.array(of_angle))
    assert [draw.hex() for draw in found.tolist()] == list(draws)
    many = [standard_normal(KEY, f"sensor {i}", TIMES).astype("<f8").tobytes() for i in range(25)]
    assert hashlib.sha256(b"".join(many)).hexdigest() == KNOWN["sha256 of 100,000 draws"]
    assert key_from_seed(1).hex() == KNOWN["key of seed 1"]


def test_every_operation_is_rounded_as_ieee_754_says(many_bits: tuple[np.ndarray, np.ndarray]) -> None:
    """So a library's logarithm, or a product and a sum that a processor fuses, would be noticed."""
    of_radius, of_angle = (bits[:1500] for bits in many_bits)
    expected = [by_the_standard(*bits) for bits in zip(of_radius.tolist(), of_angle.tolist(), strict=True)]
    assert normal_of_bits(of_radius, of_angle).tolist() == expected


def by_the_standard(of_radius: int, of_angle: int) -> float:
    """`normal_of_bits` in fractions, which are exact, each rounded where the standard rounds."""

    def total(coefficients: tuple[float, ...], x: Fraction) -> Fraction:
        found = Fraction(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            found = rounded(rounded(found * x) + Fraction(coefficient))
        return found

    mantissa, exponent = map(Fraction, math.frexp((of_radius + 1) / 2**53))
    if mantissa < noise.ROOT_OF_HALF:
        mantissa, exponent = 2 * mantissa, exponent - 1
    ratio = rounded(rounded(mantissa - 1) / rounded(mantissa + 1))
    of_ratio = rounded(2 * ratio * total(noise.ATANH, rounded(ratio * ratio)))
    square = -2 * rounded(of_ratio + rounded(exponent * Fraction(noise.LOG_2)))
    with localcontext(prec=60):
        radius = Fraction(float((Decimal(square.numerator) / square.denominator).sqrt()))
    quarters = (of_angle + 2**50) // 2**51
    angle = rounded((of_angle - quarters * 2**51) * Fraction(2 * math.pi) / 2**53)
    square = rounded(angle * angle)
    size = total(noise.COS, square) if quarters % 2 == 0 else rounded(angle * total(noise.SIN, square))
    return float(radius * (-size if quarters % 4 in (1, 2) else size))


def rounded(x: Fraction) -> Fraction:
    """The nearest floating-point number."""
    return Fraction(x.numerator / x.denominator)  # Python rounds quotients of integers correctly


def test_a_draw_is_what_the_method_of_box_and_muller_says(many_bits: tuple[np.ndarray, np.ndarray]) -> None:
    """Up to the rounding of this system's logarithm and cosine."""
    of_radius, of_angle = many_bits
    expected = np.sqrt(-2 * np.log((of_radius + 1) / 2**53)) * np.cos(2 * np.pi * (of_angle / 2**53))
    np.testing.assert_allclose(normal_of_bits(of_radius, of_angle), expected, rtol=0, atol=5e-15)


@pytest.fixture(scope="module")
def many_bits() -> tuple[np.ndarray, np.ndarray]:
    """Random bits, and the ends of every range that is computed in its own way."""
    rng = np.random.default_rng(1)
    ends = [0, 1, 2, *(part * 2**50 + shift for part in range(1, 8) for shift in (-1, 0, 1)), 2**53 - 1]
    radius, angle = (grid.ravel() for grid in np.meshgrid(ends, ends))
    some = rng.integers(0, 2**53, (2, 100_000))
    return np.concatenate([radius, some[0]]), np.concatenate([angle, some[1]])


@pytest.mark.parametrize(("limit", "within"), [(4.0, 1e-3), (6.0, 1e-3), (7.0, 1e-3), (8.0, 0.02)])
def test_tails_have_the_weight_of_a_normal_variable(limit: float, within: float) -> None:
    """Of the bits that can give a draw beyond the limit, all or some at equal distances, with all angles."""
    reaching = int(2**53 * math.exp(-limit * limit / 2)) + 1
    every = max(1, reaching // 2000)
    of_radius = np.arange(every // 2, reaching, every)
    of_angle = ((np.arange(1000) + 0.5) / 1000 * 2**53).astype(np.int64)
    draws = normal_of_bits(np.repeat(of_radius, 1000), np.tile(of_angle, len(of_radius)))
    share = (np.abs(draws) > limit).sum() / 1000 * every / 2**53
    assert share == pytest.approx(math.erfc(limit / math.sqrt(2)), rel=within)
    assert abs(draws).max() < 8.572


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
