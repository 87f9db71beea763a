"""The page about a blur: what it guarantees, a table of what can be told apart, a chart, and the caveats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from cnfgnn.privacy.explanation import (
    MU_AND_EPSILON,
    RIGHT_AT_MOST,
    Guarantee,
    caveats,
    change_text,
    epsilon_text,
    mu_text,
    share,
)
from cnfgnn.privacy.guarantee import VERDICTS, Row, detection, distance
from cnfgnn.report.page import Section, page

# The first colours of the charts of runs.
COLOURS = ("#1f83c4", "#e08e00", "#0a9a73", "#c76aa0", "#8a6fd1", "#d0571a", "#7d8794")
WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 44, 414, 10, 226  # of the area that the lines are drawn in
POINTS = 80  # of a line
LEAST_RANGE = 12  # readings on the horizontal axis, at least
LABEL_ROOM = 46  # between the middles of two labels of the horizontal axis


def guarantee_page(about: str, guarantees: Sequence[Guarantee]) -> str:
    """The whole page; `about` says whose guarantees these are."""
    sections = [section for guarantee in guarantees for section in _sections(guarantee)]
    if told := caveats(guarantees):
        items = "".join(
            f"<li><strong>{escape(title)}.</strong> {escape(text)}</li>" for title, text in told.items()
        )
        sections.append(Section("Keep in mind", f"<ul>{items}</ul>"))
    sections += [
        Section(f"All figures{_suffix(guarantee)}", _figures(guarantee))
        for guarantee in guarantees
        if guarantee.rows
    ]
    return page(f"What the server can learn from {about}", [], sections)


def _sections(guarantee: Guarantee) -> Iterator[Section]:
    """What one blur guarantees, and what can be told apart in spite of it."""
    suffix = _suffix(guarantee)
    examples = "".join(f"<li>{escape(example)}</li>" for example in guarantee.examples)
    promise = f'<p class="promise">{escape(guarantee.sentence)}</p><p>{escape(guarantee.about_the_noise)}</p>'
    yield Section(f"The guarantee{suffix}", promise + (f"<ul>{examples}</ul>" if examples else ""))
    if guarantee.rows:
        both = f"<div>{_overview(guarantee)}</div>"
        if guarantee.sigma:
            both = f'<div class="split even">{both}{_chart(guarantee)}</div>'
        title = f"Can the server tell whether something happened?{suffix}"
        yield Section(title, f"{both}<p class=hint>{escape(RIGHT_AT_MOST)}</p>")


def _suffix(guarantee: Guarantee) -> str:
    return f" ({', '.join(guarantee.sites)})" if guarantee.sites else ""


def _overview(guarantee: Guarantee) -> str:
    """A table with a row for each size and a column for each duration; the darker, the plainer to see."""
    measures = guarantee.measures
    heads = "".join(f"<th>{escape(measures.lasting(readings))}</th>" for readings in guarantee.durations)
    body = ""
    for change, rows in _by_change(guarantee).items():
        cells = "".join(
            f'<td class=tint style="--shows:{2 * row.detection - 1:.3f}" title="{escape(row.verdict)}">'
            f"{escape(share(row.detection).replace('over', '>'))}</td>"
            for row in rows
        )
        body += f"<tr><th>{escape(measures.amount(change))}</th>{cells}</tr>"
    hidden = "".join(f"<td>{change_text(change)}</td>" for change in guarantee.hidden_changes)
    unit = f" ({measures.unit})" if measures.unit else ""
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="How often the server can be right">'
        '<table class="told"><caption>How often the best possible attacker is right, at most</caption>'
        f"<thead><tr><th class=text>a change of</th>{heads}</tr></thead><tbody>{body}</tbody>"
        f"<tfoot><tr><th class=text>mostly hidden up to{escape(unit)}</th>{hidden}</tr></tfoot></table></div>"
        f"<p class=hint>{_scale()}</p>"
    )


def _scale() -> str:
    """What the words for probabilities mean."""
    words = ", ".join(f"{words} below {limit:.0%}".replace("%", " %") for words, limit in VERDICTS.items())
    return f"In words: {words}, and not hidden from there on."


def _by_change(guarantee: Guarantee) -> dict[float, list[Row]]:
    by_change: dict[float, list[Row]] = {}
    for row in guarantee.rows:
        by_change.setdefault(row.change, []).append(row)
    return by_change


def _figures(guarantee: Guarantee) -> str:
    """The table with mu and epsilon."""
    measures = guarantee.measures
    heads = ("change", "lasts", "readings", "right at most", "mu", "epsilon", "the event is")
    head = "".join(f"<th{' class=text' if name == heads[-1] else ''}>{name}</th>" for name in heads)
    body = ""
    for row in guarantee.rows:
        cells = [measures.amount(row.change), measures.lasting(row.readings), f"{row.readings:,}"]
        cells += [share(row.detection), mu_text(row.mu), epsilon_text(row.epsilon)]
        shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        body += f"<tr>{shown}<td class=text>{row.verdict}</td></tr>"
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="All figures"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f"<p class=hint>{escape(MU_AND_EPSILON)}</p>"
    )


# ---- the chart ------------------------------------------------------------------------------------------


def _chart(guarantee: Guarantee) -> str:
    """How often the attacker is right against how long a change lasts, a line for each size."""
    changes = list(_by_change(guarantee))
    longest = max(guarantee.durations[-1], LEAST_RANGE)
    lines = "".join(
        f'<path d="{_line(change, guarantee.sigma, longest)}" stroke="{COLOURS[k % len(COLOURS)]}"/>'
        for k, change in enumerate(changes)
    )
    legend = "".join(
        f'<span><i class="swatch" style="background:{COLOURS[k % len(COLOURS)]}"></i>'
        f"{escape(guarantee.measures.amount(change))}</span>"
        for k, change in enumerate(changes)
    )
    return (
        f'<figure><svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="How often the'
        ' attacker is right at most, by how long a change lasts, a line for each size of change">'
        f"{_axes(guarantee, longest)}{lines}</svg>"
        f'<figcaption class="legend">change of {legend}</figcaption></figure>'
    )


def _axes(guarantee: Guarantee, longest: int) -> str:
    """Grid lines with their labels: probabilities, and the durations of the table where there is room."""
    parts = []
    for percent in (50, 60, 70, 80, 90, 100):
        y = _up(percent / 100)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>')
    free_from = -math.inf
    for readings in guarantee.durations:
        x = _across(readings, longest)
        if x >= free_from:
            free_from = x + LABEL_ROOM
            label = str(readings) if guarantee.measures.step is None else guarantee.measures.lasting(readings)
            parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{BOTTOM}"/>')
            parts.append(f'<text x="{x:.1f}" y="{BOTTOM + 18}" text-anchor="middle">{escape(label)}</text>')
    name = "how long the change lasts" if guarantee.measures.step else "readings that the change lasts"
    parts.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{name}</text>')
    return "".join(parts)


def _line(change: float, sigma: float, longest: int) -> str:
    """The path of one line; a fraction of a reading only serves to draw it smoothly."""
    points = []
    for k in range(POINTS + 1):
        readings = longest ** (k / POINTS)
        right = detection(distance(change, readings, sigma))
        points.append(f"{_across(readings, longest):.1f} {_up(right):.1f}")
    return "M" + "L".join(points)


def _across(readings: float, longest: int) -> float:
    return LEFT + (RIGHT - LEFT) * math.log(readings) / math.log(longest)


def _up(probability: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * (2 * probability - 1)
