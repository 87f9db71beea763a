"""A server and its sites in this process, for tests of their protocol.

The code of the server and of the sites, the links and the codec are the real ones. Only the engine, which
starts processes and carries messages between them, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cnfgnn.config.presets import BLUR
from cnfgnn.config.settings import Config
from cnfgnn.config.toml import toml_value
from cnfgnn.data.dataset import Dataset
from cnfgnn.federation.example import write_example
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.project import read_project
from cnfgnn.federation.server.status import read_status
from cnfgnn.federation.server.task import serve
from cnfgnn.federation.site.nodes import NOT_READ_YET, SiteNodes
from cnfgnn.federation.site.owner import FORECASTS
from cnfgnn.federation.task import Task, settings_of
from cnfgnn.transports.remote.endpoint import Endpoint
from cnfgnn.transports.remote.messages import Unreachable
from tests.federation.known_keys import known_keys
from tests.waiting import wait_for

SITES: Mapping[str, Sequence[int]] = {"north": [0], "south": [1, 2], "west": [3, 4, 5]}


def given_of(config: Config) -> list[str]:
    """The settings that a person set, as a task carries them; every site sets its own blur."""
    return sorted(config.given - {BLUR})


class InMemoryFederation:
    """The kits of one project. Each task restarts every site, as the engine does.

    Sites named in `unreachable` do not answer.
    """

    def __init__(
        self, folder: Path, data: Dataset, sites: Mapping[str, Sequence[int]] = SITES, blur: float = 0.0
    ) -> None:
        self.folder, self.sites = folder, sites
        project = read_project(write_example(folder / "example", data, sites, blur=blur))
        with known_keys():
            self.kits = make_kits(project, folder / "kits")
        self.server = self.kits["server"]
        self.ends: dict[str, Endpoint] = {}
        self.unreachable: set[str] = set()
        self.stop: Callable[[], bool] = lambda: False  # whether the operator has stopped the task

    def restart(self, name: str) -> None:
        """Restart a site: it reads its files again."""
        nodes = SiteNodes(self.kits[name])
        self.ends[name] = Endpoint(nodes.join, nodes.describe)

    def run_task(self, task: Task) -> Mapping[str, Any]:
        """Run a task; return its final status."""
        for name in self.sites:
            self.restart(name)
        wait_until_read(self.ends)
        serve(self.server, task, self, lambda: self.stop())
        return self.status

    @property
    def status(self) -> Mapping[str, Any]:
        return read_status(self.server) or {}

    def stop_after(self, more: int) -> None:
        """Stop the next task once `more` further rounds of training are done."""
        enough = self.status.get("done", 0) + more
        self.stop = lambda: self.status.get("state") == "running" and self.status.get("done", 0) >= enough

    def train(self, config: Config, name: str = "one") -> Mapping[str, Any]:
        return self.run_task(
            Task("train", name, settings=settings_of(config), given=given_of(config), wait=20.0)
        )

    def resume(self, name: str = "one") -> Mapping[str, Any]:
        return self.run_task(Task("train", name, resume=True, wait=20.0))

    def forecast(
        self, name: str = "one", wait: float = 20.0, intervals: Sequence[int] = ()
    ) -> Mapping[str, Any]:
        return self.run_task(Task("forecast", name, wait=wait, intervals=list(intervals)))

    def evaluate(self, name: str = "one", split: str = "test") -> Mapping[str, Any]:
        return self.run_task(Task("evaluate", name, split=split, wait=20.0))

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        if site in self.unreachable:
            raise Unreachable("unreachable in this test")
        return self.ends[site].answer(request)

    def set(self, name: str, **settings: object) -> None:
        """Change settings of a site; None removes one."""
        file = self.kits[name] / "local" / "site.toml"
        kept = [line for line in file.read_text().splitlines() if line.split(" ")[0] not in settings]
        new = [f"{key} = {toml_value(value)}" for key, value in settings.items() if value is not None]
        file.write_text("\n".join([*kept, *new, ""]))

    # ---- files -----------------------------------------------------------------------------------------

    def readings(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self._file(name), index_col="time", parse_dates=True)

    def write(self, name: str, frame: pd.DataFrame) -> None:
        frame.to_csv(self._file(name), index_label="time")

    def latest(self, name: str) -> pd.DataFrame | None:
        """The latest forecasts of a site; None if it has none."""
        file = self.kits[name] / FORECASTS / "latest.csv"
        return pd.read_csv(file, index_col="time", parse_dates=True) if file.exists() else None

    def _file(self, name: str) -> Path:
        return self.folder / "example" / "data" / name / "readings.csv"


def must_finish(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status of a task that has come to its end."""
    assert status["state"] == "finished", status["problem"]
    return status


def wait_until_read(ends: Mapping[str, Endpoint]) -> None:
    """Until the sites have read their files: a task may wait for them for a second only."""
    wait_for(
        lambda: all(end.about().get("problem") != NOT_READ_YET for end in ends.values()), "files are read"
    )


def with_row(frame: pd.DataFrame, steps: int, times: float = 1.0) -> pd.DataFrame:
    """The readings with one more row, `steps` after the last one (before the first one if negative)."""
    step = frame.index[1] - frame.index[0]
    end = frame.iloc[[-1 if steps > 0 else 0]] * times
    stray = end.set_index(end.index + steps * step)
    return pd.concat([frame, stray]).sort_index()


def ending(frame: pd.DataFrame, newest: pd.Timestamp) -> pd.DataFrame:
    """The same readings, shifted so that the newest one is from `newest`."""
    step = frame.index[1] - frame.index[0]
    return frame.set_index(newest - step * (len(frame) - 1 - pd.RangeIndex(len(frame))))
