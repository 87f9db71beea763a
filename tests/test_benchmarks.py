"""Benchmarks run, count operations correctly, and compare with a version that computes the same."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.naive import NaiveNode, NaiveRound
from benchmarks.operations import PHASES, Shape, decoder, encoder, least_bytes, network, operations
from benchmarks.shapes import cut, random_network
from benchmarks.site_costs import memory_of, processes_of
from torch.utils.flop_counter import FlopCounterMode

import cnfgnn
from cnfgnn.algorithm.compute.device import multiplies_bf16
from cnfgnn.algorithm.forecaster import DOUBT
from cnfgnn.algorithm.server import Alternating
from cnfgnn.data.batch import Batch
from cnfgnn.errors import ConfigError
from cnfgnn.models.graphnet import Edges, GraphNetwork
from cnfgnn.models.gru import NodeModel
from cnfgnn.runs.simulation import simulate
from tests.conftest import small

BENCHMARKS, STUDIES = (Path(__file__).parents[1] / name for name in ("benchmarks", "studies"))
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(Path(cnfgnn.__file__).parents[1]),
}
METR_LA = Shape(nodes=207, edges=1722, windows=23_974, validated=3_425)


def ran(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    folder = next(folder for folder in (BENCHMARKS, STUDIES) if (folder / name).exists())
    command = [sys.executable, str(folder / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)


@pytest.mark.chaos
def test_a_round_is_measured_part_by_part() -> None:
    tiny = ["--shape", 3, 230, 5, "--device", "cpu", "--rounds", 1, "--minibatches", 1]
    rounds = ["--server-rounds", 2, "--split-epochs", 1]
    done = ran("round.py", *tiny, *rounds, "--precision", "fp32", "bf16", "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert (results["sensors"], results["steps"], results["edges"]) == (3, 230, 5)
    naive = results["naive"]
    assert set(results["precisions"]) == {"fp32", *(["bf16"] if multiplies_bf16() else [])}
    assert ("bf16 is left out" in done.stdout) != multiplies_bf16()
    for precision in results["precisions"]:
        one = results["precisions"][precision]
        for parts in (one["seconds"], one["tflop"], one["least_bytes"], one["floor_seconds"], naive):
            assert set(parts) == {*PHASES, "round"}
            assert all(value > 0 for value in parts.values())
            assert sum(parts[phase] for phase in PHASES) == pytest.approx(parts["round"])
        for phase, seconds in one["seconds"].items():
            assert one["tflops"][phase] == pytest.approx(one["tflop"][phase] / seconds)
            assert one["share_of_gemm"][phase] == pytest.approx(one["tflops"][phase] / one["gemm_tflops"])
            assert one["over_floor"][phase] == pytest.approx(seconds / one["floor_seconds"][phase])
            assert results["ratios"][precision][phase] == pytest.approx(naive[phase] / seconds)
        assert one["windows"]["train"] == 145
        states, weights = 3 * 145 * 64 * 4, 2 * 3 * 63_873 * 4
        assert one["ledger_bytes"]["per_node"] == weights + (1 + 2 * 2 + 1) * states
        assert one["peak_gib"] > 0
    assert results["ratio"] == max(ratios["round"] for ratios in results["ratios"].values())


@pytest.mark.slow
def test_the_kinds_of_operations_make_up_each_phase() -> None:
    done = ran("round_kernels.py", "--shape", 3, 230, 5)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    assert tuple(rows[0][1:-2]) == PHASES
    seconds = {row[0]: [float(cell) for cell in row[1:-1]] for row in rows[2:]}
    assert all(value > 0 for value in seconds["large products"][2:])
    assert seconds["sigmoid and tanh"][0] > 0 == seconds["sigmoid and tanh"][4]  # embed has no gates
    whole = seconds.pop("all")[-1]
    assert (
        sum(row[-1] for row in seconds.values()) >= 0.95 * whole
    )  # of another round; "the rest" is not negative


def test_a_product_with_bias_and_relu_is_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    kind = importlib.import_module("round_kernels").kind
    x, weight = torch.ones(48, 256), torch.ones(256, 256)
    assert kind("_linear_pointwise", (x, weight, torch.ones(256), "relu", [], "")) == "large products"
    assert kind("mm", (x, weight[:, :2])) == "narrow products"
    assert kind("relu_", (x,)) == "other elementwise"


@pytest.mark.slow
def test_the_gates_are_compared_with_compiled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "CXX", "no-compiler")  # torch.compile would take a minute
    done = ran("gates.py", "--sizes", 2, 8, 16, "--times", 3, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    left_out = {name for name in ("torch.compile", "numba") if f"{name} is left out" in done.stdout}
    assert "torch.compile" in left_out
    assert {*found, *left_out} == {"PyTorch", "torch.compile", "numba"}
    for name, row in found.items():
        assert row["difference"] < 1e-5
        assert row["forward_ms"] > 0 < row["backward_ms"]
        assert (row["installed_mib"] > 0) == (name == "numba")


@pytest.mark.slow
def test_two_ways_of_waiting_are_compared_alone_and_beside_a_busy_program() -> None:
    done = ran("busy.py", "--seconds", 1, "--sensors", 4)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["PyTorch's", "ours"]
    assert all(float(cell) > 0 for row in rows for cell in row[1:])


@pytest.mark.slow
def test_products_are_compared_with_a_large_one() -> None:
    done = ran("products.py", "--turns", 2, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    large = found["one large product"]
    assert large["ms"] * large["gflops"] == pytest.approx(2 * 2048**3 / 1e6)
    assert all(row["ms"] > 0 for row in found.values())
    assert {name for name, row in found.items() if not row["gflops"]} == {
        "step: sum of two gradients",
        "step: tanh",
        "step: tanh by sigmoid",
    }


@pytest.mark.chaos
def test_a_live_service_is_measured_alone_and_beside_requests() -> None:
    done = ran("live.py", "--shape", 5, 8, "--steps", 12, "--requests", 50, "--naive", 1, "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    for kind in ("alone", "beside", "requests", "naive"):
        assert 0 < results[kind]["median_ms"] <= results[kind]["p99_ms"] <= results[kind]["most_ms"]
    assert results["requests"]["failed"] == 0
    assert results["requests"]["per_second"] > 1
    assert len(results["memory_mib"]) == 3
    assert results["ratio"] == results["naive"]["median_ms"] / results["alone"]["median_ms"]


# ---- what is counted --------------------------------------------------------------------------------------


def test_a_round_of_metr_la_is_a_hundred_tera_operations() -> None:
    count = {phase: n / 1e12 for phase, n in operations(METR_LA).items()}
    assert count["(1) update"] == pytest.approx(22.4, abs=0.1)
    assert METR_LA.windows * 3 * network(METR_LA) / 1e12 == pytest.approx(65.0, abs=0.1)
    assert count["round"] == pytest.approx(sum(count[phase] for phase in PHASES))
    assert least_bytes(METR_LA)["(4) embed"] == 2 * 207 * 23_974 * 64 * 4


@pytest.mark.slow
def test_operations_are_those_that_torch_counts() -> None:
    """Small products, such as those of two inputs, may be done another way: a few per cent either side."""
    shape = Shape(nodes=7, edges=20, windows=5, validated=1, hidden=64, embedding=64, widths=(48, 40, 32))
    model = NodeModel(shape.hidden, 1, shape.embedding)
    theta = model.init(torch.Generator())
    x, y = torch.randn(shape.nodes, shape.windows, 12, 2), torch.randn(shape.nodes, shape.windows, 12)
    batch = Batch(x, y, torch.rand(shape.windows, 12))
    gn = GraphNetwork(shape.hidden, shape.embedding, shape.widths).double()  # no products torch cannot count
    data = random_network(shape.nodes, 30, shape.edges)
    edges = Edges.of(data.graph, torch.device("cpu"), torch.float64)
    sequences = shape.nodes * shape.windows
    with FlopCounterMode(display=False) as counted:
        h_c = model.encode(theta, batch)
    assert counted.get_total_flops() == pytest.approx(sequences * encoder(shape), rel=0.12)
    with FlopCounterMode(display=False) as counted:
        model.decode(theta, batch, h_c, torch.zeros(shape.nodes, shape.windows, shape.embedding))
    assert counted.get_total_flops() == pytest.approx(sequences * decoder(shape), rel=0.06)
    with FlopCounterMode(display=False) as counted:
        h_G = gn(h_c.double(), edges)
    composed = 2 * 48 * 32 * 40  # the first layer's columns with the last layer before them, once a minibatch
    in_place = shape.windows * shape.edges * 2 * 48 * 40  # addmm_, which torch does not count
    assert counted.get_total_flops() == shape.windows * network(shape) + composed - in_place
    with FlopCounterMode(display=False) as counted:
        h_G.sum().backward()  # without the gradient of h_c, which nobody asks for
    assert counted.get_total_flops() == pytest.approx(2 * shape.windows * network(shape), rel=0.05)


# ---- what it is held against ------------------------------------------------------------------------------


def test_the_naive_node_computes_what_ours_does() -> None:
    model = NodeModel(8, 1, 6)
    theta = model.init(torch.Generator().manual_seed(0))
    naive = NaiveNode(8, 6)
    weights = {
        name.replace(".0.", ".").replace("_ih", "_ih_l0").replace("_hh", "_hh_l0"): w[0]
        for name, w in theta.items()
    }
    naive.load_state_dict(weights)
    batch = Batch(torch.randn(1, 4, 12, 2), torch.randn(1, 4, 12), torch.rand(4, 12))
    h_G = torch.randn(1, 4, 6)
    h_c = model.encode(theta, batch)
    torch.testing.assert_close(naive.encode(batch.x[0]), h_c[0])
    torch.testing.assert_close(
        naive.decode(batch, 0, h_c[0], h_G[0]), model.decode(theta, batch, h_c, h_G)[0]
    )


def test_the_naive_round_has_every_phase() -> None:
    data = random_network(4, 120, 6)
    strategy = simulate(data, small("at-fedavg", **{"compute.precision": "fp32"}))
    assert isinstance(strategy.strategy, Alternating)
    pieces = NaiveRound(strategy.strategy, strategy.owners[0][1].nodes).pieces()
    assert tuple(pieces) == PHASES
    windows = strategy.windows.count("train")
    assert [count for _, count in pieces.values()] == pytest.approx(
        [2 * windows / 32, 1, windows / 32, 2 * windows / 24, windows / 24, 1]
    )
    for work, _ in pieces.values():
        work()


@pytest.mark.chaos
def test_the_benchmark_of_warm_starts_compares_three_models_on_the_same_days(tmp_path: Path) -> None:
    file = tmp_path / "city.npz"  # for a machine that cannot read other formats
    written = ran("warm.py", "--sensors", 3, "--days", 4, "--write-npz", file)
    assert written.returncode == 0, written.stderr
    found = ran("warm.py", file, "--first", 2, "--every", 1, "--set", "training.rounds=3")
    assert found.returncode == 0, found.stderr
    rows = [json.loads(line) for line in found.stdout.splitlines()[1:]]
    assert [row["kind"] for row in rows] == ["cold", "cold", "not trained again", "warm"]
    assert [row.get("rounds") for row in rows] == [3, 3, None, 1]
    assert rows[3]["megabytes_per_node"] < rows[1]["megabytes_per_node"]
    assert all(row["rmse"] > 0 for row in rows)


def test_a_random_network_has_the_shape_asked_for() -> None:
    for sensors, edges in ((5, 25), (5, 20), (300, 2400), (1, 0)):
        data = random_network(sensors, 40, edges)
        assert (data.graph.nodes, data.graph.edges, len(data.readings.times)) == (sensors, edges, 40)
    assert len(cut(data, 3).readings.times) == 26
    with pytest.raises(ConfigError, match="--windows"):
        cut(data, 18)


@pytest.mark.slow
def test_embeddings_are_compared_by_age() -> None:
    done = ran("embedding_age.py", "--sensors", 3, "--days", 1.5, "--rounds", 1, "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert {"0", "1", "24", "none"} <= set(results)
    assert len({results["0"], results["24"], results["none"]}) == 3


@pytest.mark.chaos
def test_whole_rounds_are_measured_at_given_shapes() -> None:
    shapes = ["--shapes", "6x60x12", "--minibatches", 1, "--methods", "at-fedavg", "cnfgnn-plus"]
    done = ran("scale.py", *shapes, "--json")
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.splitlines()
    assert [row.split(" | ")[:4] for row in table[2:]] == [
        ["| at-fedavg", "6", "60", "12"],
        ["| cnfgnn-plus", "6", "60", "12"],
    ]
    for measured, phases in zip(json.loads(last), (5, 2), strict=True):
        assert len(measured["seconds"]) == phases
        assert measured["round"] == pytest.approx(sum(measured["seconds"].values()))
        assert measured["bytes_per_node"] > 0
    refused = ran("scale.py", "--shapes", "6x60").stderr
    assert refused.endswith("'6x60' is not NODESxSTEPSxEDGES, like 1000x288x7000\n")


@pytest.mark.chaos
def test_many_sites_are_measured_at_work_with_answers_ready_and_with_one_that_is_stuck() -> None:
    options = ["--sites", 3, "--latency", 5, "--steps", 150, "--minibatches", 2, "--hosts", 1]
    done = ran("many_sites.py", *options, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"backward", "step+encode", "step+weights", "prepare+inform+load"} <= set(found["at work"])
    assert set(found["at work"]) | {"hello"} <= set(found["ready"])
    assert all(row["ms"] >= row["slowest"] for row in found["at work"].values())
    assert all(row["processor_ms_a_site"] > 0 for row in found["ready"].values())
    assert found["stuck"]["next"] < found["stuck"]["given_up_after"] <= found["stuck"]["first"] + 1


def test_the_processes_of_a_kit_are_found_below_the_recorded_one(tmp_path: Path) -> None:
    kits = {name: tmp_path / name for name in ("site-1", "site-10")}
    for kit in kits.values():
        kit.mkdir()
    supervisor = "import os; os.fork() or os.fork(); os.write(1, b'%d\\n' % os.getpid()); os.read(0, 1)"
    command = [sys.executable, "-c", supervisor, str(kits["site-10"])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pids = {int(process.stdout.readline()) for _ in range(3)}
        (kits["site-1"] / "process.json").write_text(json.dumps({"pid": process.pid}))
        found = processes_of(kits)
        memory = memory_of(sorted(pids), in_detail=True)
        process.stdin.close()
    assert process.pid in pids
    assert found == {"site-1": pids, "site-10": set()}  # a command of ours that names a kit is not the kit's
    assert memory.processes == len(pids)
    assert 0 < memory.pss <= memory.by_itself <= memory.rss


@pytest.mark.chaos
def test_the_costs_of_a_site_are_measured_with_real_processes(tmp_path: Path) -> None:
    written = tmp_path / "costs.json"
    done = ran("site_costs.py", "--sites", 2, "--quick", "--json", written)
    assert done.returncode == 0, done.stderr
    found = json.loads(written.read_text())
    one, many = found["one"], found["many"]
    for begins in (one["train"], one["forecast"], many["train"]):
        assert 0 < begins["begun"] <= begins["answered"] <= begins["exchanged"]
    assert many["train"]["exchanged"] < many["round_1"]
    assert many["connected"] > 0
    small, large = one["exchange"]["small"], one["exchange"]["large"]
    assert large["kib"] > 10 * small["kib"] > 0
    assert all(0 < row["on_the_way_ms"] <= row["ms"] for row in (small, large))
    idle, training = one["idle"]["sites"], one["training"]["sites"]
    assert 0 < idle["pss"] < training["pss"] < training["rss"]
    assert training["by_itself"] < training["rss"]
    assert many["training"]["sites"]["pss"] > training["pss"]
    assert many["training"]["sites"]["processes"] > training["processes"] > 1
    for silence in (one["silence"]["train"], one["silence"]["forecast"], many["silence"]["train"]):
        assert silence["longest"] == silence["long"][0]["seconds"] > 0
    assert done.stdout.splitlines()[-1].startswith("| load of the machine | ")


@pytest.mark.chaos
def test_the_commands_of_many_sensors_are_measured_one_by_one() -> None:
    done = ran("many_sensors.py", "--sensors", 12, "--days", 1, "--threads", 1, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    names = [row["command"].split(",")[0] for row in rows]
    assert names[:4] == ["data synthesize", "data describe", "data describe", "train"]
    assert names[4:] == ["evaluate", "forecast", "forecast --intervals 80", "report", "live", "live"]
    assert all(row["seconds"] > 0 and row["peak_gib"] > 0.05 for row in rows)
    assert 1 < next(row["megabytes"] for row in rows if row["command"] == "report") < 5


@pytest.mark.chaos
def test_the_default_is_compared_with_simple_forecasts_on_data_of_a_kind(tmp_path: Path) -> None:
    """One sensor, five hours of minutes: the least that the default is meant for. 229 of its 300 windows are
    from before the test split."""
    done = ran("kinds.py", "--only", "one-sensor", "--doubts", DOUBT, 1e9, "--records", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("| one sensor | 1 | 229 | 1 min |")
    row = json.loads((tmp_path / "one-sensor.json").read_text())
    assert row["ratio"] == pytest.approx(row["error"] / min(row["simple"].values()))
    assert row["ratio"] < 1
    as_shipped, without_network = row["doubts"].values()
    assert as_shipped == pytest.approx(row["error"], rel=1e-6)
    assert without_network == pytest.approx(row["linear"], rel=1e-6)
    assert as_shipped != pytest.approx(without_network, rel=1e-6)
