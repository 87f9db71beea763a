"""The scripts in examples/ do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pandas as pd

AUCKLAND = Path(__file__).parents[1] / "examples" / "auckland.py"


def test_nights_of_the_aucklanders_belong_to_the_next_date() -> None:
    """The package's day begins at 6:00, and some of its dates are wrong; the hours follow each other."""
    hours = [*range(6, 24), 0, 1, 3, 4, 5, 6, 7]  # clocks go forward at 2:00
    dates = ["2023-07-01"] * 23 + ["2023-07-01", "2023-07-02"]
    table = pd.DataFrame(
        {
            "date": pd.to_datetime(dates),
            "hour": [f"{hour}:00-{hour}:59" for hour in hours],
            "year": 2023,
            "1 Courthouse Lane": range(len(hours)),
        }
    )
    found = runpy.run_path(str(AUCKLAND))["readings"](table)
    assert list(found.columns) == ["1 Courthouse Lane"]
    assert [str(time)[5:13] for time in found.index[[0, 17, 18, 20, 23, 24]]] == [
        "07-01 06", "07-01 23", "07-02 00", "07-02 03", "07-02 06", "07-02 07",
    ]  # fmt: skip
