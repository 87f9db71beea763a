"""The page as a person meets it: in a real browser, offline, wide and narrow, light and dark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from cnfgnn.data.dataset import Dataset
from cnfgnn.report.page import page
from cnfgnn.report.views import views
from cnfgnn.runs.evaluate import evaluate_run
from cnfgnn.runs.folder import Run
from tests.browser import BrowserWindow, needs_browser
from tests.tiny_runs import large_view, with_errors

pytestmark = needs_browser
FIGURES = ("masked_mae", "masked_rmse", "rmse", "mae")


MAP = "const { map } = document.getElementById('map');"  # of a page, for scripts


class Browser(BrowserWindow):
    """A window that shows a report."""

    def open(self, path: Path, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        self.resize(width, height, dark)
        self.driver.get(path.as_uri())
        self.until(lambda: self.js("return document.documentElement.dataset.ready === 'yes'"))

    def colours(self) -> list[str]:
        """What the sensors on the map are filled with."""
        shown: list[str] = self.js(f"{MAP} return [...map.xs.keys()].map((i) => map.page.look(i).fill)")
        return shown

    def errors(self) -> list[float | None]:
        """What they are coloured by."""
        shown: list[float | None] = self.js(f"{MAP} return map.page.errors()")
        return shown

    def measured(self) -> list[float | None]:
        values: list[float | None] = self.js(
            "return document.getElementById('last-days').data.find((t) => t.name === 'measured').y"
        )
        return values


@pytest.fixture
def browser(driver: webdriver.Chrome) -> Iterator[Browser]:
    browser = Browser(driver)
    browser.complaints()  # of the test before
    yield browser
    assert browser.complaints() == []
    assert browser.js("return performance.getEntriesByType('resource').length") == 0, "it loaded something"
    browser.js("localStorage.clear()")


@pytest.fixture(scope="module")
def one(run_folders: list[Path], city_data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one") / "report.html"
    path.write_text(page("one", views([Run.open(run_folders[0])], city_data)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def two(run_folders: list[Path], city_data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("two") / "report.html"
    path.write_text(page("two", views(list(map(Run.open, run_folders)), city_data)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def events(run_folders: list[Path]) -> list[list[dict[str, Any]]]:
    files = [(folder / "events.jsonl").read_text().splitlines() for folder in run_folders]
    return [[json.loads(line) for line in lines] for lines in files]


def said(errors: dict[str, float]) -> list[str]:
    """A row of the table of errors, with the digits that it shows."""
    return [
        *(f"{errors[name]:.3f}" for name in ("masked_mae", "masked_rmse")),
        f"{100 * errors['masked_mape']:.1f} %",
        *(f"{errors[name]:.3f}" for name in ("rmse", "mae")),
    ]


def test_the_map_shows_every_sensor_and_its_edges(browser: Browser, one: Path, city_data: Dataset) -> None:
    browser.open(one)
    assert len(browser.colours()) == 6
    edges = browser.js(f"{MAP} return map.edges")
    graph = city_data.graph
    pairs = {frozenset(p) for p in zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)}
    assert {frozenset(pair) for pair in edges} == {pair for pair in pairs if len(pair) == 2}
    spans, drawn_spans, scale = browser.js(
        f"{MAP} const span = (all) => Math.max(...all) - Math.min(...all);"
        "const axes = [0, 1].map((axis) => span(map.points.map((point) => point[axis])));"
        "return [axes, [map.xs, map.ys].map(span), map.scale]"
    )
    assert drawn_spans == pytest.approx([scale * span for span in spans], abs=0.01)  # true proportions


def test_a_click_on_a_sensor_shows_it(
    browser: Browser, one: Path, events: list[list[dict[str, Any]]]
) -> None:
    browser.open(one)
    before = browser.measured()

    def click_on_the_fifth() -> None:
        browser.js("document.getElementById('map').scrollIntoView({block: 'center'})")
        canvas = browser.find("#map")
        x, y = browser.js(f"{MAP} return [map.xs[4], map.ys[4]]")
        from_middle = int(x - canvas.size["width"] / 2), int(y - canvas.size["height"] / 2)
        ActionChains(browser.driver).move_to_element_with_offset(canvas, *from_middle).click().perform()

    browser.click_until(click_on_the_fifth, lambda: browser.sensor() == 4)
    assert browser.until(lambda: browser.measured() != before)
    errors = events[0][-1]["per_node"][events[0][0]["data"]["sensors"][4]]
    assert browser.texts("#sensor-errors dd") == [f"{errors[name]:.3f}" for name in FIGURES]


@pytest.mark.slow
def test_the_list_of_sensors_does_the_same_by_keyboard(browser: Browser, one: Path) -> None:
    browser.open(one)
    before = browser.measured()
    browser.find("#sensor").send_keys(Keys.ARROW_DOWN)
    assert browser.until(lambda: browser.sensor() == 1 and browser.measured() != before)


@pytest.mark.slow
def test_the_horizon_changes_the_colours(browser: Browser, one: Path) -> None:
    browser.open(one)
    seen = {tuple(browser.colours())}
    for step in (1, 2, 3, 12):
        if step == 12:
            browser.click("#shortcuts [data-step='12']")
        else:
            browser.find("#step").send_keys(Keys.ARROW_RIGHT)
        browser.until(lambda step=step: f"(step {step} of 12)" in browser.find("#step-name").text)
        browser.until(lambda: tuple(browser.colours()) not in seen)
        seen.add(tuple(browser.colours()))
    assert browser.find("#step").get_attribute("aria-valuetext") == "60 min (step 12 of 12)"


def test_the_table_says_what_the_events_say(
    browser: Browser, one: Path, events: list[list[dict[str, Any]]]
) -> None:
    browser.open(one)
    test = events[0][-1]
    rows = {"all steps": test["overall"]}
    rows |= {f"{5 * step} min ahead": test["per_step"][step - 1] for step in (3, 6, 12)}
    assert browser.texts("#errors tbody:not(.simple) th") == list(rows)
    simple = browser.texts("#errors tbody.simple th")
    assert simple[:2] == ["simple forecasts to compare with", "last value"]
    assert "ridge" in simple
    for name, errors in rows.items():
        assert browser.texts(f"#errors [data-row='{name}'] td") == said(errors)
    best = events[0][test["best_round"]]
    assert f"round {best['round']} of 2, loss {best['loss']:.3f}." in browser.find("#loss-hint").text
    assert browser.js("return document.querySelector('#losses .chart').data[0].y") == [
        event["loss"] for event in events[0][1:-1]
    ]
    shown = browser.js("const s = document.querySelector('#losses .chart').data[1]; return [s.x[0], s.y[0]]")
    assert shown == [best["round"], best["loss"]]


@pytest.mark.slow
def test_every_sensor_has_the_errors_of_the_evaluation(
    browser: Browser,
    one: Path,
    run_folders: list[Path],
    city_data: Dataset,
    events: list[list[dict[str, Any]]],
) -> None:
    browser.open(one)
    scores = evaluate_run(Run.open(run_folders[0]), city_data)
    per_node = list(events[0][-1]["per_node"].values())
    for figure in FIGURES:
        browser.js("document.querySelector(`input[value=${arguments[0]}]`).click()", figure)
        browser.click("#shortcuts [data-step='0']")
        assert browser.errors() == [errors[figure] for errors in per_node]
        browser.click("#shortcuts [data-step='6']")
        at_six = [vars(type(scores)(row[None]).at(6))[figure] for row in scores.sums]
        assert browser.errors() == pytest.approx(at_six, rel=1e-12)
        browser.js(
            "const s = document.getElementById('sensor'); s.value = 2; s.dispatchEvent(new Event('change'))"
        )
        assert browser.texts(f"#sensor-errors [data-figure={figure}] dd") == [f"{at_six[2]:.3f}"]


@pytest.mark.slow
def test_intervals_are_drawn_around_the_forecasts_and_described(
    browser: Browser, one: Path, events: list[list[dict[str, Any]]]
) -> None:
    browser.open(one)
    names = "return document.getElementById('last-days').data.map((t) => t.name)"
    assert browser.js(names)[:3] == ["95 % interval", "80 % interval", "measured"]
    areas = """
        return document.getElementById('last-days').data.slice(0, 2).map((t) => {
          const y = t.y.filter((v) => v !== null);
          return [t.x.length, Math.min(...y), Math.max(...y)];
        })"""
    (_, lowest, highest), (_, low, high) = browser.js(areas)
    assert lowest <= low < high <= highest
    found = events[0][-1]["intervals"]["80"]
    first = found["per_node"][events[0][0]["data"]["sensors"][0]]
    said = f"The 80 % intervals contain {100 * first['coverage']:.1f} % of its readings"
    assert said in browser.texts("#sensor-intervals")[0]
    cells = browser.texts("#intervals tbody td")
    expected = found["overall"]
    assert cells[:3] == [
        f"{100 * expected['coverage']:.1f} %",
        f"{expected['width']:.3f}",
        f"{expected['score']:.3f}",
    ]
    browser.click("#shortcuts [data-step='6']")
    at_six = found["per_step"][5]
    assert browser.texts("#intervals tbody td")[1] == f"{at_six['width']:.3f}"
    assert "60 min ahead" in browser.texts("#bands-hint")[0]


@pytest.mark.slow
def test_bytes_are_those_of_the_ledger(
    browser: Browser, one: Path, events: list[list[dict[str, Any]]]
) -> None:
    browser.open(one)
    ledger = events[0][-1]["ledger"]
    browser.click("#bytes-details summary")
    cells = browser.texts("#bytes-table tbody td")
    assert cells == [text for item in ledger for text in (*item[:3], f"{item[3]:,}", f"{item[4]:,}")]
    totals = "return document.getElementById('bytes').data.map((t) => t.x.reduce((a, b) => a + b, 0))"
    for column, way in ((3, "per_node"), (4, "per_site")):
        browser.js("document.querySelector(`input[value=${arguments[0]}]`).click()", way)
        sums = [sum(item[column] for item in ledger if item[2] == to) for to in ("down", "up")]
        browser.until(lambda sums=sums: browser.js(totals) == sums)


@pytest.mark.slow
def test_runs_stand_side_by_side(
    browser: Browser, two: Path, run_folders: list[Path], events: list[list[dict[str, Any]]]
) -> None:
    browser.open(two)
    for folder, run in zip(run_folders, events, strict=True):
        assert browser.texts(f"#errors [data-row='{folder.name}'] td[data-figure]") == said(
            run[-1]["overall"]
        )
    assert browser.texts("#settings table [data-key]")[0].startswith("method")
    assert browser.js("return document.getElementById('ahead').data.length") == 2
    assert browser.errors() == [e["masked_mae"] for e in events[0][-1]["per_node"].values()]
    Select(browser.find("#run")).select_by_visible_text(run_folders[1].name)
    other = [e["masked_mae"] for e in events[1][-1]["per_node"].values()]
    browser.until(lambda: browser.errors() == other)
    browser.click("#shortcuts [data-step='6']")
    for folder, run in zip(run_folders, events, strict=True):
        shown = browser.texts(f"#errors [data-row='{folder.name}'] td[data-figure]")
        assert shown == said(run[-1]["per_step"][5])


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["one", "two"])
def test_a_phone_needs_no_sideways_scrolling(
    browser: Browser, name: str, dark: bool, request: pytest.FixtureRequest
) -> None:
    browser.open(request.getfixturevalue(name), width=360, height=740, dark=dark)
    for step in ("3", "12"):
        browser.click(f"#shortcuts [data-step='{step}']")
    assert browser.js("return document.documentElement.scrollWidth") == 360
    browser.js("window.scrollTo(500, 0)")
    assert browser.js("return window.scrollX") == 0
    widths = browser.js(
        "return [...document.querySelectorAll('.chart')].map((c) => c.getBoundingClientRect().right)"
    )
    assert max(widths) <= 360


@pytest.mark.slow
def test_it_is_light_or_dark_as_the_system_says_until_a_person_chooses(browser: Browser, one: Path) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    ink = "return document.getElementById('last-days').data.find((t) => t.name === 'measured').line.color"
    browser.open(one)
    light = browser.js(ground), browser.js(ink)
    browser.open(one, dark=True)
    dark = browser.js(ground), browser.js(ink)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    browser.click("#theme")
    browser.until(lambda: (browser.js(ground), browser.js(ink)) == light)

    def opened_again() -> object:
        browser.open(one, dark=True)
        return browser.js(ground)

    browser.until(lambda: opened_again() == light[0])  # the browser keeps the choice in its own time


@pytest.mark.slow
def test_everything_can_be_reached_by_keyboard_and_has_a_name(browser: Browser, two: Path) -> None:
    browser.open(two)
    unnamed = """
      const named = (e) => e.labels?.length || e.getAttribute("aria-label") || e.textContent.trim();
      return [...document.querySelectorAll("button, select, input, .scroll, .chart")]
        .filter((e) => !e.closest(".js-plotly-plot .modebar") && !named(e)).map((e) => e.outerHTML)"""
    assert browser.js(unnamed) == []
    reached = set()
    for _ in range(60):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        reached.add(browser.js("return document.activeElement.id || document.activeElement.name"))
    assert {"theme", "run", "figure", "step", "sensor", "count"} <= reached


@pytest.mark.slow
def test_a_sensor_that_nothing_is_known_of_is_grey_and_can_still_be_chosen(
    browser: Browser, tmp_path: Path
) -> None:
    view = large_view(n=4)
    assert view.test is not None
    assert view.predictions is not None
    view.test["per_node"]["400002"] = dict.fromkeys(view.test["overall"])
    view.predictions.sums[2] = 0
    path = tmp_path / "silent.html"
    path.write_text(page("silent", [view]), encoding="utf-8")
    browser.open(path)
    for step in (0, 6):
        browser.click(f"#shortcuts [data-step='{step}']")
        browser.until(lambda: [v is None for v in browser.errors()] == [False, False, True, False])
        fills = browser.colours()
        assert fills[2] not in fills[:2] + fills[3:]
    assert "Grey sensors have no readings" in browser.find("#map-hint").text
    Select(browser.find("#sensor")).select_by_visible_text("400002")
    browser.until(lambda: browser.texts("#sensor-errors dd") == ["–"] * 4)


@pytest.mark.slow
def test_325_sensors_are_drawn_and_chosen(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    path.write_text(page("large", [large_view()]), encoding="utf-8")
    browser.open(path)
    assert len(browser.colours()) == 325
    browser.js(
        "const s = document.getElementById('sensor'); s.value = 324; s.dispatchEvent(new Event('change'))"
    )
    browser.until(lambda: browser.measured() and browser.sensor() == 324)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "report.html"
    made = page("many", [with_errors(large_view(n=1200, days=1))], named=["400007"])
    path.write_text(made, encoding="utf-8")
    return path


def drawn(browser: Browser) -> str:
    """The map as an image."""
    image: str = browser.js("return document.getElementById('map').toDataURL()")
    return image


@pytest.mark.slow
def test_many_sensors_are_drawn_found_and_chosen(browser: Browser, many: Path) -> None:
    browser.open(many)
    assert browser.find("#map").is_displayed()
    assert browser.sensor() == 7  # the one that was asked for
    before = drawn(browser)
    browser.click("#shortcuts [data-step='6']")
    browser.until(lambda: drawn(browser) != before)

    def click_in_the_middle() -> None:
        browser.js("document.getElementById('map').scrollIntoView({block: 'center'})")
        ActionChains(browser.driver).move_to_element(browser.find("#map")).click().perform()

    browser.click_until(click_in_the_middle, lambda: browser.sensor() != 7)
    chosen = browser.sensor()
    browser.find("#map").send_keys(Keys.ARROW_RIGHT)
    browser.until(lambda: browser.sensor() != chosen)
    browser.find("#search").send_keys("401033")
    browser.until(lambda: browser.sensor() == 1033)
    offered = browser.js("return [...document.querySelectorAll('#found option')].map((o) => o.value)")
    assert offered == ["401033"]
    assert len(browser.texts("#sensor option")) <= 38
    assert "cnfgnn report --sensor 401033" in browser.find("#not-in-full").text
    assert not browser.find("#last-days").is_displayed()
    assert browser.find("#sensor-ahead").is_displayed()
    Select(browser.find("#sensor")).select_by_visible_text("400007")
    browser.until(lambda: browser.find("#last-days").is_displayed() and browser.measured())
    assert not browser.find("#not-in-full").is_displayed()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_the_map_of_many_sensors_fits_and_zooms(browser: Browser, many: Path, width: int, dark: bool) -> None:
    browser.open(many, width=width, dark=dark)
    assert browser.js("return document.documentElement.scrollWidth <= innerWidth")
    before = drawn(browser)
    browser.click("#zoom-in")
    browser.until(lambda: drawn(browser) != before and browser.find("#zoom-reset").is_displayed())
    browser.click("#zoom-reset")
    browser.until(lambda: drawn(browser) == before)


@pytest.mark.slow
def test_without_states_a_sentence_says_so(
    browser: Browser, run_folders: list[Path], tmp_path: Path, city_data: Dataset
) -> None:
    copy = Path(shutil.copytree(run_folders[0], tmp_path / "copy"))
    shutil.rmtree(copy / "checkpoints")
    path = tmp_path / "report.html"
    path.write_text(page("copy", views([Run.open(copy)], city_data)), encoding="utf-8")
    browser.open(path)
    assert "are not available" in browser.find("#no-predictions").text
    assert not browser.find("#last-days").is_displayed()
    browser.click("#shortcuts [data-step='6']")
    browser.until(lambda: "only available over all steps" in browser.find("#map-hint").text)
