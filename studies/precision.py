"""The same training in each precision: validation RMSE after a few rounds of at-fedavg, for several seeds.

fp32 is float32 throughout (PyTorch's "highest"). The last column compares the mean with that of fp32.

    python studies/precision.py metr-la-29 --like metr-la
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from cnfgnn.algorithm.compute.device import Compute, multiplies_bf16
from cnfgnn.algorithm.methods import preset
from cnfgnn.config.settings import ComputeConfig
from cnfgnn.data.files.folder import load
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import train

PRECISIONS = ("fp32", "tf32", "bf16")


def main() -> None:
    keep_freed_memory()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--like", default="metr-la", choices=["metr-la", "pems-bay"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--precision", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()

    data = load(options.data)
    print(f"{data.name}: validation RMSE after {options.rounds} rounds", flush=True)
    print("| precision |", *(f"seed {seed} |" for seed in options.seeds), "mean | to fp32 | seconds |")
    print("|---|" + "---|" * (len(options.seeds) + 3))
    means: dict[str, float] = {}
    device = Compute.of(ComputeConfig(options.device)).device
    for precision in options.precision:
        if precision == "bf16" and device.type == "cpu" and not multiplies_bf16():
            print("bf16 is left out: this processor has no bf16 instructions", flush=True)
            continue
        begun, reached = time.perf_counter(), []
        for seed in options.seeds:
            changes = {"seed": seed, "training.rounds": options.rounds, "training.server_rounds": 1}
            changes |= {"compute.precision": precision, "compute.device": options.device}
            experiment = simulate(data, preset("at-fedavg", like=options.like).with_changes(changes))
            reached.append(train(experiment).history[-1].validation.rmse)
        means[precision] = statistics.mean(reached)
        to_fp32 = f"{means[precision] / means['fp32'] - 1:+.2%}" if "fp32" in means else ""
        columns = [*(f"{rmse:.3f} |" for rmse in reached), f"{means[precision]:.3f} |", f"{to_fp32} |"]
        print(f"| {precision} |", *columns, f"{time.perf_counter() - begun:.0f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
