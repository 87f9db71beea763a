"""The time spans of the sites' readings: which time steps a training uses, and where a forecast begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from cnfgnn.data.inputs import NO_NAMES, InputNames

DAY = 86_400  # seconds
OLD_AFTER = DAY  # readings are old after this many seconds ...
OLD_AFTER_STEPS = 10  # ... and after this many steps
FURTHEST_ZONE = 14 * 3600  # seconds: the largest difference between a local clock and UTC
MOST_STRETCHED = 2  # how many times longer one site with few readings may make the training's span


@dataclass(frozen=True)
class Span:
    """First and last time step in seconds since 1970, the step between two, and whether times are in UTC."""

    first: int
    last: int
    step: int
    utc: bool
    newest: int | None = None  # the newest reading, even if it is isolated from the rest
    measured: int = 0  # the number of steps at which the site has a reading
    ignored: int = 0  # the number of rows that the site ignores, see SiteData
    memory: int = 0  # bytes that the site has for hidden states and embeddings; 0: unknown
    blur: float = 0.0  # of the copy of the readings that the site answers from
    inputs: InputNames = NO_NAMES  # its other variables and covariates

    @property
    def rows(self) -> int:
        return (self.last - self.first) // self.step + 1

    @property
    def newest_reading(self) -> int:
        return self.last if self.newest is None else self.newest


def covering_span(spans: Mapping[str, Span]) -> Span:
    """From the first reading of any site to the last; the sites are known to be compatible."""
    any_span = next(iter(spans.values()))
    first = min(span.first for span in spans.values())
    last = max(span.last for span in spans.values())
    return Span(first, last, any_span.step, any_span.utc, inputs=any_span.inputs)


def training_span(spans: Mapping[str, Span]) -> tuple[Span, list[str]]:
    """The time steps of a training, and a warning for each site with readings outside of them.

    They extend from the first reading of any site to the last. Exception: a site that would more than double
    the span, and has readings at fewer than half of the steps it would add, does not extend it, because most
    windows would be empty. Its readings within the others' span are used.
    """
    counted, warnings = dict(spans), []
    while len(counted) > 1 and (name := _outlying_site(counted)) is not None:
        span = counted.pop(name)
        rest = covering_span(counted)
        warnings.append(
            f"site {name} has only {span.measured} readings from {format_time(span.first)} to"
            f" {format_time(span.last)}: readings outside of the other sites' span, {format_time(rest.first)}"
            f" to {format_time(rest.last)}, are not used"
        )
    return covering_span(counted), warnings


def _outlying_site(spans: Mapping[str, Span]) -> str | None:
    """The site with the fewest readings that stretches the span too much."""
    all_rows = covering_span(spans).rows
    for name in sorted(spans, key=lambda name: spans[name].measured):
        others = {other: span for other, span in spans.items() if other != name}
        rest = covering_span(others).rows
        if all_rows > MOST_STRETCHED * rest and 2 * spans[name].measured < all_rows - rest:
            return name
    return None


def forecast_span(spans: Mapping[str, Span], now: float) -> tuple[Span, list[str]]:
    """The time steps that a forecast is based on, and a warning for each site that ends elsewhere.

    A forecast begins after the newest step that at least half of the sites have reached, and never more than
    one step ahead of the server's clock. A site that lags gets a forecast with gaps in its history; readings
    of a site that leads are ignored after the common end. Sites are counted, not sensors, because it is a
    site's files that lag or lead.
    """
    whole = covering_span(spans)
    latest = now + whole.step + (0 if whole.utc else FURTHEST_ZONE)
    clock_limit = whole.first + max(0, int(latest - whole.first) // whole.step) * whole.step
    lasts = {name: span.newest_reading for name, span in spans.items()}
    by_age = sorted((min(last, clock_limit) for last in lasts.values()), reverse=True)
    common_end = by_age[(len(by_age) + 1) // 2 - 1]
    warnings = []
    for name, last in lasts.items():
        difference = format_duration(abs(last - common_end))
        if last < common_end:
            warnings.append(
                f"site {name} lags: its newest reading is {difference} older than those of most sites"
            )
        elif last > common_end:
            warnings.append(
                f"site {name} leads: its readings of the last {difference} are newer than those of most sites"
                " and are not used"
            )
    return replace(whole, last=common_end), warnings


def reading_warnings(spans: Mapping[str, Span], now: float) -> list[str]:
    """What the operator should know about the sites' readings before they are used."""
    warnings: list[str] = []
    sites_by_age: dict[str, list[str]] = {}
    for name, span in spans.items():
        if span.ignored:
            rows = "1 row" if span.ignored == 1 else f"{span.ignored} rows"
            advice = "run cnfgnn federation check at the site to see which and why"
            warnings.append(f"site {name} ignores {rows} of its readings; {advice}")
        if age := age_if_old(span.newest_reading, span.step, span.utc, now):
            sites_by_age.setdefault(age, []).append(name)
    for age, names in sites_by_age.items():
        sites = f"site {names[0]}" if len(names) == 1 else f"sites {', '.join(names)}"
        warnings.append(f"the newest reading of {sites} is {age} old")
    return warnings


def unblurred_warnings(spans: Mapping[str, Span]) -> list[str]:
    """What this server can estimate of readings that are not blurred."""
    names = [name for name, span in spans.items() if span.blur == 0]
    if not names:
        return []
    if len(names) == 1:
        said = (
            f"site {names[0]} has no blur: from what it sends, this server can estimate each of its readings"
        )
    else:
        sites = f"sites {', '.join(names)} have"
        said = f"{sites} no blur: from what they send, this server can estimate each of their readings"
    return [f"{said}, nearly exactly"]


def age_if_old(newest: int, step: int, utc: bool, now: float) -> str:
    """The age of the newest reading if it is older than a day and ten steps; else an empty string.

    Without a time zone it is unknown which clock the times are from: they are old if they are old in every
    zone.
    """
    age = now - newest - (0 if utc else FURTHEST_ZONE)
    return format_duration(age) if age > max(OLD_AFTER, OLD_AFTER_STEPS * step) else ""


def format_duration(seconds: float) -> str:
    """A duration in the largest unit of which it has at least two."""
    for unit, name in ((DAY, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def format_time(seconds: int) -> str:
    return str(np.datetime64(int(seconds), "s"))
