"""A real browser for the tests of pages: Chromium without a window, one for all tests of a process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from selenium import webdriver

BROWSER, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    BROWSER is None or DRIVER is None,
    reason="no chromium and chromedriver here, so the page is not tried in a browser",
)
WITHIN = 240  # seconds; a test fails if what it waits for has not happened by then
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
)


class BrowserWindow:
    """A driver with what tests of any page ask of it; every wait is for a condition."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def resize(self, width: int, height: int, dark: bool, still: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        wishes = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wishes})

    def until(self, condition: Callable[[], Any]) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, WITHIN, poll_frequency=0.05).until(lambda _: condition())

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        texts: list[str] = self.js(script, selector)
        return texts

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def click(self, selector: str) -> None:
        """Click on an element, and again if the click did not reach it."""

        def click() -> None:
            element = self.find(selector)
            self.js(
                "arguments[0].scrollIntoView({block: 'center'}); window.wasClicked = false;"
                "arguments[0].addEventListener('click', () => { window.wasClicked = true },"
                "{capture: true, once: true})",
                element,
            )
            element.click()

        self.click_until(click, lambda: self.js("return window.wasClicked"))

    def click_until(self, click: Callable[[], Any], condition: Callable[[], Any]) -> None:
        """Click, and again if that met nothing: a page that is being laid out moves under the mouse."""
        from selenium.common.exceptions import TimeoutException
        from selenium.webdriver.support.ui import WebDriverWait

        def clicked(_: Any) -> bool:
            click()
            try:
                # Longer than a double click takes.
                WebDriverWait(self.driver, 2, poll_frequency=0.05).until(lambda _: condition())
            except TimeoutException:
                return False
            return True

        WebDriverWait(self.driver, WITHIN).until(clicked)

    def sensor(self) -> int:
        """The number of the sensor that is chosen."""
        return int(self.js("return document.getElementById('sensor').value"))

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(option)
    options.binary_location = BROWSER or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()
