"""The noise of a blurred copy: one standard normal draw for each sensor and time, from an owner's secret key.

A draw is a keyed BLAKE2b hash of the sensor's id and the time, turned into a normal number by the method of
Box and Muller. Without the key nobody can predict it; with the key it is the same, to the last bit, on every
machine: hashing and integers are exact, and of floating-point numbers there are only sums, products,
quotients and roots, which IEEE 754 rounds in one way. Logarithms and cosines of a system's library or of
numpy differ in the last bit between processors, so both are summed up here.

No draw is larger than 8.572, the root of 2 log(2^53). A normal variable is, with a probability of 10^-17: add
that to the delta of differential privacy for each reading.

An owner's store keeps copies and never draws them again, so it need not record the formula. The simulator
does draw again: known answers in the tests keep its noise the same in every version.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cnfgnn.errors import ConfigError

KEY_BYTES = 32
PURPOSE = b"cnfgnn blur 1"  # separates these draws from any other use of the key
LEAST_SIGMA = 1e-9  # less can only be a mistake: off is 0
GRID_BITS = 8  # a copy is rounded to a grid of sigma / 256 to sigma / 512
BITS = 53  # of each half of a hash: as many as a floating-point number holds

LOG_2, ROOT_OF_HALF = 0.6931471805599453, 0.7071067811865476  # written out, as a library may round them
# The series of atanh(x) / x, sin(x) / x and cos(x) in x^2; the next term would be below the last bit.
ATANH = tuple(1 / (2 * k + 1) for k in range(12))
SIN = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(10))
COS = tuple((-1) ** k / math.factorial(2 * k) for k in range(10))

Floats = npt.NDArray[np.float64]


def new_key() -> bytes:
    """A secret key from the system's random number generator."""
    return secrets.token_bytes(KEY_BYTES)


def key_from_seed(seed: int) -> bytes:
    """The simulator's key: it protects nothing, but a run can be repeated."""
    return hashlib.blake2b(struct.pack("<q", seed), digest_size=KEY_BYTES, person=b"cnfgnn simulate").digest()


def key_of_input(key: bytes, name: str) -> bytes:
    """The key of a further input's draws: they are unrelated to those of the readings and of other inputs."""
    return hashlib.blake2b(name.encode(), digest_size=KEY_BYTES, key=key, person=b"cnfgnn input 1").digest()


def standard_normal(key: bytes, sensor: str, times: npt.NDArray[np.datetime64]) -> Floats:
    """The draws (T,) of a sensor at these times."""
    name = sensor.encode()
    of_sensor = hashlib.blake2b(struct.pack("<I", len(name)) + name, digest_size=16, key=key, person=PURPOSE)
    digests = bytearray()
    for second in times.astype("datetime64[s]").astype(np.int64).tolist():
        of_reading = of_sensor.copy()
        of_reading.update(struct.pack("<q", second))
        digests += of_reading.digest()
    halves = np.frombuffer(bytes(digests), dtype="<u8").reshape(-1, 2) >> np.uint64(64 - BITS)
    return normal_of_bits(*halves.astype(np.int64).T)


def normal_of_bits(of_radius: npt.NDArray[np.int64], of_angle: npt.NDArray[np.int64]) -> Floats:
    """Normal numbers (T,) from two times 53 random bits (T,), by the method of Box and Muller."""
    radius: Floats = np.sqrt(-2 * _log((of_radius + 1).astype(np.float64) * 2.0**-BITS))
    return radius * _cos_of_turn(of_angle)


def _log(x: Floats) -> Floats:
    """The natural logarithm of numbers in (0, 1]: of m 2^e, with m around 1, it is 2 atanh((m - 1) / (m + 1))
    + e log 2."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < ROOT_OF_HALF
    mantissa = np.where(low, 2 * mantissa, mantissa)
    ratio = (mantissa - 1) / (mantissa + 1)
    log: Floats = 2 * ratio * _sum(ATANH, ratio * ratio) + (exponent - low) * LOG_2
    return log


def _cos_of_turn(bits: npt.NDArray[np.int64]) -> Floats:
    """The cosine of an angle of `bits` / 2^53 turns: the nearest quarter of a turn is exact, and the rest at
    most an eighth."""
    quarter = 1 << (BITS - 2)
    quarters = (bits + quarter // 2) // quarter
    angle = (bits - quarters * quarter) * (2 * math.pi * 2.0**-BITS)
    square = angle * angle
    cosine, sine = _sum(COS, square), angle * _sum(SIN, square)
    size = np.where(quarters % 2 == 0, cosine, sine)
    return np.where((quarters % 4 == 1) | (quarters % 4 == 2), -size, size)


def _sum(coefficients: Sequence[float], x: Floats) -> Floats:
    """A polynomial. Each product and each sum is an operation of numpy's of its own, so that no processor
    fuses two into one that rounds differently."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def grid(sigma: float) -> float:
    """The spacing of the values that a copy with this blur can have: a power of two."""
    return math.ldexp(1.0, math.frexp(sigma)[1] - 1 - GRID_BITS)


def blurred(
    values: npt.NDArray[np.float32], draws: npt.NDArray[np.float64], sigma: float
) -> npt.NDArray[np.float32]:
    """values + sigma x draws, rounded to the grid: the low bits of a sum would reveal its terms."""
    if sigma == 0:
        return values.copy()
    if not LEAST_SIGMA <= sigma < math.inf:
        raise ConfigError("privacy.blur", f"must be 0 or at least {LEAST_SIGMA}, not {sigma}")
    spacing = grid(sigma)
    sums = values.astype(np.float64) + sigma * draws
    return (np.round(sums / spacing) * spacing).astype(np.float32)
