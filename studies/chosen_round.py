"""Which round to use: the test error of every round of a training, beside the loss that chooses one of them.

    python studies/chosen_round.py metr-la-29.h5 --like metr-la --seeds 1 2 3 --set compute.precision=tf32
    python studies/chosen_round.py FOLDER                       # somebody's readings, without any setting
    python studies/chosen_round.py                              # the synthetic city

The table has the round with the lowest loss, the round that is used and the last one. Errors are of the kind
that is trained on, over observed readings if missing ones are masked. Evaluating the test split after each
round is for this comparison alone: a training never does it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from cnfgnn.algorithm.methods import preset
from cnfgnn.config.settings import Config
from cnfgnn.config.toml import parse_change
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.folder import load
from cnfgnn.data.synthetic.city import city
from cnfgnn.errors import CnfgnnError
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import Progress, evaluate, train

if __package__:  # imported by tests
    from benchmarks.shapes import OneSentence
else:
    from shapes import OneSentence


def measured(data: Dataset, config: Config) -> dict[str, Any]:
    """Train, and evaluate the test split after every round."""
    experiment = simulate(data, config)
    errors: list[float] = []

    def on_round(progress: Progress) -> None:
        errors.append(getattr(evaluate(experiment, "test").overall, metric(experiment.config)))

    progress = train(experiment, on_round=on_round)
    rounds = {"lowest": progress.lowest.r_g, "used": progress.best.r_g, "last": len(errors)}
    return {
        "data": data.name,
        "seed": config.seed,
        "rounds": rounds,
        "errors": {name: errors[r_g - 1] for name, r_g in rounds.items()},
        "losses": [done.loss for done in progress.history],
        "test": errors,
    }


def metric(config: Config) -> str:
    """The name of the error that is trained on."""
    kind = "mae" if config.training.loss == "absolute" else "rmse"
    return f"masked_{kind}" if config.data.missing == "masked" else kind


def main() -> None:
    keep_freed_memory()
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path, help="readings (default: the synthetic city)")
    parser.add_argument("--sensors", type=int, default=12, help="of the city")
    parser.add_argument("--days", type=float, default=14.0, help="of the city")
    parser.add_argument("--method", default="cnfgnn-plus")
    parser.add_argument("--like", choices=("metr-la", "pems-bay"), help="use the published settings")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, help="also append a line of JSON for each training to this file")
    options = parser.parse_args()
    try:
        data = load(options.data) if options.data else city(options.sensors, options.days)
        config = preset(options.method, like=options.like).with_changes(
            dict(parse_change(text) for text in options.changes)
        )
    except CnfgnnError as problem:
        parser.error(str(problem))
    head = ["data", "seed"]
    for name in ("lowest loss", "used", "last"):
        head += [f"{name}: round", "test error"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for seed in options.seeds:
        row = measured(data, config.with_changes({"seed": seed}))
        cells = [row["data"], str(seed)]
        for name, r_g in row["rounds"].items():
            cells += [str(r_g), f"{row['errors'][name]:.5g}"]
        print(f"| {' | '.join(cells)} |", flush=True)
        if options.json is not None:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
