"""A log in which a line that is repeated does not bury the others."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

EVERY = 300.0  # seconds between two of the same line
MOST = 1000  # lines that are remembered


class RepeatedLines(logging.Filter):
    """For a handler: lets a line through at once, and again at most every `EVERY` seconds; then it says how
    often it came in between."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}  # when it was let through, and how often it came since

    def filter(self, record: logging.LogRecord) -> bool:
        line, now = record.getMessage(), self._clock()
        since, count = self._seen.pop(line, (-math.inf, 0))
        if now - since < EVERY:
            self._seen[line] = since, count + 1
            return False
        if count:
            record.msg, record.args = f"{line} ({count} more times in {now - since:.0f} s)", ()
        self._seen[line] = now, 0
        if len(self._seen) > MOST:
            del self._seen[next(iter(self._seen))]  # the one that has not come for the longest time
        return True
