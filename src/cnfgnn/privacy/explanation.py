"""The guarantee of a blur in words that an owner understands: what the commands about it say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cnfgnn.privacy.guarantee import DELTA, Row, hidden_change, table

DEFAULT_CHANGES = (0.2, 1.0, 2.0, 4.0)  # times sigma: from hard to notice to plain to see
DEFAULT_READINGS = (1, 3, 12, 72, 288)  # with a reading every 5 minutes: up to a day
MINUTE, HOUR, DAY = 60, 3600, 86400
DEFAULT_SECONDS = (15 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 28 * DAY)
MOST_DURATIONS = 5
MOSTLY_HIDDEN = 0.75  # the probability for which the largest hidden change is shown

RIGHT_AT_MOST = (
    '"Right at most" says how often the best possible attacker is right about whether the event happened.'
    " That attacker has all that the server ever receives, knows every other reading, and knows when and how"
    " large the event would have been; before looking, both answers are equally likely. A coin toss is right"
    " in 50 % of cases."
)
MU_AND_EPSILON = (
    "mu is the size of the change divided by the blur, times the square root of the number of readings"
    " (Gaussian differential privacy). epsilon is the figure of differential privacy at delta = 0.000001:"
    " whatever the server concludes, the event makes that at most e^epsilon times as probable, plus one in a"
    " million."
)


@dataclass(frozen=True)
class Measures:
    """How an owner measures: the unit of the readings and the seconds between two of them, if known."""

    unit: str = ""
    step: float | None = None

    def amount(self, value: float) -> str:
        return f"{value:.6g} {self.unit}".rstrip()

    def lasting(self, readings: int) -> str:
        """How long so many readings last."""
        if self.step is None:
            return "1 reading" if readings == 1 else f"{readings:,} readings"
        return time_span(readings * self.step)


@dataclass(frozen=True)
class Guarantee:
    """What a blur guarantees to the owners who use it.

    sites      the names of the sites with this blur; empty if there are none to tell apart
    durations  the numbers of readings that events last
    """

    sigma: float
    measures: Measures
    sites: tuple[str, ...]
    durations: tuple[int, ...]
    rows: tuple[Row, ...]

    @property
    def sentence(self) -> str:
        """The guarantee itself."""
        if self.sigma == 0:
            return (
                "Nothing is guaranteed without a blur: from the hidden states that your sensors send, a"
                " curious server can compute your readings nearly exactly."
            )
        return (
            "The server learns at most what it would learn if you handed it your readings with noise of"
            f" {self.measures.amount(self.sigma)} added, whatever it asks and however long it trains."
        )

    @property
    def about_the_noise(self) -> str:
        """What the noise does to a reading."""
        if self.sigma == 0:
            return "Set a blur, and look at what it would hide with cnfgnn privacy --blur."
        size = self.measures.amount(self.sigma)
        return (
            f"The noise is normally distributed with a standard deviation of {size} and drawn once for each"
            f" reading: about two thirds of the copies are within {size} of their reading."
        )

    @property
    def hidden_changes(self) -> list[float]:
        """For each duration, the largest change that stays mostly hidden."""
        return [hidden_change(readings, self.sigma, MOSTLY_HIDDEN) for readings in self.durations]

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON, with null for mu and epsilon where there is no bound."""
        step = self.measures.step
        rows = []
        for row in self.rows:
            values = {key: None if math.isinf(value) else value for key, value in asdict(row).items()}
            seconds = None if step is None else row.readings * step
            rows.append({**values, "seconds": seconds, "verdict": row.verdict})
        pairs = zip(self.durations, self.hidden_changes, strict=True)
        return {
            "sites": list(self.sites),
            "blur": self.sigma,
            "guarantee": self.sentence,
            "rows": rows,
            "mostly_hidden": [{"readings": readings, "change": change} for readings, change in pairs],
        }


def explain(
    blurs: Mapping[str, float],
    measures: Measures,
    changes: Sequence[float] = (),
    durations: Sequence[int] = (),
) -> list[Guarantee]:
    """The guarantee of every blur in use, the smallest first.

    `blurs` maps each site to its blur; a single owner may have the name "". Without changes or durations
    there are some that suit the time between readings and the smallest blur: the same ones for all sites, so
    that their tables can be compared.
    """
    lengths = tuple(durations) or default_durations(measures.step)
    usual = default_changes(min((blur for blur in blurs.values() if blur), default=0.0))
    guarantees = []
    for sigma in sorted(set(blurs.values())):
        sites = tuple(site for site, blur in blurs.items() if blur == sigma and site)
        rows = table(sigma, tuple(changes) or (usual if sigma else ()), lengths)
        guarantees.append(Guarantee(sigma, measures, sites, lengths, tuple(rows)))
    return guarantees


def as_json(guarantees: Sequence[Guarantee], measures: Measures) -> dict[str, Any]:
    """All that the command says, as plain values for JSON."""
    return {
        "unit": measures.unit,
        "step_seconds": measures.step,
        "delta": DELTA,
        "guarantees": [guarantee.as_json() for guarantee in guarantees],
        "caveats": [f"{title}. {text}" for title, text in caveats(guarantees).items()],
    }


def caveats(guarantees: Sequence[Guarantee]) -> dict[str, str]:
    """What to keep in mind, by title; nothing if there is no blur at all."""
    if not any(guarantee.sigma for guarantee in guarantees):
        return {}
    several = " Where sites have different blurs, the squares of their mu add up."
    return {
        "What stays visible": "Which readings are missing, the names and positions of your sensors, the times"
        " of their readings, and when and how fast your site answers. The guarantee takes these as known. A"
        " sensor that reports only when its reading changes tells by its gaps when that was.",
        "What a blur cannot hide": "It hides fine values and short events. Four times as many readings reveal"
        " as much as a change of twice the size: a jam of an hour is usually plain to see.",
        "Several sensors add up": "An event that several sensors see changes more readings: 4 sensors for 3"
        f" readings each count as 12 readings.{several if len(guarantees) > 1 else ''}",
        "Neighbouring readings help": "The table is about telling two given histories apart. Readings that"
        " change slowly can be estimated better than one by one: whoever smooths the copy averages a part of"
        " the noise away and comes closer to the readings than the blur. cnfgnn privacy --data computes how"
        " close, from your own readings.",
        "One copy for ever": "The guarantee needs every reading to be blurred once and never again, and the"
        " key of the copies to stay secret: a second copy of a reading reveals more, and whoever has the key"
        " can remove the noise. After a change of the blur, readings that have a copy keep it, and the table"
        " of their own blur applies to them. Two federations with two private folders have two copies of the"
        " same truth, also if one has hourly means of what the other has: use one folder for both.",
        "What you tell on top": "The guarantee covers what your site sends by itself. Where its owner has set"
        " tell_errors, the server also learns sums of the true errors, and with live.tell_coverage how many"
        " readings lay within their ranges; no figure here bounds what they reveal. The guarantee does not"
        " cover readings or forecasts that you publish elsewhere either.",
        "No blur, no protection": "With a blur of 0 the copy is the readings, and the hidden states that a"
        " sensor sends give its readings away nearly exactly.",
    }


def default_changes(sigma: float) -> tuple[float, ...]:
    """Sizes of changes that suit a blur; none without a blur, since then every change shows."""
    return tuple(float(f"{factor * sigma:.6g}") for factor in DEFAULT_CHANGES) if sigma else ()


def default_durations(step: float | None) -> tuple[int, ...]:
    """Numbers of readings from a single one on; familiar times if the seconds between readings are known."""
    if step is None:
        return DEFAULT_READINGS
    familiar = [round(seconds / step) for seconds in DEFAULT_SECONDS if seconds >= 2 * step]
    return tuple(dict.fromkeys([1, *familiar]))[:MOST_DURATIONS]


# ---- numbers as text; bounds are rounded to the safe side -------------------------------------------------


def share(detection: float) -> str:
    """A probability as per cent, rounded up."""
    return "over 99 %" if detection > 0.99 else f"{math.ceil(100 * detection - 1e-9)} %"


def epsilon_text(epsilon: float) -> str:
    """Epsilon, rounded up."""
    if math.isinf(epsilon):
        return "no bound"
    digits = 2 if epsilon < 10 else 1 if epsilon < 100 else 0
    return f"{math.ceil(epsilon * 10**digits) / 10**digits:,.{digits}f}"


def mu_text(mu: float) -> str:
    if math.isinf(mu):
        return "no bound"
    return f"{mu:.2f}" if mu >= 0.1 else f"{mu:.2g}"


def time_span(seconds: float) -> str:
    """A time span such as 15 min, 1 h 30 min or 7 days."""
    parts = []
    for unit, size in (("day", DAY), ("h", HOUR), ("min", MINUTE)):
        count, seconds = divmod(seconds, size)
        if count:
            plural = "s" if unit == "day" and count > 1 else ""
            parts.append(f"{count:.0f} {unit}{plural}")
    if seconds or not parts:
        parts.append(f"{seconds:g} s")
    return " ".join(parts)
