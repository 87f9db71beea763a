"""Forecasts of a run with their intervals: learned at the owner, adapted to newer readings, judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cnfgnn.algorithm import owner as owner_module
from cnfgnn.cli.main import app
from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.forecasters.intervals import REPORTED, bounds_of, interval_sums
from cnfgnn.runs.evaluate import evaluate_run, restore_best
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import forecast_run
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.train import Unwatched, train_run
from tests.conftest import network, server, small

DATA = network(rows=260)


def train(folder: Path, method: str = "cnfgnn-plus", data: Dataset = DATA) -> Run:
    # In int8, the rounding of a hidden state depends on the other windows of a message.
    config = small(method, **{"training.rounds": 1, "training.wire": "full"})
    run = Run.create(folder, config, data)
    train_run(run, data, Unwatched())
    return Run.open(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tmp_path_factory.mktemp("intervals") / "run")


def cut(data: Dataset, rows: slice) -> Dataset:
    r = data.readings
    return replace(
        data, readings=replace(r, times=r.times[rows], values=r.values[rows], missing=r.missing[rows])
    )


def changed_from(data: Dataset, row: int, by: float) -> Dataset:
    """Other readings from a row on, so that they are not those of the training any more."""
    values = data.readings.values.copy()
    values[row:] += by
    return replace(data, readings=replace(data.readings, values=values))


def test_training_and_evaluation_judge_intervals_alike(run: Run) -> None:
    found = evaluate_run(run, DATA).intervals
    assert found is not None
    recorded = run.events()[-1]["intervals"]
    assert set(recorded) == {str(level) for level in REPORTED}
    for level in REPORTED:
        assert vars(found.overall(level)) == recorded[str(level)]["overall"]
        assert [vars(errors) for errors in found.per_node(level)] == list(
            recorded[str(level)]["per_node"].values()
        )
        assert len(found.per_horizon(level)) == run.config.data.horizon
    narrow, wide = (found.overall(level) for level in REPORTED)
    assert 0 < narrow.coverage < wide.coverage <= 1
    assert 0 < narrow.width < wide.width
    assert narrow.width < narrow.score
    assert evaluate_run(run, DATA, "validation").intervals is None  # what they were calibrated on


@pytest.mark.parametrize("method", ["gru-central", "at-fedavg"])
def test_every_strategy_keeps_its_intervals(method: str, tmp_path: Path) -> None:
    made = train(tmp_path / "run", method)
    found = evaluate_run(made, DATA).intervals
    assert found is not None
    assert vars(found.overall(80)) == made.events()[-1]["intervals"]["80"]["overall"]
    frame = forecast_run(made, DATA, [90])
    assert frame["s0 low 90"].to_numpy() == pytest.approx(frame["s0"].to_numpy(), abs=200)
    assert (frame["s0 low 90"] < frame["s0 high 90"]).all()


def test_a_run_without_intervals_forecasts_without_them(tmp_path: Path) -> None:
    made = train(tmp_path / "run")
    store = made.store("owner-0")
    tag = made.progress.best.tag
    state = {name: w for name, w in store.read(tag).items() if not name.startswith("intervals.")}
    assert len(state) < len(store.read(tag))
    store.write(tag, state, [])
    assert evaluate_run(made, DATA).intervals is None
    with pytest.raises(RunError, match="has no intervals"):
        forecast_run(made, DATA, [80])
    assert forecast_run(made, DATA).shape[1] == len(DATA.readings.ids)


def test_intervals_add_columns_and_change_nothing_else(run: Run) -> None:
    plain, frame = forecast_run(run, DATA), forecast_run(run, DATA, [95, 80])
    ids = list(DATA.readings.ids)
    assert list(frame.columns[: len(ids)]) == ids
    bounds = [f"s0 {side} {level}" for level in (80, 95) for side in ("low", "high")]
    assert list(frame.columns[len(ids) : len(ids) + 4]) == bounds
    assert frame[ids].equals(plain)
    for sensor in ids:
        order = [f"{sensor} low 95", f"{sensor} low 80", f"{sensor} high 80", f"{sensor} high 95"]
        assert (np.diff(frame[order].to_numpy(), axis=1) >= 0).all()
    assert (frame[[name for name in frame if " low " in name]] >= 0).all().all()  # speeds are never negative


def test_levels_that_are_not_kept_are_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="85"):
        forecast_run(run, DATA, [85])


def bounds_in_evaluation(run: Run, data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of all test windows, and the last row of the history of each."""
    experiment = restore_best(run, data)
    experiment.strategy.ready("test")
    ((_, owner),) = experiment.owners
    found = []
    for chunk in owner.data.chunks("test"):
        bounds = owner.bounds_of(chunk, owner.data.unscaled(owner.forecasts_of("test", chunk)).numpy())
        assert bounds is not None
        found.append(bounds)
    return np.concatenate(found, axis=3), owner.data.starts["test"].numpy() + owner.data.history - 1


def test_a_forecast_a_day_later_has_followed_the_readings_since(run: Run) -> None:
    """Its bounds are those that evaluation finds for the same window, the last of a longer series."""
    rows = len(DATA.readings.times) - run.config.data.horizon
    frame = forecast_run(run, cut(DATA, slice(0, rows)), [80])
    bounds, last = bounds_in_evaluation(run, changed_from(DATA, rows, 5.0))
    assert last[-1] == rows - 1
    low, high = bounds_of(bounds, 80)[:, :, -1]
    for row, sensor in enumerate(DATA.readings.ids):
        assert frame[f"{sensor} low 80"].to_numpy() == pytest.approx(low[row], abs=1e-6)
        assert frame[f"{sensor} high 80"].to_numpy() == pytest.approx(high[row], abs=1e-6)


def test_wrong_forecasts_widen_the_intervals_of_later_ones(run: Run) -> None:
    rows = len(DATA.readings.times)
    jumpy = changed_from(DATA, rows, 0.0)
    values = jumpy.readings.values
    values[rows - 40 :] += np.where(np.arange(40) % 2, 30, -30)[:, None]
    calm, wild = (forecast_run(run, data, [80]) for data in (DATA, jumpy))
    width = [float((frame["s1 high 80"] - frame["s1 low 80"]).mean()) for frame in (calm, wild)]
    assert width[1] > 1.2 * width[0]


def test_no_reading_after_a_forecast_is_used_for_its_bounds(run: Run) -> None:
    row = len(DATA.readings.times) - 20
    (one, last), (other, _) = (bounds_in_evaluation(run, changed_from(DATA, row, by)) for by in (5.0, 20.0))
    before = last < row
    assert before.sum() > 3
    assert np.array_equal(one[:, :, :, before], other[:, :, :, before], equal_nan=True)
    assert not np.array_equal(one, other, equal_nan=True)


def test_readings_that_begin_after_the_training_are_enough(run: Run) -> None:
    recent = cut(DATA, slice(len(DATA.readings.times) - 20, None))
    frame = forecast_run(run, recent, [80])
    assert np.isfinite(frame.to_numpy()).all()


def test_a_new_sensor_has_intervals_too(run: Run) -> None:
    renamed = replace(DATA, readings=replace(DATA.readings, ids=("new", *DATA.readings.ids[1:])))
    frame = forecast_run(run, renamed, [80])
    assert (frame["new low 80"] < frame["new high 80"]).all()


@pytest.mark.slow
def test_commands_write_and_judge_intervals(tmp_path: Path, run_folders: list[Path]) -> None:
    done = CliRunner().invoke(app, ["evaluate", str(run_folders[0]), "--json"])
    found = json.loads(done.stdout)["intervals"]
    assert set(found["80"]["overall"]) == {"coverage", "width", "score"}
    done = CliRunner().invoke(app, ["evaluate", str(run_folders[0]), "--per-step", "--per-node"])
    assert "80 %: coverage" in done.stdout
    assert done.stdout.count("80 %: coverage") == 3
    out = tmp_path / "f.csv"
    arguments = ["forecast", str(run_folders[0]), "--intervals", "80, 95%", "--out", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert "with intervals of 80 % and 95 %" in done.stdout
    assert " low 95," in out.read_text().splitlines()[0]
    for wrong in ("85", "most"):
        done = CliRunner().invoke(app, ["forecast", str(run_folders[0]), "--intervals", wrong])
        assert isinstance(done.exception, ConfigError)
        assert "--intervals" in str(done.exception)


def test_a_zero_lies_within_a_bound_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros that were scaled and back would be a little less than that: counts are judged as they are."""
    data = network(dropout=0)
    values = np.maximum(np.round((data.readings.values - 55) / 3), 0)
    counts = replace(data, readings=replace(data.readings, values=values, missing=np.isnan(values)))
    seen: list[np.ndarray] = []

    def noted(bounds: np.ndarray, truth: np.ndarray, known: np.ndarray) -> np.ndarray:
        seen.append(truth[known])
        return interval_sums(bounds, truth, known)

    monkeypatch.setattr(owner_module, "interval_sums", noted)
    experiment = simulate(counts, small("cnfgnn-plus", **{"compute.precision": "fp32"}))
    server(experiment).round(1)
    server(experiment).score("validation")
    server(experiment).score("test")
    judged = np.concatenate(seen)
    assert (judged == 0).mean() > 0.2
    assert set(judged) <= set(values.ravel().astype(np.float64))
