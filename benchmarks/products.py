"""The products of a round on a CPU, in each form that was considered, beside one large product.

The shapes are those of the paper's model: 16 nodes with 128 windows in the decoder, and a minibatch of 48
windows over 128 edges in the Graph Network. All forms take turns, so that other work on the machine slows
them down alike; of every form the fastest turn counts. Seconds are those of the processor: use one thread,
because those of several would add up.

    OMP_NUM_THREADS=1 python benchmarks/products.py
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from cnfgnn.models.edges import rectified
from cnfgnn.process_setup import keep_freed_memory
from shapes import OneSentence

NODES, WINDOWS, STEPS, STATE, JOINED = 16, 128, 12, 128, 132  # JOINED: state, two inputs, 1 and padding
ROWS, WIDTH, LARGE = 48 * 128, 256, 2048


class Form(NamedTuple):
    """A way to compute something, and its operations; 0 if it is not a product."""

    work: Callable[[], object]
    operations: int


def forms() -> Mapping[str, Form]:
    large = torch.randn(LARGE, LARGE)
    x, d, weight, bias = (
        torch.randn(*size) for size in ((ROWS, WIDTH), (ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH,))
    )
    joined, d_gates = torch.randn(NODES, WINDOWS, JOINED), torch.randn(NODES, WINDOWS, 3 * STATE)
    weights = torch.randn(NODES, 3 * STATE, JOINED)
    weights_t = weights.mT.contiguous()
    all_joined, all_d_gates = (y.repeat(1, STEPS, 1) for y in (joined, d_gates))
    gate = torch.randn(NODES, WINDOWS, STATE)
    on_edges, step = 2 * ROWS * WIDTH**2, 2 * NODES * WINDOWS * JOINED * 3 * STATE
    return {
        "one large product": Form(lambda: large @ large, 2 * LARGE**3),
        "edges: x W^T": Form(lambda: x @ weight.t(), on_edges),
        "edges: d W": Form(lambda: d @ weight, on_edges),
        "edges: d^T x": Form(lambda: d.t() @ x, on_edges),
        "edges: relu(x W^T + b), ours": Form(lambda: rectified(x, weight, bias), on_edges),
        "edges: relu(x W^T + b), three operations": Form(
            lambda: torch.mm(x, weight.t()).add_(bias).relu_(), on_edges
        ),
        "step: [h x 1] W^T": Form(lambda: torch.bmm(joined, weights_t), step),
        "step: d W": Form(lambda: torch.bmm(d_gates, weights), step),
        "step: d^T [h x 1]": Form(lambda: torch.bmm(d_gates.mT, joined), step),
        "step: [h x 1]^T d, ours": Form(lambda: torch.bmm(joined.mT, d_gates), step),
        "twelve steps: [h x 1]^T d": Form(lambda: torch.bmm(all_joined.mT, all_d_gates), STEPS * step),
        "step: sum of two gradients": Form(lambda: weights + weights, 0),
        "step: tanh": Form(gate.tanh, 0),
        "step: tanh by sigmoid": Form(lambda: gate.mul(2).sigmoid_().mul_(2).sub_(1), 0),
    }


def measured(turns: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each form, and GFLOP/s of products."""
    tried = forms()
    seconds: dict[str, list[float]] = {name: [] for name in tried}
    for _ in range(turns):
        for name, form in tried.items():
            begun = time.process_time()
            form.work()
            seconds[name].append(time.process_time() - begun)
    least = {name: min(times) for name, times in seconds.items()}
    return {
        name: {"ms": 1e3 * least[name], "gflops": form.operations / least[name] / 1e9}
        for name, form in tried.items()
    }


def main() -> None:
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args()
    keep_freed_memory()
    results = measured(options.turns)
    print("| | ms | GFLOP/s |\n|---|---|---|")
    for name, row in results.items():
        rate = f"{row['gflops']:.0f}" if row["gflops"] else ""
        print(f"| {name} | {row['ms']:.2f} | {rate} |")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
