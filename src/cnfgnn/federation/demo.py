"""The demonstration: a whole federation on one machine, from kits to forecasts, with one site killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from cnfgnn.algorithm.methods import preset
from cnfgnn.config.presets import BLUR as PRIVACY_BLUR
from cnfgnn.config.presets import PRIVATE
from cnfgnn.config.settings import Config
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.files.folder import load
from cnfgnn.data.prepared_series import SUMS
from cnfgnn.data.synthetic.city import city
from cnfgnn.errors import RunError
from cnfgnn.federation.example import write_example
from cnfgnn.federation.kits import processes
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.operator.tasks import Watch, run_task
from cnfgnn.federation.project import read_project
from cnfgnn.federation.site.owner import EVALUATIONS
from cnfgnn.federation.task import Task, settings_of
from cnfgnn.files import make_folder, read_json
from cnfgnn.runs.scores import Errors
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import evaluate_best, train

SENSORS, DAYS = 12, 4.0
BLUR = 5.0  # mph: a sixteenth of the 80 mph that such a sensor can show
SITES = {"north": [0, 1, 2], "east": [3, 4], "south": [5, 6, 7, 8], "west": [9, 10, 11]}
KILLED_SITE, KILLED_IN_ROUND = "east", 2
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # five processes compute on this machine at the same time


def demonstrate(folder: Path, rounds: int, watch: Watch, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the demonstration; return test errors: as the server and as the sites know them, and of the
    simulator."""
    if folder.exists():
        raise RunError(folder, "exists already: give the demonstration a new folder with --folder")
    config = demo_settings(rounds)  # before anything is written
    os.environ.update(ONE_THREAD)
    readings = make_folder(folder / "readings")
    write_folder(city(SENSORS, DAYS, seed=1), readings)
    data = load(readings)
    project = read_project(write_example(folder / "project", data, SITES, 2, BLUR))
    kits = make_kits(project, folder / "kits")
    say(f"made kits for a server and {len(SITES)} sites, each with its own certificate and readings")
    begin = str(data.readings.times[0])[:10]
    say(f"the readings are {DAYS:g} days of a synthetic city, starting on {begin}")
    say(
        f"each site blurs a copy of its readings by {BLUR:g} mph and sends only what it computes from the"
        " copy: the server learns at most what the readings with noise of that size would tell it"
    )
    failure = _SiteFailure(kits[KILLED_SITE], say)
    try:
        for kit in kits.values():
            processes.up(kit)
        say("started the server and the sites as separate processes, connected by mutual TLS")

        def watched(status: Mapping[str, Any]) -> None:
            watch(status)
            failure(status)

        given = sorted(config.given - {PRIVACY_BLUR})  # each site has its own
        training = Task("train", "demo", settings=settings_of(config), given=given)
        result = run_task(kits["server"], training, watched)
        failure.end()
        forecast = run_task(kits["server"], Task("forecast", "demo"), watch)
        span = f"from {forecast['from']} to {forecast['to']}"
        say(f"sites {', '.join(forecast['sites'])} wrote forecasts {span} into their kits")
    finally:
        for kit in kits.values():
            processes.down(kit)
    say("the server knows errors against the blurred copies; each site has its true ones in its own kit")
    say("now the simulator, on the same readings with the same blur and without a failure:")
    experiment = simulate(data, config)
    simulated = evaluate_best(experiment, train(experiment))
    return {
        "federation, against the copies": result["scores"]["overall"],
        "federation, true errors": vars(_true_errors([kits[name] for name in SITES])),
        "simulator, true errors": vars(simulated.test.overall),
    }


def demo_settings(rounds: int) -> Config:
    """The settings of the run; the blur is the simulator's, because each site of a federation has its own."""
    changes = {"training.rounds": rounds, PRIVACY_BLUR: BLUR, "compute.device": "cpu"}
    return preset(PRIVATE).with_changes(changes)


def _true_errors(kits: Sequence[Path]) -> Errors:
    """The true test errors of all sites together, from the files that each has in its kit."""
    sums = []
    for kit in kits:
        [file] = (kit / EVALUATIONS).glob("*-test.json")
        sums += [[of_sensor[name] for name in SUMS] for of_sensor in (read_json(file) or {})["sums"].values()]
    return Errors.of(torch.tensor(sums, dtype=torch.float64))


class _SiteFailure:
    """Kills one site in the middle of a round and restarts it a moment later."""

    def __init__(self, kit: Path, say: Callable[[str], None]) -> None:
        self.kit, self.say = kit, say
        self.killed = self.away = self.back = False  # away: the server has noticed

    def __call__(self, status: Mapping[str, Any]) -> None:
        site, now = dict(status.get("sites") or {}).get(KILLED_SITE), status.get("round", 0)
        if not self.killed and site is not None and now >= KILLED_IN_ROUND:
            self.killed = True
            for pid in filter(None, [processes.running(self.kit), *processes.jobs_of(self.kit)]):
                with suppress(ProcessLookupError):  # a job that ended by itself
                    os.kill(pid, signal.SIGKILL)
            self.say(f"killed site {KILLED_SITE} (kill -9) in round {now}; the others continue")
            time.sleep(1.0)  # long enough for the server to notice
            processes.up(self.kit)
        elif self.killed and not self.back and site is not None:
            is_here = bool(site["reachable"] and site["present"])
            self.away, self.back = self.away or not is_here, self.away and is_here
            if self.back:
                self.say(f"site {KILLED_SITE} rejoined in round {now} and received the state it missed")

    def end(self) -> None:
        if self.killed and not self.back:
            self.say(f"site {KILLED_SITE} rejoined after training had ended")
