"""One round of at-fedavg with validation, phase by phase, beside a naive version of the whole round.

For each precision it reports seconds, operations and their rate, the share of the rate of one large matrix
product in the same run, the least bytes that must pass through memory, the floor that follows (the larger of
operations / product rate and bytes / copy bandwidth), bytes sent between server and nodes, and peak memory.
operations.py says how these are counted.

The naive version (naive.py: a loop over nodes with torch.nn.GRU) runs a few minibatches of each phase, or as
many windows, and each phase is scaled up to its full number; averaging runs in full. With `--split-epochs`,
our own version, too, runs fewer epochs of phase (3) than R_s and is scaled up.

    python benchmarks/round.py data.h5                          # METR-LA, PEMS-BAY or your own data
    python benchmarks/round.py --shape 207 34272 1722 --precision fp32 tf32 bf16 --json
    python benchmarks/round.py --shape 325 52116 2694 --server-rounds 20 --split-epochs 1
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch

from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.hidden_states import Encodings
from cnfgnn.algorithm.methods import preset
from cnfgnn.algorithm.server import Alternating
from cnfgnn.config.settings import ComputeConfig, Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.windows import SPLITS
from cnfgnn.errors import CnfgnnError
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.simulation import simulate
from machine import GIB, Seconds, clock, copy_bandwidth, forget_peak, gemm_rate, peak_bytes, without_missing
from naive import NaiveRound
from operations import PHASES, Shape, least_bytes, operations
from shapes import OneSentence, add_arguments, chosen

PRECISIONS = ("fp32", "tf32", "bf16")


def strategy_of(experiment: Experiment) -> Alternating:
    assert isinstance(experiment.strategy, Alternating)
    return experiment.strategy


def steps(experiment: Experiment, r_g: int, split_epochs: int) -> Iterator[str]:
    """The steps of Alternating.round one after the other; the name of each phase comes when it is done."""
    s = strategy_of(experiment)
    assert s.gn is not None
    s.nodes.update(r_g, s.client_rounds, s.step)
    s.nodes.flush()
    s.step += s.client_rounds * len(s.client_batches)
    yield "(1) update"
    s.theta_bar = s.share(s.nodes)
    s.nodes.flush()
    yield "average"
    encoded = s.encode()
    yield "(2) encode"
    s.server_rounds = split_epochs
    split_learning(s, encoded, r_g)
    s.server_rounds = experiment.config.training.server_rounds
    yield "(3) split"
    s.embed(encoded)
    s.nodes.flush()
    yield "(4) embed"
    s.score("validation")
    yield "validate"


def split_learning(s: Alternating, encoded: Encodings, r_g: int) -> None:
    """Phase (3)."""
    assert s.gn is not None
    for draw, _ in s.server_batches(r_g):
        h_c, present = encoded[draw]
        h_G = s.gn(h_c, s.graph, present)
        s.gn.descend(s.nodes.backward(h_G, draw, s.step))


def phases(experiment: Experiment, r_g: int, split_epochs: int) -> dict[str, float]:
    """Seconds of each phase of a round."""
    s = strategy_of(experiment)
    device = s.graph.weights.device
    begun, seconds = clock(device), {}
    for phase in steps(experiment, r_g, split_epochs):
        done = clock(device)
        seconds[phase], begun = done - begun, done
    seconds["(3) split"] *= s.server_rounds / split_epochs
    return seconds | {"round": sum(seconds.values())}


def crossed(experiment: Experiment, before: list[list[Any]], scale: float) -> dict[str, int]:
    """Bytes that a round sent between server and nodes in training; `scale` makes up for omitted epochs."""
    known = {tuple(row[:3]): row[3:] for row in before}
    totals = [0.0, 0.0]
    for purpose, verb, direction, *amounts in experiment.ledger.state():
        if purpose != "training":
            continue
        old = known.get((purpose, verb, direction), [0, 0])
        for k in range(2):
            totals[k] += (int(amounts[k]) - old[k]) * (scale if verb == "backward" else 1)
    return {"per_node": round(totals[0]), "per_site": round(totals[1])}


def measured(data: Dataset, config: Config, options: argparse.Namespace, bandwidth: float) -> dict[str, Any]:
    """All measurements of the last of a few rounds in one precision."""
    compute = Compute.of(config.compute)
    gemm = gemm_rate(compute.device, config.compute.precision)
    gc.collect()
    forget_peak(compute.device)
    experiment = simulate(data, config)
    epochs = min(options.split_epochs or options.server_rounds, options.server_rounds)
    for r_g in range(1, options.rounds + 1):
        before = experiment.ledger.state()
        seconds = phases(experiment, r_g, epochs)
    shape = Shape.of(experiment, data.graph.nodes, data.graph.edges)
    work, moved = operations(shape), least_bytes(shape)
    floor = {name: max(work[name] / gemm, moved[name] / bandwidth) for name in PHASES}
    floor["round"] = sum(floor.values())
    return {
        "seconds": seconds,
        "tflop": {name: n / 1e12 for name, n in work.items()},
        "tflops": {name: work[name] / seconds[name] / 1e12 for name in work},
        "gemm_tflops": gemm / 1e12,
        "share_of_gemm": {name: work[name] / seconds[name] / gemm for name in work},
        "least_bytes": moved,
        "floor_seconds": floor,
        "over_floor": {name: seconds[name] / floor[name] for name in floor},
        "ledger_bytes": crossed(experiment, before, options.server_rounds / epochs),
        "peak_gib": peak_bytes(compute.device) / GIB,
        "windows": {split: experiment.windows.count(split) for split in SPLITS},
        "kept": experiment.memory_plan.state_format,
    }


def naive_seconds(data: Dataset, config: Config, times: int) -> dict[str, float]:
    """Seconds of each phase of the naive round, scaled up from a few pieces."""
    experiment = simulate(data, config)
    clients = experiment.owners[0][1].nodes
    seconds = {}
    for name, (piece, count) in NaiveRound(strategy_of(experiment), clients).pieces().items():
        piece()
        begun = clock(clients.compute.device)
        for _ in range(times):
            piece()
        seconds[name] = count * (clock(clients.compute.device) - begun) / times
    return seconds | {"round": sum(seconds.values())}


def table(result: dict[str, Any], naive: dict[str, float] | None) -> str:
    """A table with a row for each phase and one for the round."""
    rows = [
        "| | seconds | TFLOP | TFLOP/s | of a product | least GiB | floor s | over floor | naive s | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in (*PHASES, "round"):
        seconds = result["seconds"][name]
        beside = ["", ""] if naive is None else [f"{naive[name]:.3g}", f"{naive[name] / seconds:.1f}"]
        cells = [
            *(f"{seconds:.3f}", f"{result['tflop'][name]:.3g}", f"{result['tflops'][name]:.3g}"),
            *(f"{result['share_of_gemm'][name]:.1%}", f"{result['least_bytes'][name] / GIB:.3g}"),
            *(f"{result['floor_seconds'][name]:.3g}", f"{result['over_floor'][name]:.1f}", *beside),
        ]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def arguments() -> argparse.Namespace:
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=PRECISIONS)
    parser.add_argument("--rounds", type=int, default=2, help="rounds to run; the last one is reported")
    parser.add_argument("--client-rounds", type=int, default=1, help="R_c")
    parser.add_argument("--server-rounds", type=int, default=1, help="R_s")
    parser.add_argument(
        "--split-epochs", type=int, help="epochs of phase (3) to run, scaled up to R_s (default: all)"
    )
    parser.add_argument("--memory", type=float, default=0.0, help="compute.memory, GiB")
    parser.add_argument(
        "--minibatches", type=int, default=2, help="minibatches of the naive version; 0 skips it"
    )
    parser.add_argument(
        "--processor-time", action="store_true", help="seconds of the processor: for one thread of a busy CPU"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args()
    for name, least in (("rounds", 1), ("minibatches", 0), ("split_epochs", 1)):
        if (value := getattr(options, name)) is not None and value < least:
            parser.error(f"argument --{name.replace('_', '-')}: at least {least}, not {value}")
    return options


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print progress."""
    data = chosen(options)
    device = Compute.of(ComputeConfig(options.device)).device
    bandwidth = copy_bandwidth(device)
    name = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    )
    shape = {"sensors": data.graph.nodes, "edges": data.graph.edges, "steps": len(data.readings.times)}
    rounds = {"client_rounds": options.client_rounds, "server_rounds": options.server_rounds}
    machine = {"device": str(device), "name": name, "torch": torch.__version__}
    results: dict[str, Any] = {"data": data.name, **shape, **rounds, **machine}
    results |= {"copy_gib_s": bandwidth / GIB, "precisions": {}, "naive": None, "ratios": {}, "ratio": None}
    print(f"{data.name}: {shape}, {rounds}; {name}, copies {bandwidth / GIB:.1f} GiB/s", flush=True)

    def config(precision: str) -> Config:
        changes = {f"training.{key}": value for key, value in rounds.items()}
        changes |= {"compute.device": options.device, "compute.precision": precision}
        return preset("at-fedavg", like="metr-la").with_changes(changes | {"compute.memory": options.memory})

    for precision in without_missing(options.precision, device):
        result = results["precisions"][precision] = measured(data, config(precision), options, bandwidth)
        print(f"{precision}: {result['seconds']['round']:.2f} s a round", flush=True)
    if options.minibatches:
        naive = results["naive"] = naive_seconds(data, config("fp32"), options.minibatches)
        for precision, result in results["precisions"].items():
            ratios = {phase: naive[phase] / result["seconds"][phase] for phase in naive}
            results["ratios"][precision] = ratios
        results["ratio"] = max((ratios["round"] for ratios in results["ratios"].values()), default=None)
    return results


def main() -> None:
    keep_freed_memory()
    options = arguments()
    Seconds.of_processor = options.processor_time
    try:
        results = run(options)
    except CnfgnnError as problem:
        print(f"round.py: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
    for precision, result in results["precisions"].items():
        moved = result["ledger_bytes"]
        print(
            f"\n{precision}: one large product {result['gemm_tflops']:.3g} TFLOP/s;"
            f" peak {result['peak_gib']:.2f} GiB, hidden states {result['kept']};"
            f" crossed {moved['per_node'] / GIB:.3g} GiB per node, {moved['per_site'] / GIB:.3g} per site"
        )
        print(table(result, results["naive"]))
    if results["ratio"] is not None:
        print(
            f"\nnaive, fp32, scaled from {options.minibatches} pieces a phase: ratio {results['ratio']:.1f}"
        )
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
