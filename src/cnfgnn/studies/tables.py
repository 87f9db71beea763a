"""Tables that can be written for a terminal, as Markdown, CSV, JSON and HTML."""

from __future__ import annotations

import csv
import html
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Mean(NamedTuple):
    """A mean over seeds, with the standard deviation if there are several."""

    mean: float
    spread: float | None
    seeds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean:
        known = list(values)
        spread = statistics.stdev(known) if len(known) > 1 else None
        return cls(statistics.fmean(known), spread, len(known))


@dataclass(frozen=True)
class Column:
    """A column of a table.

    digits  after the decimal point
    share   whether numbers are shown as per cent
    spread  whether the spread over seeds is shown; files of raw numbers always have it
    """

    key: str
    label: str
    digits: int = 3
    share: bool = False
    spread: bool = True

    def text(self, value: Any) -> str:
        if value is None or value != value:
            return "-"
        if isinstance(value, Mean):
            spread = f" ± {self.text(value.spread)}" if self.spread and value.spread is not None else ""
            return self.text(value.mean) + spread
        if isinstance(value, float):
            return f"{value:.{self.digits}%}" if self.share else f"{value:,.{self.digits}f}"
        return f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Table:
    """Rows of raw values by column, with notes for the reader."""

    name: str  # of its files
    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = field(default_factory=tuple)

    def cells(self) -> list[list[str]]:
        return [[column.text(row.get(column.key)) for column in self.columns] for row in self.rows]

    def markdown(self) -> str:
        cells = [[cell.replace("|", "\\|") for cell in row] for row in self.cells()]
        heads = [column.label for column in self.columns]
        lines = [f"**{self.title}**", "", _line(heads), _line(["---"] * len(heads)), *map(_line, cells)]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes), ""])

    def csv(self) -> str:
        """The table as CSV with raw numbers; a mean over seeds takes three columns."""
        wide = [c for c in self.columns if any(isinstance(row.get(c.key), Mean) for row in self.rows)]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        heads = [
            [c.label, f"{c.label}, spread", f"{c.label}, seeds"] if c in wide else [c.label]
            for c in self.columns
        ]
        writer.writerow([head for group in heads for head in group])
        for row in self.rows:
            groups = [_raw(row.get(c.key), c in wide) for c in self.columns]
            writer.writerow([cell for group in groups for cell in group])
        return out.getvalue()

    def plain(self) -> dict[str, Any]:
        """The table as plain values, ready for JSON."""
        rows = [{c.key: _plain(row.get(c.key)) for c in self.columns} for row in self.rows]
        labels = {c.key: c.label for c in self.columns}
        return {"title": self.title, "columns": labels, "rows": rows, "notes": list(self.notes)}

    def html(self) -> str:
        """The table as HTML, without its title."""
        words = [
            not any(isinstance(row.get(c.key), Mean | float | int) for row in self.rows) for c in self.columns
        ]

        def row(kind: str, cells: Sequence[str]) -> str:
            made = zip(cells, words, strict=True)
            tags = (
                f"<{kind}{' class=text' if word else ''}>{html.escape(cell)}</{kind}>" for cell, word in made
            )
            return f"<tr>{''.join(tags)}</tr>"

        head = row("th", [c.label for c in self.columns])
        body = "".join(row("td", cells) for cells in self.cells())
        notes = " ".join(html.escape(note) for note in self.notes)
        return (
            f'<div class="scroll" tabindex="0"><table aria-label="{html.escape(self.title)}">'
            f"<thead>{head}</thead><tbody>{body}</tbody></table></div>"
            + (f'<p class="note">{notes}</p>' if notes else "")
        )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(value: Any) -> Any:
    return value._asdict() if isinstance(value, Mean) else value


def _raw(value: Any, wide: bool) -> list[Any]:
    if isinstance(value, Mean):
        return [value.mean, value.spread, value.seeds]
    return [value, None, None] if wide else [value]
