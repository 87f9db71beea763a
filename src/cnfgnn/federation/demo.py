"""A federation on one machine from nothing to forecasts, with one site killed and back on the way."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cnfgnn.algorithm.methods import preset
from cnfgnn.config.settings import Config
from cnfgnn.data.export import write_folder
from cnfgnn.data.folder import load
from cnfgnn.data.synthetic.city import city
from cnfgnn.errors import RunError
from cnfgnn.federation import processes
from cnfgnn.federation.example import write_example
from cnfgnn.federation.kits import make_kits
from cnfgnn.federation.project import read_project
from cnfgnn.federation.server_task import Task, settings_of
from cnfgnn.federation.task_client import perform
from cnfgnn.files import make_folder
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import evaluate_best, train

SENSORS, DAYS = 12, 4.0
SITES = {"north": [0, 1, 2], "east": [3, 4], "south": [5, 6, 7, 8], "west": [9, 10, 11]}
KILLED, IN_ROUND = "east", 2
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # five processes that compute share this machine

Watch = Callable[[Mapping[str, Any]], None]


def demonstrate(folder: Path, rounds: int, watch: Watch, say: Callable[[str], None]) -> dict[str, Any]:
    """Errors of the federation's run and of the simulator's on the same readings."""
    if folder.exists():
        raise RunError(folder, "is there already: the demonstration begins with nothing")
    os.environ.update(ONE_THREAD)
    whole = make_folder(folder / "readings")
    write_folder(city(SENSORS, DAYS, seed=1), whole)
    data = load(whole)
    kits = make_kits(read_project(write_example(folder / "project", data, SITES, 2)), folder / "kits")
    say(f"kits for a server and {len(SITES)} sites, each with its own certificate and readings")
    say(f"the readings are of a synthetic city, of {DAYS:g} days from {str(data.readings.times[0])[:10]} on")
    config = demo_settings(rounds)
    try:
        for kit in kits.values():
            processes.up(kit)
        say("server and sites are up, as processes of their own with mTLS between them")
        accident = _Accident(kits[KILLED], say)

        def watched(status: Mapping[str, Any]) -> None:
            watch(status)
            accident(status)

        result = perform(kits["server"], Task("train", "demo", settings=settings_of(config)), watched)
        accident.over()
        ahead = perform(kits["server"], Task("forecast", "demo"), watch)
        say(f"forecasts from {ahead['from']} to {ahead['to']} lie at {', '.join(ahead['sites'])}")
    finally:
        for kit in kits.values():
            processes.down(kit)
    say("the simulator, on the same readings and with nobody killed:")
    experiment = simulate(data, config)
    simulated = evaluate_best(experiment, train(experiment))
    return {"the federation": result["scores"]["overall"], "the simulator": vars(simulated.test.overall)}


def demo_settings(rounds: int) -> Config:
    return preset("at-fedavg").with_changes(
        {
            "training.rounds": rounds,
            "training.client_batch": 128,
            "training.server_batch": 128,
            "compute.device": "cpu",
        }
    )


class _Accident:
    """Kills one site in the middle of a round and, once it was missed, starts it again."""

    def __init__(self, kit: Path, say: Callable[[str], None]) -> None:
        self.kit, self.say = kit, say
        self.killed = self.back = False
        self.helper: threading.Thread | None = None

    def __call__(self, status: Mapping[str, Any]) -> None:
        sites = status.get("sites") or {}
        if not self.killed and status.get("round", 0) >= IN_ROUND and KILLED in sites:
            self.killed = True
            for pid in [processes.running(self.kit), *processes.jobs_of(self.kit)]:
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
            self.say(f"site {KILLED} is killed (kill -9) in round {status['round']}; the others go on")
            self.helper = threading.Thread(target=self._restart, daemon=True)
            self.helper.start()
        elif self.killed and not self.back and self.helper is not None and not self.helper.is_alive():
            site = sites.get(KILLED, {})
            if site.get("reachable") and site.get("present"):
                self.back = True
                self.say(f"site {KILLED} is back in round {status['round']} and was told what it missed")

    def _restart(self) -> None:
        time.sleep(1.0)  # long enough to be missed
        processes.up(self.kit)

    def over(self) -> None:
        if self.helper is not None:
            self.helper.join()
        if not self.back:
            self.say(f"site {KILLED} came back after training had ended")
