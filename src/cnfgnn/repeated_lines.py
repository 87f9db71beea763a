"""A log in which a line that comes again and again does not bury the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

EVERY = 300.0  # seconds in which a line is written once
MOST = 1000  # lines that are remembered


class RepeatedLines(logging.Filter):
    """Lets a line through `often` times in `every` seconds; the next one says how many were left out.

    kind  what lines must have in common to count as the same one
    """

    def __init__(
        self, often: int = 1, every: float = EVERY, kind: Callable[[str], str] = lambda line: line
    ) -> None:
        super().__init__()
        self.often, self.every, self.kind = often, every, kind
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}  # since when, and how often

    def filter(self, record: logging.LogRecord) -> bool:
        line, now = record.getMessage(), time.monotonic()
        key = record.name, self.kind(line)
        since, count = self._seen.pop(key, (now, 0))
        if now - since >= self.every:
            if count > self.often:
                more = f"{count - self.often} more times in {now - since:.0f} s"
                record.msg, record.args = f"{line} ({more})", ()
            since, count = now, 0
        self._seen[key] = since, count + 1
        if len(self._seen) > MOST:
            del self._seen[next(iter(self._seen))]  # the one that has not come for the longest time
        return count < self.often
