"""Absurd readings count as missing, all others are left alone, and what is wrong is said in a sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cnfgnn.algorithm.methods import METHODS
from cnfgnn.config.settings import Config, DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.data.quality import (
    CODE_DISTANCE,
    FEW,
    OUTLIER_DISTANCE,
    RARE,
    Finding,
    _far_readings,
    _far_rows,
    clean,
    findings,
    out_of_range,
    training_ranges,
)
from cnfgnn.data.readings import Readings
from cnfgnn.data.synthetic.city import city
from cnfgnn.errors import ConfigError
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import evaluate_best, train
from tests.conftest import network, small
from tests.one_baseline import last_value

DEFAULT = DataConfig()
Values = npt.NDArray[np.float32]


def readings_of(values: npt.ArrayLike) -> Readings:
    """Sensors of five-minute readings, a column each."""
    columns = np.asarray(values, dtype=np.float32)
    columns = columns[:, None] if columns.ndim == 1 else columns
    times = np.datetime64("2024-01-01T00:00:00") + 300 * np.arange(len(columns)).astype("timedelta64[s]")
    ids = tuple(f"s{i}" for i in range(columns.shape[1]))
    return Readings(times, ids, columns, np.isnan(columns), None, "test")


def counts_with_peaks(rows: int, sensors: int, seed: int) -> Values:
    """Boardings as bus stops have them: none at night, a few by day, now and then a crowd; heavy tails."""
    rng = np.random.default_rng(seed)
    hour = np.arange(rows)[:, None] % 288 / 12
    rate = np.where((hour > 6) & (hour < 23), rng.lognormal(0, 1, sensors), 0.0)
    crowd = rng.lognormal(0, 1.0, (rows, sensors)) * np.where(rng.random((rows, sensors)) < 0.002, 20, 1)
    return rng.poisson(rate * crowd).astype(np.float32)


# ---- the rule ---------------------------------------------------------------------------------------------

some_values = arrays.arrays(
    np.float32,
    st.integers(1, 200),
    elements=st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, 1.0, 50.0, -999.0, 99999.0]),
)


@settings(max_examples=100, deadline=None)
@given(some_values)
def test_what_counts_as_missing_is_rare_and_lies_far_outside_the_range_of_all_the_rest(
    values: Values,
) -> None:
    before = readings_of(values)
    after = clean(before, DEFAULT)
    gone = after.missing[:, 0]
    assert np.array_equal(after.values[~gone, 0], values[~gone])
    if after is before:
        assert not gone.any()
        return
    kept = values[~gone].astype(np.float64)
    low, high = kept.min(), kept.max()
    assert 0 < gone.sum() <= max(FEW, len(values) // RARE)
    far = np.maximum(low - values[gone].astype(np.float64), values[gone].astype(np.float64) - high)
    assert (far > CODE_DISTANCE * (high - low)).all()


@settings(max_examples=100, deadline=None)
@given(
    arrays.arrays(np.float32, st.integers(30, 200), elements=st.floats(-100, 100, width=32)),
    st.data(),
    st.booleans(),
)
def test_one_absurd_reading_is_always_found(values: Values, data: st.DataObject, above: bool) -> None:
    row = data.draw(st.integers(0, len(values) - 1))
    rest = np.delete(values, row)
    assume(clean(readings_of(rest), DEFAULT).missing.sum() == 0)
    inner = np.sort(rest)[FEW:-FEW]
    assume(np.abs(inner).max() > 1e-3)  # a sensor that reads zero nearly throughout says nothing about scale
    # where more than FEW readings lie far from the bulk, they are peaks that recur, and nothing is an outlier
    bulk = max(float(inner[-1]) - float(inner[0]), 0.1 * float(np.abs(inner).max()))
    assume(max(inner[0] - rest.min(), rest.max() - inner[-1]) <= OUTLIER_DISTANCE * bulk)
    spread = max(float(values.max()) - float(values.min()), 0.1 * float(np.abs(values).max()))
    beyond = data.draw(st.floats(1.01 * OUTLIER_DISTANCE, 1e4 * OUTLIER_DISTANCE)) * spread
    planted = values.copy()
    planted[row] = values.max() + beyond if above else values.min() - beyond
    after = clean(readings_of(planted), DEFAULT)
    assert np.flatnonzero(after.missing[:, 0]).tolist() == [row]
    assert np.isnan(after.values[row, 0])
    assert clean(readings_of(planted), replace(DEFAULT, outliers="keep")).missing.sum() == 0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([300, 2_000, 9_000]))
def test_counts_with_heavy_tails_and_zeros_at_night_are_left_alone(seed: int, rows: int) -> None:
    readings = readings_of(counts_with_peaks(rows, 8, seed))
    assert clean(readings, DEFAULT) is readings


def test_the_city_is_left_alone() -> None:
    readings = city(12, 4, seed=3).readings
    assert clean(readings, DEFAULT) is readings


def test_a_code_counts_as_missing_where_the_same_distance_would_not_do_for_another_number() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(0, 70, 500)
    for number, missing in ((999.0, 1), (998.0, 0), (-999.0, 1), (70 * 40, 0), (99999.0, 1)):
        planted = values.copy()
        planted[77] = number
        assert clean(readings_of(planted), DEFAULT).missing.sum() == missing


def test_readings_that_hardly_change_and_a_flood_are_data() -> None:
    level = 1 + 0.01 * np.sin(np.arange(3000))
    level[1500:1504] = [1.4, 2.6, 4.0, 2.0]
    assert clean(readings_of(level), DEFAULT).missing.sum() == 0
    nothing = np.zeros(3000)
    nothing[1500:1502] = [3.0, 60.0]
    assert clean(readings_of(nothing), DEFAULT).missing.sum() == 0


def test_a_number_that_recurs_is_not_taken_away_unless_it_is_named() -> None:
    values = np.random.default_rng(0).uniform(10, 20, 1000)
    values[::50] = -999
    assert clean(readings_of(values), DEFAULT).missing.sum() == 0
    named = clean(readings_of(values), replace(DEFAULT, missing_value=(-999.0, 5.0)))
    assert np.flatnonzero(named.missing[:, 0]).tolist() == list(range(0, 1000, 50))
    assert np.isnan(named.values[::50]).all()


def test_a_number_for_missing_may_be_given_alone_or_in_a_list() -> None:
    config = Config().with_changes({"data.missing_value": -999})
    assert config.data.missing_value == (-999.0,)
    assert config.with_changes({"data.missing_value": [-99.9, 0]}).data.missing_value == (-99.9, 0.0)
    tenths = readings_of([1.0, -99.9, 2.0])  # as float32
    assert clean(tenths, replace(DEFAULT, missing_value=(-99.9,))).missing[:, 0].tolist() == [0, 1, 0]
    with pytest.raises(ConfigError, match="takes a list of numbers"):
        config.with_changes({"data.missing_value": "none"})


# ---- what it is worth -------------------------------------------------------------------------------------


def planted(data: Dataset, row: int, column: int, value: float) -> Dataset:
    values = data.readings.values.copy()
    values[row, column] = value
    return replace(data, readings=replace(data.readings, values=values))


@pytest.mark.parametrize("row", [20, 140], ids=["training", "test"])
def test_one_absurd_reading_costs_no_accuracy_wherever_it_lies(row: int) -> None:
    data, config = network(dropout=0.0), small("gru-fedavg", **{"training.rounds": 1})
    intact, broken = (_rmse(d, config) for d in (data, planted(data, row, 1, 99999)))
    assert broken == pytest.approx(intact, rel=0.05)
    kept = config.with_changes({"data.outliers": "keep"})
    assert _rmse(planted(data, row, 1, 99999), kept) > 2 * intact
    # what every method is compared with is judged on the same readings
    floors = (last_value(d, config.data).overall.masked_rmse for d in (data, planted(data, row, 1, 99999)))
    assert next(floors) == pytest.approx(next(floors), rel=0.05)


def _rmse(data: Dataset, config: Config) -> float:
    experiment = simulate(data, config)
    return evaluate_best(experiment, train(experiment)).test.overall.masked_rmse


@pytest.mark.parametrize("method", list(METHODS))
def test_clean_readings_give_the_same_result_bit_for_bit(method: str, data: Dataset) -> None:
    config = small(method, **{"training.rounds": 1, "training.client_rounds": 1})
    assert _rmse(data, config) == _rmse(data, config.with_changes({"data.outliers": "keep"}))


# ---- what is said -----------------------------------------------------------------------------------------


def dataset(values: npt.ArrayLike, positions: npt.ArrayLike | None = None) -> Dataset:
    readings = readings_of(values)
    n = len(readings.ids)
    where = None if positions is None else np.asarray(positions, dtype=np.float64)
    return Dataset(
        "mine",
        replace(readings, positions=where),
        Graph(n, np.arange(n), np.arange(n), np.ones(n)),
    )


def waves(sensors: int = 4, rows: int = 400) -> Values:
    rng = np.random.default_rng(1)
    values = 50 + 12 * np.sin(np.arange(rows)[:, None] / 9 - np.arange(sensors) / 2)
    return (values + rng.normal(0, 1, (rows, sensors))).astype(np.float32)


def only(data: Dataset, **config: Any) -> Finding:
    """The one finding."""
    found = findings(data, replace(DEFAULT, **config))
    assert len(found) == 1, found
    return found[0]


def test_good_readings_give_no_findings() -> None:
    assert findings(dataset(waves())) == ()
    assert findings(city(12, 4, seed=3)) == ()
    assert findings(dataset(counts_with_peaks(4000, 12, 5))) == ()


def test_an_absurd_reading_is_named_with_sensor_time_and_the_setting_that_keeps_it() -> None:
    values = waves()
    values[100, 1] = 99999
    told = only(dataset(values))
    assert (told.kind, told.sensors) == ("outlier", ("s1",))
    assert told.message.startswith(
        "sensor s1: 1 reading of 99999 at 2024-01-01T08:20:00 is treated as missing"
    )
    assert told.message.endswith("set data.outliers=keep to train on it")
    kept = only(dataset(values), outliers="keep")
    assert kept.kind == "spike"
    assert "data.missing_value=99999" in kept.message
    assert findings(dataset(values), replace(DEFAULT, missing_value=(99999.0,))) == ()
    values[[7, 9], 3] = -1e6
    several = only(dataset(values))
    assert "3 readings of 2 sensors (s1: 99999 at 2024-01-01T08:20:00; s3: -1000000 at" in several.message


def test_a_spike_that_is_not_absurd_is_named_and_stays() -> None:
    values = waves()
    values[100, 2] = 50 + 35 * np.ptp(values[:, 2])
    told = only(dataset(values))
    assert (told.kind, told.sensors) == ("spike", ("s2",))
    assert not clean(readings_of(values), DEFAULT).missing.any()


@pytest.mark.parametrize("code", [-999.0, 99999.0, -9999.0, -99.0, 8888.0])
def test_a_number_that_stands_for_missing_is_named_with_the_setting(code: float) -> None:
    values = waves(6)
    values[::20, 1:] = code
    told = only(dataset(values))
    assert (told.kind, told.sensors) == ("sentinel", ("s1", "s2", "s3", "s4", "s5"))
    assert told.message == (
        f"5 sensors (s1, s2, s3 and 2 more): {code:.0f} occurs 100 times, far from all other readings, and is"
        f" trained on; if it stands for a missing reading, set data.missing_value={code:.0f}"
    )
    assert findings(dataset(values), replace(DEFAULT, missing_value=(code,))) == ()


def test_the_only_negative_number_among_large_counts_is_named_and_a_usual_low_is_not() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 5000, 600).astype(np.float32)
    counts[::50] = -999
    assert only(dataset(counts)).kind == "sentinel"
    assert findings(dataset(rng.integers(-1, 30, 600))) == ()  # degrees
    assert findings(dataset(rng.choice([0, 0, 0, 1, 5], 600))) == ()


def test_sensors_that_say_nothing_are_named() -> None:
    values = waves(6)
    values[:, 1], values[:, 2] = 7.5, np.nan
    values[:320, 3] = np.nan
    values[:, 4] = -999
    constant, silent, late = (
        next(f for f in findings(dataset(values)) if f.kind == kind)
        for kind in ("constant", "silent", "untrained")
    )
    assert constant.message.startswith("sensor s1: every reading is 7.5")
    assert silent.message.startswith("sensor s2: no reading in the whole file")
    assert late.message.startswith("sensor s3: no reading before 2024-01-02T02:40:00, and training ends at")
    code = next(f for f in findings(dataset(values)) if f.kind == "sentinel")
    assert code.sensors == ("s4",)
    assert not any(
        f.kind == "untrained" for f in findings(dataset(values), replace(DEFAULT, shares=(0.9, 0.05, 0.05)))
    )


def test_places_that_cannot_be_meant_are_named() -> None:
    here = [[48.1, -1.6], [48.2, -1.7], [48.3, -1.5], [48.4, -1.4]]
    assert findings(dataset(waves(), here)) == ()
    assert (
        "all 4 sensors have the same position (48.1, -1.6)" in only(dataset(waves(), [here[0]] * 4)).message
    )
    new_york = [[40.7 + k / 100, -74.0] for k in range(4)]
    assert findings(dataset(waves(), new_york)) == ()
    swapped = only(dataset(waves(), [[b, a] for a, b in new_york]))
    assert swapped.kind == "swapped"
    assert "latitude and longitude swapped?" in swapped.message


def test_the_newest_readings_are_held_against_those_of_training() -> None:
    values = waves()
    ranges = dict(zip(("s0", "s1", "s2", "s3"), training_ranges(readings_of(values), DEFAULT), strict=True))
    last = values[-12:]
    assert out_of_range(readings_of(last), ranges, std=9.0) == ()
    kelvin = out_of_range(readings_of(last + 273.15), ranges, std=9.0)[0]
    assert kelvin.sensors == ("s0", "s1", "s2", "s3")
    assert "another unit" in kelvin.message
    one = last.copy()
    one[3, 2] = 99999  # a single one in a file too short to call it absurd
    assert "(s2: 99999, and" in out_of_range(readings_of(one), ranges, std=9.0)[0].message
    assert out_of_range(readings_of(one), {}, std=9.0) == ()


@pytest.mark.parametrize("seed", range(20))
def test_the_check_of_all_sensors_at_once_overlooks_no_outlier(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([19, 40, 200, 4000]))
    values = rng.normal(50, 5, (rows, 30)).astype(np.float32)
    values[:, 0] = 7.0  # never changes
    values[:, 1] = np.where(rng.random(rows) < 0.3, 0, values[:, 1])
    for column in range(2, 20):
        far = rng.integers(0, rows, rng.integers(0, 5))
        values[far, column] = rng.choice([99999, -999, 9999, 1e6, -1e5, 400, 60])
    missing = rng.random(values.shape) < rng.choice([0.0, 0.2, 0.97])
    times = np.datetime64("2024-01-01T00:00:00") + 300 * np.arange(rows).astype("timedelta64[s]")
    readings = Readings(times, tuple(f"s{k}" for k in range(30)), values, missing)
    one_by_one = {column: _far_rows(readings, column, OUTLIER_DISTANCE) for column in range(30)}
    expected = {column: far.tolist() for column, far in one_by_one.items() if len(far)}
    found = _far_readings(readings, OUTLIER_DISTANCE)
    assert {column: far.tolist() for column, far in found.items()} == expected
