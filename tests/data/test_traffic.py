"""Data as the field distributes them, and parts that are cut out of a data set."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cnfgnn.data.description import fingerprint
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.files.folder import load
from cnfgnn.errors import ConfigError, DataError
from tests.commands import said
from tests.data.test_folder import EDGES, IDS, adjacency, edges_of, own, traffic

VALUES = np.arange(1.0, 31.0).reshape(5, 3, 2)
DESCRIPTION = {
    "name": "METR-LA",
    "shape": [5, 3, 2],
    "feature_description": ["traffic speed", "time of day"],
    "frequency (minutes)": 5,
}


def npz(folder: Path, name="PEMS04", values=VALUES) -> Path:
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", data=values)
    (folder / f"{name}.csv").write_text("from,to,cost\n0,1,100\n1,2,200\n")
    return folder / f"{name}.npz"


def basicts(folder: Path, values=VALUES, **changes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    values = values.astype(np.float32)
    values[..., 1] = (np.array([[23 * 60 + 50], [23 * 60 + 55], [0], [65], [70]]) / 1440).astype(np.float32)
    values.tofile(folder / "data.dat")
    (folder / "desc.json").write_text(json.dumps(DESCRIPTION | changes))
    np.save(folder / "adj_mx.npy", np.eye(3))
    return folder


def test_pems_files_have_flow_their_distances_and_the_dates_of_the_data_set(tmp_path):
    values = VALUES.copy()
    values[0, 0, 0] = 0
    data = load(npz(tmp_path, values=values))
    assert (data.name, data.readings.ids) == ("PEMS04", ("0", "1", "2"))
    np.testing.assert_array_equal(data.readings.values, values[..., 0])
    assert data.readings.missing.sum() == data.readings.missing[0, 0] == 1
    assert [str(time) for time in data.readings.times[:2]] == ["2018-01-01T00:00:00", "2018-01-01T00:05:00"]
    assert edges_of(data).keys() == {("0", "1"), ("1", "2"), ("0", "0"), ("1", "1"), ("2", "2")}
    occupancy = load(tmp_path / "PEMS04.npz", target="occupancy").readings.values
    np.testing.assert_array_equal(occupancy, values[..., 1])


def test_pems03_names_its_sensors_in_a_list(tmp_path):
    file = npz(tmp_path, "PEMS03")
    (tmp_path / "PEMS03.txt").write_bytes(b"\xef\xbb\xbf313\r\n402\r\n99\r\n")
    (tmp_path / "PEMS03.csv").write_text("from,to,distance\n402,313,1.5\n")
    assert ("402", "313") in edges_of(load(file))


def test_basicts_keeps_the_gaps_that_its_time_of_day_shows(tmp_path):
    data = load(basicts(tmp_path / "METR-LA"))
    np.testing.assert_array_equal(data.readings.values, VALUES[..., 0])
    expected = ["03-01T23:50", "03-01T23:55", "03-02T00:00", "03-02T01:05", "03-02T01:10"]
    assert [str(time)[5:16] for time in data.readings.times] == expected
    assert data.graph.edges == 3


def parts_of(folder: Path, lengths=(3, 1, 1), **changes) -> Path:
    """The same data in the layout of BasicTS since 1.0, in three parts of these lengths."""
    basicts(folder)
    whole = np.fromfile(folder / "data.dat", dtype=np.float32).reshape(5, 3, 2)
    (folder / "data.dat").unlink()
    (folder / "desc.json").unlink()
    times = np.stack([np.zeros(5, np.float32), whole[:, 0, 1]], axis=1)
    described = {"shape": [5, 3], "timestamps_description": ["day of week", "time of day"]}
    (folder / "meta.json").write_text(json.dumps(DESCRIPTION | described | changes))
    ends = np.cumsum(lengths)
    for name, end, length in zip(("train", "val", "test"), ends, lengths, strict=True):
        np.save(folder / f"{name}_data.npy", whole[end - length : end, :, 0])
        np.save(folder / f"{name}_timestamps.npy", times[end - length : end])
    return folder


def test_basicts_since_1_0_is_the_same_data_in_three_parts(tmp_path):
    assert fingerprint(load(parts_of(tmp_path / "new" / "METR-LA"))) == fingerprint(
        load(basicts(tmp_path / "old" / "METR-LA"))
    )
    without = load(parts_of(tmp_path / "METR-LA", timestamps_description=["day of week"]))
    assert str(without.readings.times[-1]) == "2012-03-01T00:20:00"


BAD_PARTS = {
    "lost": (lambda folder: (folder / "val_data.npy").unlink(), "val_data.npy: cannot be read as rows"),
    "objects": (
        lambda folder: np.save(folder / "val_data.npy", np.array([[Path("/")]])),
        "val_data.npy: cannot be read as rows of numbers",
    ),
    "no features": (
        lambda folder: np.save(folder / "val_data.npy", np.ones((1, 3, 0))),
        "val_data.npy: cannot be read as rows of numbers",
    ),
    "short": (
        lambda folder: np.save(folder / "val_data.npy", np.ones((2, 3))),
        "have the shape (6, 3), not (5, 3) as in meta.json",
    ),
    "wide": (
        lambda folder: np.save(folder / "test_data.npy", np.ones((1, 4))),
        "train_data.npy: has not as many columns as the other parts",
    ),
    "times": (
        lambda folder: np.save(folder / "test_timestamps.npy", np.ones((2, 2))),
        "are not the times of the data",
    ),
    "described": (
        lambda folder: (folder / "meta.json").write_text("{}"),
        "does not describe data of BasicTS by name, shape, timestamps_description",
    ),
    "nested": (
        lambda folder: (folder / "meta.json").write_text("[" * 100_000),
        "meta.json: does not describe data of BasicTS",
    ),
}


@pytest.mark.parametrize(("damage", "sentence"), BAD_PARTS.values(), ids=BAD_PARTS.keys())
def test_bad_parts_of_basicts_are_told_in_a_sentence(tmp_path, damage, sentence):
    folder = parts_of(tmp_path / "METR-LA")
    damage(folder)
    with pytest.raises(DataError) as caught:
        load(folder)
    assert sentence in str(caught.value)


def test_a_pickled_matrix_is_read_without_trusting_it(tmp_path):
    folder = basicts(tmp_path / "bay")
    (folder / "adj_mx.npy").unlink()
    (folder / "adj_mx.pkl").write_bytes(pickle.dumps(np.ones((3, 3), dtype=np.float32)))
    assert load(folder).graph.edges == 9
    adjacency(folder / "adj_mx.pkl", IDS, np.eye(3))
    assert load(folder).readings.ids == tuple(IDS)
    (folder / "adj_mx.pkl").write_bytes(pickle.dumps(Path("/")))
    with pytest.raises(DataError, match="does not hold a plain adjacency matrix"):
        load(folder)


def test_a_traffic_file_takes_a_plain_matrix_of_its_sensors(tmp_path):
    file = traffic(tmp_path / "metr-la.h5")
    np.save(tmp_path / "adj_mx.npy", np.eye(3))
    assert load(file).graph.edges == 3
    np.save(tmp_path / "adj_mx.npy", np.eye(2))
    with pytest.raises(DataError, match=r"adj_mx\.npy: 3 ids do not match a matrix of shape \(2, 2\)"):
        load(file)
    for other in (np.array([[Path("/")]]), np.eye(3) * 1j, np.zeros((3, 3), "M8[s]"), np.full((3, 3), "1")):
        np.save(tmp_path / "adj_mx.npy", other)
        with pytest.raises(DataError, match=r"adj_mx\.npy: cannot be read as a matrix of numbers"):
            load(file)


BAD = {
    "no array": (lambda folder: (folder / "PEMS04.npz").write_bytes(b"PK"), "has no array called data"),
    "flat": (lambda folder: npz(folder, values=np.ones((4, 3))), "not (times, sensors, 1 to 3)"),
    "complex": (lambda folder: npz(folder, values=VALUES * 1j), "PEMS04.npz: has no array called data"),
    "days": (lambda folder: npz(folder, values=VALUES.astype("M8[D]")), "no array called data (it holds"),
    "large": (lambda folder: npz(folder, values=VALUES * 1e300), "a reading beyond 1e+12 is not plausible"),
    "unknown sensor": (
        lambda folder: (folder / "PEMS04.csv").write_text("from,to,cost\n0,7,1\n"),
        "PEMS04.csv, line 2: has a sensor that PEMS04.npz does not have",
    ),
    "no graph": (lambda folder: (folder / "PEMS04.csv").unlink(), "add PEMS04.csv or adj_mx.npy"),
}


@pytest.mark.parametrize(("damage", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_pems_files_are_told_in_a_sentence(tmp_path, damage, sentence):
    file = npz(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError) as caught:
        load(file)
    assert sentence in str(caught.value)


def test_files_without_known_dates_and_variables_are_refused(tmp_path):
    with pytest.raises(DataError, match="holds no dates, and those of 'roads' are not known"):
        load(npz(tmp_path, "roads"))
    with pytest.raises(ConfigError, match="has no variable 'rain'"):
        load(npz(tmp_path), target="rain")


BAD_BASICTS = {
    "shape": ({"shape": [5, 3, 3]}, "data.dat: is not as large as the shape (5, 3, 3)"),
    "no shape": ({"shape": None}, "desc.json: does not describe data of BasicTS"),
    "endless": ({"frequency (minutes)": float("inf")}, "desc.json: does not describe data of BasicTS"),
    "pace": ({"frequency (minutes)": 60}, "desc.json: has a reading every 60 minutes"),
    "dates": ({"name": "ETTh1"}, "those of 'ETTh1' are not known"),
}


@pytest.mark.parametrize(("changes", "sentence"), BAD_BASICTS.values(), ids=BAD_BASICTS.keys())
def test_bad_folders_of_basicts_are_told_in_a_sentence(tmp_path, changes, sentence):
    with pytest.raises(DataError) as caught:
        load(basicts(tmp_path / "x", **changes))
    assert sentence in str(caught.value)


def test_a_time_of_day_that_is_none_is_told(tmp_path):
    folder = basicts(tmp_path / "x")
    np.full((5, 3, 2), 7, dtype=np.float32).tofile(folder / "data.dat")
    with pytest.raises(DataError, match=r"data\.dat: its time of day is not a share of the day"):
        load(folder)


def test_a_part_of_a_traffic_file_is_the_same_data(tmp_path):
    source = traffic(tmp_path / "whole" / "metr-la.h5")
    adjacency(source.with_name("adj_mx.pkl"), IDS, [[1, 0.5, 0], [0, 1, 0], [0.25, 0, 1]])
    source.with_name("graph_sensor_locations.csv").write_text("1,0,0\n2,0,1\n3,0,2\n")
    listed = tmp_path / "list.txt"
    listed.write_bytes(b"\xef\xbb\xbf3\r\n# two of three\r\n\r\n1  # the first\r\n")
    told = said("data", "cut", source, tmp_path / "part", "--sensors", listed)
    assert told.endswith("rows, 1 edges\n")  # besides two from a sensor to itself
    expected, found = load(source).select(["3", "1"]), load(tmp_path / "part")
    assert fingerprint(found) == fingerprint(expected)
    assert found.name == "part"
    assert edges_of(found)["3", "1"] == 0.25


def test_a_part_of_a_traffic_file_is_one_whatever_its_folder_is_called(tmp_path):
    source = traffic(tmp_path / "metr-la.h5")
    np.save(tmp_path / "adj_mx.npy", np.eye(3))
    said("data", "cut", source, tmp_path / "readings")
    found = load(tmp_path / "readings")
    assert found.readings.missing.any()
    assert fingerprint(found) == fingerprint(load(source))


def test_a_part_of_a_traffic_file_in_utc_stays_in_utc(tmp_path):
    source, zone = traffic(tmp_path / "metr-la.h5"), "data.timezone=-08:00"
    np.save(tmp_path / "adj_mx.npy", np.eye(3))
    said("data", "cut", source, tmp_path / "part", "--set", zone)
    expected, found = load(source, timezone="-08:00").readings, load(tmp_path / "part").readings
    assert expected.utc
    assert found.utc
    np.testing.assert_array_equal(found.times, expected.times)


def test_a_part_keeps_the_variables_apart_whichever_is_forecast(tmp_path):
    lake = own(tmp_path / "lake", edges=EDGES)
    (lake / "variables").mkdir()
    (lake / "variables" / "flow.csv").write_text((lake / "readings.csv").read_text().replace(",1,", ",7,"))
    said("data", "cut", lake, tmp_path / "part", "--set", "data.target=flow")
    for target in ("flow", "readings"):
        found, expected = (load(folder, target=target).readings for folder in (tmp_path / "part", lake))
        np.testing.assert_array_equal(found.values, expected.values)
        assert [one.name for one in found.others] == [one.name for one in expected.others]


def test_a_part_keeps_the_name_of_the_variable_that_is_asked_for(tmp_path):
    (tmp_path / "lake").mkdir()
    rows = ["time,sensor,flow,speed", *(f"2024-01-0{day},a,{day},{-day}" for day in (1, 2, 3))]
    (tmp_path / "lake" / "readings.csv").write_text("\n".join(rows))
    (tmp_path / "lake" / "sensors.csv").write_text("id,latitude,longitude\na,60,10\n")
    said("data", "cut", tmp_path / "lake", tmp_path / "part", "--set", "data.target=speed")
    for target in ("flow", "speed"):
        found, expected = (load(tmp_path / folder, target=target).readings for folder in ("part", "lake"))
        np.testing.assert_array_equal(found.values, expected.values)
        assert found.variable == expected.variable == target


@pytest.mark.parametrize("name", ["../../wind", "m/s", ".wind"])
def test_a_part_has_no_variable_that_would_be_written_elsewhere_or_not_be_read_again(tmp_path, name):
    lake = own(tmp_path / "lake", edges=EDGES)
    rows = [f"time,sensor,flow,{name}", *(f"2024-01-0{day},{one},1,2" for day in (1, 2) for one in "ab")]
    (lake / "readings.csv").write_text("\n".join(rows))
    for target in ("flow", name):
        answer = said("data", "cut", lake, tmp_path / "part", "--set", f"data.target={target}", fails=True)
        assert f"the variable '{name}' cannot have a file of its name" in answer
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake"]


def test_a_variable_whose_name_no_file_can_have_is_told(tmp_path):
    data = load(own(tmp_path / "lake", edges=EDGES))
    (tmp_path / "part").mkdir()
    with pytest.raises(DataError, match="cannot have a file of its name"):
        write_folder(replace(data, readings=replace(data.readings, variable="a\0b")), tmp_path / "part", True)


def test_a_time_span_of_own_data_is_a_folder_like_it(tmp_path):
    said("data", "cut", own(tmp_path / "lake", edges=EDGES), tmp_path / "part", "--from", "2024-01-01 00:05")
    found = load(tmp_path / "part")
    np.testing.assert_array_equal(found.readings.missing, [[0, 1], [1, 1], [0, 0]])
    assert edges_of(found) == edges_of(load(tmp_path / "lake"))


BAD_CUTS = {
    "unknown sensor": (["--sensors", "list.txt"], "list.txt, line 1: sensor 'z' is not in the readings"),
    "no list": (["--sensors", "lost.txt"], "lost.txt: cannot be read as a list of sensors"),
    "no text": (["--sensors", "lake"], "lake: cannot be read as a list of sensors"),
    "span": (["--to", "2023-01-01"], "has 0 rows in that span, and at least two are needed"),
    "one row": (["--to", "2024-01-01 00:05"], "has 1 rows in that span"),
    "time": (["--from", "soon"], "needs a time like 2024-01-31 08:05, not 'soon'"),
    "no time": (["--from", "NaT"], "needs a time like"),
    "offset": (["--to", "2024-01-01T00:10+01:00"], "needs a time like"),
    "no such day": (["--to", "2024-02-30"], "needs a time like"),
}


@pytest.mark.parametrize(("options", "sentence"), BAD_CUTS.values(), ids=BAD_CUTS.keys())
def test_a_cut_that_is_refused_leaves_nothing(tmp_path, monkeypatch, options, sentence):
    monkeypatch.chdir(tmp_path)
    own(tmp_path / "lake")
    Path("list.txt").write_text("z\n")
    before = sorted(tmp_path.iterdir())
    assert sentence in said("data", "cut", "lake", "part", *options, fails=True)
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "mine").touch()
    assert "already exists" in said("data", "cut", "lake", "part", fails=True)


def test_a_folder_of_a_pems_file_is_told_to_give_its_path(tmp_path):
    npz(tmp_path)
    with pytest.raises(DataError, match=r"no readings: give the path of PEMS04\.npz"):
        load(tmp_path)
