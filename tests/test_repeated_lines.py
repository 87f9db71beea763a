"""A line that is repeated does not bury the others."""

from __future__ import annotations

import logging

import pytest

from cnfgnn import repeated_lines
from cnfgnn.repeated_lines import EVERY, RepeatedLines


def record(line: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("name", logging.WARNING, "file", 1, line, args, None)


def test_a_line_comes_at_once_and_then_with_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = [0.0], RepeatedLines()
    monkeypatch.setattr(repeated_lines.time, "monotonic", lambda: now[0])
    assert [lines.filter(record("%s is full", "disk")) for _ in range(56)] == [True] + [False] * 55
    assert lines.filter(record("%s is full", "another"))
    now[0] = EVERY
    again = record("%s is full", "disk")
    assert lines.filter(again)
    assert again.getMessage() == f"disk is full (55 more times in {EVERY:.0f} s)"
    now[0] = 2 * EVERY
    alone = record("disk is full")
    assert lines.filter(alone)
    assert alone.getMessage() == "disk is full"


def test_its_memory_is_bounded() -> None:
    lines = RepeatedLines()
    for number in range(2 * repeated_lines.MOST):
        assert lines.filter(record(f"line {number}"))
    assert len(lines._seen) == repeated_lines.MOST
