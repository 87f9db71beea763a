"""Waiting for a condition, for as long as a busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WITHIN = 240.0  # seconds; a test fails if what it waits for has not happened by then


def wait_for(condition: Callable[[], Any], what: str, within: float = WITHIN) -> Any:
    """Wait until something is true, and return it."""
    end = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.02)
    return found
