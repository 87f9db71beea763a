"""One global round of at-fedavg (R_c = R_s = 1, with validation), phase by phase, beside a naive version.

The naive version runs a few minibatches of phases (1) and (3) and is scaled to the round's number of them; it
is given neither encoding, nor the final embedding, nor validation: the ratio is a lower bound.

    python benchmarks/round.py data.h5                         # METR-LA, PEMS-BAY or one's own
    python benchmarks/round.py --sensors 207 --days 7 --precision fp32 bf16 --json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

import naive
from cnfgnn.algorithm.methods import preset
from cnfgnn.algorithm.server import Alternating
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.folder import load
from cnfgnn.data.synthetic import city
from cnfgnn.models.graphnet import GraphNetwork
from cnfgnn.simulation import Experiment, simulate

PHASES = ("(1) update", "average", "(2) encode", "(3) split", "(4) embed", "validate")


def clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def phases(experiment: Experiment, r_g: int) -> dict[str, float]:
    """Seconds of each phase of a round: what Alternating.round does, with a clock in between."""
    s = experiment.strategy
    assert isinstance(s, Alternating)
    assert s.gn is not None
    device = s.graph.weights.device
    marks = [clock(device)]
    s.nodes.update(r_g, s.client_rounds, s.step)
    s.nodes.flush()
    s.step += s.client_rounds * len(s.client_batches)
    marks.append(clock(device))
    s.theta_bar = s.share(s.nodes)
    s.nodes.flush()
    marks.append(clock(device))
    h_c = s.nodes.encode()
    present = s.nodes.present("train")
    marks.append(clock(device))
    for draw, windows in s.server_batches(r_g):
        h_G = s.gn(h_c, s.graph, present, windows)
        s.gn.descend(s.nodes.backward(h_G, draw, s.step))
    marks.append(clock(device))
    s.nodes.embed(s.gn.propagate(h_c, s.graph, present))
    s.nodes.flush()
    marks.append(clock(device))
    s.score("validation")
    marks.append(clock(device))
    return dict(zip(PHASES, (b - a for a, b in pairwise(marks)), strict=True))


def naive_seconds(experiment: Experiment, minibatches: int) -> float:
    """The naive version's phases (1) and (3), scaled from a few minibatches."""
    s, (_, clients) = experiment.strategy, experiment.owners[0]
    assert isinstance(s, Alternating)
    device, n = clients.compute.device, clients.series.nodes
    nodes = [naive.NaiveNode().to(device) for _ in range(n)]
    adams = [torch.optim.Adam(node.parameters(), lr=1e-3) for node in nodes]
    gn = GraphNetwork().init(torch.Generator()).to(device)
    gn_adam = torch.optim.Adam(gn.parameters(), lr=1e-3)

    def client() -> None:
        windows = clients.client_batches[next(clients.client_batches.epoch(1, 0))]
        batch, _ = clients.data.batch("train", windows)
        naive.client_step(nodes, adams, batch, torch.zeros(n, len(windows), 64, device=device))

    def server() -> None:
        windows = s.batches[next(s.batches.epoch(1, 0))]
        batch, _ = clients.data.batch("train", windows)
        h_c = torch.randn(n, len(windows), 64, device=device)
        naive.server_step(nodes[0], gn, gn_adam, s.graph, batch, h_c)

    return len(s.client_batches) * _each(client, minibatches, device) + len(s.batches) * _each(
        server, minibatches, device
    )


def _each(step: Callable[[], None], times: int, device: torch.device) -> float:
    step()
    begun = clock(device)
    for _ in range(times):
        step()
    return (clock(device) - begun) / times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?")
    parser.add_argument("--sensors", type=int, default=207)
    parser.add_argument("--days", type=float, default=7)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--rounds", type=int, default=2, help="the last one is reported")
    parser.add_argument("--minibatches", type=int, default=2, help="of the naive version; 0 leaves it out")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    data: Dataset = load(options.data) if options.data else city(options.sensors, options.days)
    results: dict[str, Any] = {"sensors": data.graph.nodes, "edges": data.graph.edges}
    for precision in options.precision:
        changes = {"compute.device": options.device, "compute.precision": precision}
        experiment = simulate(data, preset("at-fedavg", like="metr-la").with_changes(changes))
        for r_g in range(1, options.rounds + 1):
            seconds = phases(experiment, r_g)
        results[precision] = seconds | {"total": sum(seconds.values())}
        parts = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())
        print(f"{data.name}, {precision}: {sum(seconds.values()):.2f} s a round: {parts}", flush=True)
    if torch.cuda.is_available() and options.device != "cpu":
        results["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        print(f"peak {results['peak_gib']:.2f} GiB on the device")
    if options.minibatches:
        changes = {"compute.device": options.device, "compute.precision": "fp32"}
        experiment = simulate(data, preset("at-fedavg", like="metr-la").with_changes(changes))
        results["naive"] = naive_seconds(experiment, options.minibatches)
        best = min(results[precision]["total"] for precision in options.precision)
        results["ratio"] = results["naive"] / best
        print(f"naive, fp32: {results['naive']:.2f} s; ratio to the fastest of ours {results['ratio']:.1f}")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
