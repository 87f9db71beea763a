"""Write a data set as the files that `load` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from cnfgnn.data.dataset import Dataset
from cnfgnn.files import write_whole


def write_folder(data: Dataset, out: Path, parquet: bool = False) -> None:
    """Write readings, positions and graph into a folder."""
    write_network(data, out)
    readings = data.readings
    frame = pd.DataFrame(
        readings.values, index=pd.DatetimeIndex(readings.times, name="time"), columns=readings.ids
    )
    if parquet:
        write_whole(out / "readings.parquet", frame.to_parquet())
    else:
        write_whole(out / "readings.csv", frame.to_csv().encode())


def write_network(data: Dataset, out: Path) -> None:
    """Write positions and graph into a folder, without any reading."""
    readings, graph = data.readings, data.graph
    if readings.positions is not None:
        located = pd.DataFrame(readings.positions, columns=["latitude", "longitude"], index=readings.ids)
        write_whole(out / "sensors.csv", located.to_csv(index_label="id").encode())
    names = np.array(readings.ids)
    edges = {"from": names[graph.senders], "to": names[graph.receivers], "weight": graph.weights}
    write_whole(out / "edges.csv", pd.DataFrame(edges).to_csv(index=False).encode())
