"""How many readings lay within their ranges: sums that the owner of a site may tell the server.

They are computed from true readings, so that they stay at the site unless its owner sets `tell_coverage`
under `[live]`. They are sums over the last day and all sensors of the site, and they change once an hour: the
server should not learn from one answer to the next how single readings compare with their forecasts.
"""

from __future__ import annotations

from cnfgnn.federation.coverage_sums import COUNT
from cnfgnn.live.watch import LEAST_COUNT, LEVELS, SUMS, Report

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
        if step and hour != self._hour:
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
