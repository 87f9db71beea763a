"""The noise of a blurred copy: one standard normal draw for each sensor and time, from an owner's secret key.

A draw is a keyed BLAKE2b hash of the sensor's id and the time, turned into a normal number by the method of
Box and Muller. Without the key nobody can predict it; with the key it is the same each time it is computed.
It needs `hashlib` alone, so that a simulator on any machine draws what a site draws.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import struct

import numpy as np
import numpy.typing as npt

from cnfgnn.errors import ConfigError

KEY_BYTES = 32
PURPOSE = b"cnfgnn blur 1"  # separates these draws from any other use of the key
LEAST_SIGMA = 1e-9  # less can only be a mistake: off is 0
GRID_BITS = 8  # a copy is rounded to a grid of sigma / 256 to sigma / 512


def new_key() -> bytes:
    """A secret key from the system's random number generator."""
    return secrets.token_bytes(KEY_BYTES)


def key_from_seed(seed: int) -> bytes:
    """The simulator's key: it protects nothing, but a run can be repeated."""
    return hashlib.blake2b(struct.pack("<q", seed), digest_size=KEY_BYTES, person=b"cnfgnn simulate").digest()


def key_of_input(key: bytes, name: str) -> bytes:
    """The key of a further input's draws: they are unrelated to those of the readings and of other inputs."""
    return hashlib.blake2b(name.encode(), digest_size=KEY_BYTES, key=key, person=b"cnfgnn input 1").digest()


def standard_normal(key: bytes, sensor: str, times: npt.NDArray[np.datetime64]) -> npt.NDArray[np.float64]:
    """The draws (T,) of a sensor at these times."""
    name = sensor.encode()
    of_sensor = hashlib.blake2b(struct.pack("<I", len(name)) + name, digest_size=16, key=key, person=PURPOSE)
    digests = bytearray()
    for second in times.astype("datetime64[s]").astype(np.int64).tolist():
        of_reading = of_sensor.copy()
        of_reading.update(struct.pack("<q", second))
        digests += of_reading.digest()
    halves = np.frombuffer(bytes(digests), dtype="<u8").reshape(-1, 2) >> np.uint64(11)  # 53 bits each
    radius = np.sqrt(-2 * np.log((halves[:, 0] + np.uint64(1)) * 2.0**-53))  # the logarithm of (0, 1]
    draws: npt.NDArray[np.float64] = radius * np.cos(2 * math.pi * (halves[:, 1] * 2.0**-53))
    return draws


def grid(sigma: float) -> float:
    """The spacing of the values that a copy with this blur can have: a power of two."""
    return 2.0 ** (math.floor(math.log2(sigma)) - GRID_BITS)


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
