"""A log in which a line that comes again and again stands a few times only, with how often it came.

The engine repeats itself: while a server is away, each of a site's processes says so several times a second,
in other words each time. A log that is limited in size would have forgotten by the evening how the day began.
"""

from __future__ import annotations

import logging
import re
import time

OFTEN = 3  # as many lines that differ in numbers alone are written
WITHIN = 600.0  # seconds; then as many again
COMPARED = 200  # characters of a line
MOST_KINDS = 1000  # of lines that are remembered
NUMBERS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+(\.\d+)?")


_call_handlers = logging.Logger.callHandlers


class Repetitions:
    """Counts the lines of a process by their kind."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, str], tuple[float, int]] = {}  # since when, and how often

    def is_often(self, record: logging.LogRecord) -> bool:
        """Whether a line came too often to be written. One that is says how many were not."""
        message = record.getMessage()
        key = record.name, record.levelno, NUMBERS.sub("#", message[:COMPARED])
        now = time.monotonic()
        since, count = self._known.get(key, (now, 0))
        if now - since > WITHIN:
            if count > OFTEN:
                record.msg, record.args = f"{message} [{count - OFTEN} more like this were left out]", ()
            since, count = now, 0
        if len(self._known) >= MOST_KINDS and key not in self._known:
            self._known.clear()
        self._known[key] = since, count + 1
        return count >= OFTEN


def leave_out_repetitions() -> None:
    """Write no more than this of what the process logs from now on, whichever handlers it gets."""
    repetitions = Repetitions()

    def call_handlers(self: logging.Logger, record: logging.LogRecord) -> None:
        try:
            if repetitions.is_often(record):
                return
        except Exception:  # a message whose arguments do not fit: the handlers report it
            pass
        _call_handlers(self, record)

    logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]
