"""Open the data set that a configuration names."""

from __future__ import annotations

from pathlib import Path

from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.folder import load
from cnfgnn.data.synthetic.city import city


def open_data(config: Config, path: Path | None = None) -> Dataset:
    """Load a file or folder of readings, or simulate the synthetic city.

    `path` replaces the configured path: with other readings, or with the same path as the user typed it, so
    that messages name it in the same way.
    """
    if path is not None or config.data.path != "city":
        d = config.data
        return load(path or d.path, dates=d.dates, decimal=d.decimal, timezone=d.timezone)
    c = config.city
    return city(c.sensors, c.days, seed=c.seed)
