"""A live service on the synthetic city: a trained run, a recorded day, and everything in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cnfgnn.algorithm.methods import preset
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.files.folder import load
from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.data.synthetic.city import city
from cnfgnn.files import make_folder
from cnfgnn.live.forecasting.forecasts import Forecast
from cnfgnn.live.forecasting.watch import Report
from cnfgnn.live.intake.replay import Player, replay
from cnfgnn.live.options import LiveSettings
from cnfgnn.live.start import LiveProcess, run_live
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Watcher, train_run

METHOD = "cnfgnn-plus"
SHOWN_WITHIN = 30.0  # seconds for the last forecast, after all readings have been played
SENSORS, DAYS, ROUNDS = 24, 8.0, 3
ROWS_A_DAY = 288


@dataclass(frozen=True)
class Demo:
    """A trained run, the folder that it was trained on, and the readings that follow."""

    run: Run
    folder: Path
    played: Readings


def prepare(out: Path, watcher: Watcher, sensors: int = SENSORS, rounds: int = ROUNDS) -> Demo:
    """Train a small run on all days of the city but the last; one that is there already is used again."""
    data = city(sensors, DAYS, seed=0)
    cut = len(data.readings.times) - ROWS_A_DAY
    folder, trained = out / "data", out / "city"
    if not (trained / "manifest.json").exists():
        before = replace(data, readings=rows_of(data.readings, slice(0, cut)))
        write_folder(before, make_folder(folder))
        config = preset(METHOD).with_changes({"data.path": str(folder.absolute()), "training.rounds": rounds})
        Run.create(trained, config, load(folder))
    run = Run.open(trained)
    if not run.finished:
        train_run(run, load(folder), watcher)
        run = Run.open(trained)
    return Demo(run, folder, rows_of(data.readings, slice(cut, None)))


def show(
    demo: Demo,
    settings: LiveSettings,
    once: bool,
    rows: int,
    started: Callable[[LiveProcess], None],
    say: Callable[[str], None],
) -> None:
    """Serve, play the recorded day, and say a line for each forecast; with `once`, end when it is over."""
    last = demo.played.times[min(rows, len(demo.played.times)) - 1].astype("datetime64[s]")
    last_shown, playing = threading.Event(), list[Future[None]]()

    def play(process: LiveProcess) -> None:
        begun, stopping = time.perf_counter(), process.service.stopping
        with closing(Player(process.address, process.token)) as player:
            for _ in replay(demo.played, player, settings.speed, until=last + np.timedelta64(1, "s")):
                if stopping.is_set():
                    return
        say(f"{rows} steps were played in {time.perf_counter() - begun:.0f} s")
        if once:
            last_shown.wait(SHOWN_WITHIN)
            process.loop.call_soon_threadsafe(stopping.set)

    def begin(process: LiveProcess) -> None:
        service = process.service

        def told(made: Forecast) -> None:
            counts = ", ".join(f"{count} {name}" for name, count in made.counts().items() if count)
            say(f"{service.zone.write(made.step)}: {counts}{_compared(service.report)}")
            if made.step >= last.astype(np.int64):
                last_shown.set()

        service.listeners.append(told)
        started(process)
        playing.append(ThreadPoolExecutor(1).submit(play, process))

    with suppress(KeyboardInterrupt):
        run_live(demo.run, settings, begin)
    for future in playing:
        future.result()


def _compared(report: Report | None) -> str:
    """How good forecasts have been so far, beside the last value."""
    if report is None or report.overall.rmse is None or report.overall.skill is None:
        return ""
    rmse, skill = report.overall.rmse, report.overall.skill
    of_last = rmse / (1 - skill) if skill >= 0 else rmse * (1 + skill)
    return f"; RMSE {rmse:.2f} (last value {of_last:.2f})"
