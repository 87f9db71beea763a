"""The page as a file: one piece, not too large, and safe whatever names a data set has."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cnfgnn.report.packing import ABSENT, Pack
from cnfgnn.report.page import FIGURES, Section, figures, page
from cnfgnn.report.selection import MANY, sensors_in_full
from tests.tiny_runs import large_view, with_errors

MOST, MOST_OF_MANY = 8_000_000, 5_000_000


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


def test_fine_and_relative_numbers_are_close_to_what_was_packed() -> None:
    rng = np.random.default_rng(0)
    values = rng.gamma(2.0, 3.0, (3, 400))
    values[0, 0], values[1, 1], values[2, 2] = np.nan, 0.0, 1e6
    pack = Pack()
    relative, fine = pack.relative(values), pack.fine(values[0])
    content = bytes(pack.content)
    back = numbers_of(content, relative)
    assert np.isnan(back[0, 0])
    assert back[1, 1] == 0
    np.testing.assert_allclose(back, values, rtol=2e-4)
    np.testing.assert_allclose(numbers_of(content, fine), values[0], atol=1e-3)


# ---- many sensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "runs"),
    [
        (3000, 1),
        pytest.param(10_000, 1, marks=pytest.mark.slow),
        pytest.param(10_000, 2, marks=pytest.mark.slow),
    ],
)
def test_thousands_of_sensors_stay_below_5_megabytes(n: int, runs: int) -> None:
    views = [with_errors(large_view(n, days=1, seed=seed)) for seed in range(runs)]
    made = page("many", views)
    assert len(made.encode()) < MOST_OF_MANY
    content = content_of(made)
    assert content["data"][0]["x"]["shape"] == [n]
    for run in content["runs"]:
        assert run["test"]["errors"]["shape"] == [4, n]
        assert run["forecasts"]["shape"][1:] == [36, 288]


def test_of_many_sensors_all_have_errors_and_some_are_shown_in_full() -> None:
    n = MANY + 200
    view = with_errors(large_view(n, days=1))
    assert view.test is not None
    assert view.predictions is not None
    made = page("many", [view], named=[view.sensors[7]])
    content, arrays = content_of(made), arrays_of(made)
    (data,), (run,) = content["data"], content["runs"]
    expected = np.array([[view.test["per_node"][s][figure] for s in view.sensors] for figure in FIGURES])
    np.testing.assert_allclose(numbers_of(arrays, run["test"]["errors"]), expected, rtol=1e-6)
    kinds, full = data["many"]["kinds"], data["many"]["full"]
    assert kinds["named"] == [7]
    assert kinds["highest"][0] == int(expected[0].argmax())
    assert kinds["lowest"][0] == int(expected[0].argmin())
    assert full == sorted({row for rows in kinds.values() for row in rows})
    assert len(full) == 37
    shown = numbers_of(arrays, data["truth"])
    np.testing.assert_allclose(shown, view.predictions.truth[full], atol=0.05)
    by_step = figures(view.predictions.sums)
    for k, spec in enumerate(run["steps_of_all"]):
        np.testing.assert_allclose(numbers_of(arrays, spec), by_step[k].T, rtol=1e-3)
    names = arrays[data["sensors"]["at"] :][: data["sensors"]["shape"][0]]
    assert json.loads(names) == list(view.sensors)


def test_with_few_sensors_all_are_shown_in_full_as_json_and_to_the_last_bit() -> None:
    content = content_of(page("few", [with_errors(large_view(n=20, days=1))]))
    assert "many" not in content["data"][0]
    assert len(content["data"][0]["sensors"]) == 20
    assert content["runs"][0]["by_step"]["kind"] == "f8"


def test_the_sensors_in_full_have_the_highest_typical_and_lowest_errors() -> None:
    errors = np.array([5.0, np.nan, 1.0, 9.0, 4.0, 5.5, 0.5, 7.0])
    found = sensors_in_full(errors, named=[1], each=2)
    assert found == {"named": [1], "highest": [3, 7], "typical": [0, 5], "lowest": [6, 2]}
    unknown = sensors_in_full(np.full(5, np.nan), each=2)
    assert unknown == {"named": [], "highest": [], "typical": [0, 1], "lowest": []}
    few = sensors_in_full(np.array([1.0, 2.0, 3.0]), each=2)
    assert sorted(row for rows in few.values() for row in rows) == [0, 1, 2]


def numbers_of(arrays: bytes, spec: dict[str, Any]) -> npt.NDArray[np.float64]:
    """Unpack an array as the page does."""
    kind = f"<{spec['kind']}"
    packed = np.frombuffer(arrays, kind, int(np.prod(spec["shape"])), spec["at"]).reshape(spec["shape"])
    values = packed.astype(np.float64)
    if spec["kind"] == "i2":
        return np.where(packed == ABSENT, np.nan, (values + spec["origin"]) / 10.0 ** spec["digits"])
    if spec["kind"] == "u2" and "unit" in spec:
        return np.where(packed == 65535, np.nan, spec["low"] + values * spec["unit"])
    if spec["kind"] == "u2":
        values = np.where(packed == 0, 0, spec["low"] * spec["ratio"] ** (values - 1))
        return np.where(packed == 65535, np.nan, values)
    return values


def arrays_of(made: str) -> bytes:
    (text,) = re.findall(r'<script type="text/plain" id="arrays">(.*?)</script>', made, re.DOTALL)
    return gzip.decompress(base64.b64decode(text))


def content_of(made: str) -> dict:  # type: ignore[type-arg]
    (text,) = re.findall(r'<script type="application/json" id="content">(.*?)</script>', made, re.DOTALL)
    content: dict = json.loads(text)  # type: ignore[type-arg]
    return content
