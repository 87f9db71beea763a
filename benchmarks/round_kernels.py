"""Where the processor time of a round goes on a CPU: each phase by kind of operation.

Every operation that PyTorch runs, also on the way back, is timed by itself. What is left of a phase is
Python, automatic differentiation and views. The timer itself would be part of that, so the whole phase is
measured in another round without it. Use one thread: the processor time of several would add up.

    OMP_NUM_THREADS=1 python benchmarks/round_kernels.py --shape 16 571 128
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cnfgnn.algorithm.methods import preset
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.simulation import simulate
from machine import Seconds
from operations import PHASES
from round import phases, steps
from shapes import OneSentence, add_arguments, chosen

PRODUCTS = ("mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "addbmm", "_linear_pointwise")
NARROW = 16  # a product with a side below this is bound by overhead and memory, not by arithmetic
KINDS: Mapping[str, tuple[str, ...]] = {
    "sigmoid and tanh": ("sigmoid", "sigmoid_", "tanh", "tanh_"),
    "gather, and sum at nodes": ("_embedding_bag_forward_only", "_embedding_bag", "index_select"),
    "copies": ("copy_", "cat", "constant_pad_nd", "clone", "_to_copy", "index", "index_put_", "stack"),
    "sums": ("sum", "mean", "tensordot"),
}
REST = "Python, autograd, views"


def kind(name: str, arguments: tuple[Any, ...]) -> str:
    """The row of the table to which an operation belongs."""
    if name in PRODUCTS:
        factors = [x for x in arguments if isinstance(x, torch.Tensor) and x.dim() > 1]
        narrowest = min(side for x in factors for side in x.shape[-2:])
        return "large products" if narrowest >= NARROW else "narrow products"
    for row, names in KINDS.items():
        if name in names:
            return row
    return "other elementwise"


class Timed(TorchDispatchMode):
    """Adds up the processor seconds of operations by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.by_name: defaultdict[str, float] = defaultdict(float)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begun = time.process_time()
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            name, taken = func.overloadpacket.__name__, time.process_time() - begun
            row = kind(name, args)
            self.seconds[row] += taken
            self.by_name[f"{row}: {name}"] += taken
        return result


def main() -> None:
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--each", action="store_true", help="also list every operation")
    options = parser.parse_args()
    keep_freed_memory()
    Seconds.of_processor = True
    changes = {"training.client_rounds": 1, "training.server_rounds": 1, "compute.device": "cpu"}
    experiment = simulate(chosen(options), preset("at-fedavg", like="metr-la").with_changes(changes))
    phases(experiment, 1, 1)
    whole = phases(experiment, 2, 1)
    found, rows, each = {}, {"large products"}, {}
    with Timed() as timed:
        for phase in steps(experiment, 3, 1):
            found[phase], each[phase] = dict(timed.seconds), dict(timed.by_name)
            rows |= set(timed.seconds)
            timed.seconds.clear()
            timed.by_name.clear()
    for phase in PHASES:
        found[phase][REST] = max(0.0, whole[phase] - sum(found[phase].values()))
    total = {row: sum(found[phase].get(row, 0.0) for phase in PHASES) for row in (*rows, REST)}
    print(f"| processor seconds | {' | '.join(PHASES)} | round | share |")
    print(f"|---|{'---|' * (len(PHASES) + 2)}")
    for row in sorted(total, key=lambda row: -total[row]):
        cells = " | ".join(f"{found[phase].get(row, 0.0):.3f}" for phase in PHASES)
        print(f"| {row} | {cells} | {total[row]:.3f} | {total[row] / sum(total.values()):.0%} |")
    print(f"| all | {' | '.join(f'{whole[phase]:.3f}' for phase in PHASES)} | {whole['round']:.3f} | |")
    if options.each:
        for phase in PHASES:
            print(f"\n{phase}")
            for name, seconds in sorted(each[phase].items(), key=lambda item: -item[1]):
                print(f"  {seconds:.3f}  {name}")


if __name__ == "__main__":
    main()
