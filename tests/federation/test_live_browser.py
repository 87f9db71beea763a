"""The pages of a live federation in a real browser: a site's own, and the server's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cnfgnn.federation.operator.live.page import LivePage
from cnfgnn.federation.site.sent_entries import FILE, Counts, Entry, Key, line_of
from tests.browser import BrowserWindow, needs_browser
from tests.conftest import network, small
from tests.federation.in_memory_federation import must_finish
from tests.federation.live_federation import LiveFederation, wait_for
from tests.live.small_service import Client
from tests.live.web.test_page_browser import STARTING, Page

pytest.importorskip("selenium.webdriver")
pytestmark = [needs_browser, pytest.mark.slow]
KNOWN = 126  # the first steps of the next hour tell the coverage
WIDER_THAN_THE_WINDOW = "return document.documentElement.scrollWidth > innerWidth"


def test_a_site_shows_its_sensors_and_the_server_shows_its_sites(driver: Any, tmp_path: Path) -> None:
    data = network(rows=190, dropout=0)
    sites = LiveFederation(tmp_path, data, KNOWN, blur=5.0)
    sites.set("west", tell_coverage=True)
    must_finish(sites.train(small("cnfgnn-private", **{"training.rounds": 1})))
    entry = Entry("one", rounds=2, verbs={"encode": Counts(3, 1000, 5 << 20, 3 << 20)})
    (sites.kits["west"] / FILE).write_bytes(line_of(Key("2026-03-02", "id", "train"), entry))
    with sites.live(), LivePage(sites.server, "127.0.0.1", 0) as federation:
        for _ in range(6):
            sites.forecasts(sites.send())
        page = Page(driver)
        page.complaints()  # of another test
        for width in (1280, 390):
            page.open(sites.client("west").link, width)
            page.until(lambda: page.state() == "live")
            step = sites.send()
            sites.forecasts(step)
            page.shows(step)
            site_page_is_complete(page, [data.readings.ids[column] for column in sites.sites["west"]])
            page.leave(STARTING)
            wait_for(lambda: sites.live_status["sites"]["west"]["coverage"], "coverage")
            link = Client(federation.address, federation.token).link
            server_page_is_complete(BrowserWindow(driver), link, list(sites.sites))


def server_page_is_complete(page: BrowserWindow, address: str, sites: list[str]) -> None:
    """A card for each site, and the coverage of the one that tells it."""
    page.driver.get(address)
    page.until(lambda: len(page.texts(".site")) == len(sites))
    told = dict(zip(sites, page.texts(".site"), strict=True))
    assert {name for name, text in told.items() if "Within the 80 % intervals" in text} == {"west"}
    assert any("told by 1 of 3" in text for text in page.texts(".tile"))
    assert not page.js(WIDER_THAN_THE_WINDOW)
    assert page.complaints() == []


def site_page_is_complete(page: Page, sensors: list[str]) -> None:
    """Everything that the page of one machine has: map, bands, errors, alarms and the model."""
    assert page.texts("#sensor option") == sensors
    assert page.texts("#about") == ["Site west, run one"]
    for name in ("Newest forecast", "Sensors", "Late", "RMSE lately", "Alarms", "Model age"):
        page.tile(name)
    assert page.js("return document.querySelectorAll('#chart path.band').length") == 2
    assert len({tuple(page.spot(number)) for number in range(len(sensors))}) == len(sensors)
    shown = dict(zip(page.texts("#model dt"), page.texts("#model dd"), strict=True))
    assert (shown["Site"], shown["Run"], shown["Round"]) == ("west", "one", "1")
    page.until(lambda: page.texts("#sent-hint")[0].startswith("Altogether 3.0\u00a0MiB in 1,000 messages"))
    assert page.texts("#sent li") == ["2026-03-02 train one2 rounds, 3.0\u00a0MiB, 1,000 messages"]
    assert not page.js(WIDER_THAN_THE_WINDOW)
