"""When sites have readings: the time steps of a training, and where a forecast begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

DAY = 86_400  # seconds
OLD_AFTER = DAY  # seconds since the newest reading; or this many steps, if they take longer:
OLD_AFTER_STEPS = 10
FURTHEST_ZONE = 14 * 3600  # seconds: how far a clock on the wall may be from UTC
MOST_STRETCHED = 2  # times: how much longer one site with few readings may make a training's span


@dataclass(frozen=True)
class Span:
    """First and last time step in seconds since 1970, the step between two, and whether times are UTC."""

    first: int
    last: int
    step: int
    utc: bool
    newest: int | None = None  # the newest reading, also one that lies apart from the rest
    measured: int = 0  # steps at which the site has a reading
    left_out: int = 0  # rows that the site has, but does not count: see SiteData
    room: int = 0  # bytes of hidden states and embeddings that the site can hold; 0: it did not say

    @property
    def rows(self) -> int:
        return (self.last - self.first) // self.step + 1


def span_of(spans: Mapping[str, Span]) -> Span:
    """From the first reading of any site to the last; what they all share has been checked."""
    one = next(iter(spans.values()))
    first, last = (
        min(span.first for span in spans.values()),
        max(span.last for span in spans.values()),
    )
    return Span(first, last, one.step, one.utc)


def training_span(spans: Mapping[str, Span]) -> tuple[Span, list[str]]:
    """The steps of a training, and a sentence for each site of whose readings a part lies outside of them.

    They go from the first reading of any site to the last. But where one site makes them more than twice as
    many, and has readings at fewer than half of the steps that it adds, it adds none: most windows would be
    empty. Its readings at the others' steps are used.
    """
    heard, said = dict(spans), []
    while len(heard) > 1 and (name := _stretching(heard)) is not None:
        span = heard.pop(name)
        rest = span_of(heard)
        said.append(
            f"site {name} has only {span.measured} readings from {shown_time(span.first)} to"
            f" {shown_time(span.last)}: those outside of the others' {shown_time(rest.first)} to"
            f" {shown_time(rest.last)} are left out"
        )
    return span_of(heard), said


def _stretching(spans: Mapping[str, Span]) -> str | None:
    """The site with the fewest readings that makes the span too long for what it has."""
    whole = span_of(spans).rows
    for name in sorted(spans, key=lambda name: spans[name].measured):
        rest = span_of({other: span for other, span in spans.items() if other != name}).rows
        if whole > MOST_STRETCHED * rest and 2 * spans[name].measured < whole - rest:
            return name
    return None


def forecast_span(spans: Mapping[str, Span], now: float) -> tuple[Span, list[str]]:
    """The steps of a forecast's readings, and a sentence for each site that is not at their end.

    A forecast begins after the newest step that at least half of the sites have reached, and never further
    ahead of the server's clock than a step. A site that lags is forecast with gaps; of one that leads, what
    is newer is left out. Sites are counted, not sensors: it is a site's files that lag or lead.
    """
    whole = span_of(spans)
    latest = now + whole.step + (0 if whole.utc else FURTHEST_ZONE)
    by_clock = whole.first + max(0, int(latest - whole.first) // whole.step) * whole.step
    lasts = {name: span.last if span.newest is None else span.newest for name, span in spans.items()}
    in_time = sorted((min(last, by_clock) for last in lasts.values()), reverse=True)
    newest = in_time[(len(in_time) + 1) // 2 - 1]
    said = []
    for name, last in lasts.items():
        apart = lasting(abs(last - newest))
        if last < newest:
            said.append(f"site {name} lags: its newest reading is {apart} older than those of most sites")
        elif last > newest:
            said.append(f"site {name} leads: its readings of the last {apart} are newer and are left out")
    return replace(whole, last=newest), said


def remarks(spans: Mapping[str, Span], now: float) -> list[str]:
    """What an operator should know of sites' readings before they are used."""
    said, old = [], dict[str, list[str]]()
    for name, span in spans.items():
        if span.left_out:
            rows = "1 row of its readings" if span.left_out == 1 else f"{span.left_out} rows of its readings"
            why = "at the site, cnfgnn federation check says which and why"
            said.append(f"site {name} leaves out {rows}; {why}")
        if age := old_for(span.last if span.newest is None else span.newest, span.step, span.utc, now):
            old.setdefault(age, []).append(name)
    for age, names in old.items():
        whose = f"site {names[0]}" if len(names) == 1 else f"sites {', '.join(names)}"
        said.append(f"the newest reading of {whose} is {age} old")
    return said


def old_for(newest: int, step: int, utc: bool, now: float) -> str:
    """How old a newest reading is, if that is more than a day and more than ten steps; else nothing.

    Of times without a zone it is not known by which clock they are: they are old if they are by any.
    """
    age = now - newest - (0 if utc else FURTHEST_ZONE)
    return lasting(age) if age > max(OLD_AFTER, OLD_AFTER_STEPS * step) else ""


def lasting(seconds: float) -> str:
    """A stretch of time as people say it."""
    for unit, name in ((DAY, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def shown_time(seconds: int) -> str:
    return str(np.datetime64(int(seconds), "s"))
