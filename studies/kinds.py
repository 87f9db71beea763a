"""The default training on data of many kinds, beside simple forecasts: does it ever lose to one of them?

Writes a folder of readings.csv and sensors.csv for each kind, with the structure that such readings have
(daily and weekly patterns, weather that moves over the stations, storms, spikes, gaps, zeros), reads it as a
user's folder would be read, and trains the default method. Prints a row for each kind: the masked RMSE of
each simple forecast, of the linear part of the training alone, and of the training, with its ratio to the
best of the simple ones.

Settings are compared before the test split: the rows after --origin, a share that leaves the test split of a
training out, are not even read. What is left is split as any other data, and its last fifth judges. Only
--spend-test-split, for the figures of a version once all choices are made, evaluates the test split itself.

    python studies/kinds.py                               # all kinds but many-sensors, which takes long
    python studies/kinds.py --set model.levels=false      # another setting, to compare with the line above
    python studies/kinds.py --folders auckland --origin 0.6
    python studies/kinds.py --untrained                   # linear parts alone: a tenth of the time
    python studies/kinds.py --only wind river --seed 2
    python studies/kinds.py --doubts 1 4 8                # with other shares of the network
    python studies/kinds.py --only many-sensors --sensors 10000
    python studies/kinds.py --folders molene montevideo-bus    # readings of your own
    python studies/kinds.py --write kinds                 # keep the folders, do not train
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cnfgnn
from boosted_trees import boosted_trees
from cnfgnn.algorithm import forecaster
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.server import Server
from cnfgnn.config.settings import DataConfig
from cnfgnn.config.toml import parse_change
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.readings import rows_of
from cnfgnn.data.windows import SPLITS, Windows
from cnfgnn.runs.baselines import all_baselines
from cnfgnn.runs.record import about, write_json
from cnfgnn.runs.scores import Scores
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import evaluate
from made_kinds import DAY, HOUR, KINDS, MANY, MINUTE, traffic

BEFORE_TEST = 0.8  # share of the rows before the test split of a training
TREES = "LightGBM"
SIMPLE = ("last value", "yesterday", "last week", "daily average", "ridge", TREES)


# ---- measuring ------------------------------------------------------------------------------------------


def before(data: Dataset, origin: float, d: DataConfig) -> Dataset:
    """The readings before a share of the rows, and before the first target of the test split."""
    rows = len(data.readings.times)
    windows = Windows.of(rows, d.history, d.horizon, d.shares)
    first = int(windows.starts["test"][0]) + windows.history
    return replace(data, readings=rows_of(data.readings, slice(0, min(first, int(rows * origin)))))


def measured(
    name: str,
    data: Dataset,
    changes: Mapping[str, Any],
    training: bool = True,
    doubts: Sequence[float] = (),
    lightgbm: bool = False,
) -> dict[str, Any]:
    """Compare the simple forecasts with the default on a data set, or with its linear part alone."""
    config = cnfgnn.preset().with_changes(changes)
    simple = {key: scores.overall.masked_rmse for key, scores in all_baselines(data, config.data).items()}
    best = min(simple.values())
    if lightgbm:
        simple[TREES] = boosted_trees(data, config.data).overall.masked_rmse
    experiment = simulate(data, config)
    row: dict[str, Any] = {
        "kind": name,
        "sensors": len(data.readings.ids),
        "windows": sum(experiment.windows.count(split) for split in SPLITS),
        "step": int(data.readings.step.astype("timedelta64[s]").astype(int)),
        "simple": simple,
        "linear": linear_alone(experiment),
    }
    if training:
        begun = time.process_time()
        result = cnfgnn.fit(data, config)
        row["seconds"] = time.process_time() - begun
        row |= {"best_round": result.progress.best.r_g, "rounds": len(result.progress.history)}
        row["error"] = result.test.overall.masked_rmse
        row["doubts"] = {doubt: error_with(doubt, result.experiment) for doubt in doubts}
    row["ratio"] = row.get("error", row["linear"]) / best
    return row


def error_with(doubt: float, experiment: Experiment) -> float:
    """The test error of a trained network if this much counted against it (`DOUBT`)."""
    before, forecaster.DOUBT = forecaster.DOUBT, doubt
    try:
        evaluate(experiment, "validation")  # decides how much of the network each sensor takes
        return evaluate(experiment, "test").overall.masked_rmse
    finally:
        forecaster.DOUBT = before


def linear_alone(experiment: Experiment) -> float:
    """The test error of the linear forecasters, before anything is learned."""
    strategy, ((_, owner),) = experiment.strategy, experiment.owners
    assert isinstance(strategy, Server)
    strategy.inform()
    strategy.ready("test")
    owner.data.fit()
    none = torch.zeros(owner.data.nodes, device=owner.nodes.home)
    sums = owner.nodes.forecaster.summed_errors(owner.nodes.theta, owner.data, owner.h_G, "test", none)
    return Scores(sums).overall.masked_rmse


# ---- the table --------------------------------------------------------------------------------------------


def duration(seconds: int) -> str:
    for unit, name in ((DAY, "day"), (HOUR, "h"), (MINUTE, "min")):
        if seconds % unit == 0:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


HEAD = ("kind", "sensors", "windows", "step", *SIMPLE)
HEAD = (*HEAD, "linear part", "default", "ratio", "processor seconds", "best / rounds")


def as_line(row: dict[str, Any]) -> str:
    cells = [row["kind"], f"{row['sensors']:,}", f"{row['windows']:,}", duration(row["step"])]
    cells += [f"{row['simple'][name]:.4g}" if name in row["simple"] else "-" for name in SIMPLE]
    cells += [f"{row['linear']:.4g}", f"{row['error']:.4g}" if "error" in row else "-", f"{row['ratio']:.3f}"]
    if "error" in row:
        cells += [f"{row['seconds']:.0f}", f"{row['best_round']}/{row['rounds']}"]
    else:
        cells += ["-", "-"]
    cells += [f"{error / row['linear']:.3f}" for error in row.get("doubts", {}).values()]
    return f"| {' | '.join(cells)} |"


def folders(options: argparse.Namespace, place: Path) -> Iterator[tuple[str, Path]]:
    """The folders to train on, each with a name; those of the kinds are written first."""
    if options.folders:
        yield from ((folder.name, folder) for folder in options.folders)
        return
    for number, (name, make) in enumerate(KINDS.items()):
        slug = name.replace(", ", "-").replace(" ", "-")
        if not (slug in options.only if options.only else name != "many sensors"):
            continue
        rng = np.random.default_rng([options.draw, number])
        kind = traffic(rng, options.sensors, 323, 15 * MINUTE) if name == "many sensors" else make(rng)
        kind.write(place / slug)
        yield name, place / slug


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", help="some kinds, such as wind or many-sensors")
    parser.add_argument("--sensors", type=int, default=MANY, help="of the kind many-sensors")
    parser.add_argument("--seed", type=int, default=1, help="of the training")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--origin", type=float, default=BEFORE_TEST, help="share of the rows that is read")
    text = "read all rows and evaluate the test split, which may then decide nothing any more"
    parser.add_argument("--spend-test-split", action="store_true", help=text)
    parser.add_argument("--draw", type=int, default=0, help="another number makes other readings")
    parser.add_argument("--folders", type=Path, nargs="+", help="train on these folders of readings instead")
    parser.add_argument("--untrained", action="store_true", help="only the linear part, which takes seconds")
    parser.add_argument("--lightgbm", action="store_true", help="also fit gradient-boosted trees")
    parser.add_argument("--write", type=Path, help="write the folders here, and do not train")
    parser.add_argument("--records", type=Path, help="also write a record of each kind into this folder")
    text = "also print the error with these values of DOUBT, as a ratio to that of the linear part"
    parser.add_argument("--doubts", type=float, nargs="+", default=[], help=text)
    options = parser.parse_args()
    if not 0 < options.origin <= BEFORE_TEST:
        parser.error(f"--origin: at most {BEFORE_TEST}, where the test split begins, not {options.origin}")
    changes = {**dict(parse_change(text) for text in options.changes), "seed": options.seed}
    doubts = [] if options.untrained else options.doubts
    head = (*HEAD, *(f"doubt {doubt:g}" for doubt in doubts))
    with tempfile.TemporaryDirectory() as place:
        if options.write is None:
            print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
        for name, folder in folders(options, options.write or Path(place)):
            if options.write is not None:
                print(folder)
                continue
            data = cnfgnn.load(folder)
            if not options.spend_test_split:
                data = before(data, options.origin, cnfgnn.preset().with_changes(changes).data)
            row = measured(name, data, changes, not options.untrained, doubts, options.lightgbm)
            print(as_line(row), flush=True)
            if options.records is not None:
                what = {"settings": changes, "test": options.spend_test_split}
                record = row | what | about(folder.name, data.readings)
                write_json(options.records / f"{folder.name}.json", record)


if __name__ == "__main__":
    main()
