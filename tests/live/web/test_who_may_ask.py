"""Who may ask a service: whoever has its token, and no web page of another server."""

from __future__ import annotations

import http.client
import os
import pty
import socket
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cnfgnn.errors import ConfigError
from cnfgnn.live.options import FEED, LiveSettings
from cnfgnn.live.start import LiveProcess
from cnfgnn.live.web.page_files import ASSETS
from cnfgnn.live.web.pages import Guard
from cnfgnn.live.web.token_file import open_token, read_token
from tests.commands import COMMAND, ENVIRONMENT
from tests.live.small_service import KNOWN, Client, LiveCommand, SmallRun, serving

FORGED = 12.345  # a value that no sensor has sent
ELSEWHERE = [  # what a browser says of requests that other pages make
    {"Origin": "https://evil.example"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "null"},  # a page in a sandbox, or a file
    {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},  # of another user of this machine
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


def forged(small_run: SmallRun) -> str:
    """A reading that would be stored."""
    return f'{{"sensor": "s0", "time": "{small_run.row(KNOWN - 1)["time"]}", "value": {FORGED}}}'


def status_of(client: Client, path: str, headers: dict[str, str], method: str = "GET") -> int:
    """How a request is answered, also if the answer has no end."""
    with closing(http.client.HTTPConnection(client.host, timeout=240)) as connection:
        connection.request(method, path, headers=client.headers | headers)
        return connection.getresponse().status


def is_stored(client: Client) -> bool:
    return str(FORGED) in client.get("/sensors?sensor=s0").body.decode()


# ---- web pages elsewhere ----------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", ELSEWHERE, ids=str)
def test_a_page_of_another_server_stores_nothing_and_reads_nothing(
    client: Client, small_run: SmallRun, headers: dict[str, str]
) -> None:
    """Also with the token, which a proxy before the service may add to every request."""
    named = {name.replace("-", "_"): value for name, value in headers.items()}
    answer = client.post(forged(small_run), **named)
    sentence = "this service does not answer web pages of other servers"
    assert (answer.status, answer.json) == (403, {"error": sentence})
    assert not is_stored(client)
    for path in ("/sensors", "/forecasts", "/events", "/metrics"):
        assert status_of(client, path, headers) == 403


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (None, "and say which in Content-Type"),
        ("text/plain", "not as text/plain"),
        ("text/plain; application/json", "not as text/plain"),
        ("text/plain, application/json", "not as text/plain, application/json"),
        ("application/x-www-form-urlencoded", "not as application/x-www-form-urlencoded"),
        ("multipart/form-data; boundary=x", "not as multipart/form-data"),
    ],
)
def test_a_type_that_any_page_may_send_is_refused(
    client: Client, small_run: SmallRun, kind: str | None, given: str
) -> None:
    named = {} if kind is None else {"Content_Type": kind}
    answer = client.ask("POST", "/readings", forged(small_run), **named)
    sentence = f"send readings as application/json or text/csv, {given}"
    assert (answer.status, answer.json) == (415, {"error": sentence})
    assert not is_stored(client)


@pytest.mark.parametrize("path", ["/readings", "/sensors", "/events"])
def test_a_browser_that_asks_first_is_not_allowed_to_send(client: Client, path: str) -> None:
    asks = {"Origin": "https://evil.example", "Access_Control_Request_Method": "POST"}
    answer = client.without_token().ask(
        "OPTIONS", path, **asks, Access_Control_Request_Headers="content-type"
    )
    assert answer.status == 403
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_what_is_no_page_of_another_server_may_send(client: Client, small_run: SmallRun) -> None:
    sent = small_run.row(KNOWN - 1)
    for headers in (
        {},
        {"Origin": f"http://{client.host}"},
        {"Sec_Fetch_Site": "same-origin"},
        {"Sec_Fetch_Site": "none"},
        # A proxy has passed the request on and changed its host, but not what the browser says.
        {"Origin": "https://forecasts.example", "Sec_Fetch_Site": "same-origin"},
    ):
        assert client.post(sent, **headers).status == 200
        assert client.get("/sensors", **headers).status == 200
    assert client.get("/", Sec_Fetch_Site="cross-site").status == 200  # a link to the page


def test_a_name_that_somebody_else_points_here_is_not_answered(client: Client) -> None:
    assert client.host.startswith("127.0.0.1:")
    rebound = {"Host": "evil.example:80", "Origin": "http://evil.example:80"}
    for path in ("/", "/health", "/sensors"):
        answer = client.get(path, **rebound, Sec_Fetch_Site="same-origin")
        assert answer.status == 400
        assert answer.json["error"] == "this service answers to localhost and 127.0.0.1 only"
    for name in ("localhost", "127.0.0.1:9", "[::1]:9", "[::1]"):
        assert client.get("/health", Host=name).status == 200


def test_a_service_for_other_machines_tells_nothing_by_any_name(small_run: SmallRun, tmp_path: Path) -> None:
    settings = LiveSettings(data=small_run.folder, state=tmp_path, clock=FEED, host="0.0.0.0")
    with serving(small_run.run, settings) as (_, client):
        rebound = {"Host": "evil.example:80", "Origin": "http://evil.example:80"}
        for path in ("/sensors", "/forecasts", "/metrics"):
            assert client.without_token().get(path, **rebound).status == 401
            assert client.get(path, Host="forecasts.example").status in (200, 503)


def test_there_are_no_web_sockets(client: Client) -> None:
    host, port = client.host.split(":")
    for path in ("/", "/events", "/readings"):
        with socket.create_connection((host, int(port)), timeout=240) as raw:
            lines = [
                f"GET {path} HTTP/1.1",
                f"Host: {client.host}",
                "Upgrade: websocket",
                "Connection: Upgrade",
            ]
            lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MTIzNDU2Nzg5MDEyMzQ1Ng==", "", ""]
            raw.sendall("\r\n".join(lines).encode())
            assert raw.recv(1000).startswith(b"HTTP/1.1 403")


# ---- other users of the machine ---------------------------------------------------------------------------


def test_without_the_token_no_route_tells_a_reading_or_takes_one(
    served: tuple[LiveProcess, Client], small_run: SmallRun
) -> None:
    process, client = served
    app = process.web.app(process.token, False)
    assert isinstance(app, Guard)
    paths = {route.path for route in app.app.routes}  # type: ignore[attr-defined]
    assert {"/sensors", "/readings", "/forecasts", "/events", "/watch", "/metrics", "/model"} <= paths
    for given in ({}, {"Authorization": "Bearer not-the-token"}, {"Authorization": process.token}):
        for path in sorted(paths - set(ASSETS) - {"/health"}):
            for method in ("GET", "POST", "HEAD"):
                assert status_of(client.without_token(), path, given, method) == 401
        assert client.without_token().get("/health", **given).json == {"status": "ok"}
        assert client.without_token().post(forged(small_run), **given).status == 401
        assert client.without_token().get("/health?token=" + process.token).json == {"status": "ok"}
    for path, (source, _) in ASSETS.items():
        assert client.without_token().get(path).body == source.read_bytes()
    assert not is_stored(client)
    assert client.get("/health").json["sensors"] == 6


def test_the_token_is_made_at_the_first_start_and_kept(
    served: tuple[LiveProcess, Client], small_run: SmallRun, settings: LiveSettings, tmp_path: Path
) -> None:
    process, _ = served
    state = settings.state
    assert state is not None
    assert process.token_file == state / "token"
    assert len(process.token) >= 40
    modes = {
        file.name: file.stat().st_mode & 0o777
        for file in (state, *state.glob("live.sqlite*"), process.token_file)
    }
    assert modes.pop("state") == 0o700
    assert set(modes.values()) == {0o600}
    assert {"token", "live.sqlite", "live.sqlite-wal"} <= set(modes)
    again, other = tmp_path / "again", tmp_path / "other"
    tokens = []
    for folder in (again, again, other):
        with serving(small_run.run, replace(settings, state=folder)) as (process, client):
            assert client.get("/sensors").status == 200
            tokens.append(process.token)
    assert tokens[0] == tokens[1] != tokens[2]


def test_a_token_file_must_hold_a_token_that_others_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "chosen"
    with pytest.raises(ConfigError, match=r"chosen: the token cannot be read .*No such file"):
        read_token(open_token(file, tmp_path / "token"))
    file.write_text("sixteen-or-more-letters\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chosen: every user of this machine may read the token: chmod 600"):
        read_token(file)
    file.chmod(0o640)
    assert read_token(open_token(file, tmp_path / "token")) == "sixteen-or-more-letters"
    assert not (tmp_path / "token").exists()
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="chosen: must hold a token of at least 16 letters and digits"):
        read_token(file)


@pytest.mark.parametrize("damage", ["empty", "no text", "others may read it"])
def test_a_service_makes_its_own_token_again_if_it_cannot_be_used(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is in its folder must not keep it from starting; a token that others may read is no secret."""
    file = open_token(None, tmp_path / "token")
    before = read_token(file)
    assert read_token(open_token(None, file)) == before
    if damage == "others may read it":
        file.chmod(0o644)
    else:
        file.write_bytes(b"" if damage == "empty" else b"\xff\xfe" * 20)
    assert read_token(open_token(None, file)) != before
    assert file.stat().st_mode & 0o777 == 0o600
    assert caplog.messages[0].endswith("; a new token is made")
    assert before not in caplog.text


@pytest.mark.slow
def test_a_terminal_shows_the_link_and_a_log_the_file(small_run: SmallRun, tmp_path: Path) -> None:
    options = ["--data", small_run.folder, "--state", tmp_path, "--clock", "feed"]
    logged = LiveCommand(small_run.run.folder, *options)
    token = read_token(tmp_path / "token")
    assert logged.client.get("/sensors").status == 200
    assert token not in Path(f"/proc/{logged.process.pid}/cmdline").read_text()
    logged.process.terminate()
    said, errors = logged.process.communicate(timeout=240)
    assert token not in said + errors
    ours, theirs = pty.openpty()
    command = [*COMMAND, "live", small_run.run.folder, *options, "--port", "0"]
    with subprocess.Popen(list(map(str, command)), stdout=theirs, stderr=theirs, env=ENVIRONMENT) as process:
        os.close(theirs)
        shown = b""
        while b"forecasts:" not in shown:
            shown += os.read(ours, 1000)
        process.terminate()
    os.close(ours)
    assert f"/#token={token}" in shown.decode()
