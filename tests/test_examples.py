"""The scripts in examples/ do what they say."""

from __future__ import annotations

import json
import pickle
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cnfgnn.data.files.folder import load

ROOT = Path(__file__).parents[1]
AUCKLAND, PREPARE = ROOT / "examples" / "auckland.py", ROOT / "experiments" / "data" / "prepare.py"


def test_nights_of_the_aucklanders_belong_to_the_next_date() -> None:
    """The package's day begins at 6:00, and some of its dates are wrong; the hours follow each other."""
    hours = [*range(6, 24), 0, 1, 3, 4, 5, 6, 7]  # clocks go forward at 2:00
    dates = ["2023-07-01"] * 23 + ["2023-07-01", "2023-07-02"]
    table = pd.DataFrame(
        {
            "date": pd.to_datetime(dates),
            "hour": [f"{hour}:00-{hour}:59" for hour in hours],
            "year": 2023,
            "1 Courthouse Lane": range(len(hours)),
        }
    )
    found = runpy.run_path(str(AUCKLAND))["readings"](table)
    assert list(found.columns) == ["1 Courthouse Lane"]
    assert [str(time)[5:13] for time in found.index[[0, 17, 18, 20, 23, 24]]] == [
        "07-01 06", "07-01 23", "07-02 00", "07-02 03", "07-02 06", "07-02 07",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["molene", "montevideo-bus"])
def test_other_data_sets_are_made_of_what_their_publishers_distribute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    listed = next(PREPARE.parent.glob(f"{name}-*.csv"))
    ids = pd.read_csv(listed, dtype=str)["id"].tolist()
    times = pd.date_range("2014-01-01" if name == "molene" else "2020-10-01", periods=30, freq="h")
    numbers = {
        sensor: [round(place + 0.1 * hour, 2) for hour in range(30)] for place, sensor in enumerate(ids)
    }
    source = tmp_path / "source"

    def publish(without: str = "") -> None:
        shown = [sensor for sensor in [*sorted(ids), "9999"] if sensor != without]
        if name == "molene":
            rows = [
                (t, s, c + 273.15)
                for s in shown
                for t, c in zip(times, numbers.get(s, [0] * 30), strict=True)
            ]
            pd.DataFrame(rows, columns=["date", "numer_sta", "t"]).to_csv(source, index=False)
        else:
            nodes = [{"bus_stop": int(sensor), "y": numbers.get(sensor, [0] * 30)} for sensor in shown]
            source.write_text(json.dumps({"nodes": nodes}))

    def prepare(out: Path) -> None:
        monkeypatch.setattr("sys.argv", ["prepare.py", name, str(source), str(out)])
        runpy.run_path(str(PREPARE), run_name="__main__")

    publish()
    prepare(tmp_path / name)
    data = load(tmp_path / name)
    assert list(data.readings.ids) == ids
    assert [str(time)[:13] for time in data.readings.times[[0, -1]]] == [
        f"{time:%Y-%m-%dT%H}" for time in times[[0, -1]]
    ]
    np.testing.assert_allclose(data.readings.values, np.array(list(numbers.values())).T, atol=1e-5)
    publish(without=ids[3])
    with pytest.raises(SystemExit, match=f"has no sensor {ids[3]}, which {listed.name} lists"):
        prepare(tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_the_week_is_made_of_a_table_without_times_and_of_the_published_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare() -> None:
        monkeypatch.setattr(
            "sys.argv", ["prepare.py", "metr-la-week-207", str(source), str(tmp_path / "week")]
        )
        runpy.run_path(str(PREPARE), run_name="__main__")

    source, speeds = tmp_path / "los_speed.csv", np.array([[64.375, 0.0], [62.5, 61.25], [60.0, 59.5]])
    with pytest.raises(SystemExit, match=r"los_speed\.csv: no such file"):
        prepare()
    pd.DataFrame(speeds, columns=["773869", "767541"]).to_csv(source, index=False)
    weights = np.array([[1.0, 0.5], [0.0, 1.0]], dtype=np.float32)
    for ids in (["767541", "773869"], ["773869", "767541"]):
        graph = (ids, {sensor: row for row, sensor in enumerate(ids)}, weights)
        source.with_name("adj_mx.pkl").write_bytes(pickle.dumps(graph))
        if ids[0] == "767541":
            with pytest.raises(SystemExit, match="another order"):
                prepare()
    prepare()
    data = load(tmp_path / "week" / "metr-la-week-207.h5")
    np.testing.assert_array_equal(data.readings.values, speeds)
    assert [str(time) for time in data.readings.times[:2]] == ["2012-03-01T00:00:00", "2012-03-01T00:05:00"]
    assert data.graph.edges == 3
    with pytest.raises(SystemExit, match="week exists already"):
        prepare()


@pytest.mark.parametrize("arguments", [[], ["."]])
def test_auckland_is_written_into_a_new_folder_only(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["auckland.py", *arguments])
    with pytest.raises(SystemExit, match="say where to write the folder"):
        runpy.run_path(str(AUCKLAND), run_name="__main__")
