"""How many readings lay within their ranges: sums that the owner of a live site may tell the server.

They are computed from true readings, so that they stay at the site unless its owner sets `tell_coverage`
under `[live]`. They are sums over the last day and all sensors of the site, and they change once an hour: the
server should not learn from one answer to the next how single readings compare with their forecasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cnfgnn.forecasters.intervals import LEVELS as ALL_LEVELS
from cnfgnn.live.forecasting.watch import LEAST_COUNT, LEVELS, SUMS, Report

COVERAGE = "coverage"  # the field of the answer to `due`
COUNT = "count"  # how many forecasts were compared with a reading; beside it, how many lay within each range
MOST = 2**53  # no sum is larger
HOUR = 3600  # seconds


class ToldCoverage:
    """What a site tells: the sums as they were at the first step of an hour, until the next hour begins."""

    def __init__(self) -> None:
        self._hour: int | None = None
        self._sums: dict[str, int] | None = None

    def at(self, step: int, report: Report | None) -> dict[str, int] | None:
        """What is told when this step, in seconds since 1970, is due; None if nothing is.

        Nothing is told in the hour in which the process started: it may have told other sums before.
        """
        hour = step // HOUR
        if step and (self._hour is None or hour > self._hour):  # never again in an hour, if clocks go back
            if self._hour is not None:
                self._sums = None if report is None else _sums(report)
            self._hour = hour
        return self._sums


def _sums(report: Report) -> dict[str, int] | None:
    """How many forecasts were compared with a reading, and how many of these lay within each range."""
    total = dict(zip(SUMS, report.sums.sum(axis=0).tolist(), strict=True))
    if not report.has_ranges or total["count"] < LEAST_COUNT:
        return None
    inside = {str(level): round(total[f"inside_{level}"]) for level in LEVELS}
    return {COUNT: round(total["count"]), **inside}


def coverage_told(answer: Mapping[str, Any]) -> dict[str, int] | None:
    """What a site has told, for the server; None if it told nothing, or nothing that is valid."""
    told = answer.get(COVERAGE)
    if not isinstance(told, dict) or COUNT not in told or not told.keys() <= {COUNT, *map(str, ALL_LEVELS)}:
        return None
    if not all(type(number) is int and 0 <= number <= MOST for number in told.values()):
        return None
    return dict(told) if 0 < max(told.values()) == told[COUNT] else None
