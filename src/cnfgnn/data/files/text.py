"""Read text files of fields: detect their encoding, separator and decimal mark."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import AnyStr, NamedTuple

from cnfgnn.errors import DataError

Row = tuple[int, list[str]]  # line number and fields
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
ENCODINGS = {"utf-8-sig": "UTF-8", "utf-16": "UTF-16", "cp1252": "Windows-1252 (Latin-1)"}
# Characters that no text holds: Windows-1252 alone would decode almost any binary file.
BINARY = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
MISSING = frozenset(
    {"", "-", "--", "?", "NA", "N/A", "na", "n/a", "n.a.", "#N/A", "NaN", "nan", "NAN", "-nan"}
    | {"NULL", "null", "Null", "None", "none"}
)
NEAR = 100  # lines at the beginning in which one that fits the first line is sought
# 1,234 may have a decimal comma, or one between thousands.
GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+", re.A)


@dataclass(frozen=True)
class Text:
    """A text file and how to read it."""

    path: Path
    head: str  # up to the second non-blank line
    encoding: str = "utf-8-sig"
    separator: str = ","
    content: str | None = None  # decoded, if the encoding is not UTF-8

    def first_rows(self) -> list[Row]:
        """The first two rows, or as many as there are."""
        return list(self._parsed(io.StringIO(self.head, newline="")))

    def rows(self) -> Iterator[Row]:
        """Line number and fields of every non-blank line."""
        try:
            if self.content is not None:
                yield from self._parsed(io.StringIO(self.content, newline=""))
                return
            with self.path.open(encoding=self.encoding, newline="") as file:
                yield from self._parsed(file)
        except UnicodeDecodeError:
            raise _no_text(self.path) from None
        except OSError as problem:
            raise DataError(self.path, f"cannot be opened ({problem.strerror})") from None

    def _parsed(self, lines: Iterable[str]) -> Iterator[Row]:
        reader = csv.reader(lines, delimiter=self.separator)
        try:
            for fields in reader:
                if fields:
                    yield reader.line_num, fields
        except csv.Error as problem:
            raise DataError(self.path, f"cannot be parsed as csv ({problem})", line=reader.line_num) from None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was detected about the file."""
        notes: tuple[str, ...] = ()
        if self.encoding != "utf-8-sig":
            notes += (f"text in {ENCODINGS[self.encoding]}",)
        if self.separator != ",":
            notes += (f"fields separated by {SEPARATORS[self.separator]}",)
        return notes


class Lines(NamedTuple):
    """Lines of a CSV file that have ended: the one that names the columns, and others.

    numbers  of these others, as an editor counts lines
    chosen   numbers of the lines whose readings are wanted; the others help to understand them. None: all
    """

    header: bytes
    others: Sequence[bytes]
    numbers: Sequence[int]
    chosen: Container[int] | None = None

    @classmethod
    def of(cls, raw: bytes, chosen: Container[int] | None = None) -> Lines:
        """All lines of a file; what follows the last line end is not a line yet."""
        if is_utf_16(raw):
            raw = raw.decode("utf-16", "replace").encode()
        if b"\n" not in raw:
            raw = raw.replace(b"\r", b"\n")
        header, *others = raw.split(b"\n")[:-1] or [b""]
        return cls(header, others, range(2, len(others) + 2), chosen)

    def text_of(self, number: int) -> bytes:
        """The line of this number."""
        return self.others[self.numbers.index(number)]

    def text(self, path: Path, refuse: Callable[[str, int], None]) -> tuple[Text, list[str]]:
        """The first two lines as a text, and the others; `refuse` gets those that are no text, by row."""
        whole = b"\n".join([self.header, *self.others])
        content, encoding = _utf_8(whole), "utf-8-sig"
        if content is None:
            try:
                encoding, content = _decoded(whole, path)
            except DataError:
                content = _utf_8(self.header + b"\n")
                if content is None or BINARY.search(content):
                    raise
                content += "\n".join(_decoded_lines(self.others, refuse))
        header, *others = content.split("\n")
        head = _fitting_head(header, others)
        return Text(path, head, encoding, _separator(head), header), others


def has_ended(path: Path) -> bool:
    """Whether the last line of a file has ended, so that the file may be complete."""
    with path.open("rb") as opened:
        opened.seek(-1, os.SEEK_END)
        return opened.read() == b"\n"


def is_utf_16(raw: bytes) -> bool:
    """Whether a file begins as one in UTF-16 does."""
    return raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def _decoded_lines(lines: Sequence[bytes], refuse: Callable[[str, int], None]) -> Iterator[str]:
    """Lines in UTF-8; those that are not are refused, and blank."""
    for row, line in enumerate(lines):
        text = _utf_8(line)
        if text is None or BINARY.search(text):
            refuse("this line is not text in UTF-8", row)
        yield "" if text is None else text


def _fitting_head(header: str, others: Sequence[str]) -> str:
    """The first line, and one of the next that has as many fields: a damaged one tells nothing of others."""
    filled = [line for line in others[:NEAR] if line.strip()]
    for line in filled:
        head = f"{header}\n{line}\n"
        with suppress(csv.Error):
            counts = {len(fields) for fields in csv.reader([header, line], delimiter=_separator(head))}
            if len(counts) == 1 and counts != {1}:
                return head
    return "\n".join([header, *filled[:1], ""])


def open_text(path: Path, *, whole: bool = True) -> Text:
    """Open a file and detect its encoding and separator; unless `whole`, from its first lines alone."""
    try:
        raw = path.read_bytes() if whole else _first_lines(path)
        content = _utf_8(raw)
        if content is None and not whole:
            raw = path.read_bytes()
    except OSError as problem:
        raise DataError(path, f"cannot be opened ({problem.strerror})") from None
    if content is not None:
        head = _head(content)
        return Text(path, head, separator=_separator(head))
    encoding, content = _decoded(raw, path)
    head = _head(content)
    return Text(path, head, encoding, _separator(head), content)


def _first_lines(path: Path) -> bytes:
    """The lines of a file up to the second non-blank one."""
    with path.open("rb") as file:
        return b"".join(_until_second_filled(file))


def _head(content: str) -> str:
    """The same of a text."""
    return "".join(_until_second_filled(io.StringIO(content, newline="")))


def _until_second_filled(lines: Iterable[AnyStr]) -> Iterator[AnyStr]:
    filled = 0
    for line in lines:
        yield line
        filled += bool(line.strip())
        if filled == 2:
            return


def _utf_8(raw: bytes) -> str | None:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _decoded(raw: bytes, path: Path) -> tuple[str, str]:
    """Encoding and content of a file that is not UTF-8."""
    encoding = "utf-16" if is_utf_16(raw) else "cp1252"
    try:
        content = raw.decode(encoding)
    except UnicodeDecodeError:
        raise _no_text(path) from None
    if encoding == "cp1252" and not raw.decode("utf-8", "ignore").isascii():
        raise DataError(
            path, "this UTF-8 file has a damaged character: save it again", line=_damaged_line(raw)
        )
    if BINARY.search(content):
        raise _no_text(path)
    return encoding, content


def _damaged_line(raw: bytes) -> int:
    """The first line that is not UTF-8."""
    whole = len(raw)
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        whole = problem.start
    return len(raw[:whole].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"))


def _no_text(path: Path) -> DataError:
    return DataError(path, "is not text in UTF-8, UTF-16 or Latin-1: save it as csv in UTF-8")


def _separator(head: str) -> str:
    """The separator of a file, from its first two lines.

    The best separator gives both lines the same number of fields, then cells without other separators, then
    the most fields. Commas win a tie.
    """
    lines = [line for line in io.StringIO(head, newline="") if line.strip()]
    found: list[tuple[tuple[bool, int, int], str]] = []
    for separator in SEPARATORS:
        try:
            rows = list(csv.reader(lines, delimiter=separator))
        except csv.Error:
            rows = []
        if rows:
            counts = {len(fields) for fields in rows}
            mixed = sum(_holds_another(cell, separator) for fields in rows for cell in fields)
            found.append(((len(counts) == 1 and counts != {1}, -mixed, len(rows[0])), separator))
    return max(found, key=lambda one: one[0])[1] if found else ","  # max returns the first of equals: commas


def _holds_another(cell: str, separator: str) -> bool:
    """Whether a cell holds another separator or a quote, and is not a number with a decimal comma."""
    return any(mark in cell for mark in {*SEPARATORS, '"'} - {separator}) and number(cell, ",") is None


def number(text: str, decimal: str = ".") -> float | None:
    """Parse a number; unlike Python's float, refuse 1_000 and digits of other scripts."""
    if decimal == ",":
        if "." in text:
            return None
        text = text.replace(",", ".")
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def decimal_comma(cells: Iterable[tuple[int, str]], separator: str) -> tuple[bool, tuple[int, str] | None]:
    """Whether numbers have decimal commas; if that cannot be decided, also an ambiguous cell and its line.

    Files that separate fields by semicolons do so because their numbers have decimal commas.
    """
    unclear: tuple[int, str] | None = None
    for line, cell in cells:
        if "," in cell and number(cell.strip(), ",") is not None:
            if separator == ";" or not GROUPED.fullmatch(cell.strip()):
                return True, None
            unclear = unclear or (line, cell.strip())
    return False, unclear


def shown(text: object) -> str:
    """A piece of a file in quotes, short enough for an error message."""
    return repr(str(text)[:40])


def reason(problem: BaseException) -> str:
    """The first line of a library's error message."""
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
