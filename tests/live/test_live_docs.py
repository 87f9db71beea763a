"""What docs/live.md says is what the service does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main
from prometheus_client import generate_latest

from cnfgnn.cli.main import app
from cnfgnn.data.options import ReadingOptions
from cnfgnn.live.forecasting.forecasts import QUALITIES
from cnfgnn.live.forecasting.metrics import MOST_ALARMS, Metrics
from cnfgnn.live.forecasting.predictor import KEPT_ROWS
from cnfgnn.live.forecasting.watch import KINDS, OVERALL
from cnfgnn.live.intake.clock import Zone
from cnfgnn.live.intake.observations import read_csv, read_json
from cnfgnn.live.intake.recent import Arrived, Verdict
from cnfgnn.live.web import service_pages as web

PAGE = (Path(__file__).parents[2] / "docs" / "live.md").read_text()
ZONE = Zone(utc=True)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def at(minute: int) -> float:
    return ZONE.read(f"2024-01-31T08:{minute:02}:00Z")


def test_the_examples_of_readings_are_read_as_the_page_says() -> None:
    one, several, observation, variable = (read_json(block.encode(), ZONE, 0.0) for block in blocks("json"))
    assert one == [Arrived("north", at(5), 61.5)]
    assert several == [
        Arrived("north", at(10), 60.5),
        Arrived("south", at(10), 57.5),
        Arrived("south", at(5), 58.0),
    ]
    assert observation == [Arrived("north", at(15), 59.5)]
    assert variable == [
        Arrived("north", at(25), 60.5),
        Arrived("south", at(25), 57.5),
        Arrived("north", at(25), 410.0, "flow"),
        Arrived("south", at(25), 385.0, "flow"),
    ]


def test_the_example_of_csv_is_read_as_the_page_says(tmp_path: Path) -> None:
    (block,) = blocks("text")
    (tmp_path / "body.csv").write_text(block)
    found = read_csv(tmp_path / "body.csv", ReadingOptions(), "the body")
    assert found == [Arrived("north", at(20), 58.5), Arrived("south", at(20), 56.5)]


@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_has_its_row(verdict: Verdict) -> None:
    answers = [line.split("|")[2] for line in PAGE.splitlines() if line.startswith("| **")]
    told = {word for answer in answers for word in re.findall(r"`([^`]+)`", answer)}
    if verdict not in (Verdict.NEW, Verdict.NO_TIME):
        assert verdict.value in told


def test_qualities_limits_metrics_and_options_are_those_of_the_code() -> None:
    assert re.findall(r"^\| `([a-z ]+)` \|", PAGE, re.MULTILINE) == list(QUALITIES)
    assert f"{KEPT_ROWS:,} steps" in PAGE
    assert f"| 413 | an upload of more than {web.MOST_BYTES >> 20} MiB |" in PAGE
    assert f"{web.MOST_BYTES_AT_ONCE >> 20} MiB of uploads" in PAGE
    assert f"{web.UPLOADS_PER_SECOND:g} uploads a second" in PAGE
    assert f"{web.UPLOADS_AT_ONCE:,} in a burst" in PAGE
    for kind in (*KINDS, *OVERALL):
        assert f"| **{kind}**" in PAGE
    assert f"at most {MOST_ALARMS};" in PAGE
    exposed = generate_latest(Metrics(lambda: 0.0, lambda: False).registry).decode()
    for name in set(re.findall(r"cnfgnn_live_\w+", PAGE)):
        assert re.search(rf"^# TYPE {name} ", exposed, re.MULTILINE), name
    command = typer.main.get_command(app).commands["live"].commands["run"]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    elsewhere = {"--from", "--to", "--data-binary", "--intervals", "--config", "--build-arg"}
    elsewhere |= {"--format"}
    elsewhere |= {
        "--system",
        "--port",
        "--steps",
        "--once",
        "--home-dir",
        "--now",
        "--rm",
        "--days",
        "--rounds",
        "--rows",
    }
    for name in set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", PAGE)) - elsewhere:
        assert name in options, name
