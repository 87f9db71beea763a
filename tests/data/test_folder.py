"""Whole data sets from a path."""

from __future__ import annotations

import pickle
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.folder import known_positions, load
from cnfgnn.data.windows import SPLITS, Windows
from cnfgnn.errors import DataError

IDS = ["1", "2", "3"]
READINGS = "time,a,b\n2024-01-01 00:00,1,0\n2024-01-01 00:05,2,\n2024-01-01 00:15,3,5\n"
SENSORS = "id,latitude,longitude\nb,47.1,8.1\nother,0,0\na,47.0,8.0\n"
EDGES = "from,to,weight\na,b,0.5\n"


def own(folder: Path, readings=READINGS, sensors=SENSORS, edges=None) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in (("readings.csv", readings), ("sensors.csv", sensors), ("edges.csv", edges)):
        if content is not None:
            (folder / name).write_text(content)
    return folder


def traffic(path: Path, ids=IDS) -> Path:
    """Three rows of speeds in pandas' fixed format, a zero and a NaN among them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.arange(3.0 * len(ids)).reshape(3, -1)
    values[2, 1] = np.nan
    with h5py.File(path, "w") as file:
        group = file.create_group("df")
        group.attrs.update({"pandas_type": np.bytes_("frame"), "nblocks": 1})
        for name in ("axis0", "block0_items"):
            group[name] = np.array(ids, dtype="S")
            group[name].attrs["kind"] = np.bytes_("string")
        group["axis1"] = pd.date_range("2012-03-01", periods=3, freq="5min").to_numpy("M8[ns]").view("i8")
        group["axis1"].attrs["kind"] = np.bytes_("datetime64[ns]")
        group["block0_values"] = values
        group["block0_values"].attrs["transposed"] = np.uint8(1)
    return path


def adjacency(path: Path, ids, matrix) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    index = {sensor: place for place, sensor in enumerate(ids)}
    path.write_bytes(pickle.dumps((list(ids), index, np.asarray(matrix, dtype=np.float32)), 2))


def edges_of(dataset: Dataset) -> dict[tuple[str, str], float]:
    graph, ids = dataset.graph, dataset.readings.ids
    return {
        (ids[s], ids[r]): round(float(w), 4)
        for s, r, w in zip(graph.senders, graph.receivers, graph.weights, strict=True)
    }


def test_own_folder_goes_on_a_grid_with_holes_missing_and_zero_a_value(tmp_path):
    dataset = load(own(tmp_path / "lake"))
    assert dataset.name == "lake"
    assert dataset.readings.ids == ("a", "b")
    np.testing.assert_array_equal(dataset.readings.missing, [[0, 0], [0, 1], [1, 1], [0, 0]])
    assert dataset.readings.values[0, 1] == 0
    np.testing.assert_array_equal(dataset.readings.positions, [[47.0, 8.0], [47.1, 8.1]])


def test_own_folder_without_edges_connects_the_nearest(tmp_path):
    edges = edges_of(load(own(tmp_path)))
    assert edges.keys() == {("a", "a"), ("b", "b"), ("a", "b"), ("b", "a")}


def test_own_folder_with_edges_needs_no_sensors(tmp_path):
    dataset = load(own(tmp_path, sensors=None, edges=EDGES))
    assert dataset.readings.positions is None
    assert edges_of(dataset) == {("a", "b"): 0.5, ("a", "a"): 1, ("b", "b"): 1}


def test_own_edges_may_name_sensors_without_readings_if_they_are_known(tmp_path):
    dataset = load(own(tmp_path, edges=EDGES + "a,other,1\n"))
    assert edges_of(dataset) == {("a", "b"): 0.5, ("a", "a"): 1, ("b", "b"): 1}


def test_own_distances_go_through_the_kernel(tmp_path):
    dataset = load(own(tmp_path, edges="from,to,distance\na,b,1\nb,a,3\n"))
    assert edges_of(dataset) == {("a", "b"): 0.8187, ("b", "a"): 0.1653, ("a", "a"): 1, ("b", "b"): 1}


def test_no_listed_distance_is_dropped_however_alike_they_are(tmp_path):
    dataset = load(own(tmp_path, edges="from,to,distance\na,b,500\nb,a,501\n"))
    assert dataset.graph.edges == 4


@pytest.mark.parametrize("kind", ["parquet", "h5"])
def test_own_readings_in_other_formats_treat_zero_as_a_value(tmp_path, kind):
    file = tmp_path / f"readings.{kind}"
    if kind == "h5":
        traffic(file, ["a", "b"])
    else:
        times = pd.date_range("2024-01-01", periods=3, freq="h")
        pd.DataFrame({"a": [0.0, 1, 2], "b": [1, 1, np.nan]}, index=times).to_parquet(file)
    dataset = load(own(tmp_path, readings=None))
    np.testing.assert_array_equal(dataset.readings.missing, [[0, 0], [0, 0], [0, 1]])


def test_own_folder_can_be_named_by_its_file_and_by_a_string(tmp_path, monkeypatch):
    own(tmp_path / "lake")
    monkeypatch.chdir(tmp_path / "lake")
    assert load("readings.csv").name == load(".").name == load(str(tmp_path / "lake")).name == "lake"


def test_files_are_named_as_the_path_was_given(tmp_path, monkeypatch):
    own(tmp_path / "lake", sensors="id,lat,lon\na,1,2\nb,x,2\n")
    traffic(tmp_path / "roads" / "data" / "metr-la.h5")
    adjacency(tmp_path / "roads" / "sensor_graph" / "adj_mx.pkl", ["7"], np.eye(1))
    for place, path, named in (
        (".", "lake", "lake/sensors.csv, line 3"),
        (".", tmp_path / "lake", f"{tmp_path}/lake/sensors.csv, line 3"),
        ("lake", ".", "sensors.csv, line 3"),
        ("lake", "readings.csv", "sensors.csv, line 3"),
        (".", "roads/data", "roads/sensor_graph/adj_mx.pkl: has no sensor '1'"),
        ("roads/data", "metr-la.h5", "../sensor_graph/adj_mx.pkl: has no sensor '1'"),
    ):
        monkeypatch.chdir(tmp_path / place)
        with pytest.raises(DataError) as caught:
            load(path)
        assert str(caught.value).startswith(named)


BAD_FOLDERS = {
    "no graph": ({"sensors": None}, ": the graph of the sensors is unknown: add sensors.csv"),
    "sensor without position": (
        {"sensors": "id,lat,lon\na,1,2\n"},
        "sensors.csv: has no sensor 'b', which the readings have",
    ),
    "unknown sender": ({"edges": EDGES + "z,a,1\n"}, "edges.csv, line 3: unknown sensor 'z'"),
    "unknown receiver": ({"edges": "from,to,weight\na,z,1\n"}, "edges.csv, line 2: unknown sensor 'z'"),
    "same edge": ({"edges": EDGES + "b,a,1\na,b,2\n"}, "edges.csv, line 4: repeats the edge of line 2"),
    "off the grid": (
        {"readings": READINGS + "2024-01-01 00:20,1,1\n2024-01-01 00:22,1,1\n"},
        "readings.csv, line 6, column 'time': this time is off the grid of 300 s steps that begins at",
    ),
    "one row": ({"readings": "time,a,b\n2024-01-01,1,2\n"}, "a single one has no time step"),
    "no readings": ({"readings": None}, ": the folder has no readings: it needs readings.csv"),
}


@pytest.mark.parametrize(("files", "sentence"), BAD_FOLDERS.values(), ids=BAD_FOLDERS.keys())
def test_bad_folder_is_told_in_a_sentence(tmp_path, files, sentence):
    with pytest.raises(DataError) as caught:
        load(own(tmp_path, **files))
    assert sentence in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_paths_that_hold_nothing_are_told(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match="lost: no such file or folder"):
        load(tmp_path / "lost")
    with pytest.raises(
        DataError, match=r"notes\.txt: is not a file of readings: give a folder with readings\.csv"
    ):
        load(tmp_path / "notes.txt")


def test_readings_twice_are_told(tmp_path):
    traffic(tmp_path / "readings.h5", ["a", "b"])
    with pytest.raises(
        DataError, match=r"several files of readings \(readings.csv, readings.h5\): give the path of one"
    ):
        load(own(tmp_path))
    assert len(load(tmp_path / "readings.csv").readings.times) == 4


def test_traffic_zeros_are_missing_but_stay_values(tmp_path):
    adjacency(tmp_path / "adj_mx.pkl", IDS, np.eye(3))
    readings = load(traffic(tmp_path / "metr-la.h5")).readings
    np.testing.assert_array_equal(readings.missing, [[1, 0, 0], [0, 0, 0], [0, 1, 0]])
    assert readings.values[0, 0] == 0
    assert readings.positions is None


@pytest.mark.parametrize("place", ["data", "data/sensor_graph", "sensor_graph"])
def test_traffic_graph_is_looked_for_around_the_file(tmp_path, place):
    """Rows and columns of the file's sensors are taken, in the file's order, sender first."""
    matrix = [[1, 0.2, 0.3, 0.4], [0, 1, 0, 0], [0, 0.5, 1, 0], [0, 0, 0, 1]]
    adjacency(tmp_path / place / "adj_mx.pkl", ["3", "9", "2", "1"], matrix)
    traffic(tmp_path / "data" / "metr-la.h5")
    dataset = load(tmp_path / "data")
    assert dataset.name == "metr-la"
    loops = {(sensor, sensor): 1.0 for sensor in IDS}
    assert edges_of(dataset) == {("3", "2"): 0.3, ("3", "1"): 0.4, **loops}


def test_traffic_takes_the_adjacency_that_knows_its_sensors(tmp_path):
    adjacency(tmp_path / "adj_mx.pkl", ["7", "8"], np.eye(2))
    adjacency(tmp_path / "adj_mx_bay.pkl", IDS, np.eye(3))
    (tmp_path / "distances.csv").write_text("from,to,cost\n1,2,0\n2,3,0\n")
    assert load(traffic(tmp_path / "pems-bay.h5")).graph.edges == 3


def test_traffic_takes_distances_where_no_adjacency_knows_its_sensors(tmp_path):
    adjacency(tmp_path / "adj_mx.pkl", ["7", "8"], np.eye(2))
    (tmp_path / "distances_la_2012.csv").write_text("1,2,1\n2,3,3\n9,9,99\n")
    edges = edges_of(load(traffic(tmp_path / "metr-la.h5")))
    assert edges == {("1", "2"): 0.3679, ("1", "1"): 1, ("2", "2"): 1, ("3", "3"): 1}


def test_a_part_of_the_network_keeps_the_weights_of_the_whole(tmp_path):
    """The kernel's width comes from all located sensors, as it would in the pickled adjacency."""
    (tmp_path / "distances.csv").write_text("1,2,1\n2,3,1\n3,4,3\n4,1,3\n5,5,99\n")
    (tmp_path / "graph_sensor_locations.csv").write_text("1,0,0\n2,0,1\n3,0,2\n4,0,3\n")
    assert edges_of(load(traffic(tmp_path / "x.h5")))["1", "2"] == 0.3679


def test_traffic_without_graph_files_connects_the_nearest(tmp_path):
    (tmp_path / "graph_sensor_locations.csv").write_text("index,sensor_id,latitude,longitude\n0,9,0,0\n")
    (tmp_path / "graph_sensor_locations_bay.csv").write_text("1,37,-121\n2,37.1,-121\n3,37.2,-121\n")
    dataset = load(traffic(tmp_path / "pems-bay.h5"))
    np.testing.assert_array_equal(dataset.readings.positions[:, 0], [37, 37.1, 37.2])
    assert (dataset.graph.loops, dataset.graph.edges > 3) == (3, True)


def test_traffic_with_unknown_sensors_is_told(tmp_path):
    traffic(tmp_path / "metr-la.h5")
    with pytest.raises(DataError, match=r"metr-la\.h5: its graph is unknown: put adj_mx"):
        load(tmp_path)
    adjacency(tmp_path / "adj_mx.pkl", ["1", "3"], np.eye(2))
    (tmp_path / "graph_sensor_locations.csv").write_text("1,0,0\n2,0,1\n3,0,2\n")
    with pytest.raises(DataError, match=r"adj_mx\.pkl: has no sensor '2', which metr-la\.h5 has"):
        load(tmp_path)
    traffic(tmp_path / "pems-bay.h5")
    with pytest.raises(
        DataError, match=r"several files of readings \(metr-la.h5, pems-bay.h5\): give the path of one"
    ):
        load(tmp_path)


def test_metr_la_has_the_published_numbers(shared):
    dataset = load(shared / "metr-la" / "metr-la-29.h5")
    values = dataset.readings.values.astype(np.float64)
    assert values.shape == (34272, 29)
    assert (round(values.mean(), 2), round(values.std(), 2)) == (50.21, 20.44)
    assert round(100 * dataset.readings.missing.mean(), 1) == 7.7
    assert dataset.readings.positions is not None
    assert dataset.graph.loops == 29
    whole = load(shared / "metr-la" / "metr-la-week-207.h5")
    assert (whole.graph.edges, whole.graph.loops) == (1722, 207)
    assert edges_of(whole.select(dataset.readings.ids)) == edges_of(dataset)
    windows = Windows.of(len(dataset.readings.times))
    assert [windows.count(split) for split in SPLITS] == [23974, 3425, 6850]


def test_pems_bay_has_the_published_numbers(shared):
    dataset = load(shared / "pems-bay")
    readings = dataset.readings
    assert (dataset.name, readings.values.shape) == ("pems-bay-74", (52116, 74))
    assert np.isnan(readings.values).sum() == 6
    assert readings.missing.sum() == 6 + (readings.values == 0).sum()
    steps, counts = np.unique(np.diff(readings.times), return_counts=True)
    assert dict(zip(steps.astype(int).tolist(), counts.tolist(), strict=True)) == {300: 52114, 3900: 1}
    windows = Windows.of(len(readings.times))
    assert [windows.count(split) for split in SPLITS] == [36465, 5209, 10419]


def test_distances_give_a_part_of_pems_bay_the_same_graph_as_its_adjacency(shared, tmp_path):
    for name in ("pems-bay-74.h5", "distances_bay_2017.csv", "graph_sensor_locations_bay.csv"):
        (tmp_path / name).symlink_to((shared / "pems-bay" / name).resolve())
    from_distances, published = load(tmp_path).graph, load(shared / "pems-bay").graph
    np.testing.assert_array_equal(from_distances.senders, published.senders)
    np.testing.assert_allclose(from_distances.weights, published.weights, rtol=0, atol=1e-6)


TEXT = st.text('ab,.\n0123456789-: e"', max_size=25)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    readings=st.sampled_from([READINGS, ""]),
    sensors=st.sampled_from([SENSORS, "", None]),
    edges=st.sampled_from([EDGES, "from,to,distance\n", None]),
    more=st.tuples(TEXT, TEXT, TEXT),
    cut=st.integers(0, 40),
)
def test_any_folder_gives_a_data_set_or_a_data_error(tmp_path_factory, readings, sensors, edges, more, cut):
    folder = tmp_path_factory.getbasetemp() / "fuzz-folder"
    for name in ("sensors.csv", "edges.csv"):
        (folder / name).unlink(missing_ok=True)
    texts = [
        None if t is None else t[: len(t) - cut % 3] + m
        for t, m in zip((readings, sensors, edges), more, strict=True)
    ]
    sentence = ""
    try:
        assert isinstance(load(own(folder, *texts)), Dataset)
    except DataError as error:
        sentence = str(error)
    assert "\n" not in sentence


def test_positions_are_found_beside_the_readings_or_in_a_given_file(tmp_path: Path) -> None:
    folder = own(tmp_path / "own")
    for path in (folder, folder / "readings.csv"):
        np.testing.assert_array_equal(known_positions(path, ["a", "new"]), [[47.0, 8.0], [np.nan, np.nan]])
    elsewhere = tmp_path / "places.csv"
    elsewhere.write_text("id,latitude,longitude\na,1,2\n")
    np.testing.assert_array_equal(known_positions(folder, ["a"], elsewhere), [[1.0, 2.0]])
    assert known_positions(own(tmp_path / "without", sensors=None), ["a"]) is None
    with pytest.raises(DataError, match="places"):
        known_positions(folder, ["a"], tmp_path / "no-places.csv")


def test_positions_of_a_traffic_file_come_from_the_file_that_knows_its_sensors(tmp_path: Path) -> None:
    file = traffic(tmp_path / "speeds.h5")
    (tmp_path / "graph_sensor_locations.csv").write_text("index,sensor_id,latitude,longitude\n0,9,0,0\n")
    (tmp_path / "graph_sensor_locations_bay.csv").write_text("1,37,-121\n2,37.1,-121\n3,37.2,-121\n")
    np.testing.assert_array_equal(known_positions(file, ["3"]), [[37.2, -121]])
