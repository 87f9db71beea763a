"""A view says what the run's events say, and its forecasts add up to the same errors."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.files.folder import load
from cnfgnn.data.windows import reported_steps
from cnfgnn.errors import DataError, RunError
from cnfgnn.report.layout import MOST_SENSORS, force_layout, graph_layout, map_points
from cnfgnn.report.page import FIGURES, figures
from cnfgnn.report.views import RunView, view, views
from cnfgnn.runs.evaluate import evaluate_run
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Unwatched, train_run
from tests.conftest import network, small
from tests.tiny_runs import tiny


@pytest.fixture(scope="module")
def shown(run_folders: list[Path], city_data: Dataset) -> RunView:
    return view(Run.open(run_folders[0]), city_data)


@pytest.fixture
def copy(run_folders: list[Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_folders[0], tmp_path / "copy"))


def unfinish(folder: Path) -> None:
    """As if the process had died after the last round."""
    path = folder / "manifest.json"
    lines = (folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    manifest = json.loads(path.read_text())
    manifest |= {"finished": False, "events": sum(map(len, lines[:-1]))}
    path.write_text(json.dumps(manifest))


def test_it_has_the_events_as_they_are(shown: RunView, run_folders: list[Path]) -> None:
    events = [json.loads(line) for line in (run_folders[0] / "events.jsonl").read_text().splitlines()]
    assert shown.test == events[-1]
    assert shown.rounds == events[1:-1]
    assert shown.ledger == events[-1]["ledger"]
    assert shown.best_round == events[-1]["best_round"]
    assert shown.sensors == events[0]["data"]["sensors"]
    assert shown.settings["training.rounds"] == 2
    assert shown.no_predictions == ""


def test_its_sums_are_those_of_the_evaluation(
    shown: RunView, run_folders: list[Path], city_data: Dataset
) -> None:
    assert shown.predictions is not None
    assert shown.test is not None
    scores = evaluate_run(Run.open(run_folders[0]), city_data)
    assert np.array_equal(shown.predictions.sums, scores.sums.numpy())
    per_step = figures(shown.predictions.sums.sum(axis=0, keepdims=True))[:, 0]
    for k, name in enumerate(FIGURES):
        told = [errors[name] for errors in shown.test["per_step"]]
        np.testing.assert_allclose(per_step[k], told, rtol=1e-12)


def test_sums_by_hour_add_up_to_the_overall_error(shown: RunView) -> None:
    assert shown.predictions is not None
    assert shown.test is not None
    np.testing.assert_allclose(
        shown.predictions.hours.sum(axis=1), shown.predictions.sums.sum(axis=1), rtol=1e-12
    )
    overall = figures(shown.predictions.hours.sum(axis=(0, 1))[None, None])[:, 0, 0]
    for k, name in enumerate(FIGURES):
        assert overall[k] == pytest.approx(shown.test["overall"][name], rel=1e-12)


@pytest.mark.parametrize("method", ["at-fedavg", "gru-local", "gru-gn-central"])
def test_forecasts_stand_at_the_time_they_are_for(method: str, tmp_path: Path) -> None:
    data = network()  # its nodes fall silent at times, so that windows differ from node to node
    run = Run.create(tmp_path / "run", small(method), data)
    train_run(run, data, Unwatched())
    looked = view(run, data).predictions
    assert looked is not None
    for j, step in enumerate(looked.steps):
        off = np.abs(looked.forecasts[j] - looked.truth)  # NaN where either is absent
        np.testing.assert_allclose(np.nansum(off, axis=1), looked.sums[:, step - 1, 4], rtol=1e-6)
        assert np.array_equal(np.isfinite(off).sum(axis=1), looked.sums[:, step - 1, 5])


def test_hours_are_those_for_which_was_forecast(shown: RunView, city_data: Dataset) -> None:
    assert shown.predictions is not None
    times = city_data.readings.times
    test = times[-round((len(times) - 23) * 0.2) - 11 :]
    hours = {int(h) for h in (test - test.astype("datetime64[D]")).astype("timedelta64[h]").astype(int)}
    assert {h for h in range(24) if shown.predictions.hours[:, h, 2].sum() > 0} == hours


def test_a_run_that_is_not_finished_is_judged_at_its_best_round(
    copy: Path, city_data: Dataset, shown: RunView
) -> None:
    unfinish(copy)
    so_far = view(Run.open(copy), city_data)
    assert not so_far.finished
    assert so_far.test is not None
    assert shown.test is not None
    assert so_far.test["overall"] == shown.test["overall"]
    assert so_far.test["per_node"] == shown.test["per_node"]
    assert so_far.rounds == shown.rounds


def test_a_line_that_is_being_written_does_not_disturb(copy: Path, city_data: Dataset) -> None:
    unfinish(copy)
    with (copy / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "rou')
    assert len(view(Run.open(copy), city_data).rounds) == 2


def test_without_states_the_events_are_left(copy: Path, shown: RunView, city_data: Dataset) -> None:
    shutil.rmtree(copy / "checkpoints")
    without = view(Run.open(copy), city_data)
    assert without.predictions is None
    assert "checkpoint is missing" in without.no_predictions
    assert without.test == shown.test
    unfinish(copy)
    assert view(Run.open(copy), city_data).test is None


def test_without_its_data_the_events_are_left(data: Dataset, tmp_path: Path) -> None:
    config = small("gru-fedavg", **{"data.path": str(tmp_path / "gone.h5")})
    run = Run.create(tmp_path / "run", config, data)
    train_run(run, data, Unwatched())
    (shown,) = views([run])
    assert shown.predictions is None
    assert "no such file" in shown.no_predictions
    assert shown.test is not None


def test_data_by_another_clock_are_not_those_of_the_run(data: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    folder.mkdir()
    write_folder(data, folder)
    run = Run.create(tmp_path / "run", small("gru-fedavg", **{"data.path": str(folder)}), load(folder))
    train_run(run, load(folder), Unwatched())
    write_folder(replace(data, readings=replace(data.readings, utc=True)), folder)
    (shown,) = views([run])
    assert "times are in UTC" in shown.no_predictions
    assert shown.test is not None


def test_other_data_are_refused(run_folders: list[Path], city_data: Dataset, data: Dataset) -> None:
    run = Run.open(run_folders[0])
    with pytest.raises(DataError, match="its sensors are not those"):
        view(run, data)
    changed = replace(city_data.readings, values=city_data.readings.values + 1)
    with pytest.raises(DataError, match="readings or graph are not those"):
        view(run, replace(city_data, readings=changed))


def test_a_run_without_a_round_is_refused(city_data: Dataset, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", tiny("gru-fedavg"), city_data)
    with pytest.raises(RunError, match="no finished round yet"):
        view(run, city_data)


@pytest.mark.parametrize("line", [b"{}\n", b'{"event": "start"}\n', b"[]\n", b"3\n"])
def test_damaged_events_are_named(line: bytes, copy: Path, city_data: Dataset) -> None:
    path = copy / "events.jsonl"
    content = path.read_bytes()
    rest = content[content.index(b"\n") + 1 :]
    path.write_bytes(line.rjust(len(content) - len(rest)) + rest)
    with pytest.raises(DataError, match="its events are damaged"):
        view(Run.open(copy), city_data)


@pytest.mark.parametrize(
    "entry", [b'"per_node"', b'"overall"', b'"loss"', b'"rmse"', b'"positions"', b'"ledger"']
)
def test_a_missing_entry_is_noticed_before_anything_is_drawn(
    entry: bytes, copy: Path, city_data: Dataset
) -> None:
    path = copy / "events.jsonl"
    path.write_bytes(path.read_bytes().replace(entry, b'"' + b"x" * (len(entry) - 2) + b'"'))
    with pytest.raises(DataError, match="its events are damaged"):
        view(Run.open(copy), city_data)


def test_runs_of_the_same_name_are_told_apart(run_folders: list[Path], tmp_path: Path) -> None:
    other = Path(shutil.copytree(run_folders[0], tmp_path / run_folders[0].name))
    names = [shown.name for shown in views([Run.open(run_folders[0]), Run.open(other)])]
    assert names == [str(run_folders[0]), str(other)]


def test_places_without_positions_are_apart_and_always_the_same() -> None:
    edges = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    places = force_layout(5, edges)
    assert np.array_equal(places, force_layout(5, edges))
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1) + np.eye(5)
    assert apart.min() > 0.1
    assert apart[0, 4] > apart[0, 1]  # a chain is drawn as one
    assert np.isfinite(force_layout(3, np.zeros((0, 2), dtype=np.int64))).all()


def test_neighbours_of_a_large_graph_without_positions_are_drawn_close_together() -> None:
    side = 40
    place = np.random.default_rng(0).permutation(side * side).reshape(side, side)
    across, down = (place[:, :-1], place[:, 1:]), (place[:-1], place[1:])
    pairs = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in (across, down)])
    alone = side * side  # a sensor that no edge reaches
    assert alone + 1 > MOST_SENSORS
    points = graph_layout(alone + 1, pairs)
    assert np.isfinite(points).all()
    joined = np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1)
    corners = points[[place[0, 0], place[0, -1], place[-1, 0], place[-1, -1]]]
    apart = np.linalg.norm(corners[:, None] - corners[None], axis=-1)[np.triu_indices(4, 1)]
    assert joined.max() < 0.15 * apart.min()


def test_a_degree_of_longitude_is_as_long_as_it_is_there() -> None:
    places = map_points(np.array([[60.0, 10.0], [60.0, 11.0], [61.0, 10.0], [59.0, 10.0]]))
    east, north = places[1, 0] - places[0, 0], places[2, 1] - places[0, 1]
    assert north / east == pytest.approx(2, rel=1e-3)  # cos 60 degrees is a half


@pytest.mark.parametrize(("horizon", "steps"), [(12, (3, 6, 12)), (1, (1,)), (2, (1, 2)), (5, (1, 2, 5))])
def test_reported_steps_are_what_the_horizon_has(horizon: int, steps: tuple[int, ...]) -> None:
    assert reported_steps(horizon) == steps
