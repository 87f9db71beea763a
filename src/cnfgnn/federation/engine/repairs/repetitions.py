"""What the engine repeats is written a few times only.

While a server is away, each of a site's processes says so several times a second, in other words each time. A
log that is limited in size would have forgotten by the evening how the day began.
"""

from __future__ import annotations

import logging
import re

from cnfgnn.repeated_lines import RepeatedLines

OFTEN = 3  # as many lines that differ in numbers alone are written ...
WITHIN = 600.0  # ... in so many seconds
COMPARED = 200  # characters of a line
NUMBERS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+(\.\d+)?")


_call_handlers = logging.Logger.callHandlers


def leave_out_repetitions() -> None:
    """Write no more than this of what the process logs from now on, whichever handlers it gets."""
    repeated = RepeatedLines(OFTEN, WITHIN, lambda line: NUMBERS.sub("#", line[:COMPARED]))

    def call_handlers(self: logging.Logger, record: logging.LogRecord) -> None:
        try:
            if not repeated.filter(record):
                return
        except Exception:  # a message whose arguments do not fit: the handlers report it
            pass
        _call_handlers(self, record)

    logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]
