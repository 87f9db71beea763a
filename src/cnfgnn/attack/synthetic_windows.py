"""Windows of made-up readings, to train an attack without a single reading of anybody.

Half of them are cut from the synthetic city, whose readings are brought to the scale that the server told all
nodes; half are random walks around a random level, some with a sudden drop to zero. A model that uses a
weekly profile gets one that lies near the readings that follow.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cnfgnn.data.series import Scaler
from cnfgnn.data.synthetic.city import city

CITY_SENSORS, CITY_DAYS = 12, 3
LEVEL = 1.3  # standard deviations by which the levels of random walks spread
STEPS = (0.01, 0.6)  # the smallest and the largest step of a random walk, in standard deviations
DROPS = 0.15  # share of random walks that fall to zero for a while
PROFILE_ERROR = 0.5  # standard deviations by which a profile misses the readings


class SyntheticWindows:
    """An endless supply of scaled windows of `length` readings."""

    def __init__(self, length: int, scaler: Scaler, seed: int) -> None:
        self.length, self.zero = length, -scaler.mean / scaler.std
        self.random = np.random.default_rng(seed)
        values = city(CITY_SENSORS, CITY_DAYS, seed=seed, dropout=0.0).readings.values.astype(np.float64)
        self.city = (values - values.mean()) / values.std()

    def draw(self, count: int) -> Tensor:
        """(count, length) scaled readings."""
        of_city = count // 2
        drawn = np.concatenate([self._from_city(of_city), self._walks(count - of_city)])
        return torch.from_numpy(drawn)

    def profiles(self, readings: Tensor, horizon: int) -> Tensor:
        """(count, horizon): profiles near the last `horizon` of these readings."""
        count = len(readings)
        error = self._walks(count)[:, :horizon] * PROFILE_ERROR
        return readings[:, -horizon:] + torch.from_numpy(error)

    def _from_city(self, count: int) -> np.ndarray:
        rows, sensors = self.city.shape
        start = self.random.integers(0, rows - self.length, count)
        steps = start[:, None] + np.arange(self.length)
        cut: np.ndarray = self.city[steps, self.random.integers(0, sensors, count)[:, None]]
        return cut

    def _walks(self, count: int) -> np.ndarray:
        low, high = np.log(STEPS)
        size = np.exp(self.random.uniform(low, high, (count, 1)))
        level = LEVEL * self.random.standard_normal((count, 1))
        walks = level + np.cumsum(size * self.random.standard_normal((count, self.length)), axis=1)
        drops = self.random.random((count, 1)) < DROPS
        ends = np.sort(self.random.integers(0, self.length + 1, (count, 2)), axis=1)
        steps = np.arange(self.length)
        inside = (steps >= ends[:, :1]) & (steps < ends[:, 1:])
        fallen: np.ndarray = np.where(drops & inside, self.zero, walks)
        return fallen
