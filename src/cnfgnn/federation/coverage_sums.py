"""Sums about coverage that a live site may tell, as the server uses them; `live_coverage` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cnfgnn.algorithm.intervals import LEVELS

COVERAGE = "coverage"  # the field of the answer to `due`
COUNT = "count"  # how many forecasts were compared with a reading; beside it, how many lay within each range
MOST = 2**53  # no sum is larger


def coverage_told(answer: Mapping[str, Any]) -> dict[str, int] | None:
    """What a site has told; None if it told nothing, or nothing that can be meant."""
    told = answer.get(COVERAGE)
    if not isinstance(told, dict) or COUNT not in told or not told.keys() <= {COUNT, *map(str, LEVELS)}:
        return None
    if not all(type(number) is int and 0 <= number <= MOST for number in told.values()):
        return None
    return dict(told) if 0 < max(told.values()) == told[COUNT] else None
