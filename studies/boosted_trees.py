"""What a practitioner would use instead of a network: gradient-boosted trees, fitted to the readings of all
sensors pooled. `kinds.py --lightgbm` shows them beside the simple forecasts (`pip install cnfgnn[studies]`).

    python studies/boosted_trees.py auckland experiments/records/auckland    # records of both, for tables
    python studies/boosted_trees.py auckland records --predictions trees.parquet    # for studies/paired.py

One model for each step ahead. Its inputs are the last readings, those at the forecast time a day and a week
before, the time of day, the day of the week and the sensor. Nothing in it is random.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from cnfgnn.config.settings import DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.folder import load
from cnfgnn.data.quality import clean
from cnfgnn.data.windows import Split
from cnfgnn.errors import CnfgnnError
from cnfgnn.files import check_can_be_written, writing_whole
from cnfgnn.runs.baselines import DAY_S, Group, Prepared, all_baselines
from cnfgnn.runs.record import about, write_json
from cnfgnn.runs.scores import Scores

Floats = npt.NDArray[np.float64]

SETTINGS = {"objective": "regression", "learning_rate": 0.05, "num_leaves": 63, "verbose": -1}
TREES, PATIENCE = 1000, 30  # validation errors choose how many


def boosted_trees(data: Dataset, config: DataConfig, predictions: Path | None = None) -> Scores:
    """Their errors on the test split, on the windows that all baselines are evaluated on."""
    prepared = Prepared.of(data, config)
    ahead = [_of_step(prepared, step) for step in range(config.horizon)]
    forecasts = torch.from_numpy(np.stack(ahead, axis=-1))  # (n w t)
    if predictions is not None:
        with writing_whole(predictions) as file:
            as_table(data, prepared, forecasts).to_parquet(file)
    return prepared.evaluate("test", lambda group, chunk: _part(forecasts, group, chunk))


def as_table(data: Dataset, prepared: Prepared, forecasts: Tensor) -> pd.DataFrame:
    """What `cnfgnn evaluate --predictions` has of a run, without ranges."""
    readings, history = clean(data.readings, prepared.config), prepared.config.history
    issued = prepared.windows.starts["test"] + history - 1
    rows = issued[:, None] + 1 + np.arange(prepared.config.horizon)  # (w t)
    sensors = np.arange(len(readings.ids))[:, None, None]
    columns = {
        "sensor": np.array(readings.ids)[sensors],
        "issued": readings.times[issued][:, None],
        "step": np.arange(1, prepared.config.horizon + 1),
        "observed": ~readings.missing[rows, sensors],
        "truth": readings.values[rows, sensors],
        "forecast": prepared.data.unscaled(forecasts).numpy(),
    }
    shape = tuple(forecasts.shape)
    table = pd.DataFrame({name: np.broadcast_to(column, shape).ravel() for name, column in columns.items()})
    if readings.utc:
        table["issued"] = table["issued"].dt.tz_localize("UTC")
    return table


def _part(forecasts: Tensor, group: Group, chunk: slice) -> Tensor:
    return forecasts[group.nodes, chunk]


def _of_step(prepared: Prepared, step: int) -> Floats:
    """(n w): the scaled forecasts of test windows, so many steps ahead."""
    import lightgbm  # an extra

    train, validation, test = (_inputs(prepared, split, step) for split in ("train", "validation", "test"))
    y, known = _targets(prepared, "train", step)
    y_after, known_after = _targets(prepared, "validation", step)
    learned = lightgbm.Dataset(train[known], y[known])
    after = lightgbm.Dataset(validation[known_after], y_after[known_after], reference=learned)
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    model = lightgbm.train(SETTINGS, learned, TREES, valid_sets=[after], callbacks=[stop])
    forecast: Floats = np.asarray(model.predict(test)).reshape(prepared.data.nodes, -1)
    return forecast


def _inputs(prepared: Prepared, split: Split, step: int) -> Floats:
    """(nw k): NaN where a reading is missing."""
    values = np.where(_absent(prepared), np.nan, prepared.data.inputs.numpy())
    starts = prepared.windows.starts[split]
    target = starts + prepared.config.history + step
    columns = [values[:, starts + row] for row in range(prepared.config.history)]
    for days in (1, 7):
        rows = target - days * DAY_S // prepared.step
        found = values[:, np.maximum(rows, 0)]
        columns.append(np.where((rows >= 0) & (rows < starts + prepared.config.history), found, np.nan))
    shape = (prepared.data.nodes, len(starts))
    known = prepared.series.time_of_day[target], prepared.series.weekday[target], np.arange(shape[0])[:, None]
    columns += [np.broadcast_to(column, shape) for column in known]
    return np.stack([column.ravel() for column in columns], axis=1)


def _targets(prepared: Prepared, split: Split, step: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """(nw,): the scaled targets, and which of them count."""
    rows = prepared.windows.starts[split] + prepared.config.history + step
    return prepared.data.targets.numpy()[:, rows].ravel(), ~_absent(prepared)[:, rows].ravel()


def _absent(prepared: Prepared) -> npt.NDArray[np.bool_]:
    """(n T): which readings are missing; those that the file has anyway are truth to `as-truth`."""
    return prepared.series.absent(prepared.config.missing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path, help="folder for a record of each")
    parser.add_argument(
        "--missing",
        choices=("masked", "as-truth"),
        default="masked",
        help="whether missing readings are left out, or count as the file has them (data.missing)",
    )
    parser.add_argument("--predictions", type=Path, help="a .parquet file for the forecasts of the trees")
    given = parser.parse_args()
    if given.predictions is not None and not find_spec("lightgbm"):
        parser.error("--predictions: LightGBM is not installed: pip install cnfgnn[studies]")
    try:
        _run(given)
    except CnfgnnError as problem:
        sys.exit(str(problem))


def _run(given: argparse.Namespace) -> None:
    if given.predictions is not None:
        check_can_be_written(given.predictions)
    data, config = load(given.data), DataConfig(missing=given.missing)
    begun = time.perf_counter()
    found = {}
    if find_spec("lightgbm"):
        found["LightGBM, pooled"] = boosted_trees(data, config, given.predictions)
    else:
        print("LightGBM is not installed: only the simple forecasts")
    seconds = round(time.perf_counter() - begun, 1)
    for method, scores in (all_baselines(data, config) | found).items():
        took = seconds if method in found else None
        record = {
            "method": method,
            "settings": {"data.missing": given.missing},
            "seed": None,
            **about(data.name, data.readings),
            "errors": scores.summary(),
            "bytes": None,
            "seconds": took,
        }
        name = method.partition(",")[0].lower().replace(" ", "-")
        treated = "" if given.missing == "masked" else f"-{given.missing}"
        write_json(given.out / f"{data.name}-{name}{treated}.json", record)
        errors = scores.overall
        print(f"{method}: RMSE {errors.rmse:.3f}, masked RMSE {errors.masked_rmse:.3f}")


if __name__ == "__main__":
    main()
