"""The first rounds of a method with its published settings, on real readings, for several seeds.

docs/reproduction.md compares them with what the published code reaches in as many rounds on the same files:

    python studies/first_rounds.py metr-la-29 --like metr-la
    python studies/first_rounds.py pems-bay-74 --like pems-bay
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from cnfgnn.algorithm.methods import preset
from cnfgnn.data.files.folder import load
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import Progress, evaluate_best, train


def main() -> None:
    keep_freed_memory()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--like", required=True, choices=["metr-la", "pems-bay"])
    parser.add_argument("--method", default="at-fedavg")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--server-rounds", type=int, default=1)
    parser.add_argument("--precision", default="fp32")
    options = parser.parse_args()

    data = load(options.data)
    print(
        f"{data.name}: {len(data.readings.ids)} sensors, {data.graph.edges} edges, {options.method}",
        flush=True,
    )
    rows = []
    for seed in options.seeds:
        config = preset(options.method, like=options.like).with_changes(
            {
                "seed": seed,
                "training.rounds": options.rounds,
                "training.server_rounds": options.server_rounds,
                "compute.precision": options.precision,
            }
        )
        experiment = simulate(data, config)
        start = time.perf_counter()

        def show(progress: Progress, start: float = start, seed: int = seed) -> None:
            took, done = time.perf_counter() - start, progress.history[-1]
            print(f"  seed {seed} round {done.r_g}: {done.validation.rmse:.3f} ({took:.0f} s)", flush=True)

        result = evaluate_best(experiment, train(experiment, on_round=show))
        test, best = result.test.overall, result.progress.best
        rows.append((seed, best.r_g, best.validation.rmse, test.rmse, test.mae, time.perf_counter() - start))
    print("| seed | best round | validation RMSE | test RMSE | test MAE | seconds |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print("| {} | {} | {:.3f} | {:.3f} | {:.3f} | {:.0f} |".format(*row))
    medians = [statistics.median(row[k] for row in rows) for k in (2, 3, 4)]
    print("| median | | {:.3f} | {:.3f} | {:.3f} | |".format(*medians))


if __name__ == "__main__":
    sys.exit(main())
