"""The page about a blur: complete, safe whatever names there are, and readable on a phone."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from selenium import webdriver

from cnfgnn.privacy.explanation import Guarantee, Measures, caveats, explain
from cnfgnn.report import guarantee_page as drawing
from cnfgnn.report.guarantee_page import guarantee_page
from tests.browser import BROWSER, DRIVER, driver  # noqa: F401
from tests.report.test_browser import Browser

MPH = Measures("mph", 300)


@pytest.fixture
def guarantees() -> list[Guarantee]:
    return explain({"": 5.0}, MPH)


def charts(made: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", made, re.DOTALL)]


def curves(chart: ET.Element) -> list[list[tuple[float, float]]]:
    """The points of the lines, as they were drawn."""
    paths = [path.attrib["d"] for path in chart.iter("path") if path.get("class") != "grid"]
    return [[tuple(map(float, point.split())) for point in path[1:].split("L")] for path in paths]  # type: ignore[misc]


def test_it_says_everything_and_loads_nothing(guarantees: list[Guarantee]) -> None:
    made = guarantee_page("the harbour", guarantees)
    assert "<title>What the server can learn from the harbour</title>" in made
    assert guarantees[0].sentence in made
    for title, text in caveats(guarantees).items():
        assert f"<strong>{title}.</strong> {text}" in made
    assert made.count("<tr><td>") == 20
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", re.sub(r"<script.*?</script>", "", made))
    assert "plotly" not in made.lower()
    assert len(made) < 40_000


def test_the_overview_has_each_probability_once(guarantees: list[Guarantee]) -> None:
    cells = re.findall(r"<td class=tint [^>]*>([^<]*)</td>", guarantee_page("x", guarantees))
    assert cells[:5] == ["54 %", "57 %", "64 %", "81 %", "96 %"]
    assert cells[-1] == "&gt; 99 %"
    assert len(cells) == 20


def test_the_lines_of_the_chart_are_at_the_figures_of_the_table(guarantees: list[Guarantee]) -> None:
    (chart,) = charts(guarantee_page("x", guarantees))
    lines = curves(chart)
    assert len(lines) == 4
    by_change = [guarantees[0].rows[k : k + 5] for k in range(0, 20, 5)]
    height = drawing.BOTTOM - drawing.TOP
    for line, rows in zip(lines, by_change, strict=True):
        ends = [0.5 + 0.5 * (drawing.BOTTOM - y) / height for _, y in (line[0], line[-1])]
        assert ends == pytest.approx([rows[0].detection, rows[-1].detection], abs=0.001)
        assert (line[0][0], line[-1][0]) == (drawing.LEFT, drawing.RIGHT)


def test_labels_of_the_axis_are_left_out_where_they_would_overlap() -> None:
    (chart,) = charts(guarantee_page("x", explain({"": 5.0}, MPH, durations=[1, 12, 13, 14, 288])))
    labels = [text.text for text in chart.iter("text")]
    assert "1 h" in labels
    assert "1 h 5 min" not in labels


def test_a_single_duration_can_be_drawn() -> None:
    (chart,) = charts(guarantee_page("x", explain({"": 5.0}, MPH, [5.0], [1])))
    assert len(curves(chart)) == 1


def test_without_blur_there_is_a_warning_and_no_chart() -> None:
    made = guarantee_page("x", explain({"": 0.0}, MPH))
    assert "Nothing is guaranteed without a blur" in made
    assert "Keep in mind" not in made
    assert charts(made) == []
    with_sizes = guarantee_page("x", explain({"": 0.0}, MPH, [5.0]))
    assert "no bound" in with_sizes
    assert charts(with_sizes) == []


def test_each_blur_of_a_federation_has_its_part() -> None:
    made = guarantee_page("x", explain({"north": 5.0, "south": 2.0, "west": 5.0}, MPH))
    assert made.index("<h2>The guarantee (south)</h2>") < made.index("<h2>The guarantee (north, west)</h2>")
    assert len(charts(made)) == 2
    assert made.count("<h2>Keep in mind</h2>") == 1


def test_names_cannot_break_out_of_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    made = guarantee_page(evil, explain({evil: 5.0}, Measures(evil)))
    assert "alert(1)</script>" not in made
    assert len(charts(made)) == 1


def test_the_same_blur_gives_the_same_page(guarantees: list[Guarantee], tmp_path: Path) -> None:
    assert guarantee_page("x", guarantees) == guarantee_page("x", explain({"": 5.0}, MPH))


@pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="no chromium and chromedriver here")
@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_it_without_sideways_scrolling_in_light_and_dark(
    driver: webdriver.Chrome,  # noqa: F811
    dark: bool,
    guarantees: list[Guarantee],
    tmp_path: Path,
) -> None:
    path = tmp_path / "page.html"
    path.write_text(guarantee_page("x", guarantees), encoding="utf-8")
    browser = Browser(driver)
    browser.complaints()  # of the test before
    browser.resize(360, 740, dark)
    driver.get(path.as_uri())
    assert browser.js("return document.documentElement.scrollWidth") == 360
    assert browser.js("return document.querySelector('.told').getBoundingClientRect().right") <= 360
    assert browser.js("return document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert browser.complaints() == []
    assert browser.js("return performance.getEntriesByType('resource').length") == 0
