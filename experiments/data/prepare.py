"""The folders of molene and montevideo-bus, from the files that docs/reproduction.md names.

    python experiments/data/prepare.py molene sensor_data_filtered.csv molene
    python experiments/data/prepare.py montevideo-bus montevideo_bus.json montevideo-bus

`molene-32.csv` and `montevideo-bus-60.csv` beside this file have the sensors and their places. The bus stops
are the 60 with most boardings.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

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


def main() -> None:
    if len(sys.argv) != 4 or sys.argv[1] not in SETS:
        sys.exit(__doc__)
    places, readings = SETS[sys.argv[1]]
    sensors, out = pd.read_csv(HERE / places, dtype={"id": str}, index_col="id"), Path(sys.argv[3])
    found = readings(Path(sys.argv[2]))
    if missing := [sensor for sensor in sensors.index if sensor not in found]:
        sys.exit(f"{sys.argv[2]} has no sensor {missing[0]}, which {places} lists")
    out.mkdir(parents=True)
    found[sensors.index].to_csv(out / "readings.csv", index_label="time")
    sensors.to_csv(out / "sensors.csv")


if __name__ == "__main__":
    main()
