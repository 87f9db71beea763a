"""Training from the beginning against going on from the last training, as readings come in month by month.

A model is trained on the first months. Then, as often as there is another span of readings, one training
starts from the beginning and one goes on from the weights of the one before, both with all readings so far.
Both are evaluated on the span that follows, which neither has seen:

    python studies/warm.py metr-la-29 --like metr-la --first 60 --every 30
    python studies/warm.py                          # the synthetic city, quick

The cost is the time of the training and the bytes that it sends per node. A machine without h5py can read the
data from a file that another one has written with `--write-npz FILE`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.methods import preset
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings
from cnfgnn.data.synthetic.city import city
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import evaluate, train
from cnfgnn.runs.warm_start import Origin, Weights, go_on_from, settings_to_go_on

DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Trained:
    """A training and what came of it: the error on the span after its readings, and its cost."""

    config: Config
    origin: Origin | None
    weights: Weights
    computed: dict[str, Tensor]  # from the readings: profiles and linear forecasters
    trust: Tensor | None
    row: dict[str, Any]


def main() -> None:
    keep_freed_memory()
    options = _options()
    data = _data(options)
    if options.only:
        data = data.select(data.readings.ids[: options.only])
    if options.until:
        data = _until(data, _rows(data, options.until))
    if options.write_npz:
        _write_npz(data, options.write_npz)
        return
    first, every = (_rows(data, days) for days in (options.first, options.every))
    total = len(data.readings.times)
    print(f"{data.name}: {len(data.readings.ids)} sensors, {total} rows, {options.method}", flush=True)
    for seed in options.seeds:
        base = preset(options.method, like=options.like).with_changes(
            {"seed": seed, **dict(_change(text) for text in options.set)}
        )
        before: Trained | None = None
        for until in range(first, total - every // 2, every):
            end = min(total, until + every)
            cold = _train(data, base, until, end, None)
            _show(seed, until, "cold", cold.row)
            if before is None:
                before = cold
                continue
            _show(seed, until, "not trained again", {"rmse": _rmse_of_old(data, before, until, end)})
            for rounds, rate in itertools.product(options.rounds or [0], options.rates):
                warm = _train(data, base, until, end, before, rounds, rate)
                _show(seed, until, "warm", {"rate": rate, **warm.row})
            before = warm  # the next one goes on from the last of these


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="?", help="a data set as cnfgnn reads it, or a .npz file")
    parser.add_argument("--like", choices=["metr-la", "pems-bay"])
    parser.add_argument("--method", default="cnfgnn-plus")
    parser.add_argument("--first", type=float, default=10.0, help="days of the first training")
    parser.add_argument("--every", type=float, default=2.0, help="days until the next one")
    parser.add_argument("--rounds", type=int, nargs="+", help="rounds of a warm training; default as --from")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[1.0], help="shares of the learning rates for warm ones"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--write-npz", type=Path)
    parser.add_argument("--only", type=int, help="the first so many sensors")
    parser.add_argument("--until", type=float, help="the first so many days")
    parser.add_argument("--days", type=float, default=14.0, help="of the synthetic city")
    parser.add_argument("--sensors", type=int, default=8, help="of the synthetic city")
    return parser.parse_args()


def _change(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _rows(data: Dataset, days: float) -> int:
    step = data.readings.step.astype("timedelta64[s]").astype(int)
    return round(days * DAY_SECONDS / int(step))


def _until(data: Dataset, row: int) -> Dataset:
    r = data.readings
    return replace(
        data, readings=replace(r, times=r.times[:row], values=r.values[:row], missing=r.missing[:row])
    )


def _train(
    data: Dataset,
    base: Config,
    until: int,
    end: int,
    before: Trained | None,
    rounds: int = 0,
    rate: float = 1.0,
) -> Trained:
    """Train on the readings until a row, nine tenths of them to learn from and the last tenth to choose the
    round by, and evaluate on the windows that follow."""
    base = base.with_changes({"data.shares": _shares(base, until, end)})
    config, origin = base, None
    if before is not None:
        changes: dict[str, Any] = {"training.rounds": rounds} if rounds else {}
        changes["data.shares"] = base.data.shares
        changes |= {key: rate * base.setting(key) for key in ("training.client_lr", "training.server_lr")}
        config, cold_rounds = settings_to_go_on(
            before.config, sorted(base.given), before.origin, end, changes
        )
        origin = Origin("", 0, cold_rounds, "training.rounds" in base.given)
    begun = time.perf_counter()
    experiment = simulate(
        _until(data, end), config, kept_scaler=None if before is None else before.weights.scaler
    )
    if before is not None:
        go_on_from(experiment, before.weights, data.readings.ids)
    progress = train(experiment)
    experiment.strategy.restore(progress.best.tag, to_learn=False)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    sent = progress.history[-1].training_bytes
    row = {
        "rmse": _rmse(experiment),
        "validation": round(math.sqrt(progress.best.loss), 4),
        "rounds": len(progress.history),
        "best": progress.best.r_g,
        "seconds": round(seconds, 1),
        "megabytes_per_node": round(sent.per_node / len(data.readings.ids) / 1e6, 2),
    }
    [(_, owner)] = experiment.owners
    weights = Weights.of(experiment, data.readings.ids)
    return Trained(experiment.config, origin, weights, owner.data.state(), owner.trust, row)


def _shares(config: Config, until: int, end: int) -> tuple[float, float, float]:
    """Shares of the windows such that those whose targets begin after `until` are the test split."""
    d = config.data
    total = end - d.history - d.horizon + 1
    test = (total - (until - d.history + 1)) / total
    return (1 - test) * 0.9, 1 - test - (1 - test) * 0.9, test


def _rmse_of_old(data: Dataset, before: Trained, until: int, end: int) -> float:
    """The error of the earlier model on the same windows, if nobody trains again."""
    config = before.config.with_changes({"data.shares": _shares(before.config, until, end)})
    experiment = simulate(_until(data, end), config, scaler=before.weights.scaler)
    go_on_from(experiment, before.weights, data.readings.ids)
    [(_, owner)] = experiment.owners
    owner.trust = before.trust
    owner.data.use(before.computed)
    return _rmse(experiment)


def _rmse(experiment: Experiment) -> float:
    overall = evaluate(experiment, "test").overall
    return round(float(getattr(overall, experiment.config.data.metric)), 4)


def _show(seed: int, until: int, kind: str, row: dict[str, Any]) -> None:
    print(json.dumps({"seed": seed, "until": until, "kind": kind, **row}), flush=True)


def _data(options: argparse.Namespace) -> Dataset:
    if options.data is None:
        return city(options.sensors, options.days, seed=0)
    if options.data.endswith(".npz"):
        return _read_npz(Path(options.data))
    from cnfgnn.data.files.folder import load  # late: it needs h5py

    return load(options.data)


def _write_npz(data: Dataset, path: Path) -> None:
    r, g = data.readings, data.graph
    np.savez_compressed(
        path,
        times=r.times.astype("datetime64[s]").astype(np.int64),
        ids=np.array(r.ids),
        values=r.values,
        missing=r.missing,
        senders=g.senders,
        receivers=g.receivers,
        weights=g.weights,
    )


def _read_npz(path: Path) -> Dataset:
    with np.load(path) as f:
        times, ids = f["times"].astype("datetime64[s]"), tuple(map(str, f["ids"]))
        readings = Readings(times, ids, f["values"], f["missing"], source=path.name)
        graph = Graph(len(ids), f["senders"], f["receivers"], f["weights"])
    return Dataset(path.stem, readings, graph)


if __name__ == "__main__":
    sys.exit(main())
