"""The physics of the cell transmission model, on roads small enough to know the answer."""

import numpy as np
import pytest

from cnfgnn.data.synthetic.traffic import (
    CAPACITY,
    CELL_M,
    FREE_MPH,
    JAM,
    MPH,
    STEP_S,
    WAVE_MPH,
    Roads,
    Traffic,
    mean_speed_mph,
)


def one_road(cells: int, exit_share: float = 0.0) -> Roads:
    exits = np.full(cells, exit_share)
    exits[-1] = 1.0
    priority = np.full(cells, 0.2)
    priority[0] = 1.0
    nowhere = np.empty(0, dtype=np.int64)
    return Roads(exits, np.full(cells, FREE_MPH), priority, nowhere, nowhere)


def two_roads_that_cross(cells: int = 20) -> Roads:
    road = one_road(cells, exit_share=0.1)
    leave, join = np.array([10, cells + 10]), np.array([cells + 11, 11])
    return Roads(*(np.tile(a, 2) for a in (road.exit_share, road.free_mph, road.priority)), leave, join)


def entering(cells: int, vehicles: float) -> np.ndarray:
    demand = np.zeros(cells)
    demand[0] = vehicles
    return demand


def test_vehicles_are_conserved_through_queues_merges_exits_and_interchanges():
    roads, rng = two_roads_that_cross(), np.random.default_rng(0)
    traffic, arrived, departed = Traffic(roads), 0.0, 0.0
    for _ in range(2000):
        demand = rng.uniform(0, 0.3 * CAPACITY, 40)
        traffic.step(demand, CAPACITY * rng.uniform(0.2, 1.0, 40))
        arrived += demand.sum()
        departed += traffic.exits.sum() - traffic.exits[roads.leave].sum()
    assert traffic.stock > 1000
    assert departed > 1000
    assert abs(arrived - departed - traffic.stock) < 1e-9 * arrived


@pytest.mark.parametrize("demand_share", [0.0, 0.05, 0.5, 5.0])
def test_densities_stay_between_empty_and_jam(demand_share):
    traffic, rng = Traffic(two_roads_that_cross()), np.random.default_rng(1)
    for _ in range(1000):
        demand = rng.uniform(0, 2 * demand_share * CAPACITY, 40)
        traffic.step(demand, CAPACITY * rng.choice([0.0, 0.5, 1.0], 40))
        assert traffic.vehicles.min() >= 0
        assert traffic.vehicles.max() <= JAM
        assert traffic.waiting.min() >= -1e-9


def test_a_road_with_little_traffic_is_driven_at_free_speed():
    traffic = Traffic(one_road(30))
    for _ in range(200):
        before = traffic.vehicles.copy()
        traffic.step(entering(30, 0.5 * CAPACITY), np.full(30, CAPACITY))
    speed = mean_speed_mph(traffic.outflow, before, np.full(30, FREE_MPH))
    np.testing.assert_allclose(speed, FREE_MPH, rtol=1e-6)
    np.testing.assert_allclose(traffic.outflow, 0.5 * CAPACITY, rtol=1e-6)


def test_an_empty_cell_is_reported_at_free_speed():
    speed = mean_speed_mph(np.zeros(1), np.zeros(1), np.array([61.0]))
    assert speed == [61.0]


@pytest.mark.parametrize(("flow", "left"), [(0.8, 0.4), (0.6, 0.2), (0.9, 0.6)])
def test_a_queue_grows_upstream_at_the_shock_speed(flow, left):
    """Rankine-Hugoniot: the tail moves at the difference of flows over the difference of densities."""
    cells, bottleneck = 120, 110
    traffic = Traffic(one_road(cells))
    free = np.full(cells, CAPACITY)
    for _ in range(400):
        traffic.step(entering(cells, flow * CAPACITY), free)
    blocked = free.copy()
    blocked[bottleneck] *= left

    wave_share = WAVE_MPH * MPH * STEP_S / CELL_M
    in_queue = JAM - left * CAPACITY / wave_share
    before_queue = traffic.vehicles[50]
    cells_per_step = (flow - left) * CAPACITY / (in_queue - before_queue)

    def tail_after(steps: int) -> float:
        for _ in range(steps):
            traffic.step(entering(cells, flow * CAPACITY), blocked)
        surplus = traffic.vehicles[:bottleneck].clip(before_queue) - before_queue
        return float(surplus.sum() / (in_queue - before_queue))

    early, late = tail_after(150), tail_after(150)
    assert late < bottleneck  # the road is long enough for the queue
    assert (late - early) / 150 == pytest.approx(cells_per_step, rel=0.02)
    queued = np.arange(bottleneck) > bottleneck - late + 4
    np.testing.assert_allclose(traffic.vehicles[:bottleneck][queued], in_queue, rtol=0.02)


def test_a_cleared_queue_dissolves_upstream_at_the_wave_speed():
    cells = 60
    traffic = Traffic(one_road(cells))
    traffic.vehicles[:] = JAM
    steps = 150
    for _ in range(steps):
        traffic.step(np.zeros(cells), np.full(cells, CAPACITY))
    moved = cells - np.argmax(traffic.vehicles < JAM / 2)
    assert moved * CELL_M / (steps * STEP_S) == pytest.approx(WAVE_MPH * MPH, rel=0.1)


def test_a_crowded_merge_shares_the_space_by_priority():
    traffic = Traffic(one_road(20))
    demand = entering(20, CAPACITY)
    demand[10] = CAPACITY
    for _ in range(1000):
        traffic.step(demand, np.full(20, CAPACITY))
    assert traffic.outflow[9] == pytest.approx(0.8 * CAPACITY, rel=1e-3)
    assert traffic.outflow[10] == pytest.approx(CAPACITY, rel=1e-3)


def test_a_blocked_road_also_blocks_those_about_to_leave_it():
    traffic = Traffic(one_road(20, exit_share=0.1))
    blocked = np.full(20, CAPACITY)
    for _ in range(200):
        traffic.step(entering(20, 0.5 * CAPACITY), blocked)
    assert traffic.exits[9] > 0
    blocked[10] = 0.0
    traffic.step(entering(20, 0.5 * CAPACITY), blocked)
    assert traffic.outflow[9] == traffic.exits[9] == 0


def test_who_leaves_at_an_interchange_joins_the_crossing_road():
    traffic = Traffic(two_roads_that_cross())
    for _ in range(100):
        traffic.step(entering(40, 0.5 * CAPACITY), np.full(40, CAPACITY))
    assert traffic.vehicles[20:31].sum() == 0
    assert traffic.outflow[31] == pytest.approx(traffic.exits[10] * 1.0)
