"""Peak memory of one round of at-fedavg, by default at METR-LA's full shape (207 x 34,272).

Memory peaks while the hidden states and embeddings of all training windows are held beside one minibatch, so
`--minibatches` can cut epochs short without changing the peak. Encoding, propagating and scoring are not cut.

    python benchmarks/memory.py --minibatches 3
    python benchmarks/memory.py --minibatches 3 --memory 1          # GiB: compute.memory
    python benchmarks/memory.py --device cuda
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

import torch

from cnfgnn.algorithm.messages.randomness import Batches, Draw
from cnfgnn.algorithm.methods import preset
from cnfgnn.errors import CnfgnnError
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import train
from machine import GIB, peak_bytes
from shapes import OneSentence, add_arguments, chosen


def cut_short(minibatches: int) -> None:
    """End every training epoch after so many minibatches; round 0 means all windows and is not cut."""
    whole = Batches.epoch

    def epoch(self: Batches, r_g: int, epoch: int) -> Iterator[Draw]:
        return islice(whole(self, r_g, epoch), None if r_g == 0 else minibatches)

    Batches.epoch = epoch  # type: ignore[method-assign]


def main() -> None:
    keep_freed_memory()
    parser = OneSentence(description=__doc__)
    add_arguments(parser)
    parser.set_defaults(days=119)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory", type=float, default=0.0, help="compute.memory, GiB")
    parser.add_argument(
        "--minibatches", type=int, default=None, help="minibatches in each epoch (default: all)"
    )
    options = parser.parse_args()

    if options.minibatches is not None:
        cut_short(options.minibatches)
    host = torch.device("cpu")
    changes = {"training.rounds": 1, "compute.device": options.device, "compute.memory": options.memory}
    try:
        data = chosen(options)
        before = peak_bytes(host)
        experiment = simulate(data, preset("at-fedavg", like="metr-la").with_changes(changes))
    except CnfgnnError as problem:
        parser.error(str(problem))
    start = time.perf_counter()
    train(experiment)
    seconds, peak = time.perf_counter() - start, peak_bytes(host)
    rows, nodes = data.readings.values.shape
    print(f"{nodes} x {rows}, {data.graph.edges} edges, {experiment.windows.count('train')} training windows")
    print(experiment.memory_plan)
    print(f"host: {peak / GIB:.2f} GiB at the peak, {before / GIB:.2f} before training; {seconds:.0f} s")
    if options.device.startswith("cuda"):
        print(f"device: {peak_bytes(torch.device(options.device)) / GIB:.2f} GiB at the peak")


if __name__ == "__main__":
    main()
