"""The live page as a person meets it: in a real browser, with a feed, wide and narrow, light and dark."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cnfgnn.live.options import FEED, LiveSettings
from tests.browser import BrowserWindow, needs_browser
from tests.live.small_service import KNOWN, Client, SmallRun, serving
from tests.live.web.page_source import HORIZON, PageSource, told_model, watched

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

pytestmark = needs_browser
NAMES = [f"{400_000 + 17 * number}" for number in range(24)]
# What the browser notes although all is well: routes that a service does not have, and one that is starting.
NO_ROUTES = r"/(watch|model) - Failed to load resource: .* status of (404|503)"
STARTING = rf"{NO_ROUTES}|/health - Failed to load resource: .* status of 503"
SHOWN = "return document.documentElement.dataset.drawn"


class Page(BrowserWindow):
    """A window that shows the live page."""

    def open(self, address: str, width: int = 1280, dark: bool = False, still: bool = False) -> None:
        self.resize(width, 900 if width > 500 else 844, dark, still)
        self.driver.get(address)

    def leave(self, but: str = "") -> None:
        """Nothing was wrong, but for complaints like this, and nothing came from elsewhere."""
        for complaint in self.complaints():
            assert but, complaint
            assert re.search(but, complaint), complaint
        loaded = self.js("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert loaded
        assert all(name.startswith((self.js("return location.origin"), "data:")) for name in loaded)
        self.js("sessionStorage.clear(); localStorage.clear()")
        self.driver.get("about:blank")

    def shows(self, step: str) -> None:
        """Wait until the forecast after a step is drawn."""
        self.until(lambda: self.js(SHOWN) == step)

    def tile(self, name: str) -> str:
        tiles = self.texts(".tile")
        [found] = [text.removeprefix(name) for text in tiles if text.startswith(name)]
        return found

    def state(self) -> str:
        return str(self.js("return document.getElementById('connection').dataset.state"))

    def spot(self, sensor: int) -> list[float]:
        """Where a sensor is on the map."""
        script = "import('/page/map.js').then((map) => arguments[1](map.spotOf(arguments[0])))"
        found: list[float] = self.driver.execute_async_script(f"const done = arguments[1]; {script}", sensor)
        return found

    def colour_at(self, sensor: int) -> list[int]:
        """Red, green and blue in the middle of a sensor."""
        found: list[int] = self.js(
            "const r = devicePixelRatio; return [...document.getElementById('map').getContext('2d')"
            ".getImageData(arguments[0] * r, arguments[1] * r, 1, 1).data].slice(0, 3)",
            *self.spot(sensor),
        )
        return found

    def choose_on_map(self, sensor: int) -> None:
        def click() -> None:
            canvas = self.find("#map")
            self.js("arguments[0].scrollIntoView({block: 'center'})", canvas)
            x, y = self.spot(sensor)
            place = (round(x - canvas.size["width"] / 2), round(y - canvas.size["height"] / 2))
            ActionChains(self.driver).move_to_element_with_offset(canvas, *place).click().perform()

        self.click_until(click, lambda: self.sensor() == sensor)

    def curve(self, kind: str) -> str:
        return str(self.js(f"return document.querySelector('#chart path.{kind}')?.getAttribute('d') ?? ''"))

    def value_shown(self, name: str) -> str:
        figures = dict(zip(self.texts("#sensor-figures dt"), self.texts("#sensor-figures dd"), strict=True))
        return figures[name]


@pytest.fixture
def page(driver: Any) -> Page:
    driver.get("about:blank")
    page = Page(driver)
    page.complaints()  # of the test before
    return page


@pytest.fixture
def feed(small_run: SmallRun, tmp_path: Path) -> Iterator[Client]:
    settings = LiveSettings(data=small_run.folder, state=tmp_path, clock=FEED, deadline=1, speed=100)
    with serving(small_run.run, settings) as (_, client):
        yield client


@pytest.fixture
def source() -> PageSource:
    return PageSource(NAMES, watch=watched(NAMES), model=told_model(time.time()))


def choose(page: Page, sensor: int) -> None:
    page.js(
        "const s = document.getElementById('sensor'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('change'))",
        sensor,
    )


@contextmanager
def showing(
    page: Page,
    source: PageSource,
    *,
    width: int = 1280,
    dark: bool = False,
    still: bool = False,
    but: str = "",
) -> Iterator[str]:
    """Show what a source tells; all that the browser complains about is `but`."""
    with source.serving() as address:
        page.open(address, width, dark, still)
        page.shows(source.newest)
        yield address
        page.leave(but)


# ---- with a service ---------------------------------------------------------------------------------------


def test_the_page_moves_as_readings_arrive(feed: Client, page: Page, small_run: SmallRun) -> None:
    page.open(feed.link)
    page.until(lambda: page.js(SHOWN))
    page.find("#ahead").send_keys(Keys.HOME)
    curves: set[str] = set()
    for row in range(KNOWN, KNOWN + 3):
        sent = small_run.full_row(row)
        assert feed.post(sent).status == 200
        page.shows(sent["time"])
        page.until(lambda value=sent["values"]["s0"]: page.value_shown("Last reading") == f"{value:.1f}")
        made = feed.get("/forecasts").json
        of_sensor = made["sensors"]["s0"]
        range_of = [of_sensor["intervals"]["80"][side][-1] for side in ("low", "high")]
        shown = "{:.1f}{:.1f} – {:.1f}".format(of_sensor["values"][-1], *range_of)
        assert page.value_shown("In 25 min") == shown
        assert page.tile("Newest forecast").startswith(sent["time"][11:16])
        curves.add(page.curve("forecast"))
    assert len(curves) == 3
    assert page.curve("before").count("L") >= 1, "what was forecast before is beside what came"
    page.until(lambda: page.state() == "live")
    assert len(page.texts("#chart .band")) == 2
    assert page.js("return document.querySelector('input[value=error]').disabled")
    page.leave(STARTING)


@pytest.mark.slow
def test_a_sensor_that_is_late_is_named(feed: Client, page: Page, small_run: SmallRun) -> None:
    page.open(feed.link)
    for row in (KNOWN, KNOWN + 1):
        sent = small_run.full_row(row)
        if row > KNOWN:
            del sent["values"]["s4"]
        feed.post(sent)
        page.shows(sent["time"])
    assert page.texts("#late li") == ["s45 min late"]
    assert page.tile("Late").startswith("1")
    page.click("#late button")
    page.until(lambda: page.sensor() == 4)
    assert page.until(lambda: page.texts("#sensor-about .badge") == ["own readings missing"])
    page.leave(STARTING)


def test_the_link_brings_the_token_and_the_address_bar_loses_it(feed: Client, page: Page) -> None:
    token = feed.headers["Authorization"].removeprefix("Bearer ")
    page.open(feed.link)
    page.until(lambda: page.state() == "live" and page.js(SHOWN))
    assert page.driver.current_url == f"http://{feed.host}/"
    assert page.js("return Object.values(sessionStorage).includes(arguments[0])", token)
    assert page.js("return [localStorage.length, document.cookie]") == [0, ""]
    page.driver.refresh()
    page.until(lambda: page.state() == "live")  # the tab remembers it
    page.leave(STARTING)


@pytest.mark.slow
def test_without_the_link_the_page_asks_for_the_token(feed: Client, page: Page) -> None:
    token = feed.headers["Authorization"].removeprefix("Bearer ")
    page.open(f"http://{feed.host}/")
    page.until(lambda: page.find("#token-dialog").is_displayed())
    assert page.state() == "token"
    assert not page.find("#main").is_displayed()
    page.find("#token").send_keys("not-the-right-token", Keys.ENTER)
    page.until(lambda: page.texts("#token-wrong") == ["That is not the token of this service."])
    page.until(lambda: page.find("#token-wrong").is_displayed())
    page.find("#token").send_keys(token, Keys.ENTER)
    page.until(lambda: page.state() == "live" and page.js(SHOWN))
    page.js("sessionStorage.clear()")
    page.driver.refresh()
    page.until(lambda: page.find("#token-dialog").is_displayed())
    page.driver.get(feed.link)  # into the same tab: the page is not loaded anew by that
    page.until(lambda: page.state() == "live" and page.js(SHOWN))
    assert page.driver.current_url == f"http://{feed.host}/"
    page.leave(r"status of (401|404|503)")


# ---- with everything that a service may tell --------------------------------------------------------------


def test_bands_errors_alarms_and_the_model_are_shown(page: Page, source: PageSource) -> None:
    source.silent = {NAMES[5]: 3}
    with showing(page, source):
        assert [page.js(f"return document.querySelector('.band-{k}').dataset.level") for k in (0, 1)] == [
            "95",
            "80",
        ]
        assert page.curve("band-0").count("L") == 2 * HORIZON  # above, below, and the reading they begin at
        told = source.forecast()["sensors"][NAMES[0]]
        low, high = (told["intervals"]["80"][bound][-1] for bound in ("low", "high"))
        assert page.value_shown("In 1 h") == f"{told['values'][-1]:.1f}{low:.1f} – {high:.1f}"
        assert page.tile("Alarms").startswith("2frozen: 400000")
        assert page.texts("#alarms .text")[1].startswith("400017 its error of the last day")
        assert page.texts("#sensor-alarms li") == ["400000 has sent exactly 61.5 for 14 steps"]
        assert page.tile("Model age") == "3 dayslast switch 24 h ago"
        assert page.texts("#switches .text") == ["RMSE of the last two days 4.81 instead of 5.06"]
        assert page.texts("#late li") == ["40008515 min late"]
        assert page.js("return document.title") == "(2) Live forecasts"
        source.alarm(watched(NAMES[3:]))
        page.until(lambda: page.tile("Alarms").startswith(f"2frozen: {NAMES[3]}"))
        source.switch("metr-la-0128")
        page.until(lambda: page.texts("#switches b")[0] == "metr-la-0131 → metr-la-0128")
        assert page.texts("#about") == ["Run metr-la-0128, method cnfgnn-plus"]
        before = page.curve("band-0")
        source.advance()
        page.shows(source.newest)
        assert page.curve("band-0") != before


@pytest.mark.slow
def test_names_are_text_and_never_markup(page: Page) -> None:
    names = ['<img src=x onerror="document.title=1">', "a b&c?d=e#f/%41+", "'\"`", "x" * 120, "東京 ünï"]
    source = PageSource(names, watch=watched(names), model=told_model(time.time()), silent={names[0]: 2})
    with showing(page, source, width=390):
        for number, name in enumerate(names):
            choose(page, number)
            page.until(
                lambda number=number: page.value_shown("Last reading") == f"{last(source, number):.1f}"
            )
            assert page.js("return document.querySelector('#sensor').selectedOptions[0].textContent") == name
        assert page.js("return document.querySelectorAll('img, script:not([src])').length") == 0
        assert page.js("return document.title") == "(2) Live forecasts"
        assert page.js("return document.documentElement.scrollWidth") == 390


def last(source: PageSource, column: int) -> float:
    [sensor] = source.sensors([source.names[column]], 288)["sensors"]
    return float([value for value in sensor["readings"] if value is not None][-1])


@pytest.mark.slow
def test_the_map_is_coloured_by_forecast_or_by_error(page: Page, source: PageSource) -> None:
    with showing(page, source, still=True, but="willReadFrequently"):  # this test reads many pixels
        by_forecast = [page.colour_at(sensor) for sensor in range(len(NAMES))]
        page.js("document.querySelector('input[value=error]').click()")
        page.until(lambda: page.texts("#key-name") == ["RMSE of the last forecasts"])
        by_error = [page.colour_at(sensor) for sensor in range(len(NAMES))]
        assert by_error != by_forecast
        # Viridis from light to dark: the first sensor has the smallest error, the last one the largest.
        assert by_error[0] == [0x9B, 0xD9, 0x3C]
        assert by_error[-1] == [0x44, 0x01, 0x54]
        page.js("document.querySelector('input[value=forecast]').click()")
        page.until(lambda: page.colour_at(0) == by_forecast[0])
        page.find("#ahead").send_keys(Keys.END)
        page.until(lambda: page.texts("#ahead-name") == ["1 h"])
        page.until(lambda: page.colour_at(0) != by_forecast[0])


@pytest.mark.slow
def test_sensors_are_chosen_by_mouse_and_by_keyboard(page: Page, source: PageSource) -> None:
    with showing(page, source):
        page.choose_on_map(13)
        canvas = page.find("#map")
        for key, axis, sign in ((Keys.ARROW_LEFT, 0, -1), (Keys.ARROW_UP, 1, -1), (Keys.ARROW_RIGHT, 0, 1)):
            chosen = page.sensor()
            canvas.send_keys(key)
            found = page.until(lambda chosen=chosen: page.sensor() != chosen and page.sensor())
            assert sign * (page.spot(found)[axis] - page.spot(chosen)[axis]) > 0
        canvas.send_keys(Keys.HOME)
        page.until(lambda: page.sensor() == 0)
        page.find("#sensor").send_keys(Keys.ARROW_DOWN)
        page.until(lambda: page.value_shown("Last reading") == f"{last(source, 1):.1f}")
        page.until(lambda: page.texts("#said")[0].startswith(f"Sensor {NAMES[1]}: forecast in 15 min"))
        canvas.send_keys("++")
        page.until(lambda: page.find("#zoom-reset").is_displayed())
        canvas.send_keys(Keys.END)  # out of sight: the map moves
        x, y = page.until(lambda: page.sensor() == len(NAMES) - 1 and page.spot(len(NAMES) - 1))
        assert 0 < x < canvas.size["width"]
        assert 0 < y < canvas.size["height"]
        page.driver.refresh()
        page.until(lambda: page.js(SHOWN) and page.sensor() == len(NAMES) - 1)  # the choice stays


@pytest.mark.slow
def test_everything_can_be_reached_by_keyboard_and_has_a_name(page: Page, source: PageSource) -> None:
    with showing(page, source):
        reached = []
        for _ in range(24):
            ActionChains(page.driver).send_keys(Keys.TAB).perform()
            reached.append(
                page.js(
                    "const e = document.activeElement; return [e.id || e.className || e.name,"
                    "e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent ||"
                    "document.getElementById(e.getAttribute('aria-labelledby'))?.textContent || '']"
                )
            )
        assert {"theme", "map", "ahead", "sensor", "chart", "zoom-in"} <= {name for name, _ in reached}
        assert [name for name, label in reached if name and not label.strip()] == []


@pytest.mark.slow
def test_a_lost_connection_is_said_and_comes_back_by_itself(page: Page, source: PageSource) -> None:
    with source.serving() as address:
        page.open(address)
        page.shows(source.newest)
    page.until(lambda: page.state() == "lost")
    page.until(lambda: "No connection to the service" in page.texts("#banner-text")[0])
    assert page.js("return document.title") == "(lost) Live forecasts"
    source.row += 1
    with source.serving(urlsplit(address).port or 0):
        page.js("document.getElementById('retry').click()")  # the page may have tried by itself already
        page.until(lambda: page.state() == "live")
        page.shows(source.newest)
        page.until(lambda: not page.find("#banner").is_displayed())
        page.leave("ERR_|network error")


@pytest.mark.slow
def test_a_stale_forecast_and_what_is_wrong_are_said(page: Page, source: PageSource) -> None:
    source.status, source.problems = "stale", {"disk": "No space left on device"}
    with showing(page, source, but="/health - Failed to load resource"):
        page.until(lambda: page.state() == "stale" and "until" in page.texts("#banner-text")[0])
        [sentence] = page.texts("#banner-text")
        assert sentence.startswith("The forecasts are out of date: they could be used until 08:07")
        assert sentence.endswith("disk: No space left on device")
        assert "stale since 08:07" in page.tile("Newest forecast")
        assert not page.find("#refused-card").is_displayed()
        source.status, source.problems = "ok", {}
        source.refused = ("readings.csv, line 7: 1 fields, but the header has 3",)
        page.until(lambda: page.state() == "live" and not page.find("#banner").is_displayed())
        page.until(lambda: page.texts("#refused li") == list(source.refused))
        assert page.texts("#refused-hint") == ["1 line of the files is left out. The last:"]


@pytest.mark.slow
def test_a_service_that_died_leaves_a_forecast_that_grows_stale(page: Page, source: PageSource) -> None:
    source.speed, source.valid_for = 1.0, 3  # seconds, in real time
    with source.serving() as address:
        page.open(address)
        page.shows(source.newest)
    page.until(lambda: page.state() == "lost" and "stale since" in page.tile("Newest forecast"))
    page.leave("ERR_|network error")


@pytest.mark.slow
@pytest.mark.parametrize("sensors", [1, 2, 30])
def test_without_positions_and_intervals_there_is_still_a_page(page: Page, sensors: int) -> None:
    source = PageSource([f"s{number}" for number in range(sensors)], located=False, intervals=False)
    with showing(page, source, but=NO_ROUTES):
        assert page.texts("#map-hint")[0].startswith("Positions are unknown")
        assert page.texts("#chart-legend li") == ["measured", "forecast"]
        assert not page.find("#alarms-card").is_displayed()
        assert not page.find("#model-card").is_displayed()
        width, height = (page.find("#map").size[name] for name in ("width", "height"))
        for sensor in range(sensors):
            x, y = page.spot(sensor)
            assert 0 < x < width
            assert 0 < y < height
        assert "M" in page.curve("measured")[1:], "a gap in the readings is a gap in the line"


@pytest.mark.slow
def test_two_thousand_sensors_are_drawn_without_freezing_the_page(page: Page) -> None:
    names = [f"{400_000 + number}" for number in range(2000)]
    source = PageSource(names, watch=watched(names))
    pauses = (
        "window.pauses = []; new PerformanceObserver((list) => window.pauses.push("
        "...list.getEntries().map((entry) => entry.duration))).observe({type: 'longtask'})"
    )
    with showing(page, source, but=NO_ROUTES):
        page.js(pauses)
        for _ in range(4):
            source.advance()
            page.shows(source.newest)
        for sensor in (1999, 1000):
            page.choose_on_map(sensor)
        assert page.js("return document.querySelectorAll('main *').length") < 2000 + 500  # a list of names
        # Milliseconds: 85 on a machine with little to do.
        assert max(page.js("return window.pauses"), default=0) < 5000


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_and_nothing_sticks_out(
    page: Page, source: PageSource, width: int, dark: bool
) -> None:
    source.silent = {NAMES[5]: 3, NAMES[6]: 30}
    with showing(page, source, width=width, dark=dark):
        assert page.js("return document.documentElement.scrollWidth") <= width
        assert page.js("return document.documentElement.dataset.theme") == ("dark" if dark else "light")
        assert page.js(STICKING_OUT) == []
        faint = page.js(CONTRASTS)
        assert len(faint) > 10
        assert {name: ratio for name, ratio in faint.items() if ratio < 4.5} == {}


STICKING_OUT = """
return [...document.querySelectorAll("main *")]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, svg"))
  .map((e) => e.outerHTML.slice(0, 80));
"""
# Of every text that is visible: its contrast with all that is painted behind it.
CONTRASTS = """
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const painted = (...colours) => {
  canvas.clearRect(0, 0, 1, 1);
  for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255);
};
const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const behind = (e) => (e ? [...behind(e.parentElement), getComputedStyle(e).backgroundColor] : []);
const hasText = (e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
const off = (e) => e.closest(":disabled") || e.closest("label")?.querySelector(":disabled");
const found = {};
for (const e of document.querySelectorAll("body *")) {
  if (!hasText(e) || !e.checkVisibility() || off(e)) continue;
  if (["OPTION", "SCRIPT", "title"].includes(e.tagName)) continue;
  const style = getComputedStyle(e), back = behind(e);
  const ink = e.tagName === "text" ? style.fill : style.color;
  const [a, b] = [light(painted(...back)), light(painted(...back, ink))];
  const name = `${e.tagName} ${e.id}: ${e.textContent.slice(0, 30)}`;
  found[name] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
return found;
"""


@pytest.mark.slow
def test_nothing_moves_for_whoever_does_not_want_it(page: Page, source: PageSource) -> None:
    for still in (True, False):
        with showing(page, source, still=still):
            page.js(
                "window.moved = 0; const animate = Element.prototype.animate;"
                "Element.prototype.animate = function (...how)"
                "{ window.moved += 1; return animate.apply(this, how); }"
            )
            for _ in range(2):
                source.advance()
                page.shows(source.newest)
            assert (page.js("return window.moved") == 0) is still
            endless = page.js("return document.getAnimations().filter((a) => a.animationName).length")
            assert (endless == 0) is still
