"""The estimator: tables in and out, scikit-learn's conventions, saved and loaded."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cnfgnn
from cnfgnn.data.files.export import write_folder
from cnfgnn.errors import ConfigError, DataError, RunError
from tests.commands import said

TINY = {"model__hidden": 4, "model__embedding": 4, "model__sent": 2, "training__rounds": 1}


def tables(days: float = 1) -> tuple[pd.DataFrame, pd.DataFrame]:
    readings = cnfgnn.city(sensors=3, days=days).readings
    assert readings.positions is not None
    frame = pd.DataFrame(readings.values, index=pd.DatetimeIndex(readings.times), columns=list(readings.ids))
    places = pd.DataFrame(readings.positions, index=list(readings.ids), columns=["latitude", "longitude"])
    return frame, places


@pytest.fixture(scope="module")
def fitted() -> cnfgnn.Forecaster:
    frame, places = tables()
    return cnfgnn.Forecaster(sensors=places, **TINY).fit(frame)


def test_tables_in_and_out_with_intervals_and_newer_readings(fitted: cnfgnn.Forecaster) -> None:
    frame, _ = tables()
    ahead = fitted.predict(intervals=[80])
    sensors = list(fitted.feature_names_in_)
    assert ahead.index[0] == frame.index[-1] + pd.Timedelta("5min")
    assert list(ahead.columns[:3]) == sensors == list(frame.columns)
    assert (ahead[f"{sensors[0]} low 80"] <= ahead[f"{sensors[0]} high 80"]).all()
    earlier = fitted.predict(frame.iloc[:-12])
    assert earlier.index[-1] == frame.index[-1]
    assert fitted.score() == -fitted.result_.progress.best.validation.masked_rmse


@pytest.mark.slow
def test_it_gives_what_the_functions_give(fitted: cnfgnn.Forecaster, tmp_path: Path) -> None:
    readings = cnfgnn.city(sensors=3, days=1).readings
    assert readings.positions is not None
    city = cnfgnn.Dataset("city", readings, cnfgnn.Graph.nearest(readings.positions))
    result = cnfgnn.fit(city, out=tmp_path / "run", **TINY)
    assert fitted.result_.test.overall == result.test.overall
    pd.testing.assert_frame_equal(fitted.predict(), cnfgnn.forecast(tmp_path / "run", city))


def test_save_and_load(fitted: cnfgnn.Forecaster, tmp_path: Path) -> None:
    frame, _ = tables()
    fitted.save(tmp_path / "saved")
    loaded = cnfgnn.Forecaster.load(tmp_path / "saved")
    assert loaded.get_params()["training__rounds"] == 1
    # columns in another order, and without positions: the network is that of the run
    again = loaded.predict(frame[frame.columns[::-1]])
    pd.testing.assert_frame_equal(again, fitted.predict())
    with pytest.raises(DataError, match="has no readings: pass them"):
        loaded.predict()
    with pytest.raises(DataError, match="not fitted to this sensor"):
        loaded.predict(frame.rename(columns={frame.columns[0]: "new"}))
    with pytest.raises(RunError, match="already exists"):
        fitted.save(tmp_path / "saved")


def test_readings_in_memory_are_not_taken_for_the_city(fitted: cnfgnn.Forecaster, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    missing = "was trained on readings in memory (DataFrame): give them, or newer ones"
    fitted.save(saved)
    with pytest.raises(DataError, match=re.escape(missing)):
        cnfgnn.forecast(saved)
    assert missing in said("train", "--from", saved, "--out", tmp_path / "next", fails=True)
    assert missing in said("forecast", saved, "--set=data.decimal=comma", fails=True)
    assert missing in said("live", "retrain", saved, fails=True)
    said("report", saved, "--out", tmp_path / "report.html")
    assert missing in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("how", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy, copy.copy])
def test_a_copy_outlives_the_folder_of_the_original(
    fitted: cnfgnn.Forecaster, how: Callable[[cnfgnn.Forecaster], cnfgnn.Forecaster]
) -> None:
    original = how(fitted)
    folder = original.run_.folder
    made = how(original)
    del original
    gc.collect()
    assert not folder.exists()
    pd.testing.assert_frame_equal(made.predict(), fitted.predict())
    assert repr(made) == repr(fitted)
    assert repr(how(cnfgnn.Forecaster(seed=2))) == "Forecaster('cnfgnn-plus', seed=2)"
    shutil.rmtree(made.run_.folder)
    with pytest.raises(RunError, match="is not a run"):
        how(made)


FORKED = """
import os, pickle, sys
forecaster = pickle.load(open(sys.argv[1], "rb"))
worker = os.fork()
if worker:
    assert os.waitpid(worker, 0) == (worker, 0)
    forecaster.predict()
    print(forecaster.run_.folder)
"""


def test_a_fork_that_ends_leaves_the_folder(fitted: cnfgnn.Forecaster, tmp_path: Path) -> None:
    """As a web server's workers do, if it has loaded the forecaster before it starts them."""
    (tmp_path / "fitted").write_bytes(pickle.dumps(fitted))
    command = [sys.executable, "-c", FORKED, tmp_path / "fitted"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).exists()  # the process that has made it deletes it


def test_a_damaged_folder_is_named(fitted: cnfgnn.Forecaster, tmp_path: Path) -> None:
    fitted.save(tmp_path / "saved")
    (tmp_path / "saved" / "config.toml").write_text("")
    with pytest.raises(RunError, match=r"its settings cannot be used .*config\.toml: names no method"):
        cnfgnn.Forecaster.load(tmp_path / "saved")


def test_the_conventions_of_scikit_learn() -> None:
    graph = cnfgnn.Graph(2, np.array([0]), np.array([1]), np.array([1.0]))
    one = cnfgnn.Forecaster("cnfgnn", graph=graph, seed=2)
    clone = type(one)(**one.get_params(deep=False))  # what sklearn.base.clone does
    assert all(clone.get_params()[name] is value for name, value in one.get_params().items())
    assert clone.set_params(seed=3, method="gru-fedavg") is clone
    assert (clone.get_params()["seed"], clone.method, one.get_params()["seed"]) == (3, "gru-fedavg", 2)
    assert repr(one) == "Forecaster('cnfgnn', seed=2)"
    assert not [name for name in vars(one) if name.endswith("_")]
    with pytest.raises(RunError, match="is not fitted yet: call fit or load first"):
        one.predict()


def test_mistakes_are_named() -> None:
    frame, places = tables()
    with pytest.raises(DataError, match="cnfgnn-plus needs it: give sensors"):
        cnfgnn.Forecaster().fit(frame)
    with pytest.raises(DataError, match="sensors: has no column longitude"):
        cnfgnn.Forecaster(sensors=places[["latitude"]]).fit(frame)
    with pytest.raises(DataError, match="sensors: has no sensor"):
        cnfgnn.Forecaster(sensors=places.iloc[1:]).fit(frame)
    with pytest.raises(ConfigError, match="epochs"):
        cnfgnn.Forecaster(sensors=places, training__epochs=1).fit(frame)
    with pytest.raises(DataError, match="DataFrame"):
        cnfgnn.Forecaster(sensors=places).fit(frame.reset_index(drop=True))
    with pytest.raises(ConfigError, match="graph: give either the graph or the sensors"):
        cnfgnn.Forecaster(sensors=places, graph=cnfgnn.city(sensors=3, days=1).graph).fit(frame)
    with pytest.raises(ConfigError, match=r"graph: must be a cnfgnn\.Graph, not a ndarray"):
        cnfgnn.Forecaster(graph=np.eye(3)).fit(frame)


@pytest.mark.parametrize("readings", [tables()[0].to_numpy(), tables()[0].iloc[:, 0], None, [[1.0]]])
def test_readings_that_are_no_table_are_named(readings: Any) -> None:
    with pytest.raises(
        DataError, match="readings: must be a DataFrame, a Dataset, or the path of a folder or"
    ):
        cnfgnn.Forecaster("gru-fedavg").fit(readings)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda places: pd.concat([places, places]), "sensor c0000 occurs twice: keep one row"),
        (lambda places: places * np.nan, "sensor c0000 needs a latitude between -90 and 90"),
        (lambda places: places.assign(longitude="west"), "sensor c0000 needs .* a longitude between -180"),
        (lambda places: places[::-1].set_axis(["longitude", "latitude"], axis=1), "sensor c0000 needs"),
        (lambda places: "sensors.csv", "must be a DataFrame, not a str"),
    ],
)
def test_wrong_positions_are_named(change: Callable[[pd.DataFrame], Any], says: str) -> None:
    frame, places = tables()
    with pytest.raises(DataError, match=f"sensors: {says}"):
        cnfgnn.Forecaster(sensors=change(places)).fit(frame)


@pytest.mark.parametrize("intervals", [80, "80", [85]])
def test_wrong_intervals_are_named(fitted: cnfgnn.Forecaster, intervals: Any) -> None:
    with pytest.raises(ConfigError, match=r"needs levels such as|there are no intervals of 85 %"):
        fitted.predict(intervals=intervals)


def test_a_sensor_without_a_column_is_named() -> None:
    frame, _ = tables()
    one = cnfgnn.Forecaster("gru-fedavg", model__hidden=2, training__rounds=1).fit(frame)
    with pytest.warns(UserWarning, match="no readings of c0001: forecast .* or left empty if the method can"):
        ahead = one.predict(frame.drop(columns="c0001"))
    assert ahead.isna().sum().to_dict() == {"c0000": 0, "c0001": 12, "c0002": 0}


def test_a_table_is_read_by_the_settings_of_how_files_are_read() -> None:
    frame, _ = tables()
    small = {"model__hidden": 2, "training__rounds": 1}
    ahead = cnfgnn.Forecaster("gru-fedavg", data__timezone="+01:00", **small).fit(frame).predict()
    assert str(ahead.index[0]) == "2024-01-01 23:00:00+00:00"
    long = frame.rename_axis("time").reset_index().melt("time", var_name="sensor", value_name="speed")
    both = long.assign(flow=2 * long["speed"])
    one = cnfgnn.Forecaster("gru-fedavg", data__target="flow", **small).fit(both)
    np.testing.assert_array_equal(one._newer(both).readings.values, 2 * frame.to_numpy(np.float32))


def test_a_method_without_a_graph_network_needs_no_graph() -> None:
    frame, _ = tables()
    one = cnfgnn.Forecaster("gru-fedavg", model__hidden=2, training__rounds=1)
    assert one.fit(frame).predict().shape == (12, 3)


def test_a_folder_is_read_by_the_settings_of_how_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "city").mkdir()
    write_folder(cnfgnn.city(sensors=2, days=1), tmp_path / "city")
    small = {"model__hidden": 2, "training__rounds": 1}
    one = cnfgnn.Forecaster("gru-fedavg", data__timezone="+01:00", **small).fit(tmp_path / "city")
    ahead = one.predict(tmp_path / "city")
    assert str(ahead.index[0]) == "2024-01-01 23:00:00+00:00"
    assert one.run_.config.data.path == str(tmp_path / "city")
    pd.testing.assert_frame_equal(ahead, one.predict())
