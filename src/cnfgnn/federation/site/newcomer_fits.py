"""What forecasts of a new sensor need and no training has computed: weekly profile, linear forecaster, and
the scales of its further inputs.

They come from the readings that there are, as if the run were evaluated on a sensor that it never saw. They
are computed when the sensor has the readings of one window, and again whenever it has twice as many as the
last time. In between they stay, also across restarts, so that forecasts do not change with a restart.

The owner computes them from the true readings, and the nodes from the copy. Each has an object and a folder
of its own: when the nodes compute again must not depend on how many true readings are outliers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.messages.settings import NodeSettings
from cnfgnn.data.inputs import NO_INPUTS
from cnfgnn.data.prepared_series import INFORMED, LINEAR, OWN, PreparedSeries
from cnfgnn.data.readings import Readings, columns_of, rows_of
from cnfgnn.data.series import Series
from cnfgnn.data.windows import Windows
from cnfgnn.errors import RunError
from cnfgnn.runs.checkpoints import FolderStore
from cnfgnn.runs.forecast import with_rows_ahead

FOLDER = "new-sensors"  # in the folder of the site's live service
TAG, COUNT = "computed", "count"
AGAIN_AFTER = 2  # times as many readings

State = Mapping[str, Tensor]


class NewcomerFits:
    """What was computed for the new sensors of a site in one run, for its `nodes` or for their `owner`.

    folder  that of the site's live service
    least   how many readings it takes
    """

    def __init__(self, folder: Path, run: str, of: Literal["nodes", "owner"], least: int) -> None:
        self.run, self.folder, self.least = run, folder / FOLDER / run / of, least
        self._kept: dict[str, State] = {}

    def is_known(self, sensor: str) -> bool:
        """Whether enough readings of a sensor were there to compute something."""
        return bool(self._of(sensor))

    def update(
        self, sensors: Sequence[str], readings: Readings, like: PreparedSeries, settings: NodeSettings
    ) -> bool:
        """Compute what is due; True if there is something new. `like` has the scale and the windows."""
        due = [sensor for sensor in sensors if self._is_due(sensor, readings)]
        for sensor in due:
            count = torch.tensor(_count(readings, sensor))
            found = {**computed(readings, sensor, like, settings), COUNT: count}
            self._store(sensor).write(TAG, found, ())
            self._kept[sensor] = found
        return bool(due)

    def of(self, sensors: Sequence[str]) -> list[State]:
        """What is known of each sensor; an empty state if it is nothing."""
        return [{name: x for name, x in self._of(sensor).items() if name != COUNT} for sensor in sensors]

    def _is_due(self, sensor: str, readings: Readings) -> bool:
        kept, count = self._of(sensor), _count(readings, sensor)
        before = int(kept[COUNT]) if kept else 0
        return count >= max(self.least, AGAIN_AFTER * before)

    def _of(self, sensor: str) -> State:
        if sensor not in self._kept:
            store, kept = self._store(sensor), {}
            with suppress(RunError):  # it is damaged: it is computed again
                kept = store.read(TAG) if store.has(TAG) else {}
            self._kept[sensor] = kept
        return self._kept[sensor]

    def _store(self, sensor: str) -> FolderStore:
        return FolderStore(self.folder / hashlib.sha256(sensor.encode()).hexdigest()[:24])


def computed(readings: Readings, sensor: str, like: PreparedSeries, settings: NodeSettings) -> State:
    """Profile, linear forecaster and scales of one sensor, from all its readings at hand."""
    measured = np.flatnonzero(~readings.missing.all(axis=1))
    at_hand = rows_of(columns_of(readings, [sensor]), slice(int(measured[0]), None))
    windows = Windows.next(len(at_hand.times), like.history, like.horizon)
    series = Series.of(with_rows_ahead(at_hand, like.horizon))
    kind = like.inputs.dtype, like.inputs.device
    inputs = NO_INPUTS if like.others is None else like.others.counts
    prepared = PreparedSeries(series, like.scaler, settings.missing, windows, *kind, settings.model, inputs)
    return prepared.state()


def use(data: PreparedSeries, states: Sequence[State]) -> None:
    """Let the last sensors of `data` use these states, one for each; an empty one changes nothing."""
    known = data.nodes - len(states)
    names = {name for state in states for name in state}
    informed = LINEAR + INFORMED
    wanted: dict[str, Tensor] = {}
    for name in names:
        example = next(state[name] for state in states if name in state)
        nothing = example.new_full((1, *example.shape[1:]), torch.nan)
        rows = [state.get(name, nothing) for state in states]
        wanted[name] = torch.cat([nothing.expand(known, *nothing.shape[1:]), *rows])
        if name.startswith(LINEAR + OWN) and INFORMED in data.linear:
            # Without means of neighbours' levels in training, forecasters that use them are the same.
            inputs = data.linear[INFORMED].weights.shape[1]
            padded = torch.zeros(len(wanted[name]), inputs, *example.shape[2:], dtype=example.dtype)
            padded[:, : example.shape[1]] = wanted[name]
            padded[wanted[name].flatten(1).isnan().any(dim=1)] = torch.nan
            wanted[name.replace(LINEAR + OWN, informed)] = padded
    data.use(wanted)


def _count(readings: Readings, sensor: str) -> int:
    if sensor not in readings.ids:
        return 0
    return int((~readings.missing[:, readings.ids.index(sensor)]).sum())
