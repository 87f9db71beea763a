"""How far a file has been read, and what in it is new."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from cnfgnn.live.folder_source import BLOCK, differing, state_of
from cnfgnn.live.recent import Arrived, RecentReadings
from tests.live.small_service import KNOWN, SmallRun, readings_like


def test_a_last_line_without_an_end_is_not_read_yet(tmp_path: Path) -> None:
    file = tmp_path / "readings.csv"
    for content, read in (
        (b"time,a\n2024-01-01 00:00,5\n", 26),
        (b"time,a\n2024-01-01 00:00,5\n2024-01-01 00:05,4", 26),
        (b"time,a\n" + b"7" * (2 * BLOCK), 7),
        (b"time,a", 0),
        (b"", 0),
    ):
        file.write_bytes(content)
        state = state_of(file)
        assert (state.size, state.read) == (len(content), read)


def test_only_readings_that_are_not_known_are_taken_from_a_file(small_run: SmallRun) -> None:
    recent = RecentReadings(small_run.until(KNOWN).readings, 100, zeros_missing=False)
    whole = small_run.until(KNOWN + 1).readings
    times = whole.times.astype("datetime64[s]").astype(np.int64)
    new = [
        Arrived(sensor, int(times[-1]), float(value))
        for sensor, value in zip(whole.ids, whole.values[-1], strict=True)
        if not np.isnan(value)
    ]
    assert differing(whole, recent) == new
    values = whole.values.copy()
    values[KNOWN - 5, 1] = 77.0
    values[KNOWN - 101, 1] = 77.0  # too old to matter
    changed = replace(
        readings_like(small_run.data, small_run.data.readings.values),
        values=values,
        times=whole.times,
        missing=whole.missing,
    )
    found = differing(changed, recent)
    assert found == [Arrived("s1", int(times[KNOWN - 5]), 77.0), *new]
