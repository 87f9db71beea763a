"""The page as a file: one piece, not too large, and safe whatever names a data set has."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from cnfgnn.report.packing import ABSENT, Pack
from cnfgnn.report.page import Section, page
from tests.tiny_runs import large_view

MOST = 8_000_000


@pytest.mark.parametrize("runs", [1, 4])
def test_runs_on_325_sensors_stay_below_8_megabytes(runs: int) -> None:
    views = [large_view(seed=seed) for seed in range(runs)]
    assert len(page("large", views).encode()) < MOST


def test_days_are_cut_only_where_there_is_no_room() -> None:
    content = content_of(page("one", [large_view(n=20)]))
    assert content["runs"][0]["forecasts"]["shape"] == [3, 20, 7 * 288]
    content = content_of(page("large", [large_view(seed=1), large_view(seed=2)]))
    rows = content["runs"][0]["forecasts"]["shape"][2]
    assert 288 < rows < 7 * 288
    assert content["data"][0]["truth"]["shape"] == [325, rows]
    first = np.datetime64(content["data"][0]["first"], "s")
    assert first + 300 * (rows - 1) == np.datetime64("2017-06-07T23:55:00")


def test_sections_alone_need_no_charts() -> None:
    made = page("Results & more", [], [Section("Table <2>", "<table><tr><td>7</td></tr></table>")])
    assert "<title>Results &amp; more</title>" in made
    assert "<h2>Table &lt;2&gt;</h2><table><tr><td>7</td></tr></table>" in made
    assert len(made) < 30_000
    assert "plotly" not in made.lower()


def test_sections_stand_above_the_runs() -> None:
    made = page("both", [large_view(n=3)], [Section("First", "<p>here</p>")])
    assert made.index("<p>here</p>") < made.index('id="runs"')


def test_the_page_loads_nothing() -> None:
    made = page("alone", [large_view(n=3)])
    markup = re.sub(r"<script.*?</script>", "", made, flags=re.DOTALL)
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", markup)
    assert "@import" not in made
    assert "<noscript>" in made


def test_names_cannot_break_out_of_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    view = large_view(n=3)
    assert view.test is not None
    errors = view.test["overall"]
    sensors = [evil, "b", "c"]
    named = replace(
        view, name=evil, sensors=sensors, test=view.test | {"per_node": dict.fromkeys(sensors, errors)}
    )
    made = page(evil, [named])
    assert "alert(1)</script>" not in made
    assert content_of(made)["data"][0]["sensors"][0] == evil


@pytest.mark.parametrize(
    ("missing", "loss", "name"),
    [
        ("masked", "square", "masked mean squared error"),
        ("masked", "absolute", "masked mean absolute error"),
        ("as-truth", "absolute", "unmasked mean absolute error"),
    ],
)
def test_the_loss_is_named_after_what_was_trained_on(missing: str, loss: str, name: str) -> None:
    view = large_view(n=3)
    trained = replace(view, settings=view.settings | {"data.missing": missing, "training.loss": loss})
    assert content_of(page("loss", [trained]))["runs"][0]["loss_name"] == name


def test_the_same_runs_give_the_same_page() -> None:
    assert page("again", [large_view(n=5)]) == page("again", [large_view(n=5)])


@pytest.mark.parametrize(("low", "high"), [(0, 80), (-1e-3, 2e-3), (101_000, 101_500), (0, 1e9), (5, 5)])
def test_rounded_series_are_as_fine_as_can_be_seen(low: float, high: float) -> None:
    values = np.random.default_rng(0).uniform(low, high, (4, 50))
    values[1, 3] = np.nan
    pack = Pack()
    pack.coarse(np.zeros(3))
    spec = pack.rounded(values)
    assert spec["at"] % 8 == 0
    whole = np.frombuffer(bytes(pack.content), "<i2", 200, spec["at"]).reshape(4, 50).astype(float)
    assert (whole == ABSENT).sum() == 1
    back = (whole + spec["origin"]) / 10.0 ** spec["digits"]
    back[whole == ABSENT] = np.nan
    np.testing.assert_allclose(back, values, atol=max((high - low) / 200, 1e-6), rtol=0)


def test_the_pack_can_be_unpacked() -> None:
    pack = Pack()
    spec = pack.exact(np.array([[1.5, np.nan], [3.0, 4.0]]))
    content = gzip.decompress(base64.b64decode(pack.text()))
    assert spec == {"at": 0, "shape": [2, 2], "kind": "f8"}
    assert np.frombuffer(content, "<f8")[[0, 2, 3]].tolist() == [1.5, 3.0, 4.0]


def content_of(made: str) -> dict:  # type: ignore[type-arg]
    (text,) = re.findall(r'<script type="application/json" id="content">(.*?)</script>', made, re.DOTALL)
    content: dict = json.loads(text)  # type: ignore[type-arg]
    return content
