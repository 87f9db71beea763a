"""The log of a bad day fits into its rotation."""

from __future__ import annotations

import logging

import pytest

from cnfgnn import repeated_lines
from cnfgnn.federation.engine.repairs import repetitions
from cnfgnn.federation.engine.repairs.repetitions import OFTEN, WITHIN


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def logged(seconds: float, every: float, monkeypatch: pytest.MonkeyPatch, *lines: str) -> list[str]:
    """What is left of lines that come again and again for so long."""
    now = 0.0
    monkeypatch.setattr(repeated_lines.time, "monotonic", lambda: now)
    monkeypatch.setattr(logging.Logger, "callHandlers", logging.Logger.callHandlers)  # restored at the end
    repetitions.leave_out_repetitions()
    logger, written = logging.Logger("engine"), Lines()
    logger.addHandler(written)  # later: the engine sets its handlers when it has loaded its components
    while now < seconds:
        for line in lines:
            logger.warning(line, now)
        now += every
    return written.lines


def test_a_line_that_comes_twice_a_second_is_written_a_few_times_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = logged(4 * WITHIN, 0.5, monkeypatch, "attempt after %s s failed")
    assert len(found) == 4 * OFTEN
    told = [line for line in found if "more times" in line]
    assert told[0].endswith(f"failed ({WITHIN * 2 - OFTEN:.0f} more times in {WITHIN:.0f} s)")
    assert len(told) == 3


def test_lines_of_other_words_and_rare_ones_are_all_written(monkeypatch: pytest.MonkeyPatch) -> None:
    found = logged(2 * WITHIN, WITHIN / 2, monkeypatch, "north is gone at %s", "south is gone at %s")
    assert found == [
        f"{site} is gone at {t}" for t in (0.0, 300.0, 600.0, 900.0) for site in ("north", "south")
    ]
