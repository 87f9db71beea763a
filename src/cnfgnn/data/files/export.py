"""Write a data set as the files that `load` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.input_files import COVARIATES, VARIABLES
from cnfgnn.data.readings import Readings
from cnfgnn.files import make_folder, write_whole


def write_folder(data: Dataset, out: Path) -> None:
    """Write readings, further inputs, positions and graph into a folder."""
    write_network(data, out)
    _write_readings(data.readings, out / "readings.csv")
    for one in data.readings.others:
        folder = make_folder(out / (COVARIATES if one.known_ahead else VARIABLES))
        _write_readings(one.readings, folder / f"{one.name}.csv")


def _write_readings(readings: Readings, path: Path) -> None:
    """Write a wide table."""
    times = pd.DatetimeIndex(readings.times, name="time", tz="UTC" if readings.utc else None)
    frame = pd.DataFrame(readings.values, index=times, columns=readings.ids)
    write_whole(path, frame.to_csv().encode())


def write_network(data: Dataset, out: Path) -> None:
    """Write positions and graph into a folder, without any reading."""
    readings, graph = data.readings, data.graph
    if readings.positions is not None:
        located = pd.DataFrame(readings.positions, columns=["latitude", "longitude"], index=readings.ids)
        write_whole(out / "sensors.csv", located.to_csv(index_label="id").encode())
    names = np.array(readings.ids)
    edges = {"from": names[graph.senders], "to": names[graph.receivers], "weight": graph.weights}
    write_whole(out / "edges.csv", pd.DataFrame(edges).to_csv(index=False).encode())
