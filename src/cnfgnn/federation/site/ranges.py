"""The ranges of a site's forecasts as its live service has left them, for tasks that forecast after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cnfgnn.federation.site.settings import read_site
from cnfgnn.forecasters.intervals import Intervals
from cnfgnn.live.forecasting.predictor import key_of
from cnfgnn.live.forecasting.tracking import learned_intervals
from cnfgnn.live.intake.store import FILE
from cnfgnn.live.options import LIVE


def live_key(sensors: Sequence[str], run: str, tag: str) -> str:
    """Tells a run's saved state and the sensors of a live site from others."""
    return key_of(sensors, run=run, round=tag)


def live_intervals(kit: Path, run: str, tag: str, sensors: Sequence[str], horizon: int) -> Intervals | None:
    """The ranges of these sensors, whose rows count from 1970; None if the service has not forecast with this
    state of the run. It may have served new sensors besides."""
    new = [sensor.id for sensor in read_site(kit).new_sensors if sensor.id not in sensors]
    for ids in (tuple(sensors), (*sensors, *new)):
        found = learned_intervals(kit / LIVE / FILE, live_key(ids, run, tag), len(ids), horizon)
        if found is not None:
            return found.select(np.arange(len(sensors)))
    return None
