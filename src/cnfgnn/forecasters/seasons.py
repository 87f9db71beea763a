"""Seasons: periods in a sensor's readings that neither the day nor the week explains, such as the tide's.

Each sensor looks for them in its own training readings and keeps what it finds. What the weekly profile
leaves of the readings is differenced, so that a random walk turns into noise and a trend into a constant.
Then its periodogram is searched for a line: a frequency with far more power than its surroundings, near and
far. Noise has none, and neither has a cycle whose length wanders: its peak is broad, and its phase cannot be
known in advance.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

HARMONICS = (12, 4, 4)  # of each sensor's periods, strongest first: what shape they may have
PERIODS, WAVES = len(HARMONICS), 2 * sum(HARMONICS)
FEWEST_STEPS = 128  # of readings: in fewer no line stands out
FEWEST_CYCLES = 4  # in the training readings: fewer could be chance
SHORTEST = 3.0  # steps: the last readings tell shorter ones as well
FALSE_ALARMS = 1e-4  # how often noise may be taken for a season
PADDING = 4  # how much finer than one cycle per span frequencies are searched
NEAREST, FARTHEST = 2, 13  # cycles per span around a line, whose mean power it must stand out from
BLOCK = 24  # fewest frequencies, in cycles per span, whose median is the power of surroundings
RATIO = 1.35  # of the last to the first frequency of larger blocks
FRACTIONS = 5  # a line may be a harmonic of a period up to so many times as long
LINES = 6  # harmonics that tell whether it is
NOTABLE = 6.0  # times the surroundings: less power of a harmonic does not count
BETTER = 1.3  # times the power of the harmonics: a longer period must have more
REFINING = 32  # harmonics that help to measure a frequency
PARTS_OF_DAY, PARTS_OF_WEEK = 24, 28  # the weekly profile has them; shorter ones are smoothed away in it
DAYS_TO_TELL, WEEKS_TO_TELL = 2, 3  # so many readings have a profile of the day, or of the week
NUMBERS_AT_ONCE = 1 << 24  # of readings of some sensors, padded


def find_seasons(left_over: Tensor, known: Tensor, joined: Tensor, step_days: float) -> Tensor:
    """(n PERIODS): the frequencies of each sensor's seasons, in cycles per step, strongest first; 0 for none.

    left_over (n T) is what the weekly profile leaves of the readings, known (n T) where there is any, and
    joined (n T - 1) where one row can be compared with the next. A step is so many days long.
    """
    n, steps = left_over.shape
    found = left_over.new_zeros(n, PERIODS, dtype=torch.float64)
    if steps < FEWEST_STEPS:
        return found
    at_once = max(1, NUMBERS_AT_ONCE // (PADDING * steps))
    for start in range(0, n, at_once):
        nodes = slice(start, start + at_once)
        found[nodes] = _search(left_over[nodes].double(), known[nodes], joined[nodes], step_days)
    return found


def _search(x: Tensor, known: Tensor, joined: Tensor, step_days: float) -> Tensor:
    found = x.new_zeros(len(x), PERIODS)
    both = known[:, 1:] & known[:, :-1] & joined
    change = torch.where(both, x[:, 1:] - x[:, :-1], 0.0)
    mean = change.sum(dim=1, keepdim=True) / both.sum(dim=1, keepdim=True).clamp(min=1)
    change = torch.where(both, change - mean, 0.0)
    rows = torch.arange(len(x), device=x.device)
    for place in range(PERIODS):
        frequency = _strongest(change, step_days)
        has = frequency > 0
        rows, change, both, frequency = rows[has], change[has], both[has], frequency[has]
        if not len(rows):
            break
        found[rows, place] = frequency
        if place + 1 < PERIODS:
            change = _without(change, both, frequency)
    return found


def _strongest(change: Tensor, step_days: float) -> Tensor:
    """(n,): the frequency of the strongest clear line in each row (n T), or of the period whose harmonic it
    is; 0 where no line is clear."""
    steps = change.shape[1]
    length = PADDING * steps
    power = torch.fft.rfft(change, n=length).abs().square()  # (n f)
    prominence = power / torch.maximum(_surroundings(power), _neighbours(power)).clamp(min=1e-300)
    allowed = _allowed(power.shape[1], steps, step_days).to(power.device)
    clear = allowed & (prominence > _threshold(steps))
    # Of clear lines the one that moves the readings most, which is not the one that moves their changes most.
    angle = torch.arange(power.shape[1], dtype=power.dtype, device=power.device) * (torch.pi / length)
    of_readings = power / angle.sin().square().clamp(min=1e-12)
    place = torch.where(clear, of_readings, 0.0).argmax(dim=1)
    line = (place + _offset(power, place)) / length
    refined = _refined(power, prominence, line, _order(prominence, allowed, line, length), length)
    return torch.where(clear.any(dim=1), refined, 0.0)


def _order(prominence: Tensor, allowed: Tensor, line: Tensor, length: int) -> Tensor:
    """(n,): which harmonic of a season each line is, 1 if it is the season's own frequency."""
    options = line[:, None] / torch.arange(1, FRACTIONS + 1, device=line.device)  # (n m)
    harmonics = options[..., None] * torch.arange(1, LINES + 1, device=line.device)
    at, last = (harmonics * length).round().long(), prominence.shape[1] - 1
    possible = allowed[(options * length).round().long().clamp(0, last)]
    power = prominence.gather(1, at.clamp(0, last).flatten(1)).view_as(harmonics)
    counts = (at <= last) & possible[..., None]
    score = torch.where(counts, (power - NOTABLE).clamp(min=0), 0.0).sum(dim=-1)
    score[:, 0] *= BETTER
    return 1 + score.argmax(dim=1)


def _refined(power: Tensor, prominence: Tensor, line: Tensor, order: Tensor, length: int) -> Tensor:
    """(n,): the frequencies of seasons, given a line of each and which harmonic it is. The k-th harmonic
    tells it k times as exactly as the first, so each one helps to find the next."""
    weight = prominence.gather(1, (line * length).round().long().clamp(min=0)[:, None])[:, 0]
    along, square = weight * order * line, weight * order.square()
    around = torch.arange(-PADDING, PADDING + 1, device=power.device)
    for k in range(1, REFINING + 1):
        expected = k * along / square
        bins = (expected * length).round().long()[:, None] + around
        inside = ((bins > 0) & (bins < power.shape[1] - 1)).all(dim=1)
        bins = bins.clamp(1, power.shape[1] - 2)
        best = power.gather(1, bins).argmax(dim=1, keepdim=True)
        place = bins.gather(1, best)[:, 0]
        is_peak = (best[:, 0] > 0) & (best[:, 0] < 2 * PADDING)
        weight = prominence.gather(1, place[:, None])[:, 0]
        weight = torch.where(inside & is_peak & (weight > 2 * NOTABLE) & (k != order), weight, 0.0)
        top = (place + _offset(power, place)) / length
        along, square = along + weight * k * top, square + weight * k * k
    return along / square


def _threshold(steps: int) -> float:
    """The prominence that noise has as rarely as `FALSE_ALARMS` at any of its frequencies: the ratio of one
    exponential variable to the mean of as many as there are neighbours."""
    neighbours = 2 * (FARTHEST - NEAREST + 1)
    return float(neighbours * ((steps / 2 / FALSE_ALARMS) ** (1 / neighbours) - 1))


def _offset(power: Tensor, place: Tensor) -> Tensor:
    """(n,): how far the top of a peak lies from its largest value, by a parabola through three of them."""
    around = (place[:, None] + torch.arange(-1, 2, device=place.device)).clamp(0, power.shape[1] - 1)
    before, top, after = power.gather(1, around).clamp(min=1e-300).log().unbind(1)
    bend = before - 2 * top + after
    return torch.where(bend < 0, 0.5 * (before - after) / torch.where(bend < 0, bend, -1.0), 0.0).clamp(
        -0.5, 0.5
    )


def _surroundings(power: Tensor) -> Tensor:
    """(n f): the mean power that frequencies of a similar size have, from medians, which a few lines do not
    change."""
    edges = [FEWEST_CYCLES * PADDING // 2]
    while edges[-1] < power.shape[1]:
        edges.append(max(edges[-1] + BLOCK * PADDING, int(edges[-1] * RATIO)))
    edges[-1] = power.shape[1]
    if len(edges) > 2 and edges[-1] - edges[-2] < BLOCK * PADDING // 2:
        edges.pop(-2)
    spans = list(pairwise(edges))
    level = torch.stack([power[:, a:b].median(dim=1).values for a, b in spans], dim=1) / math.log(2)
    level = level.clamp(min=1e-300).log()
    centre = power.new_tensor([math.log((a + b) / 2) for a, b in spans])
    at = torch.arange(power.shape[1], device=power.device).clamp(min=1).to(power.dtype).log()
    if len(spans) == 1:
        return level.exp().expand_as(power)
    right = torch.searchsorted(centre, at).clamp(1, len(spans) - 1)
    share = (at - centre[right - 1]) / (centre[right] - centre[right - 1])
    share = share.clamp(max=1.0)
    slope = level[:, right] - level[:, right - 1]
    slope = torch.where(share < 0, slope.clamp(max=0.0), slope)  # lower frequencies never have less
    return (level[:, right - 1] + share * slope).exp()


def _neighbours(power: Tensor) -> Tensor:
    """(n f): the mean power on both sides of each frequency, without its own peak."""
    count = power.shape[1]
    near, far = NEAREST * PADDING, FARTHEST * PADDING
    sums = torch.nn.functional.pad(power.cumsum(1), (1, 0))
    at = torch.arange(count, device=power.device)

    def between(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        first, last = first.clamp(0, count), last.clamp(0, count)
        return sums[:, last] - sums[:, first], last - first

    below, of_below = between(at - far, at - near + 1)
    above, of_above = between(at + near, at + far + 1)
    return (below + above) / (of_below + of_above).clamp(min=1)


def _allowed(count: int, steps: int, step_days: float) -> Tensor:
    """(f,): the frequencies at which a season may be: those of the day and the week, and of their parts, are
    not among them as far as the readings can tell them apart."""
    frequency = torch.arange(count, dtype=torch.float64) / (PADDING * steps)
    allowed = (frequency * steps >= FEWEST_CYCLES) & (frequency <= 1 / SHORTEST)
    days = steps * step_days
    if step_days < 1 and days >= DAYS_TO_TELL:
        allowed &= ~_near_multiples(frequency, step_days, PARTS_OF_DAY, 1 / steps)
    if days >= WEEKS_TO_TELL * 7:
        allowed &= ~_near_multiples(frequency, step_days / 7, PARTS_OF_WEEK, 0.75 / steps)
    return allowed


def _near_multiples(frequency: Tensor, unit: float, most: int, width: float) -> Tensor:
    nearest = (frequency / unit).round().clamp(1, most)
    return (frequency - nearest * unit).abs() < width


def _without(change: Tensor, known: Tensor, frequency: Tensor) -> Tensor:
    """(n T): what is left when a season is fitted and subtracted."""
    steps = torch.arange(change.shape[1], dtype=torch.float64, device=change.device)
    left = torch.empty_like(change)
    for node, (of_node, is_known) in enumerate(zip(change, known, strict=True)):
        shape = _waves(steps, frequency[node, None], HARMONICS[0])[0] * is_known[:, None]  # (T 2h)
        gram = shape.T @ shape
        gram.diagonal().add_(1e-6 * len(steps))
        left[node] = of_node - shape @ torch.linalg.solve(gram, shape.T @ of_node)
    return left


def waves(times: Tensor, seasons: Tensor, dtype: torch.dtype) -> Tensor:
    """(b,), (n PERIODS) -> (n b WAVES): sines and cosines of the phases that each sensor's seasons have at
    these times; 0 for seasons that a sensor does not have. Frequencies are in cycles per unit of time."""
    parts = [_waves(times, seasons[:, place], count) for place, count in enumerate(HARMONICS)]
    return torch.cat(parts, dim=-1).to(dtype)


def _waves(times: Tensor, frequency: Tensor, harmonics: int) -> Tensor:
    """(b,), (n,) -> (n b 2h)."""
    phase = frequency[:, None] * times
    angle = 2 * torch.pi * (phase - phase.floor())
    order = torch.arange(1, harmonics + 1, dtype=angle.dtype, device=angle.device)
    angles = angle[..., None] * order
    both = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return torch.where((frequency > 0)[:, None, None], both, 0.0)
