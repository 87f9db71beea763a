"""The synthetic city is what its description promises: reproducible, bounded, best known by neighbours."""

import numpy as np
import pytest

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.synthetic.city import city
from cnfgnn.errors import ConfigError

pytestmark = pytest.mark.slow

SLOW_MPH = 45.0


@pytest.fixture(scope="module")
def default_city() -> Dataset:
    return city()


def filled(dataset: Dataset) -> np.ndarray:
    """(T, n) readings with the last one standing in for a missing one."""
    values = dataset.readings.values
    rows = np.arange(len(values))[:, None] * ~np.isnan(values)
    held = np.take_along_axis(values, np.maximum.accumulate(rows, axis=0), axis=0)
    return np.nan_to_num(held, nan=60.0).astype(np.float64)


def neighbours_on_a_road(dataset: Dataset) -> list[tuple[int, int]]:
    """(upstream, downstream) pairs: numbered in driving direction, and the nearer of the two ways round."""
    edges = zip(dataset.graph.senders, dataset.graph.receivers, strict=True)
    weight = dict(zip(edges, dataset.graph.weights, strict=True))
    return [(i, i + 1) for i in range(dataset.graph.nodes - 1) if (i, i + 1) in weight]


def best_lag(early: np.ndarray, late: np.ndarray, most: int = 9) -> int:
    """The shift in rows at which `late` follows `early` best; negative when it is the other way round."""
    lags = range(-most, most + 1)
    inner = slice(most, len(early) - most)
    return max(lags, key=lambda lag: np.corrcoef(early[inner], np.roll(late, -lag)[inner])[0, 1])


def test_congestion_travels_upstream_from_sensor_to_sensor(default_city):
    speeds = filled(default_city)
    pairs = neighbours_on_a_road(default_city)
    assert len(pairs) == 22  # two roads of twelve
    lags = np.array([best_lag(speeds[:, down], speeds[:, up]) for up, down in pairs])
    assert np.median(lags) >= 1
    assert (lags > 0).mean() >= 0.8
    assert (lags < 0).mean() <= 0.05


def test_a_queue_reaches_the_upstream_sensor_after_the_downstream_one(default_city):
    """Onsets: of the queues seen at both ends of a stretch, most were seen downstream first."""
    slow = filled(default_city) < SLOW_MPH
    later = []
    for up, down in neighbours_on_a_road(default_city):
        onsets = np.flatnonzero(~slow[:-1, up] & slow[1:, up]) + 1
        onsets = onsets[(onsets > 12) & (onsets < len(slow) - 12)]
        shared = [row for row in onsets if slow[row - 12 : row + 12, down].any()]
        later.extend(slow[row - 1, down] for row in shared)  # slow downstream before it is slow here
    assert len(later) > 300
    assert np.mean(later) > 0.7


def test_neighbours_help_to_forecast_the_next_half_hour(default_city):
    """Ridge regression 30 minutes ahead: own readings and time of day, without and with the neighbours'."""
    speeds, ahead, history = filled(default_city), 6, 12
    scaled = (speeds - speeds.mean()) / speeds.std()
    rows = np.arange(history - 1, len(speeds) - ahead)
    past = np.stack([scaled[rows - k] for k in range(history)], axis=-1)  # (w, n, history)
    angle = 2 * np.pi * default_city.readings.time_of_day[rows, None] * np.arange(1, 5)
    clock = np.concatenate([np.sin(angle), np.cos(angle), np.ones((len(rows), 1))], axis=1)
    train, test = slice(0, int(0.7 * len(rows)) - ahead), slice(int(0.8 * len(rows)), None)

    def error_of(node: int, senders: np.ndarray) -> float:
        x = np.concatenate([clock, past[:, senders].reshape(len(rows), -1)], axis=1)
        y = scaled[rows + ahead, node]
        weights = np.linalg.solve(x[train].T @ x[train] + 30 * np.eye(x.shape[1]), x[train].T @ y[train])
        return float(np.mean((x[test] @ weights - y[test]) ** 2))

    graph = default_city.graph
    alone = np.array([error_of(i, np.array([i])) for i in range(graph.nodes)])
    together = np.array([error_of(i, graph.senders[graph.receivers == i]) for i in range(graph.nodes)])
    last = np.mean((scaled[rows] - scaled[rows + ahead])[test] ** 2)
    assert together.sum() < 0.85 * alone.sum()
    assert (together < alone).mean() >= 0.75
    assert together.mean() < 0.7 * last


def test_a_tenth_to_a_quarter_of_the_readings_are_congested(default_city):
    values = default_city.readings.values
    seen = values[~np.isnan(values)]
    assert 0.10 < (seen < SLOW_MPH).mean() < 0.25
    assert 1 <= seen.min() < 15
    assert 60 < seen.max() < 75


def test_working_days_have_rush_hours_that_weekends_lack_and_nights_are_empty():
    dataset = city(96, 7, seed=3)  # a Monday to a Sunday
    slow = (filled(dataset) < SLOW_MPH).mean(axis=1).reshape(7, 24, 12).mean(axis=2)
    weekdays, weekend = slow[:5].mean(axis=0), slow[5:].mean(axis=0)
    morning, evening = slice(8, 10), slice(17, 19)
    assert weekdays[morning].mean() > 2 * weekend[morning].mean()
    assert weekdays[evening].mean() > 1.3 * weekend[evening].mean()
    assert weekdays[evening].mean() > 1.2 * weekdays[12:14].mean()
    assert weekdays[1:5].max() < 0.02


def test_the_same_seed_gives_the_same_city_and_another_seed_another():
    one, same, other = city(12, 0.5, seed=4), city(12, 0.5, seed=4), city(12, 0.5, seed=5)
    np.testing.assert_array_equal(one.readings.values, same.readings.values)
    np.testing.assert_array_equal(one.graph.weights, same.graph.weights)
    assert not np.array_equal(one.readings.values, other.readings.values)
    assert not np.array_equal(one.readings.positions, other.readings.positions)


def test_a_city_does_not_touch_the_global_random_state():
    np.random.seed(0)  # noqa: NPY002 - the state we must leave alone
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    city(4, 0.1)
    assert np.random.random() == expected  # noqa: NPY002


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3])
def test_drop_outs_have_about_the_share_asked_for(share):
    readings = city(200, 2, dropout=share, seed=1).readings
    assert readings.missing.mean() == pytest.approx(share, rel=0.15)
    np.testing.assert_array_equal(readings.missing, np.isnan(readings.values))


def test_half_of_the_drop_outs_come_in_silences():
    missing = city(200, 2, dropout=0.02, seed=1).readings.missing
    with_next = (missing[:-1] & missing[1:]).sum() / missing[:-1].sum()
    assert 0.3 < with_next < 0.6  # single readings only: 0.02


def test_noise_is_added_to_the_readings_only():
    noisy, exact = (city(24, 1, noise=mph, dropout=0).readings.values for mph in (2.0, 0.0))
    error = (noisy - exact)[exact > 20]
    assert error.std() == pytest.approx(2.0, rel=0.05)
    assert abs(error.mean()) < 0.1


@pytest.mark.parametrize("sensors", [1, 2, 3, 7, 8, 9, 24, 54, 200])
def test_any_number_of_sensors_makes_a_city(sensors):
    dataset = city(sensors, 0.1)
    readings, graph = dataset.readings, dataset.graph
    assert readings.values.shape == (29, sensors)
    assert readings.values.dtype == np.float32
    assert readings.ids[0] == "c0000"
    assert graph.loops == sensors
    np.testing.assert_array_equal(graph.weights[graph.senders == graph.receivers], 1.0)
    assert len(np.unique(readings.positions, axis=0)) == sensors
    assert np.abs(readings.positions - [34, -118]).max() < 3


@pytest.mark.parametrize("sensors", [2, 24, 200])
def test_every_sensor_can_be_reached_from_every_other(sensors):
    graph = city(sensors, 0.05).graph
    reached = np.arange(sensors) == 0
    for _ in range(sensors):
        np.logical_or.at(reached, graph.receivers, reached[graph.senders])
    assert reached.all()


def test_a_sensor_hears_both_ways_and_the_downstream_way_counts_as_longer():
    graph = city(7, 0.05).graph  # one road
    weight = dict(zip(zip(graph.senders, graph.receivers, strict=True), graph.weights, strict=True))
    for i in range(6):
        assert weight[i, i + 1] > weight[i + 1, i] > 0.1


@pytest.mark.parametrize("sensors", [50, 500, 2000])
def test_the_degree_does_not_grow_with_the_city(sensors):
    graph = city(sensors, 0.01).graph
    assert 4 < graph.edges / sensors < 10
    assert np.bincount(graph.receivers, minlength=sensors).max() <= 20


@pytest.mark.parametrize(("step", "rows"), [(1, 720), (5, 144), (15, 48), (60, 12)])
def test_the_time_step_can_be_chosen(step, rows):
    readings = city(3, 0.5, step_minutes=step, start="2024-02-28T18:00").readings
    assert readings.values.shape == (rows, 3)
    assert readings.times[0] == np.datetime64("2024-02-28T18:00:00")
    assert readings.step == np.timedelta64(60 * step, "s")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sensors", 0),
        ("days", 0),
        ("days", float("nan")),
        ("seed", -1),
        ("step_minutes", 0),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("noise", -1.0),
        ("start", "next Monday"),
        ("start", "NaT"),
    ],
)
def test_an_argument_out_of_range_is_named(key, value):
    with pytest.raises(ConfigError, match=f"^city.{key}: ") as caught:
        city(**{"sensors": 2, "days": 0.1, key: value})
    assert caught.value.key == f"city.{key}"
