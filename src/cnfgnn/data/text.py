"""Csv as lines of fields, and pieces of files as parts of a sentence."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from cnfgnn.errors import DataError

Row = tuple[int, list[str]]  # line number and fields


def text_rows(path: Path) -> Iterator[Row]:
    """Line number and fields of every line of a csv file that is not blank."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            for fields in reader:
                if fields:
                    yield reader.line_num, fields
    except UnicodeDecodeError:
        raise DataError(path, "this is not UTF-8 text; save it as csv in UTF-8") from None
    except csv.Error as problem:
        raise DataError(path, f"this is not a csv file ({problem})", row=reader.line_num) from None
    except OSError as problem:
        raise DataError(path, f"it cannot be opened ({problem.strerror})") from None


def number(text: str) -> float | None:
    """The number that a text stands for; Python alone would also read 1_000 and Thai digits."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def shown(text: object) -> str:
    """A piece of a file, short enough to be part of a sentence."""
    return repr(str(text)[:40])


def reason(problem: BaseException) -> str:
    """The first line of what a library complains about."""
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
