"""Peak memory of one global round of at-fedavg, by default at METR-LA's full shape (207 x 34,272).

Memory peaks where the hidden states and embeddings of every training window are held beside one minibatch, so
`--minibatches` may cut epochs short without changing it; encoding, propagating and scoring are always whole.

    python benchmarks/memory.py --minibatches 3
    python benchmarks/memory.py --device cuda
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

from cnfgnn.algorithm.draws import Batches
from cnfgnn.algorithm.methods import preset
from cnfgnn.data.synthetic import city
from cnfgnn.simulation import simulate
from cnfgnn.training import train

GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sensors", type=int, default=207)
    parser.add_argument("--days", type=float, default=119)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minibatches", type=int, default=None, help="of each epoch; all if not given")
    options = parser.parse_args()

    if options.minibatches is not None:
        whole = Batches.__len__
        Batches.__len__ = lambda self: min(options.minibatches, whole(self))  # type: ignore[method-assign]
    data = city(options.sensors, options.days)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    changes = {"training.rounds": 1, "compute.device": options.device}
    experiment = simulate(data, preset("at-fedavg", like="metr-la").with_changes(changes))
    start = time.perf_counter()
    train(experiment)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    rows, nodes = data.readings.values.shape
    print(f"{nodes} x {rows}, {data.graph.edges} edges, {experiment.windows.count('train')} training windows")
    print(f"host: {peak / GIB:.2f} GiB at the peak, {before / GIB:.2f} before training; {seconds:.0f} s")
    if options.device.startswith("cuda"):
        print(f"device: {torch.cuda.max_memory_allocated() / GIB:.2f} GiB at the peak")


if __name__ == "__main__":
    main()
