"""Every forecast of a split beside its reading, as a Parquet file for analyses of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from cnfgnn.algorithm.owner import Owner
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.quality import clean
from cnfgnn.data.readings import Readings
from cnfgnn.data.windows import Split
from cnfgnn.files import writing_whole
from cnfgnn.forecasters.intervals import REPORTED, Ints, bounds_of
from cnfgnn.runs.evaluate import restore_best
from cnfgnn.runs.folder import Run

BOUNDS = tuple(f"{end}_{level}" for level in REPORTED for end in ("low", "high"))
"""Columns of the ranges, on the test split; in per cent."""


def write_predictions(run: Run, data: Dataset, split: Split, path: Path) -> int:
    """Write a row for each sensor, issue time and step ahead, and return how many.

    sensor, issued, step   `issued` is the time of the newest reading that the forecast knows
    truth, observed        the number in the file (null if there is none), and whether it is a reading
    forecast, low_80 ...   in the readings' unit; bounds are null where there are none
    """
    experiment, readings = restore_best(run, data), clean(data.readings, run.config.data)
    experiment.strategy.ready(split)
    times = pa.timestamp("s", tz="UTC" if readings.utc else None)
    numbers = {name: pa.float32() for name in ("truth", "forecast", *BOUNDS)}
    schema = pa.schema(
        {"sensor": pa.string(), "issued": times, "step": pa.int16(), "observed": pa.bool_()} | numbers
    )
    rows = 0
    with writing_whole(path) as file, parquet.ParquetWriter(file, schema) as writer:
        for nodes, owner in experiment.owners:
            for part in _parts(readings, nodes.numpy(), owner, split):
                writer.write_table(pa.table(part, schema=schema))
                rows += len(part["step"])
    return rows


def _parts(readings: Readings, nodes: Ints, owner: Owner, split: Split) -> Iterator[dict[str, pa.Array]]:
    """The columns of the file, some windows at a time."""
    horizon = owner.data.horizon
    ids = np.array(readings.ids, dtype=object)[nodes]
    for chunk in owner.data.chunks(split):
        values = owner.data.unscaled(owner.forecasts_of(split, chunk)).cpu().numpy()  # (n b t)
        issued = owner.data.starts[split][chunk].cpu().numpy() + owner.data.history - 1
        rows, sensors = issued[:, None] + 1 + np.arange(horizon), nodes[:, None, None]
        columns = {
            "sensor": ids[:, None, None],
            "issued": readings.times[issued][:, None],
            "step": np.arange(1, horizon + 1, dtype=np.int16),
            "observed": ~readings.missing[rows, sensors],
            "truth": readings.values[rows, sensors],
            "forecast": values.astype(np.float32),
        }
        bounds = owner.bounds_of(chunk, values) if split == "test" else None
        for level in REPORTED:
            for end, name in enumerate(("low", "high")):
                known = np.float32(np.nan) if bounds is None else bounds_of(bounds, level)[end]
                columns[f"{name}_{level}"] = np.asarray(known, dtype=np.float32)
        yield {
            name: pa.array(np.broadcast_to(column, values.shape).ravel(), from_pandas=True)
            for name, column in columns.items()
        }
