"""Open the data set that a configuration names."""

from __future__ import annotations

from pathlib import Path

from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.folder import load_with
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.refusals import Refusals
from cnfgnn.data.synthetic.city import city
from cnfgnn.errors import ConfigError

CITY_TARGET = "speed"


def reading_options(config: Config, refusals: Refusals | None = None) -> ReadingOptions:
    """How a configuration has files read."""
    d = config.data
    return ReadingOptions(d.dates, d.decimal, d.timezone, d.target, d.inputs, refusals=refusals)


def open_data(config: Config, path: Path | None = None, refusals: Refusals | None = None) -> Dataset:
    """Load a file or folder of readings, or simulate the synthetic city.

    `path` replaces the configured path: with other readings, or with the same path as the user typed it, so
    that messages name it in the same way. With `refusals`, files are read as a live service reads them.
    """
    if path is not None or config.data.path != "city":
        return load_with(path or Path(config.data.path), reading_options(config, refusals))
    c, d = config.city, config.data
    if d.target not in ("", CITY_TARGET):
        raise ConfigError("data.target", f"the synthetic city forecasts no {d.target!r}", [CITY_TARGET])
    return city(c.sensors, c.days, seed=c.seed, inputs=c.inputs)
