"""How much slower training is beside another program, with PyTorch's own way of waiting and with ours.

Trains the default on a synthetic city in a process of its own for some seconds, alone and beside a program
that keeps one processor busy, and counts minibatches. Beside such a program, a training on two processors has
half of them, so that a ratio of 2 cannot be beaten.

    python benchmarks/busy.py --seconds 30
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

BUSY = "while True: pass"
OURS, PYTORCHS = "ours", "PyTorch's"


def count(seconds: float, sensors: int) -> None:
    """Train for some seconds and print how many minibatches a second there were."""
    import cnfgnn
    from cnfgnn.runs.simulation import simulate

    done: list[float] = []

    class Over(Exception):
        pass

    def tick() -> None:
        done.append(time.monotonic())
        if done[-1] - done[0] > seconds:
            raise Over

    data = cnfgnn.city(sensors=sensors, days=4)
    strategy = simulate(data, cnfgnn.preset(), tick=tick).strategy
    try:
        for r_g in range(1, 10_000):
            strategy.round(r_g)
    except Over:
        print((len(done) - 1) / (done[-1] - done[0]))


def measured(waiting: str, beside: bool, options: argparse.Namespace) -> float:
    """Minibatches a second in a process that waits in one of the two ways."""
    deciding = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # each would decide for both ways
    environment = {name: text for name, text in os.environ.items() if name not in deciding}
    first = "cnfgnn" if waiting == OURS else "torch"  # what is imported first decides
    change = f"import {first}; from cnfgnn.process_setup import keep_freed_memory; keep_freed_memory()"
    program = f"{change}; from busy import count; count({options.seconds}, {options.sensors})"
    here = os.path.dirname(os.path.abspath(__file__))
    other = subprocess.Popen([sys.executable, "-c", BUSY]) if beside else None
    try:
        ran = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=here, check=True, stdout=subprocess.PIPE
        )
        return float(ran.stdout)
    finally:
        if other is not None:
            other.kill()
            other.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of each of the four measurements")
    parser.add_argument("--sensors", type=int, default=100)
    options = parser.parse_args()
    print("| waiting | minibatches/s alone | beside a busy program | ratio |\n|---|---|---|---|")
    for waiting in (PYTORCHS, OURS):
        alone, beside = (measured(waiting, busy, options) for busy in (False, True))
        print(f"| {waiting} | {alone:.2f} | {beside:.2f} | {alone / beside:.1f} |", flush=True)


if __name__ == "__main__":
    main()
