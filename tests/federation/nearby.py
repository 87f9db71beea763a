"""A server and its sites in this process, for tests of what they tell each other: the server's own code, the
sites' own code, the real links and codec between them; only the engine that starts processes is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.federation.example import write_example
from cnfgnn.federation.flare.executor import FORECASTS, SiteNodes
from cnfgnn.federation.kits import make_kits
from cnfgnn.federation.project import read_project
from cnfgnn.federation.server_task import Task, serve, settings_of
from cnfgnn.federation.status import read_status
from cnfgnn.transports.remote.endpoint import Endpoint
from cnfgnn.transports.remote.messages import Unreachable

SITES: Mapping[str, Sequence[int]] = {"north": [0], "south": [1, 2], "west": [3, 4, 5]}


class Nearby:
    """Kits of one project. Each task starts every site anew, as the engine does; `away` names sites that
    cannot be reached."""

    def __init__(self, folder: Path, data: Dataset, sites: Mapping[str, Sequence[int]] = SITES) -> None:
        self.folder, self.sites = folder, sites
        self.kits = make_kits(read_project(write_example(folder / "example", data, sites)), folder / "kits")
        self.server = self.kits["server"]
        self.ends: dict[str, Endpoint] = {}
        self.away: set[str] = set()
        self.stop: Callable[[], bool] = lambda: False  # whether the operator wants the task to end

    def restart(self, name: str) -> None:
        """A site's process that ended and was started again: it reads its files anew."""
        nodes = SiteNodes(self.kits[name])
        self.ends[name] = Endpoint(nodes.join, nodes.about, nodes.after)

    def perform(self, task: Task) -> Mapping[str, Any]:
        """Carry out a task; how it ended, as the status file says."""
        for name in self.sites:
            self.restart(name)
        serve(self.server, task, self, lambda: self.stop())
        return self.status

    @property
    def status(self) -> Mapping[str, Any]:
        return read_status(self.server) or {}

    def stop_after(self, more: int) -> None:
        """End the next task once so many more rounds of a training are done."""
        enough = self.status.get("done", 0) + more
        self.stop = lambda: self.status.get("state") == "running" and self.status.get("done", 0) >= enough

    def train(self, config: Config, name: str = "one") -> Mapping[str, Any]:
        return self.perform(Task("train", name, settings=settings_of(config), wait=20.0))

    def resume(self, name: str = "one") -> Mapping[str, Any]:
        return self.perform(Task("train", name, resume=True, wait=20.0))

    def forecast(self, name: str = "one", wait: float = 20.0) -> Mapping[str, Any]:
        return self.perform(Task("forecast", name, wait=wait))

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        if site in self.away:
            raise Unreachable("it is away")
        return self.ends[site].answer(request)

    # ---- files -----------------------------------------------------------------------------------------

    def readings(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self._file(name), index_col="time", parse_dates=True)

    def write(self, name: str, frame: pd.DataFrame) -> None:
        frame.to_csv(self._file(name), index_label="time")

    def latest(self, name: str) -> pd.DataFrame | None:
        """The newest forecasts of a site, if it has any."""
        file = self.kits[name] / FORECASTS / "latest.csv"
        return pd.read_csv(file, index_col="time", parse_dates=True) if file.exists() else None

    def _file(self, name: str) -> Path:
        return self.folder / "example" / "data" / name / "readings.csv"


def with_row(frame: pd.DataFrame, steps: int, times: float = 1.0) -> pd.DataFrame:
    """One more row, so many steps after the last one (before the first, if negative)."""
    step = frame.index[1] - frame.index[0]
    end = frame.iloc[[-1 if steps > 0 else 0]] * times
    stray = end.set_index(end.index + steps * step)
    return pd.concat([frame, stray]).sort_index()


def ending(frame: pd.DataFrame, newest: pd.Timestamp) -> pd.DataFrame:
    """The same readings, the newest of them taken then."""
    step = frame.index[1] - frame.index[0]
    return frame.set_index(newest - step * (len(frame) - 1 - pd.RangeIndex(len(frame))))
