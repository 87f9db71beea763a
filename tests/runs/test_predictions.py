"""Forecasts in a file are those that were evaluated, and two such files can be compared."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from studies.boosted_trees import as_table
from studies.paired import compare, main

from cnfgnn.config.settings import DataConfig, Missing
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.prepared_series import SUMS
from cnfgnn.runs.baselines import Prepared
from cnfgnn.runs.evaluate import evaluate_run
from cnfgnn.runs.folder import Run
from cnfgnn.runs.predictions import write_predictions
from cnfgnn.runs.train import Unwatched, train_run
from studies import boosted_trees
from tests.commands import said
from tests.conftest import network, small


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, with its data beside it."""
    place, data = tmp_path_factory.mktemp("trained"), network()
    write_folder(data, place)
    config = small("gru-fedavg").with_changes({"training.rounds": 1, "data.path": str(place)})
    train_run(Run.create(place / "run", config, data), data, Unwatched())
    return place / "run"


def test_forecasts_in_the_file_have_the_errors_and_ranges_of_the_evaluation(
    trained: Path, tmp_path: Path
) -> None:
    run, data, path = Run.open(trained), network(), tmp_path / "all.parquet"
    scores = evaluate_run(run, data)
    written = write_predictions(run, data, "test", path)
    frame = pd.read_parquet(path)
    observed = frame[frame["observed"]]
    assert len(observed) == scores.sums[..., SUMS.index("count")].sum() < written == len(frame)
    error = (observed["forecast"] - observed["truth"]).astype(np.float64)
    assert np.sqrt((error**2).mean()) == pytest.approx(scores.overall.masked_rmse, rel=1e-5)
    third = error[observed["step"] == 3]
    assert third.abs().mean() == pytest.approx(scores.at(3).masked_mae, rel=1e-5)
    assert scores.intervals is not None
    inside = observed["truth"].between(observed["low_80"], observed["high_80"])
    assert inside.mean() == pytest.approx(scores.intervals.overall(80).coverage, abs=1e-3)
    last = data.readings.times[-1] - data.readings.step * run.config.data.horizon
    assert frame["issued"].max() == last
    assert set(frame["sensor"]) == set(data.readings.ids)


@pytest.mark.parametrize("utc", [False, True])
def test_forecasts_of_others_stand_in_a_file_of_the_same_form(
    trained: Path, tmp_path: Path, utc: bool
) -> None:
    folder, data, path = shutil.copytree(trained, tmp_path / "run"), network(), tmp_path / "all.parquet"
    data = replace(data, readings=replace(data.readings, utc=utc))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["data"]["utc"] = utc
    (folder / "manifest.json").write_text(json.dumps(manifest))
    run = Run.open(folder)
    write_predictions(run, data, "test", path)
    ours, prepared = pd.read_parquet(path), Prepared.of(data, run.config.data)
    first = prepared.windows.starts["test"] + prepared.config.history
    ahead = first[:, None] + np.arange(prepared.config.horizon)
    theirs = as_table(data, prepared, prepared.data.targets[:, ahead])  # forecasts without any error
    both = ours.merge(theirs, on=["sensor", "issued", "step"], suffixes=("", "_theirs"))
    assert len(both) == len(ours) == len(theirs)
    known = both["observed"]
    assert (known == both["observed_theirs"]).all()
    assert both["forecast_theirs"][known].to_numpy() == pytest.approx(
        both["truth"][known].to_numpy(), rel=1e-5
    )


@pytest.mark.parametrize("missing", ["masked", "as-truth"])
def test_trees_learn_from_zeros_where_zeros_are_truth(missing: Missing) -> None:
    data = network()
    values, gaps = data.readings.values.copy(), data.readings.missing.copy()
    values[30:40], gaps[30:40] = 0.0, True  # as in a traffic file, whose zeros mean missing readings
    zeros = replace(data, readings=replace(data.readings, values=values, missing=gaps))
    prepared = Prepared.of(zeros, DataConfig(missing=missing))
    zero = -prepared.data.scaler.mean / prepared.data.scaler.std
    inputs = boosted_trees._inputs(prepared, "train", 0)[:, : prepared.config.history]
    targets, counts = boosted_trees._targets(prepared, "train", 0)
    for learned in (inputs, targets[counts]):
        assert np.isclose(learned, zero).any() == (missing == "as-truth")


def test_the_validation_split_has_forecasts_without_ranges(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    said("evaluate", trained, "--split", "validation", "--predictions", path)
    frame = pd.read_parquet(path)
    assert frame["low_80"].isna().all()
    assert frame["forecast"].notna().all()
    problem = said("evaluate", trained, "--predictions", tmp_path / "x.csv", fails=True)
    assert "--predictions: cannot write 'x.csv': give a .parquet file" in problem


def forecasts(error: float, seed: int, days: int = 60, start: str = "2024-01-01") -> pd.DataFrame:
    """Three steps ahead at one sensor, whose errors grow with the step and differ from day to day."""
    rng = np.random.default_rng(seed)
    issued = pd.date_range(start, periods=days * 24, freq="h").repeat(3)
    step = np.tile([1, 2, 3], days * 24)
    of_day = np.repeat(rng.normal(size=days), 72)
    truth = np.random.default_rng(0).normal(50, 5, len(step))
    return pd.DataFrame(
        {
            "sensor": "a",
            "issued": issued,
            "step": step,
            "truth": truth,
            "observed": np.arange(len(step)) % 7 > 0,
            "forecast": truth + step * error * (of_day + 0.1 * rng.normal(size=len(step))),
        }
    )


def test_better_is_said_only_where_the_interval_excludes_zero() -> None:
    rows = compare(forecasts(1.0, 1), forecasts(2.0, 2), "rmse", masked=True, days=1, seed=0)
    assert [row.step for row in rows] == ["1", "2", "3", "all"]
    assert all(row.verdict == "a is better" and row.low < row.a - row.b < row.high < 0 for row in rows)
    rows = compare(forecasts(1.0, 1), forecasts(1.0, 4), "mae", masked=False, days=2, seed=0)
    assert {row.verdict for row in rows} == {"no difference shown"}


def test_runs_that_change_places_at_random_are_rarely_told_apart() -> None:
    """Also if one is much better as they are; with few days, more often than with many."""
    few, many = (
        compare(forecasts(1, 1, days), forecasts(2, 2, days), "rmse", masked=True, days=1, seed=0)[-1].alarms
        for days in (20, 200)
    )
    assert 0.02 < many < 0.08
    assert many < few < 0.2


def test_a_comparison_is_recorded_for_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, error in (("ours", 1.0), ("theirs", 2.0)):
        forecasts(error, 3, days=25).to_parquet(tmp_path / f"{name}.parquet")
    files = [str(tmp_path / f"{name}.parquet") for name in ("ours", "theirs")]
    record = tmp_path / "new" / "record.json"
    monkeypatch.setattr("sys.argv", ["paired.py", *files, "--record", str(record), "--data", "lake"])
    main()
    found = json.loads(record.read_text())
    assert (found["data"], found["a"], found["b"]) == ("lake", "ours", "theirs")
    assert found["error"] == "masked_rmse"
    assert found["steps"]["all"]["verdict"] == "a is better"
    assert 0 < found["steps"]["all"]["alarms"] < 0.2


@pytest.mark.parametrize("more", [["--days", "7"], ["--data", "lake", "lake/a.parquet"]])
def test_a_record_has_single_days_of_two_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    files = [str(tmp_path / "a.parquet"), *more[2:]] if more[2:] else ["a.parquet", "b.parquet"]
    record = ["--record", str(tmp_path / "record.json"), "--data", "lake"]
    monkeypatch.setattr("sys.argv", ["paired.py", *files, *record, *more[:2]])
    with pytest.raises(SystemExit):
        main()
    assert "two files that are named after what they are" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["none.parquet", "text.csv", "other.parquet"])
def test_a_file_without_predictions_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "text.csv").write_text("sensor,issued")
    pd.DataFrame({"sensor": ["a"], "step": [1]}).to_parquet(tmp_path / "other.parquet")
    monkeypatch.setattr("sys.argv", ["paired.py", str(tmp_path / name), str(tmp_path / name)])
    with pytest.raises(
        SystemExit, match=rf"{name}: cannot be read as predictions, with the columns sensor, "
    ):
        main()


def test_times_with_and_without_a_zone_are_not_compared() -> None:
    here, utc = forecasts(1, 1, 25), forecasts(1, 1, 25)
    utc["issued"] = utc["issued"].dt.tz_localize("UTC")
    with pytest.raises(SystemExit, match="the times of one file are in UTC"):
        compare(here, utc, "rmse", masked=True, days=1, seed=0)


def test_files_of_other_readings_or_with_repeated_rows_are_not_compared() -> None:
    ours, theirs = forecasts(1, 1, 25), forecasts(1, 2, 25)
    others = theirs.assign(truth=theirs["truth"] + 30, forecast=theirs["forecast"] + 30)
    for other in (others, theirs.assign(observed=True), theirs.assign(truth=np.float32(np.nan))):
        with pytest.raises(SystemExit, match="hold different readings"):
            compare(ours, other, "rmse", masked=True, days=1, seed=0)
    as_float32 = theirs.astype({"truth": np.float32})
    assert compare(ours, as_float32, "rmse", masked=True, days=1, seed=0)
    with pytest.raises(SystemExit, match="several forecasts of the same sensor, time and step"):
        compare(ours, pd.concat([theirs, theirs]), "rmse", masked=True, days=1, seed=0)


def test_what_is_no_number_or_rests_on_few_days_is_not_better() -> None:
    ours, theirs = forecasts(2, 1, 25), forecasts(1, 2, 25)
    theirs.loc[7, "forecast"] = np.nan
    found = compare(ours, theirs, "rmse", masked=False, days=1, seed=0)[-1]
    assert found.verdict == "no difference shown"
    ours, theirs = (one[(one["step"] < 3) | (one.index < 72)] for one in (ours, forecasts(1, 2, 25)))
    first, *_, last = compare(ours, theirs, "rmse", masked=False, days=1, seed=0)[:3]
    assert (first.days, last.days) == (25, 1)
    assert last.verdict == "too few to draw from: 1"


@pytest.mark.parametrize("days", ["0", "-1"])
def test_blocks_have_a_day_at_least(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], days: str
) -> None:
    monkeypatch.setattr("sys.argv", ["paired.py", "a.parquet", "b.parquet", "--days", days])
    with pytest.raises(SystemExit):
        main()
    assert "--days: at least 1" in capsys.readouterr().err


def test_trees_refuse_bad_places_and_data_before_they_grow(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boosted_trees, "find_spec", lambda _: True)  # as if LightGBM were installed
    monkeypatch.setattr(boosted_trees, "boosted_trees", lambda *_: pytest.fail("it trains"))
    file = str(tmp_path / "none" / "trees.parquet")
    for data, problem in ((trained.parent, "there is no such folder"), (tmp_path / "no", "no")):
        monkeypatch.setattr("sys.argv", ["x", str(data), str(tmp_path / "records"), "--predictions", file])
        with pytest.raises(SystemExit, match=problem):
            boosted_trees.main()
        file = str(tmp_path / "trees.parquet")
    monkeypatch.setattr(boosted_trees, "find_spec", lambda _: None)
    with pytest.raises(SystemExit):
        boosted_trees.main()
    assert not Path(file).exists()


def test_nothing_is_said_from_a_few_days() -> None:
    """A single day would have intervals without any width."""
    for days in (1, 19):
        rows = compare(forecasts(1, 1, days), forecasts(2, 2, days), "rmse", masked=True, days=1, seed=0)
        assert {row.verdict for row in rows} == {f"too few to draw from: {days}"}


def test_days_are_drawn_as_a_whole() -> None:
    """1,440 forecasts of 60 days are 60 observations, not 1,440: the interval is that much wider."""
    daily = compare(forecasts(1.0, 1), forecasts(1.1, 2), "mae", masked=True, days=1, seed=0)[0]
    a, b = (
        frame[(frame["step"] == 1) & frame["observed"]] for frame in (forecasts(1.0, 1), forecasts(1.1, 2))
    )
    each = ((a["forecast"] - a["truth"]).abs() - (b["forecast"] - b["truth"]).abs()).to_numpy()
    naive = 4 * each.std() / np.sqrt(len(each))
    assert daily.high - daily.low > 3 * naive


def test_only_what_both_forecast_is_compared() -> None:
    later = forecasts(1.0, 1, start="2024-01-31")
    with pytest.raises(SystemExit, match="no forecast of the same sensor, time and step"):
        compare(later, forecasts(1.0, 2, days=10), "mae", masked=True, days=1, seed=0)
