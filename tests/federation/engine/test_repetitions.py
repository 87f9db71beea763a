"""The log of a bad day fits into its rotation."""

from __future__ import annotations

import logging

import pytest

from cnfgnn.federation.engine.repairs import repetitions
from cnfgnn.federation.engine.repairs.repetitions import OFTEN, WITHIN, Repetitions


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def logged(seconds: float, every: float, monkeypatch: pytest.MonkeyPatch, *lines: str) -> list[str]:
    """What is left of lines that come again and again for so long."""
    now = 0.0
    monkeypatch.setattr(repetitions.time, "monotonic", lambda: now)
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
    told = [line for line in found if "more like this were left out" in line]
    assert told[0].endswith(f"failed [{WITHIN * 2 + 1 - OFTEN:.0f} more like this were left out]")
    assert len(told) == 3


def test_lines_of_other_words_and_rare_ones_are_all_written(monkeypatch: pytest.MonkeyPatch) -> None:
    found = logged(2 * WITHIN, WITHIN / 2, monkeypatch, "north is gone at %s", "south is gone at %s")
    assert found == [
        f"{site} is gone at {t}" for t in (0.0, 300.0, 600.0, 900.0) for site in ("north", "south")
    ]


def test_a_peer_that_makes_lines_up_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetitions, "MOST_KINDS", 10)
    repeated = Repetitions()
    for k in range(100):
        line = "".join(chr(97 + int(digit)) for digit in str(k))
        assert not repeated.is_often(logging.LogRecord("engine", 30, "", 0, line, (), None))
    assert len(repeated._known) <= 10
