"""How the time and memory of a round grow with nodes, edges and windows.

With `--shapes`, one round of each method at each shape, NODESxSTEPSxEDGES, with the method's own model:
seconds of the second round, phase by phase, peak memory of the device and of the process, and bytes that a
node sends and receives. `--minibatches` cuts the epochs of long series short and scales their seconds up;
`--profile` lists the kernels or operations that took longest, and sums them up by kind, phase by phase.

    python benchmarks/scale.py --device cuda --precision bf16 \\
        --shapes 1000x288x7000 10000x288x70000 100000x288x700000
    python benchmarks/scale.py --device cuda --precision bf16 --minibatches 8 \\
        --shapes 8600x35040x201363 --methods at-fedavg cnfgnn-plus

Without it, in each of three sweeps, one number grows and the others are fixed (in the sweep over nodes, the
degree is fixed). Every point is the second of two rounds in a process of its own, in processor seconds on one
thread (on CUDA, in wall-clock seconds), so that other work on the machine matters little. Memory is the peak
of the process minus what it had after a round of a tiny network, which leaves out Python, torch and their
threads. The model is small (hidden size 16), so that 20,000 nodes with weights and optimisers fit into a few
GiB.

    python benchmarks/scale.py --json
    python benchmarks/scale.py --sweep nodes --nodes 200 2000 20000

The last line of each table compares the cost per unit at the largest size with that at the smallest: 1 is
linear growth, and less than 1 means that fixed costs are spread over more units.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.messages.randomness import Batches, Draw, Minibatches
from cnfgnn.algorithm.methods import preset
from cnfgnn.algorithm.server import Alternating, Server
from cnfgnn.errors import CnfgnnError
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.simulation import simulate
from machine import GIB, clock, forget_peak, peak_bytes
from round import split_learning
from shapes import LENGTH, OneSentence, random_network

SWEEPS = ("nodes", "edges", "windows")
MODEL = {"model.hidden": 16, "model.embedding": 16, "model.gn_widths": [32, 32]}
BATCH = {"training.client_batch": 8, "training.server_batch": 8}


def point(nodes: int, edges: int, windows: int, device: str, method: str) -> dict[str, float]:
    """Seconds of a round with validation, and its peak memory in bytes."""
    changes: dict[str, Any] = {**MODEL, **BATCH, "compute.device": device, "training.rounds": 1}
    if method == "gru-fmtl":
        changes["model.embedding"] = 0
    config = preset(method).with_changes(changes)
    place = Compute.of(config.compute).device

    def now() -> float:
        return time.process_time() if place.type == "cpu" else clock(place)

    def measured(nodes: int, edges: int) -> float:
        experiment = simulate(random_network(nodes, windows + LENGTH - 1, edges), config)
        for r_g in (1, 2):
            begun = now()
            experiment.strategy.round(r_g)
            experiment.strategy.score("validation")
        return now() - begun

    measured(4, 8)
    before = peak_bytes(place)
    forget_peak(place)
    seconds = measured(nodes, edges)
    took = peak_bytes(place) - (before if place.type == "cpu" else 0)
    return {"nodes": nodes, "edges": edges, "windows": windows, "seconds": seconds, "bytes": took}


def points(sweep: str, options: argparse.Namespace) -> list[tuple[int, int, int]]:
    """The nodes, edges and windows of each point."""
    if sweep == "nodes":
        return [(n, options.degree * n, options.fixed_windows) for n in options.nodes]
    if sweep == "edges":
        return [(options.fixed_nodes, e, options.fixed_windows) for e in options.edges]
    return [(options.fixed_nodes, options.degree * options.fixed_nodes, w) for w in options.windows]


def swept(sweep: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure every point of a sweep in a process of its own and print them as a table."""
    print(f"\n| {sweep} | seconds | GiB | us per {sweep[:-1]} | KiB per {sweep[:-1]} |")
    print("|---|---|---|---|---|", flush=True)
    rows = []
    for shape in points(sweep, options):
        command = [sys.executable, __file__, "--point", *map(str, shape)]
        command += ["--device", options.device, "--method", options.method, "--threads", str(options.threads)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(done.returncode)  # it has printed the reason
        row = json.loads(done.stdout.splitlines()[-1])
        row["seconds_each"], row["bytes_each"] = row["seconds"] / row[sweep], row["bytes"] / row[sweep]
        rows.append(row)
        cells = [f"{row[sweep]:,}", f"{row['seconds']:.2f}", f"{row['bytes'] / GIB:.3f}"]
        cells += [f"{row['seconds_each'] * 1e6:.1f}", f"{row['bytes_each'] / 1024:.1f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    ratios = {name: rows[-1][f"{name}_each"] / rows[0][f"{name}_each"] for name in ("seconds", "bytes")}
    print(f"| largest / smallest | | | {ratios['seconds']:.2f} | {ratios['bytes']:.2f} |", flush=True)
    return {"points": rows, "ratio": ratios}


# ---- whole rounds at given shapes -----------------------------------------------------------------------


def shape(text: str) -> tuple[int, int, int]:
    """NODESxSTEPSxEDGES."""
    try:
        nodes, steps, edges = (int(number) for number in text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NODESxSTEPSxEDGES, like 1000x288x7000") from None
    return nodes, steps, edges


def cut_short(minibatches: int) -> None:
    """End every training epoch after so many minibatches; round 0 means all windows and is not cut."""
    whole_epoch, all_of_them = Batches.epoch, Batches.some

    def epoch(self: Batches, r_g: int, epoch: int) -> Iterator[Draw]:
        return islice(whole_epoch(self, r_g, epoch), None if r_g == 0 else minibatches)

    def some(self: Batches, epochs: int, chosen: Minibatches | None) -> tuple[int, int]:
        first, until = all_of_them(self, epochs, chosen)
        return first, min(until, first + minibatches)

    Batches.epoch, Batches.some = epoch, some  # type: ignore[method-assign]


def in_phases(strategy: Server, r_g: int) -> Iterator[str]:
    """A round with validation; yields the name of each phase when it is done."""
    if isinstance(strategy, Alternating):
        strategy.update(r_g)
        yield "(1) update"
        if strategy.gn is not None:
            encoded = strategy.encode()
            yield "(2) encode"
            split_learning(strategy, encoded, r_g)
            yield "(3) split"
            strategy.embed(encoded)
            yield "(4) embed"
    else:
        strategy.round(r_g)
        yield "(3) split"
    strategy.score("validation")
    yield "validate"


def phases(strategy: Server, r_g: int, device: torch.device) -> dict[str, float]:
    """Seconds of each phase of a round."""
    seconds, begun = {}, clock(device)
    for name in in_phases(strategy, r_g):
        strategy.nodes.flush()
        done = clock(device)
        seconds[name], begun = done - begun, done
    return seconds


def as_if_whole(strategy: Server, seconds: dict[str, float], cut: int | None) -> dict[str, float]:
    """The same where epochs were cut short, as if they had not been."""
    if cut is None:
        return seconds
    of_nodes, of_server = len(strategy.client_batches), len(strategy.batches)
    scale = {"(3) split": of_server / min(cut, of_server)}
    if isinstance(strategy, Alternating):
        taken = strategy.client_rounds * of_nodes
        scale["(1) update"] = taken / min(cut, taken)
    return {name: value * scale.get(name, 1) for name, value in seconds.items()}


def one_shape(options: argparse.Namespace) -> dict[str, Any]:
    """Measure one method at one shape: the second of two rounds."""
    (nodes, steps, edges), (method,) = options.shapes[0], options.methods
    if options.minibatches is not None:
        cut_short(options.minibatches)
    changes = {"compute.device": options.device, "compute.precision": options.precision}
    config = preset(method).with_changes({**changes, "compute.memory": options.memory})
    place = Compute.of(config.compute).device
    begun = clock(place)
    experiment = simulate(random_network(nodes, steps, edges), config)
    strategy, ready = experiment.strategy, clock(place) - begun
    assert isinstance(strategy, Server)
    forget_peak(place)
    if isinstance(strategy, Alternating):
        strategy.inform()
    phases(strategy, 1, place)
    before = experiment.ledger.total("training").per_node
    measured = phases(strategy, 2, place)
    seconds = as_if_whole(strategy, measured, options.minibatches)
    clients = experiment.owners[0][1].nodes
    bytes_per_node = (experiment.ledger.total("training").per_node - before) // nodes
    memory = {"device_gib": peak_bytes(place) / GIB, "host_gib": peak_bytes(torch.device("cpu")) / GIB}
    if options.profile:
        print(profiled(strategy, 3, place, measured), file=sys.stderr)
    return {
        "method": method,
        "nodes": nodes,
        "steps": steps,
        "edges": edges,
        "kept": experiment.memory_plan.state_format,
        "groups": len(clients.groups),
        "home": clients.home.type,
        "setup": ready,
        "seconds": seconds,
        "round": sum(seconds.values()),
        **memory,
        "bytes_per_node": bytes_per_node,
    }


KINDS = {
    "encoder and decoder": ("encode_", "decode_"),
    "matrix products": ("nvjet", "cutlass", "splitK", "gemm", "gemv", "::mm", "::bmm", "::addmm"),
    "gathering, summing, backward of ReLU": ("first_layer", "segment_sum", "undo_"),
    "Adam": ("_adam",),
}
REST, IDLE = "copies, concatenations, sums, the loss", "nothing to do, between kernels"


def profiled(strategy: Server, r_g: int, device: torch.device, seconds: dict[str, float]) -> str:
    """Milliseconds of kernels (on a CPU, operations) by kind and phase, as a table; what took longest is
    listed on stderr. `seconds` are those of a round without the profiler, which slows down what it watches.
    """
    on_gpu, activity = device.type == "cuda", torch.profiler.ProfilerActivity
    by = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    found, phase = {}, in_phases(strategy, r_g)
    for took in seconds.values():
        with torch.profiler.profile(activities=[activity.CUDA if on_gpu else activity.CPU]) as profile:
            name = next(phase)
            strategy.nodes.flush()
            clock(device)
        averages = profile.key_averages()
        longest = averages.table(sort_by=by, row_limit=25, max_name_column_width=70)
        print(f"{name}\n{longest}", file=sys.stderr)
        of_kinds = found[name] = dict.fromkeys([*KINDS, REST], 0.0)
        for event in averages:
            kinds = (kind for kind, parts in KINDS.items() if any(part in event.key for part in parts))
            of_kinds[next(kinds, REST)] += (
                event.self_device_time_total if on_gpu else event.self_cpu_time_total
            ) / 1e3
        of_kinds |= {IDLE: 1e3 * took - sum(of_kinds.values()), "all": 1e3 * took}
    lines = ["| ms | " + " | ".join([*found, "round"]) + " |", "|---" * (len(found) + 2) + "|"]
    for kind in [*KINDS, REST, IDLE, "all"]:
        row = [of_kinds[kind] for of_kinds in found.values()]
        lines.append(f"| {kind} | " + " | ".join(f"{ms:.0f}" for ms in [*row, sum(row)]) + " |")
    return "\n".join(lines)


PHASES = ("(1) update", "(2) encode", "(3) split", "(4) embed", "validate")


def whole_rounds(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every method at every shape in a process of its own and print them as a table."""
    columns = ["method", "nodes", "steps", "edges", "states", "groups", "set-up", *PHASES, "round"]
    columns += ["us per node", "device GiB", "host GiB", "bytes per node"]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns), flush=True)
    rows = []
    for method in options.methods:
        for size in options.shapes:
            command = [sys.executable, __file__, "--one", "--shapes", "x".join(map(str, size))]
            command += ["--methods", method, "--device", options.device, "--precision", options.precision]
            command += ["--memory", str(options.memory), "--threads", str(options.threads)]
            command += ["--profile"] * options.profile
            if options.minibatches is not None:
                command += ["--minibatches", str(options.minibatches)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if done.returncode != 0:
                print(f"| {method} | " + " | ".join(f"{n:,}" for n in size) + " | failed |", flush=True)
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            rows.append(row)
            cells = [method, *(f"{n:,}" for n in size), row["kept"], f"{row['groups']} ({row['home']})"]
            cells += [f"{row['setup']:.1f}", *(f"{row['seconds'].get(name, 0):.2f}" for name in PHASES)]
            cells += [f"{row['round']:.2f}", f"{row['round'] / row['nodes'] * 1e6:.0f}"]
            cells += [f"{row['device_gib']:.1f}", f"{row['host_gib']:.1f}", f"{row['bytes_per_node']:,}"]
            print("| " + " | ".join(cells) + " |", flush=True)
    return rows


def main() -> None:
    keep_freed_memory()
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", nargs="+", choices=SWEEPS, default=SWEEPS)
    parser.add_argument("--nodes", type=int, nargs="+", default=[200, 2_000, 20_000])
    parser.add_argument("--edges", type=int, nargs="+", default=[20_000, 40_000, 80_000, 160_000])
    parser.add_argument("--windows", type=int, nargs="+", default=[200, 800, 3_200])
    parser.add_argument("--degree", type=int, default=8, help="edges per node")
    parser.add_argument(
        "--fixed-nodes", type=int, default=500, help="nodes in the sweeps over edges and windows"
    )
    parser.add_argument(
        "--fixed-windows", type=int, default=96, help="windows in the sweeps over nodes and edges"
    )
    parser.add_argument("--method", default="at-fedavg", choices=["at-fedavg", "at", "gru-fmtl"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shapes", type=shape, nargs="+", metavar="NODESxSTEPSxEDGES", help="whole rounds")
    parser.add_argument("--methods", nargs="+", default=["at-fedavg"], help="of whole rounds")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--memory", type=float, default=0.0, help="compute.memory, GiB")
    parser.add_argument("--minibatches", type=int, help="in each epoch of whole rounds (default: all)")
    parser.add_argument("--profile", action="store_true", help="list what takes longest, on stderr")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--point", type=int, nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args()
    try:
        if options.point:
            torch.set_num_threads(options.threads)
            print(json.dumps(point(*options.point, options.device, options.method)))
            return
        if options.one:
            torch.set_num_threads(options.threads)
            print(json.dumps(one_shape(options)))
            return
        results: object
        if options.shapes:
            results = whole_rounds(options)
        else:
            results = {sweep: swept(sweep, options) for sweep in options.sweep}
    except CnfgnnError as problem:
        parser.error(str(problem))
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
