"""How much a sender may send: the size of a body, and how often."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_BYTES = 4 << 20  # of one upload
MOST_BYTES_AT_ONCE = 64 << 20  # of all uploads that are under way
UPLOADS_PER_SECOND = 100.0  # in the long run
UPLOADS_AT_ONCE = 1000  # sensors that each send for themselves do so at the same moment
MOST_CONNECTIONS = 1000
MOST_STREAMS = 200  # listeners to events at the same time


class Rate:
    """Admits `per_second` events in the long run, and `at_once` in a burst."""

    def __init__(self, per_second: float, at_once: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second, self.at_once, self._clock = per_second, at_once, clock
        self._left, self._since = float(at_once), clock()

    def admits(self) -> bool:
        """Whether one more may come now; if so, it counts."""
        now = self._clock()
        self._left = min(self.at_once, self._left + (now - self._since) * self.per_second)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
