"""A live service on the synthetic city: a trained run, a recorded day, and everything in between."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cnfgnn.algorithm.methods import preset
from cnfgnn.data.export import write_folder
from cnfgnn.data.folder import load
from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.data.synthetic.city import city
from cnfgnn.files import make_folder
from cnfgnn.live.forecasts import Forecast
from cnfgnn.live.replay import Player, replay
from cnfgnn.live.start import LiveProcess, LiveSettings
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


class Comparison:
    """The RMSE of forecasts some steps ahead so far, beside that of the last value: the measure that runs are
    trained by and that the watch compares with the last value."""

    def __init__(self, truth: Readings, ahead: int = 3) -> None:
        self.ahead, self.count, self.squared, self.squared_last = ahead, 0, 0.0, 0.0
        self._row = {int(t): row for row, t in enumerate(truth.seconds)}
        self._truth = np.where(truth.missing, np.nan, truth.values)

    def add(self, made: Forecast) -> None:
        """Count the sensors that have a forecast, a last value and the reading that both are about."""
        target = self._row.get(made.times[self.ahead - 1])
        last = self._row.get(made.step)
        if target is None or last is None:
            return
        errors = made.values[:, self.ahead - 1] - self._truth[target]
        of_last = self._truth[last] - self._truth[target]
        known = np.isfinite(errors) & np.isfinite(of_last)
        self.count += int(known.sum())
        self.squared += float((errors[known] ** 2).sum())
        self.squared_last += float((of_last[known] ** 2).sum())

    def __str__(self) -> str:
        if not self.count:
            return ""
        own, simple = ((squared / self.count) ** 0.5 for squared in (self.squared, self.squared_last))
        return f"RMSE {5 * self.ahead} min ahead {own:.2f} (last value {simple:.2f})"


def show(
    demo: Demo,
    settings: LiveSettings,
    once: bool,
    rows: int,
    started: Callable[[LiveProcess], None],
    say: Callable[[str], None],
) -> None:
    """Serve, play the recorded day, and say a line for each forecast; with `once`, end when it is over."""

    async def main() -> None:
        process = LiveProcess(demo.run, settings)
        service = process.service
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, service.stopping.set)
        compared, begun = Comparison(demo.played), time.perf_counter()
        last = demo.played.times[min(rows, len(demo.played.times)) - 1].astype("datetime64[s]")
        last_shown = threading.Event()

        def told(made: Forecast) -> None:
            compared.add(made)
            counts = ", ".join(f"{count} {name}" for name, count in made.counts().items() if count)
            say(f"{service.zone.write(made.step)}: {counts}; {compared}".removesuffix("; "))
            if made.step >= last.astype(np.int64):
                last_shown.set()

        def play() -> None:
            with closing(Player(process.address, process.token)) as player:
                for _ in replay(demo.played, player, settings.speed, until=last + np.timedelta64(1, "s")):
                    if service.stopping.is_set():
                        return
            took = time.perf_counter() - begun
            say(f"{rows} steps were played in {took:.0f} s")
            if once:
                last_shown.wait(SHOWN_WITHIN)
                loop.call_soon_threadsafe(service.stopping.set)

        service.listeners.append(told)
        playing: list[asyncio.Future[None]] = []

        def begin() -> None:
            started(process)
            playing.append(asyncio.ensure_future(asyncio.to_thread(play)))

        await process.serve(begin)
        for future in playing:
            await future

    asyncio.run(main())
