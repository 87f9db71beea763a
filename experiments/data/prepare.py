"""The folders of three data sets, from the files that docs/reproduction.md names.

    python experiments/data/prepare.py molene sensor_data_filtered.csv molene
    python experiments/data/prepare.py montevideo-bus montevideo_bus.json montevideo-bus
    python experiments/data/prepare.py metr-la-week-207 los_speed.csv week   # and adj_mx.pkl beside it

`molene-32.csv` and `montevideo-bus-60.csv` beside this file have the sensors and their places. The bus stops
are the 60 with most boardings.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.adjacency import read_matrix
from cnfgnn.data.files.export import write_traffic
from cnfgnn.data.readings import Readings

WEEK = "metr-la-week-207"
HERE = Path(__file__).resolve().parent
KELVIN = 273.15


def molene(source: Path) -> pd.DataFrame:
    """Hourly temperatures of January 2014, in degrees Celsius."""
    rows = pd.read_csv(source, parse_dates=["date"], dtype={"numer_sta": str})
    return (rows.pivot(index="date", columns="numer_sta", values="t") - KELVIN).round(2)


def montevideo_bus(source: Path) -> pd.DataFrame:
    """Hourly boardings from October 2020 on."""
    stops = json.loads(source.read_text(encoding="utf-8"))["nodes"]
    counts = pd.DataFrame({str(stop["bus_stop"]): stop["y"] for stop in stops})
    return counts.set_axis(pd.date_range("2020-10-01", periods=len(counts), freq="h"), axis=0)


SETS: Mapping[str, tuple[str, Callable[[Path], pd.DataFrame]]] = {
    "molene": ("molene-32.csv", molene),
    "montevideo-bus": ("montevideo-bus-60.csv", montevideo_bus),
}


def write_week(source: Path, out: Path) -> None:
    """The first week of METR-LA, every five minutes from 2012-03-01 on, as a traffic file with its graph."""
    speeds = pd.read_csv(source)
    times = np.datetime64("2012-03-01", "s") + np.timedelta64(5, "m") * np.arange(len(speeds))
    values = speeds.to_numpy(dtype=np.float32)
    ids, graph = read_matrix(source.with_name("adj_mx.pkl"))
    if ids != tuple(speeds.columns):
        sys.exit(f"{source} has other sensors than adj_mx.pkl beside it, or another order")
    out.mkdir(parents=True)
    write_traffic(Dataset("metr-la-week-207", Readings(times, ids, values, np.isnan(values)), graph), out)


def main() -> None:
    if len(sys.argv) != 4 or sys.argv[1] not in (*SETS, WEEK):
        sys.exit(__doc__)
    source, out = Path(sys.argv[2]), Path(sys.argv[3])
    if not source.is_file() or out.exists():
        sys.exit(
            f"{source}: no such file"
            if not source.is_file()
            else f"{out} exists already: choose another folder"
        )
    if sys.argv[1] == WEEK:
        write_week(source, out)
        return
    places, readings = SETS[sys.argv[1]]
    sensors = pd.read_csv(HERE / places, dtype={"id": str}, index_col="id")
    found = readings(source)
    if missing := [sensor for sensor in sensors.index if sensor not in found]:
        sys.exit(f"{source} has no sensor {missing[0]}, which {places} lists")
    out.mkdir(parents=True)
    found[sensors.index].to_csv(out / "readings.csv", index_label="time")
    sensors.to_csv(out / "sensors.csv")


if __name__ == "__main__":
    main()
