"""Readings: what they refuse, how they are cut and put on a grid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnfgnn.data.readings import Readings
from cnfgnn.errors import DataError

START = np.datetime64("2024-01-01T00:00:00", "s")


def readings(minutes=(0, 5, 10), values=None, ids=("a", "b"), **more) -> Readings:
    times = START + 60 * np.asarray(minutes, dtype="timedelta64[s]")
    if values is None:
        values = np.arange(len(times) * len(ids)).reshape(len(times), -1)
    values = np.asarray(values, dtype=np.float32)
    return Readings(times, tuple(ids), values, **{"missing": np.isnan(values), "source": "x.csv", **more})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"minutes": (0, 5, 5)}, "x.csv, row 2024-01-01T00:05:00: this time occurs twice"),
        ({"minutes": (0, 10, 5)}, "x.csv, row 2024-01-01T00:05:00: times are not in ascending order"),
        ({"ids": ("a", "a")}, "x.csv, column 'a': this sensor id occurs twice"),
        ({"values": [[1, 2], [1, 2]]}, "x.csv: 2 x 2 values do not match 3 times and 2 sensors"),
        (
            {"ids": ("a",), "values": np.zeros((3, 2))},
            "x.csv: 3 x 2 values do not match 3 times and 1 sensors",
        ),
        ({"values": np.zeros((0, 2)), "minutes": ()}, "x.csv: holds no readings"),
        ({"ids": (), "values": np.zeros((3, 0))}, "x.csv: holds no readings"),
        ({"missing": np.zeros((3, 1), bool)}, "x.csv: the mask of missing readings must have the shape"),
        ({"positions": np.zeros((3, 2))}, "x.csv: 3 positions for 2 sensors"),
        (
            {"values": [[1, 2], [3, np.inf], [1, 2]]},
            "row 2024-01-01T00:05:00, column 'b': a reading beyond 1e+12",
        ),
    ],
)
def test_readings_that_do_not_fit_together_are_refused(arguments, sentence):
    with pytest.raises(DataError) as caught:
        readings(**arguments)
    assert sentence in str(caught.value)


def test_step_is_the_most_frequent_one():
    assert readings((0, 5, 10, 70, 75)).step == np.timedelta64(300, "s")


def test_a_single_row_has_no_step():
    with pytest.raises(DataError, match="a single one has no time step"):
        _ = readings((0,)).step


def test_time_of_day_is_a_share_of_the_day_on_every_day():
    np.testing.assert_allclose(readings((0, 360, 1440 + 720)).time_of_day, [0, 0.25, 0.5])
    long_before_1970 = readings((-60_000_000 - 60, 0))
    np.testing.assert_allclose(long_before_1970.time_of_day[0], (-60_000_060 / 1440) % 1)


def test_select_takes_columns_in_the_order_asked_for():
    positions = np.array([[1.0, 2.0], [3.0, 4.0]])
    selected = readings(values=[[1, np.nan], [2, 5], [3, 6]], positions=positions).select(["b", "a"])
    assert selected.ids == ("b", "a")
    np.testing.assert_array_equal(selected.values, [[np.nan, 1], [5, 2], [6, 3]])
    np.testing.assert_array_equal(selected.missing, [[1, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(selected.positions, [[3, 4], [1, 2]])


def test_select_names_an_unknown_sensor():
    with pytest.raises(DataError, match=r"x\.csv, column 'z': there is no sensor of that name"):
        readings().select(["a", "z"])


def test_grid_leaves_regular_readings_alone():
    regular = readings()
    assert regular.on_grid() is regular


def test_grid_fills_holes_with_missing_readings():
    zeros_missing = np.array([[1, 0], [0, 0], [0, 0]], dtype=bool)
    on_grid = readings((0, 5, 20), values=[[0, 1], [2, 3], [4, 5]], missing=zeros_missing).on_grid()
    np.testing.assert_array_equal((on_grid.times - START).astype(int), [0, 300, 600, 900, 1200])
    np.testing.assert_array_equal(on_grid.values[:, 1], np.array([1, 3, np.nan, np.nan, 5], np.float32))
    np.testing.assert_array_equal(on_grid.missing[:, 0], [1, 0, 1, 1, 0])
    assert on_grid.values.dtype == np.float32


def test_grid_refuses_times_between_its_rows():
    with pytest.raises(DataError, match="row 2024-01-01T00:12:00: this time is off the grid of 300 s steps"):
        readings((0, 5, 10, 12)).on_grid()


def test_grid_refuses_to_fill_years():
    with pytest.raises(DataError, match="4 rows are too few for a span of 1000001 steps of 60 s"):
        readings((0, 1, 2, 1_000_000)).on_grid()


@given(rows=st.lists(st.integers(0, 60), min_size=2, max_size=20, unique=True).map(sorted))
def test_grid_keeps_every_reading_at_its_time(rows):
    irregular = readings([5 * row for row in rows], ids=("a",))
    step = irregular.step
    if ((irregular.times - irregular.times[0]) % step).astype(bool).any():
        with pytest.raises(DataError, match="off the grid"):
            irregular.on_grid()
        return
    on_grid = irregular.on_grid()
    kept = ~on_grid.missing[:, 0]
    np.testing.assert_array_equal(on_grid.times[kept], irregular.times)
    np.testing.assert_array_equal(on_grid.values[kept], irregular.values)
    assert set(np.diff(on_grid.times)) == {step}
