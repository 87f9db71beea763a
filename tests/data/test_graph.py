"""The graph: order of edges, kernels, neighbours, parts of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnfgnn.data import graph as graph_module
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import EARTH_RADIUS_M, Graph, great_circle
from cnfgnn.data.readings import Readings
from cnfgnn.errors import DataError

MATRIX = np.array([[1.0, 0.5, 0], [0, 1, 0], [0.25, 0.75, 1]])


def edges(graph: Graph) -> list[tuple[int, int, float]]:
    return list(zip(graph.senders.tolist(), graph.receivers.tolist(), graph.weights.tolist(), strict=True))


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_entry_i_j_of_a_matrix_is_an_edge_from_i_to_j_sorted_by_receiver():
    graph = Graph.from_matrix(MATRIX)
    assert edges(graph) == [(0, 0, 1), (2, 0, 0.25), (0, 1, 0.5), (1, 1, 1), (2, 1, 0.75), (2, 2, 1)]
    assert (graph.nodes, graph.edges, graph.loops) == (3, 6, 3)


def test_arrays_of_a_graph_cannot_be_written_to():
    graph = Graph.from_matrix(MATRIX)
    for array in (graph.senders, graph.receivers, graph.weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize(
    ("senders", "receivers", "weights", "sentence"),
    [
        (ints(0, 1), ints(1), np.ones(2), "the same length"),
        (ints(0), ints(3), np.ones(1), "an edge names node 3, but nodes are 0 to 2"),
        (ints(-1), ints(0), np.ones(1), "an edge names node"),
        (ints(0), ints(1), np.array([np.nan]), "a weight that is not a number"),
        (ints(0, 2, 0), ints(1, 1, 1), np.ones(3), "the edge 0 -> 1 occurs twice"),
    ],
)
def test_impossible_edges_are_refused(senders, receivers, weights, sentence):
    with pytest.raises(DataError, match=sentence):
        Graph(3, senders, receivers, weights)


def test_a_matrix_that_is_not_square_is_refused():
    with pytest.raises(DataError, match="square, not 2 x 3"):
        Graph.from_matrix(np.ones((2, 3)))


def test_kernel_is_as_wide_as_the_deviation_and_drops_small_weights():
    graph = Graph.from_distances(3, ints(0, 1, 2, 0), ints(0, 0, 0, 1), np.array([0.0, 1.0, 2.0, 5.0]))
    sigma = np.std([0, 1, 2, 5])
    assert [(s, r) for s, r, _ in edges(graph)] == [(0, 0), (1, 0), (2, 0)]
    np.testing.assert_allclose(graph.weights, np.exp(-np.array([0, 1, 4]) / sigma**2))
    narrow = Graph.from_distances(3, ints(0), ints(1), np.array([2.0]), sigma=4.0, threshold=0.7)
    assert edges(narrow) == [(0, 1, np.exp(-0.25))]


@pytest.mark.parametrize("distance", [0.1, 1.0, 500.0, 1e12])
def test_equal_distances_give_equal_weights_whatever_the_unit(distance):
    """The deviation of equal numbers may be a rounding error, which as a width would leave no edge."""
    graph = Graph.from_distances(3, ints(0, 1, 2), ints(1, 2, 0), np.full(3, distance))
    np.testing.assert_allclose(graph.weights, np.exp(-np.ones(3)))


def test_no_distances_give_no_edges():
    assert Graph.from_distances(2, ints(), ints(), np.array([])).edges == 0


def test_great_circle_knows_a_quarter_of_the_earth():
    pole, equator = np.array([90.0, 0.0]), np.array([[0.0, 77.0], [0.0, -3.0]])
    np.testing.assert_allclose(great_circle(pole, equator), EARTH_RADIUS_M * np.pi / 2)


def test_neighbours_are_found_across_the_date_line():
    positions = np.array([[0.0, 179.9], [0.0, -179.9], [0.0, 170.0], [0.0, -170.0]])
    graph = Graph.nearest(positions, k=1)
    assert {(0, 1), (1, 0)} <= {(s, r) for s, r, _ in edges(graph)}


def test_every_node_hears_itself_and_at_most_k_others():
    positions = np.random.default_rng(0).uniform([47, 8], [48, 9], (30, 2))
    graph = Graph.nearest(positions, k=4)
    assert graph.loops == 30
    assert np.bincount(graph.receivers).max() == 5
    assert graph.weights.min() >= 0.1
    lengths = great_circle(positions[graph.senders], positions[graph.receivers])
    far = great_circle(positions[:, None], positions[None])
    for node in range(30):
        heard = lengths[(graph.receivers == node) & (graph.senders != node)]
        assert set(heard) <= set(np.sort(far[node])[1:5])


def test_neighbours_are_the_same_in_blocks():
    """2,100 nodes need several blocks; each of a line's inner nodes hears the two beside it."""
    positions = np.stack([np.zeros(2100), np.arange(2100) / 100], axis=1)
    graph = Graph.nearest(positions, k=2)
    inner = graph.receivers[(graph.senders != graph.receivers) & (graph.receivers % 2099 != 0)]
    assert np.bincount(inner, minlength=2099)[1:].tolist() == [2] * 2098


def layouts() -> dict[str, np.ndarray]:
    """Positions that are hard for a search in cubes: even, dense and sparse, in a row, stacked, at a pole."""
    rng = np.random.default_rng(0)
    east = rng.uniform(-180, 180, 250)
    return {
        "even": rng.uniform([47, 8], [48, 9], (250, 2)),
        "dense and sparse": np.clip(rng.normal(0, 1, (250, 2)) ** 5, -80, 80),
        "in a row": np.stack([np.full(250, 10.0), np.arange(250) / 100], axis=1),
        "stacked": rng.integers(0, 4, (250, 2)).astype(float),
        "at a pole": np.stack([90 - rng.exponential(0.1, 250), east], axis=1),
        "everywhere": np.stack([np.degrees(np.arcsin(rng.uniform(-1, 1, 250))), east], axis=1),
        "two far towns": np.concatenate([rng.normal(0, 1e-3, (3, 2)), 60 + rng.normal(0, 1e-3, (247, 2))]),
    }


@pytest.mark.parametrize("name", layouts())
@pytest.mark.parametrize("pairs", [1 << 21, 3000])
def test_the_search_in_cubes_finds_the_same_neighbours_as_all_distances_do(
    name: str, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_module, "PAIRS_AT_ONCE", pairs)
    positions, k = layouts()[name], 6
    distance = great_circle(positions[:, None], positions[None])
    np.fill_diagonal(distance, np.inf)
    expected = np.argsort(distance, axis=1, kind="stable")[:, :k]
    neighbours, metres = graph_module._nearest(positions, k)
    np.testing.assert_array_equal(neighbours, expected)
    np.testing.assert_array_equal(metres, np.take_along_axis(distance, expected, axis=1))


@pytest.mark.parametrize("positions", [np.zeros((1, 2)), np.zeros((4, 2))])
def test_one_node_and_nodes_at_one_place_are_connected(positions):
    graph = Graph.nearest(positions)
    assert graph.edges == len(positions) ** 2
    assert (graph.weights == 1).all()


def test_subgraph_renumbers_in_the_order_given():
    assert edges(Graph.from_matrix(MATRIX).subgraph([2, 0])) == [(0, 0, 1), (0, 1, 0.25), (1, 1, 1)]


def test_reversing_twice_changes_nothing():
    graph = Graph.from_matrix(MATRIX)
    assert edges(graph.reversed()) == edges(Graph.from_matrix(MATRIX.T))
    assert edges(graph.reversed().reversed()) == edges(graph)


@given(seed=st.integers(0, 999), kept=st.permutations(range(6)), count=st.integers(1, 6))
def test_a_subgraph_is_the_rows_and_columns_of_the_matrix(seed, kept, count):
    matrix = np.random.default_rng(seed).integers(0, 3, (6, 6)).astype(float)
    rows = list(kept)[:count]
    assert edges(Graph.from_matrix(matrix).subgraph(rows)) == edges(
        Graph.from_matrix(matrix[np.ix_(rows, rows)])
    )


def test_a_data_set_selects_readings_and_edges_together():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    times = np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[s]")
    readings = Readings(times, ("a", "b", "c"), values, np.isnan(values))
    part = Dataset("x", readings, Graph.from_matrix(MATRIX)).select(["c", "a"])
    assert part.readings.ids == ("c", "a")
    assert edges(part.graph) == [(0, 0, 1), (0, 1, 0.25), (1, 1, 1)]
    with pytest.raises(DataError, match="the graph has 2 nodes, but there are 3 sensors"):
        Dataset("x", readings, part.graph)
