"""How the time and memory of a round grow with nodes, edges and windows.

In each of three sweeps, one number grows and the others are fixed (in the sweep over nodes, the degree is
fixed). Every point is the second of two rounds in a process of its own, in processor seconds on one thread
(on CUDA, in wall-clock seconds), so that other work on the machine matters little. Memory is the peak of the
process minus what it had after a round of a tiny network, which leaves out Python, torch and their threads.
The model is small (hidden size 16), so that 20,000 nodes with weights and optimisers fit into a few GiB.

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
from typing import Any

import torch

from cnfgnn.algorithm.compute import Compute
from cnfgnn.algorithm.methods import preset
from cnfgnn.errors import CnfgnnError
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.simulation import simulate
from machine import GIB, clock, forget_peak, peak_bytes
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
    parser.add_argument("--point", type=int, nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args()
    try:
        if options.point:
            torch.set_num_threads(options.threads)
            print(json.dumps(point(*options.point, options.device, options.method)))
            return
        results = {sweep: swept(sweep, options) for sweep in options.sweep}
    except CnfgnnError as problem:
        parser.error(str(problem))
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
