"""A hostile page in the owner's browser: everything that it can send to a service, in a real browser."""

from __future__ import annotations

import re
from http.server import BaseHTTPRequestHandler

import pytest

from tests.browser import needs_browser
from tests.live.small_service import KNOWN, Client, SmallRun
from tests.live.web.proxy_with_token import proxied, serving_with
from tests.live.web.test_page_browser import SHOWN, STARTING, Page
from tests.live.web.test_page_browser import page as page

pytest.importorskip("selenium.webdriver")
pytestmark = needs_browser
FORGED = 12.345
# Returns what the page could read. Nothing that it sends asks for permission first, except the last one.
ATTACK = """
const [target, reading, done] = arguments, readings = `${target}/readings`;
const read = [], heard = (what) => (event) => read.push(`${what}: ${event.data}`);
const always = { method: "POST", mode: "no-cors", credentials: "include" };
const post = (body, more = {}) => fetch(readings, { ...always, body, ...more });
const events = new EventSource(`${target}/events`, { withCredentials: true });
for (const kind of ["message", "forecast", "alarms"]) events.addEventListener(kind, heard("events"));
new WebSocket(`${target.replace("http", "ws")}/events`).addEventListener("message", heard("socket"));
const frame = document.createElement("iframe");
frame.name = "hidden";
const form = document.createElement("form");
Object.assign(form, { method: "post", action: readings, enctype: "text/plain", target: "hidden" });
const field = document.createElement("input");
Object.assign(field, { name: reading.slice(0, -1) + ', "and": "', value: '"}' });
form.append(field);
document.body.append(frame, form);
form.submit();
navigator.sendBeacon(readings, new Blob([reading]));
Promise.allSettled([
  post(new Blob([reading])),
  post(new TextEncoder().encode(reading)),
  post(reading),
  post(new URLSearchParams([["reading", reading]])),
  post(new Blob([reading], { type: "text/plain;application/json" })),
  ...["/sensors", "/forecasts", "/metrics", "/watch", "/health"].map(async (path) => {
    await fetch(target + path, { mode: "no-cors", credentials: "include" });
    read.push(await (await fetch(target + path, { credentials: "include" })).text());
  }),
  post(reading, { mode: "cors", headers: { "Content-Type": "application/json" } }),
]).then((all) => setTimeout(() => done([read, all.length]), 1000));
"""


class HostilePage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response_only(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>hostile</title><body></body>")

    def log_message(self, format: str, *arguments: object) -> None: ...


def attack(page: Page, client: Client, small_run: SmallRun, host: str, target: str) -> None:
    """What a page of a server at `host` does changes nothing and reads nothing."""
    reading = f'{{"sensor": "s0", "time": "{small_run.row(KNOWN - 1)["time"]}", "value": {FORGED}}}'
    with serving_with(HostilePage) as port:
        page.driver.get(f"http://{host}:{port}/")
        read, tried = page.driver.execute_async_script(ATTACK, target, reading)
        page.driver.get("about:blank")
    page.complaints()
    assert (read, tried) == ([], 11)
    assert str(FORGED) not in client.get("/sensors?sensor=s0").body.decode()
    assert 'cnfgnn_live_readings_total{source="http",verdict="new"} 0.0' in metrics(client)
    assert 'cnfgnn_live_readings_total{source="http",verdict="corrected"} 0.0' in metrics(client)


def metrics(client: Client) -> list[str]:
    return client.get("/metrics").body.decode().splitlines()


def refusals(client: Client) -> float:
    """How many requests to store readings were refused."""
    refused = [line for line in metrics(client) if 'total{path="/readings",status="40' in line]
    return sum(float(line.split()[-1]) for line in refused)


@pytest.mark.parametrize(  # another user of this machine; another site
    "host", ["127.0.0.1", pytest.param("localhost", marks=pytest.mark.slow)]
)
def test_a_hostile_page_stores_nothing_and_reads_nothing(
    page: Page, client: Client, small_run: SmallRun, host: str
) -> None:
    before = refusals(client)
    attack(page, client, small_run, host, f"http://{client.host}")
    assert refusals(client) - before >= 6  # they did arrive


@pytest.mark.slow
@pytest.mark.parametrize("host", ["localhost", "other.localhost"])
def test_a_proxy_that_adds_the_token_does_not_let_a_hostile_page_in(
    page: Page, client: Client, small_run: SmallRun, host: str
) -> None:
    with proxied(client) as (address, asked):
        attack(page, client, small_run, host, address)
        assert sum(line.startswith("POST /readings") for line in asked) >= 6
        page.open(f"{address}/")  # and the service's own page works through it
        page.until(lambda: page.state() == "live" and page.js(SHOWN))
        page.leave(STARTING)


def test_the_token_of_a_link_is_in_no_address_that_a_proxy_sees(page: Page, client: Client) -> None:
    token = client.headers["Authorization"].removeprefix("Bearer ")
    with proxied(client.without_token()) as (address, asked):
        page.open(f"{address}/#token={token}")
        page.until(lambda: page.state() == "live" and page.js(SHOWN))
        assert token not in page.driver.current_url
        page.leave(STARTING)
    assert [line for line in asked if re.search("GET /events ", line)]
    assert not [line for line in asked if token in line]
    assert {line.split()[-1] for line in asked} == {"HTTP/1.1"}  # no Referer at all
