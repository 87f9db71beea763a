"""Graphs and positions from files, and pickles that are not trusted."""

from __future__ import annotations

import pickle
import subprocess
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnfgnn.data.files.adjacency import (
    Edge,
    graph_of_distances,
    graph_of_weights,
    read_edges,
    read_matrix,
    read_positions,
    unpickle,
)
from cnfgnn.data.graph import Graph
from cnfgnn.errors import DataError

IDS = ["a", "b", "c"]
W = np.array([[1, 0.5, 0], [0, 1, 0.25], [0, 0, 1]], dtype=np.float32)
CONTENT = (IDS, {sensor: place for place, sensor in enumerate(IDS)}, W)
FUZZ = settings(max_examples=300, deadline=None, derandomize=True)


def dense(graph: Graph) -> np.ndarray:
    matrix = np.zeros((graph.nodes, graph.nodes))
    matrix[graph.senders, graph.receivers] = graph.weights
    return matrix


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def python_2_pickle(matrix: np.ndarray) -> bytes:
    """(ids, index, matrix) as Python 2 wrote them: protocol 0, numpy.core, bytes as escaped text."""
    escaped = "".join(f"\\x{byte:02x}" for byte in matrix.astype("<f4").tobytes())
    n = len(matrix)
    return (
        "((lp0\nS'a'\naS'b'\naS'c'\na(dS'a'\nI0\nsS'b'\nI1\nsS'c'\nI2\ns"
        "cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
        f"(I1\n(I{n}\nI{n}\ntcnumpy\ndtype\n(S'f4'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\nS'{escaped}'\ntbt."
    ).encode()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("matrix", [W, W.astype(">f8"), np.asfortranarray(W), W.tolist()])
def test_adjacency_is_read_from_every_pickle_protocol(tmp_path, protocol, matrix):
    content = (np.array(IDS), {k: np.int64(v) for k, v in CONTENT[1].items()}, matrix)
    ids, graph = read_matrix(written(tmp_path / "adj_mx.pkl", pickle.dumps(content, protocol)))
    assert ids == ("a", "b", "c")
    np.testing.assert_array_equal(dense(graph), W)


def test_adjacency_is_read_from_a_pickle_of_python_2(tmp_path):
    ids, graph = read_matrix(written(tmp_path / "adj_mx.pkl", python_2_pickle(W)))
    assert ids == ("a", "b", "c")
    np.testing.assert_array_equal(dense(graph), W)


def test_adjacency_is_read_from_a_pickle_of_numpy_1(tmp_path):
    old = pickle.dumps(CONTENT, 2).replace(b"numpy._core", b"numpy.core")
    np.testing.assert_array_equal(dense(read_matrix(written(tmp_path / "adj_mx.pkl", old))[1]), W)


def test_the_index_says_which_row_belongs_to_a_sensor(tmp_path):
    content = pickle.dumps((IDS, {"a": 2, "b": 0, "c": 1}, W))
    assert read_matrix(written(tmp_path / "adj_mx.pkl", content))[0] == ("b", "c", "a")


class Calls:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "evil",
    [
        pickle.dumps(Calls(subprocess.call, ["touch", "pwned"])),
        pickle.dumps(Calls(eval, "open('pwned', 'w')")),
        pickle.dumps(Calls(np.save, "pwned.npy", 0), 4),
        b"cos\nsystem\n(S'touch pwned'\ntR.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0btouch pwned\x85R.",
        b'cnumpy.testing._private.utils\nrunstring\n(S\'open("pwned", "w")\'\n(dtR.',
        b"cbuiltins\ngetattr\n(cnumpy\nndarray\nS'tofile'\ntR.",
        pickle.dumps((IDS, CONTENT[1], np.array([Path("pwned")], dtype=object))),
    ],
)
def test_a_pickle_that_asks_for_anything_else_is_refused(tmp_path, monkeypatch, evil):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataError, match=r"adj_mx.pkl: this pickle does not hold a plain adjacency matrix \(it "
    ):
        read_matrix(written(tmp_path / "adj_mx.pkl", evil))
    assert [file.name for file in tmp_path.iterdir()] == ["adj_mx.pkl"]


def test_a_small_pickle_cannot_ask_for_much_memory():
    far = (2**24).to_bytes(4, "little")
    tracemalloc.start()
    try:
        assert unpickle(b"]r" + far + b"j" + far + b".") == []
        with pytest.raises(EOFError):
            unpickle(pickle.BYTEARRAY8 + (2**28).to_bytes(8, "little") + b".")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_pickle_cannot_change_what_later_pickles_get():
    with pytest.raises(TypeError, match="state"):
        unpickle(b"c_codecs\nencode\n}S'x'\nI1\nsb.")
    unpickle(b"c_codecs\nencode\n(cnumpy\ndtype\n)}Ntb.")  # a partial that now calls something else
    assert unpickle(b"c_codecs\nencode\n(S'ok'\nS'latin1'\ntR.") == b"ok"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (pickle.dumps(W), "this is not DCRNN's"),
        (pickle.dumps((IDS, W)), "this is not DCRNN's"),
        (pickle.dumps((IDS, CONTENT[1], W[:2])), "3 ids do not match a matrix of shape (2, 3)"),
        (pickle.dumps((IDS, {"a": 0, "b": 1, "c": 1}, W)), "3 ids do not match"),
        (
            pickle.dumps((IDS, CONTENT[1], -W)),
            "row a, column 'a': a weight must be a number that is not negative",
        ),
        (pickle.dumps((IDS, CONTENT[1], np.full((3, 3), np.inf))), "row a, column 'a': a weight"),
        (pickle.dumps(CONTENT)[:-20], "adj_mx.pkl: this"),
        (b"", "this is not DCRNN's"),
    ],
)
def test_a_bad_adjacency_is_told_in_a_sentence(tmp_path, content, sentence):
    with pytest.raises(DataError) as caught:
        read_matrix(written(tmp_path / "adj_mx.pkl", content))
    assert sentence in str(caught.value)


def test_counts_of_the_published_adjacencies(shared):
    for name, edges, loops in (("metr-la/adj_mx.pkl", 1722, 207), ("pems-bay/adj_mx_bay.pkl", 2694, 325)):
        ids, graph = read_matrix(shared / name)
        assert (graph.edges, graph.loops, len(ids)) == (edges, loops, loops)
    assert ids[0] == "400001"


def test_the_kernel_of_the_published_distances_is_the_published_adjacency(shared):
    ids, published = read_matrix(shared / "pems-bay" / "adj_mx_bay.pkl")
    edges, kind = read_edges(shared / "pems-bay" / "distances_bay_2017.csv", only_distances=True)
    rebuilt = graph_of_distances(edges, ids)
    assert kind == "distance"
    np.testing.assert_array_equal(rebuilt.senders, published.senders)
    np.testing.assert_array_equal(rebuilt.receivers, published.receivers)
    np.testing.assert_allclose(rebuilt.weights, published.weights, rtol=0, atol=1e-6)


def test_published_positions_with_and_without_a_header(shared):
    positions = read_positions(shared / "metr-la" / "graph_sensor_locations.csv")
    assert (len(positions), positions["773869"]) == (207, (34.15497, -118.31829))
    positions = read_positions(shared / "pems-bay" / "graph_sensor_locations_bay.csv")
    assert (len(positions), positions["400001"]) == (325, (37.364085, -121.901149))


def test_weights_stay_and_every_sensor_hears_itself():
    edges = [Edge(2, "a", "b", 3.0), Edge(3, "b", "b", 0.5), Edge(4, "b", "c", 0), Edge(5, "x", "a", 1.0)]
    graph = graph_of_weights(edges, IDS)
    np.testing.assert_array_equal(dense(graph), [[1, 3, 0], [0, 0.5, 0], [0, 0, 1]])
    assert graph.edges == 4  # a weight of 0 is no edge


def test_distances_go_through_a_kernel_as_wide_as_their_deviation():
    edges = [Edge(1, "a", "b", 9.0), Edge(1, "a", "b", 1.0), Edge(2, "b", "c", 3.0), Edge(3, "x", "a", 50.0)]
    # the last distance from a to b counts, that from x does not: 1 and 3 have standard deviation 1
    np.testing.assert_allclose(
        dense(graph_of_distances(edges, IDS)), [[1, np.exp(-1), 0], [0, 1, 0], [0, 0, 1]]
    )


@pytest.mark.parametrize(
    ("header", "kind", "edge"),
    [
        ("from,to,weight", "weight", ("1", "2", 3)),
        ("From,To,Distance", "distance", ("1", "2", 3)),
        ("weight,target,source", "weight", ("3", "2", 1)),
        ("from,to,cost", "distance", ("1", "2", 3)),
        ("from,to,w,distance", "weight", ("1", "2", 3)),
    ],
)
def test_columns_of_edges_are_found_by_name(tmp_path, header, kind, edge):
    row = "1,2,3,4"[: 2 * header.count(",") + 1]
    edges, found = read_edges(written(tmp_path / "edges.csv", f"{header}\n{row}\n"))
    assert (found, edges) == (kind, [Edge(2, *edge)])


def test_a_list_of_distances_prefers_distances_to_weights(tmp_path):
    file = written(tmp_path / "distances.csv", "from,to,weight,distance\na,b,0.5,70\n")
    assert read_edges(file, only_distances=True) == ([Edge(2, "a", "b", 70)], "distance")


BAD_EDGES = {
    "negative weight": (
        "from,to,weight\na,b,-1\n",
        "line 2, column 'weight': '-1' is not between 0 and 1e+12",
    ),
    "negative distance": (
        "from,to,distance\na,b,1\na,c,-5\n",
        "line 3, column 'distance': '-5' is not between 0",
    ),
    "no number": ("from,to,weight\na,b,nan\n", "line 2, column 'weight': 'nan' is not between"),
    "infinite": ("from,to,weight\na,b,inf\n", "line 2, column 'weight': 'inf' is not between"),
    "text": ("from,to,weight\n\na,b,1_0\n", "line 3, column 'weight': '1_0' is not a number"),
    "short": ("from,to,weight\na,b\n", "line 2: 2 fields, but the first line has 3"),
    "no header": ("a,b,1\n", "line 1: the columns from, to and weight or distance are needed"),
    "no value": ("from,to\na,b\n", "line 1: the columns from, to and weight or distance are needed"),
    "only a header": ("from,to,weight\n", "there are no lines below the header"),
    "nothing": ("\n\n", "the file is empty"),
    "binary": (b"\xff\xfe\x00", "not text in UTF-8"),
    "a field without end": ("from,to,weight\n" + "x" * 200_000, "line 2: cannot be parsed as csv"),
}


@pytest.mark.parametrize(("content", "sentence"), BAD_EDGES.values(), ids=BAD_EDGES.keys())
def test_bad_edges_are_told_in_a_sentence(tmp_path, content, sentence):
    with pytest.raises(DataError) as caught:
        read_edges(written(tmp_path / "edges.csv", content))
    assert str(caught.value).startswith(f"{tmp_path / 'edges.csv'}")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "id,latitude,longitude\n007,1,2\n",
        "\ufeffsensor_id,lat,lng\n007,1,2\n",
        "name,Longitude,Latitude,id\nNorth,2,1,007\n",
        "index,sensor_id,latitude,longitude\n0,007,1,2\n",
        "007,1,2\n",
        " 007 , 1 , 2 \r\n,,\r\n",
    ],
)
def test_positions_are_found_by_name_or_order(tmp_path, content):
    assert read_positions(written(tmp_path / "sensors.csv", content)) == {"007": (1, 2)}


BAD_SENSORS = {
    "beyond the pole": ("id,lat,lon\na,91,0\n", "line 2, column 'latitude': '91' is not between -90 and 90"),
    "swapped": (
        "id,lat,lon\na,-118.2,34.1\n",
        "'-118.2' is not between -90 and 90: are latitude and longitude swap",
    ),
    "beyond the date line": (
        "id,lat,lon\na,1,181\n",
        "line 2, column 'longitude': '181' is not between -180 and 180",
    ),
    "no latitude": ("id,lat,lon\na,,0\n", "line 2, column 'latitude': '' is not a number like 12.5"),
    "twice": ("id,lat,lon\na,1,0\na,1,0\n", "line 3: sensor 'a' occurs twice"),
    "no columns": ("id,x,y\na,1,0\n", "line 1: the columns id, latitude and longitude are needed"),
    "only a header": ("id,lat,lon\n", "there are no lines below the header"),
    "nothing": ("", "the file is empty"),
}


@pytest.mark.parametrize(("content", "sentence"), BAD_SENSORS.values(), ids=BAD_SENSORS.keys())
def test_bad_sensors_are_told_in_a_sentence(tmp_path, content, sentence):
    with pytest.raises(DataError) as caught:
        read_positions(written(tmp_path / "sensors.csv", content))
    assert sentence in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DataError, match=r"edges\.csv: cannot be opened"):
        read_edges(tmp_path / "edges.csv")


VALID = [pickle.dumps(CONTENT, protocol) for protocol in (0, 2, 5)] + [python_2_pickle(W)]


@FUZZ
@given(data=st.data())
def test_any_pickle_gives_a_graph_or_a_data_error(tmp_path_factory, data):
    content = bytearray(data.draw(st.sampled_from(VALID) | st.binary(min_size=1, max_size=60)))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file = written(tmp_path_factory.getbasetemp() / "fuzz.pkl", bytes(content))
    sentence = ""
    try:
        assert isinstance(read_matrix(file)[1], Graph)
    except DataError as error:
        sentence = str(error)
    assert "\n" not in sentence


@FUZZ
@given(
    header=st.sampled_from(["", "from,to,weight\n", "from,to,distance\n", "id,lat,lon\n"]),
    rows=st.lists(
        st.sampled_from(["a,b,1", "b,c,2", "a,a,0", "c,a,1e12", "b,a,1e-320"]) | st.text(max_size=9)
    ),
    junk=st.binary(max_size=5),
)
def test_any_text_gives_edges_and_positions_or_a_data_error(tmp_path_factory, header, rows, junk):
    text = (header + "\n".join(rows)).encode("utf-8", "surrogatepass") + junk
    file = written(tmp_path_factory.getbasetemp() / "fuzz-edges.csv", text)
    for read in (read_positions, read_edges, lambda path: read_edges(path, only_distances=True)):
        found, sentence = None, ""
        try:
            found = read(file)
        except DataError as error:
            sentence = str(error)
        assert "\n" not in sentence
        if isinstance(found, tuple):
            assert graph_of_distances(found[0], IDS).loops == graph_of_weights(found[0], IDS).loops == 3
