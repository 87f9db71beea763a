"""Check the guarantee of a blur by yourself. Nothing of cnfgnn is imported: Python alone is enough.

    python studies/check_guarantee.py 5 10 12     # blur, change, readings that it lasts, in one unit

The server sees at most each reading plus normal noise of standard deviation `blur`. Two histories that differ
by `change` in `readings` readings then give it one of two clouds of numbers, whose means differ by a vector
of length change * sqrt(readings). Along that vector the noise is normal with standard deviation `blur`;
across it, both are alike. So whatever the server computes, it has to tell N(0, 1) from N(mu, 1), where

    mu = change * sqrt(readings) / blur

detection  the best guess between the two, if both are equally likely, is "the nearer mean": it is right if
           the noise is below mu / 2. Integrated from the density, and counted by drawing noise.
epsilon    the least number with P(A) <= exp(epsilon) Q(A) + delta for every set A of what can be seen and
           both orders of the two. The worst A is where p(x) > exp(epsilon) q(x), and is integrated over.
"""

from __future__ import annotations

import math
import random
import sys

DELTA = 1e-6
STEP, REACH = 1e-3, 12.0  # of the sums that stand for integrals; beyond 12 the density is below 1e-31


def density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def mu(blur: float, change: float, readings: int) -> float:
    """The distance of the two means, in standard deviations: the length of the vector, added up."""
    return math.sqrt(sum((change / blur) ** 2 for _ in range(readings)))


def detection(distance: float) -> float:
    """The integral of the density up to half the distance."""
    steps = round((REACH + distance / 2) / STEP)
    width = (REACH + distance / 2) / steps
    return math.fsum(density(-REACH + (k + 0.5) * width) for k in range(steps)) * width


def detection_by_trial(blur: float, change: float, readings: int, trials: int, seed: int) -> float:
    """The share of right guesses of an attacker who sees blurred copies and knows both histories."""
    draw, right = random.Random(seed), 0
    for _ in range(trials):
        happened = draw.random() < 0.5
        copy = [draw.gauss(change if happened else 0.0, blur) for _ in range(readings)]
        right += (sum(copy) / readings > change / 2) == happened
    return right / trials


def delta(epsilon: float, distance: float) -> float:
    """The largest P(A) - exp(epsilon) Q(A), for P = N(distance, 1) and Q = N(0, 1): the sum over all x where
    it is positive. By symmetry, the other order of the two gives the same."""
    total, k = 0.0, 0
    while (x := distance - REACH + (k + 0.5) * STEP) < distance + REACH:
        other = math.exp(min(700.0, epsilon - x * x / 2)) / math.sqrt(2 * math.pi)  # exp(epsilon) q(x)
        total += max(0.0, density(x - distance) - other)
        k += 1
    return total * STEP


def epsilon(distance: float) -> float:
    """The least epsilon at which delta is small enough, by halving."""
    low, high = 0.0, 1.0
    if delta(low, distance) <= DELTA:
        return 0.0
    while delta(high, distance) > DELTA:
        high *= 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle, distance) > DELTA else (low, middle)
    return high


def main() -> None:
    try:
        _, *two, last = sys.argv
        (blur, change), readings = map(float, two), int(last)
        if not (blur > 0 and change > 0 and 0 < readings < 1e6 and change / blur < 1e3):
            raise ValueError
    except ValueError:
        asked = len(sys.argv) == 2 and sys.argv[1] in ("-h", "--help")
        print(__doc__ if asked else __doc__.splitlines()[2].strip(), file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    distance = mu(blur, change, readings)
    trial = detection_by_trial(blur, change, readings, 20_000, seed=1)
    print(f"mu         {distance:.4f}")
    print(f"detection  {detection(distance):.4f}, in 20,000 trials {trial:.4f}")
    print(f"epsilon    {epsilon(distance):.4f} at delta = {DELTA:g}")


if __name__ == "__main__":
    main()
