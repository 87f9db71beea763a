"""What a blur of sigma guarantees against any server: how well it can tell two histories apart.

The server sees at most a copy of the readings with Gaussian noise of standard deviation sigma. If two
possible histories differ by d in each of k readings, telling them apart is no easier than telling a normal
variable with mean 0 from one with mean mu = d sqrt(k) / sigma (Gaussian differential privacy; Dong, Roth and
Su, 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

DELTA = 1e-6
LARGEST_EPSILON = 1e9  # beyond it, epsilon says no more than "no protection"


def normal_cdf(x: float) -> float:
    """Phi, the distribution function of a standard normal variable."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def distance(change: float, readings: float, sigma: float) -> float:
    """mu of a change of this size over so many readings."""
    if change == 0:
        return 0.0
    return math.inf if sigma == 0 else abs(change) * math.sqrt(readings) / sigma


def detection(mu: float) -> float:
    """The probability that the best possible attacker names the true one of two equally likely histories; 0.5
    is as good as a coin toss."""
    return normal_cdf(mu / 2)


def delta(epsilon: float, mu: float) -> float:
    """The least delta at which mu-Gaussian privacy is (epsilon, delta)-differential privacy."""
    if mu == 0:
        return 0.0
    upper = normal_cdf(-epsilon / mu + mu / 2)
    lower = _log_normal_cdf(-epsilon / mu - mu / 2)
    return max(0.0, upper - math.exp(epsilon + lower))


def epsilon(mu: float, at_delta: float = DELTA) -> float:
    """The least epsilon at which mu-Gaussian privacy is (epsilon, delta)-differential privacy."""
    if math.isinf(mu):
        return math.inf
    if mu == 0 or delta(0.0, mu) <= at_delta:
        return 0.0
    high = 1.0
    while delta(high, mu) > at_delta:
        high *= 2
        if high > LARGEST_EPSILON:
            return math.inf
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        if delta(middle, mu) > at_delta:
            low = middle
        else:
            high = middle
    return high


def _log_normal_cdf(x: float) -> float:
    """log Phi(x), also far below zero, where Phi(x) itself is 0 in floating point."""
    if x > -20:
        return math.log(normal_cdf(x))
    # the asymptotic series of Mills' ratio; its error at -20 is below 1e-9
    square = x * x
    series = 1 - 1 / square + 3 / square**2 - 15 / square**3 + 105 / square**4
    return -square / 2 - math.log(-x) - 0.5 * math.log(2 * math.pi) + math.log(series)


def hidden_change(readings: int, sigma: float, most: float) -> float:
    """The largest change over so many readings that an attacker notices with probability `most` at most."""
    return 2 * NormalDist().inv_cdf(most) * sigma / math.sqrt(readings)


@dataclass(frozen=True)
class Row:
    """What an attacker can make of one kind of event."""

    change: float  # in the readings' unit
    readings: int  # how many of them the event changes
    mu: float
    detection: float
    epsilon: float

    @property
    def verdict(self) -> str:
        """In words, for an owner."""
        return next((words for words, limit in VERDICTS.items() if self.detection < limit), NOT_HIDDEN)


# The words for an event that the best possible attacker notices with a probability below these.
VERDICTS: Mapping[str, float] = {
    "well hidden": 0.6,
    "mostly hidden": 0.75,
    "partly hidden": 0.9,
    "hardly hidden": 0.99,
}
NOT_HIDDEN = "not hidden"


def table(sigma: float, changes: Iterable[float], lengths: Sequence[int]) -> list[Row]:
    """A row for each size of change and number of readings that it lasts."""
    rows = []
    for change in changes:
        for readings in lengths:
            mu = distance(change, readings, sigma)
            rows.append(Row(change, readings, mu, detection(mu), epsilon(mu)))
    return rows
