"""The files in deploy/ work: with a real Prometheus that scrapes the service, and with systemd."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from cnfgnn.federation.operator.live.metrics import FederationMetrics
from cnfgnn.live.forecasting.forecasts import QUALITIES
from cnfgnn.live.forecasting.metrics import Metrics
from cnfgnn.live.options import FEED, LiveSettings
from tests.federation.live_kit import LiveKit
from tests.live.small_service import KNOWN, SmallRun, serving
from tests.waiting import wait_for

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="Prometheus is not installed (apt-get install prometheus)"
)
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed (apt-get install systemd)"
)


def ran(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# ---- Prometheus -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "names"), [("alerts.yml", 7), ("alerts_federation.yml", 12)])
def test_rules_ask_for_metrics_that_there_are(file: str, names: int, tmp_path: Path) -> None:
    LiveKit(tmp_path)
    server = CollectorRegistry()
    server.register(FederationMetrics(tmp_path))
    registries = Metrics(lambda: 0.0, lambda: False).registry, server
    exposed = "".join(generate_latest(registry).decode() for registry in registries)
    rules = (DEPLOY / "prometheus" / file).read_text()
    found = set(re.findall(r"cnfgnn_(?:live|federation)_\w+", rules))
    assert len(found) >= names
    for name in found:
        assert re.search(rf"^# TYPE {name.removesuffix('_bucket')} ", exposed, re.MULTILINE), name
    for quality in re.findall(r'quality=~"([^"]*)"', rules):
        assert set(quality.split("|")) <= set(QUALITIES)


@needs_prometheus
@pytest.mark.parametrize(("name", "rules"), [("alerts", 9), ("alerts_federation", 11)])
def test_promtool_takes_the_rules_and_they_fire_when_they_should(name: str, rules: int) -> None:
    folder = DEPLOY / "prometheus"
    assert f"{rules} rules found" in ran(PROMTOOL, "check", "rules", f"{name}.yml", cwd=folder)
    assert "SUCCESS" in ran(PROMTOOL, "test", "rules", f"{name}_test.yml", cwd=folder)
    ran(PROMTOOL, "check", "config", "--syntax-only", "prometheus.yml", cwd=folder)  # no token is there
    alerts = re.findall(r"alert: (\w+)", (folder / f"{name}.yml").read_text())
    tested = (folder / f"{name}_test.yml").read_text()
    for alert in alerts:  # each is seen to be quiet, and to fire
        assert tested.count(f"alertname: {alert}\n") >= 1, alert
        assert tested.count(f"alertname: {alert}}}\n") >= 1, alert


@contextmanager
def prometheus(folder: Path, target: str, token: Path) -> Iterator[str]:
    """A Prometheus with the example's settings, except that it is quicker; its address."""
    for rules in ("alerts.yml", "alerts_federation.yml"):
        shutil.copy(DEPLOY / "prometheus" / rules, folder)
    settings = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    settings = settings.replace("15s", "1s").replace("127.0.0.1:8707", target)
    assert "/etc/prometheus/cnfgnn-live.token" in settings
    settings = settings.replace("/etc/prometheus/cnfgnn-live.token", str(token))
    (folder / "prometheus.yml").write_text(settings)
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    command = [str(PROMETHEUS), f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={place}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, f"--storage.tsdb.path={folder / 'data'}"], stdout=log, stderr=log, cwd=folder
        )
        try:
            yield f"http://{place}"
        finally:
            process.terminate()
            process.wait(timeout=240)


def asked(address: str, path: str) -> Any:
    """The data that Prometheus answers with; None while it is not there yet."""
    try:
        with urllib.request.urlopen(f"{address}/api/v1/{path}", timeout=60) as response:
            return json.load(response)["data"]
    except OSError:
        return None


@needs_prometheus
@pytest.mark.slow
def test_a_real_prometheus_scrapes_the_service_and_names_a_silent_sensor(
    small_run: SmallRun, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    settings = LiveSettings(data=small_run.folder, state=state, clock=FEED, speed=3000, deadline=100)
    with serving(small_run.run, settings) as (_, client):
        for row in range(KNOWN, KNOWN + 9):  # s2 is silent for longer than a history
            sent = small_run.full_row(row)
            del sent["values"]["s2"]
            client.post(sent)
            client.forecast_after(sent["time"])
        with prometheus(tmp_path, client.host, state / "token") as address:

            def value(query: str) -> Any:
                found = asked(address, f"query?query={query}")
                return found["result"] if found and found["result"] else None

            up = wait_for(lambda: value("up==1"), "the first scrape")
            assert up[0]["metric"]["job"] == "cnfgnn-live"
            [alarm] = wait_for(lambda: value("cnfgnn_live_alarm"), "the alarm")
            assert (alarm["metric"]["sensor"], alarm["metric"]["kind"]) == ("s2", "silent")
            wait_for(lambda: value('cnfgnn_live_forecast_seconds_bucket{le="%2BInf"}'), "the durations")

            def pending() -> Any:
                alerts = (asked(address, "alerts") or {"alerts": []})["alerts"]
                return [a for a in alerts if a["labels"]["alertname"] == "CnfgnnLiveSensor"]

            [alert] = wait_for(pending, "the alert")
            assert alert["state"] in ("pending", "firing")
            assert alert["annotations"]["summary"].startswith("Sensor s2 (127.0.0.1:")

            def healths() -> dict[str, set[str]]:
                groups = (asked(address, "rules") or {"groups": []})["groups"]
                return {group["name"]: {rule["health"] for rule in group["rules"]} for group in groups}

            # Each group is evaluated for the first time at a moment of its own; until then it is "unknown".
            wait_for(lambda: healths() == {"cnfgnn-live": {"ok"}, "cnfgnn-federation": {"ok"}}, "the rules")


# ---- systemd ----------------------------------------------------------------------------------------------


UNITS = sorted(path.stem.rstrip("@") for path in (DEPLOY / "systemd").iterdir())


@needs_systemd
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_unit(name: str, tmp_path: Path) -> None:
    """With the program in another place, because systemd checks that it is there."""
    program = Path(sys.executable).parent / "cnfgnn"
    for unit in (DEPLOY / "systemd").iterdir():
        text = unit.read_text().replace("/opt/cnfgnn/bin/cnfgnn", str(program))
        (tmp_path / unit.name.replace("@", "@mine")).write_text(text)
    there = tmp_path / f"{name}@mine.service"
    said = ran("systemd-analyze", "verify", "--man=no", there)
    assert "cnfgnn-" not in said
    report = ran("systemd-analyze", "security", "--offline=true", "--threshold=30", there)
    exposure = float(re.findall(r"exposure level for \S+: ([\d.]+)", report)[0])
    assert exposure <= 3.0


def test_two_containers_of_a_site_share_a_socket_and_nothing_else() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]
    site, engine = services["site"], services["engine"]
    assert [volume.split(":")[0] for volume in engine["volumes"]] == ["./socket"]
    assert {"./kit:/kit", "./readings:/readings", "./socket:/kit/socket"} == set(site["volumes"])
    assert not set(site["networks"]) & set(engine["networks"])
    assert site["user"] != engine["user"]


@pytest.mark.parametrize(
    ("file", "verb"),
    [
        ("systemd/cnfgnn-site@.service", "up"),
        ("systemd/cnfgnn-server@.service", "up"),
        ("systemd/cnfgnn-engine@.service", "engine"),
        ("systemd/cnfgnn-federation-live@.service", "live"),
        ("compose.yml", "up"),
        ("compose.yml", "engine"),
    ],
)
def test_what_starts_a_federation_is_a_command(file: str, verb: str) -> None:
    import typer.main

    from cnfgnn.cli.main import app

    command = typer.main.get_command(app).commands["federation"].commands[verb]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    text = (DEPLOY / file).read_text()
    [start] = [line for line in text.splitlines() if re.search(rf"cnfgnn,? federation,? {verb}[ ,]", line)]
    assert set(re.findall(r"--[a-z][a-z-]*", start)) <= options


def test_options_of_the_unit_and_the_container_are_those_of_the_command() -> None:
    import typer.main

    from cnfgnn.cli.main import app

    command = typer.main.get_command(app).commands["live"].commands["run"]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    for file in ("systemd/cnfgnn-live@.service", "Containerfile"):
        text = (DEPLOY / file).read_text()
        start = next(line for line in text.splitlines() if line.startswith(("ExecStart", "ENTRYPOINT")))
        used = set(re.findall(r"--[a-z][a-z-]*", start))
        assert used
        assert used <= options
