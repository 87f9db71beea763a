"""How a service keeps learning: it follows the record of its models, and has a process of its own train.

The trainer is another process of low priority and with few threads. It shares nothing with the service but
files that are replaced as a whole, so that the service goes on undisturbed whatever happens to it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from cnfgnn.data.readings import Readings
from cnfgnn.errors import CnfgnnError, ConfigError
from cnfgnn.forecasters.intervals import Intervals
from cnfgnn.live.forecasting.predictor import RunPredictor
from cnfgnn.live.forecasting.service import LiveService
from cnfgnn.live.learning.models import Models, Record, trained_at, written
from cnfgnn.live.options import LiveSettings
from cnfgnn.process_setup import PARENT

PERIODS = {"hourly": 3600.0, "daily": 86_400.0, "weekly": 604_800.0}
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
FOLLOWED_EVERY = 0.5  # seconds between looks at the record of models
ENDS_WITHIN = 5.0  # seconds that a trainer has when the service ends
LOWEST_PRIORITY = 19  # as in nice(1)
LOG = "retrain.log"  # what the last trainer said

Loaded = tuple[RunPredictor, Callable[[], Intervals | None]]
"""The predictor of a model, and what finds its first ranges."""

log = logging.getLogger(__name__)


def period_of(text: str) -> float:
    """Seconds of a period: hourly, daily, weekly, or a number with a unit, such as 6h or 2d."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip().lower())
    seconds = PERIODS.get(text.strip().lower(), 0.0)
    if found:
        seconds = float(found[1]) * UNITS[found[2]]
    if not 1 <= seconds <= 366 * 86_400:
        problem = f"{text!r} is not a period from a second to a year"
        raise ConfigError("--retrain", problem, [*PERIODS, "6h", "2d"])
    return seconds


class ServedModel(ABC):
    """The model that forecasts are made with: tells about it, and follows whoever replaces it."""

    loaded: float
    trained: float | None

    def __init__(self, service: LiveService) -> None:
        self.service = service

    @abstractmethod
    async def run(self) -> None:
        """Follow until cancelled."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What is known of the model here, among what `as_json` tells."""

    def begins(self, trained: float | None) -> None:
        """A model is in use from now on, which was trained then."""
        self.loaded, self.trained = time.time(), trained
        if trained is not None:
            self.service.metrics.model_trained.set(trained)

    def as_json(self) -> dict[str, Any]:
        """The model, and what became of the last trainings and switches; times are in UTC."""
        return {
            "run": None,
            "method": None,
            "round": None,
            "trained": None if self.trained is None else written(self.trained),
            "loaded": written(self.loaded),
            "rollbackTo": None,
            "switches": [],
            "retrainEvery": None,
            "training": False,
            "trainings": [],
            **self.about(),
        }


class Learning(ServedModel):
    """Keeps the service on the model that is live, and starts the trainer when it is due.

    load  makes the predictor of a model from the newest readings
    """

    def __init__(
        self,
        service: LiveService,
        predictor: RunPredictor,
        models: Models,
        load: Callable[[str, Readings], Loaded],
        settings: LiveSettings,
    ) -> None:
        super().__init__(service)
        self.models, self.load, self.settings = models, load, settings
        models.report = self._failed
        models.live()  # reads the record
        self.trainer: asyncio.subprocess.Process | None = None
        self._begin(predictor)

    def _begin(self, predictor: RunPredictor) -> None:
        self.model = predictor.run
        self.begins(trained_at(predictor.run))

    @property
    def name(self) -> str:
        return self.model.folder.absolute().name

    async def run(self) -> None:
        """Follow and train until cancelled."""
        work = [self._follow()] if self.settings.retrain is None else [self._follow(), self._retrain()]
        await asyncio.gather(*work)

    # ---- the live model -----------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Load another model whenever the record says that another one is live."""
        seen: Record | None = None
        while True:
            live = self.models.live()
            if self.models.record is not seen:
                seen = self.models.record
                try:
                    if live != self.name:
                        await self._switch()
                except Exception as error:  # the service goes on with the model it has
                    self._failed(error)
            await asyncio.sleep(FOLLOWED_EVERY)

    async def _switch(self) -> None:
        recent = self.service.recent
        load = partial(self._load, newest=recent.until(recent.newest))
        _, loaded = await asyncio.to_thread(self.models.usable, load, CnfgnnError)
        if loaded is not None:
            predictor, intervals = loaded
            await self.service.use(predictor, intervals)
            self._begin(predictor)
        self.models.live()  # reads the record
        self.service.tell_switch(self.models.record.switches[-1].json())

    def _load(self, model: str, newest: Readings) -> tuple[RunPredictor, Intervals | None] | None:
        """A model with its ranges; None if it is the one that is in use."""
        if model == self.name:
            return None
        torch.set_num_threads(1)  # in this thread: forecasts go on meanwhile
        predictor, intervals = self.load(model, newest)
        return predictor, intervals()

    # ---- training -----------------------------------------------------------------------------------

    async def _retrain(self) -> None:
        """Start a trainer when it is due: a period after the last one began, or after the first start, in
        the readings' time, however fast it passes."""
        assert self.settings.retrain is not None
        clock, since = self.service.clock, self.models.record.tried
        while True:
            now = clock.now()
            is_due = since is not None and now >= since + self.settings.retrain
            try:
                if since is None or since > now or is_due:  # a recording may have begun again
                    since = now
                    await asyncio.to_thread(self.models.note_try, now)
                if is_due:
                    await self._train()
            except Exception as error:  # the next period is another chance
                self._failed(error)
            await asyncio.sleep(FOLLOWED_EVERY)

    async def _train(self) -> None:
        threads, file = str(self.settings.retrain_threads), self.models.state / LOG
        environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, PARENT: str(os.getpid())}
        with file.open("wb") as said:
            self.trainer = trainer = await asyncio.create_subprocess_exec(
                *trainer_command(self.models, self.settings),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=os.environ | environment,
                start_new_session=True,  # Ctrl-C reaches the service, which ends it
            )
        with suppress(OSError):  # it may have ended already
            priority = os.getpriority(os.PRIO_PROCESS, 0) + self.settings.retrain_nice
            os.setpriority(os.PRIO_PROCESS, trainer.pid, min(priority, LOWEST_PRIORITY))
        try:
            code = await trainer.wait()
        except asyncio.CancelledError:
            await _end(trainer)
            raise
        finally:
            self.trainer = None
        self.service.metrics.trainers.labels("finished" if code == 0 else "failed").inc()
        last = (file.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""])[-1][:500]
        if code != 0:
            raise RuntimeError(f"the trainer ended with {code}: {last}")
        log.warning("retrained: %s", last)

    def _failed(self, error: Exception) -> None:
        """A failure here is logged and counted. It does not make the service degraded: forecasts go on."""
        self.service.metrics.failures.labels("learning").inc()
        log.warning("learning: %s", error if isinstance(error, CnfgnnError | RuntimeError) else repr(error))

    def about(self) -> dict[str, Any]:
        record = self.models.record
        return {
            "run": self.name,
            "method": self.model.config.method,
            "round": self.model.progress.best.r_g,
            "rollbackTo": record.line[-2] if len(record.line) > 1 else None,
            "switches": [switch.json() for switch in record.switches],
            "retrainEvery": self.settings.retrain,
            "training": self.trainer is not None,
            "trainings": [training.json() for training in record.trainings],
        }


def trainer_command(models: Models, settings: LiveSettings) -> list[str]:
    """The command line of the trainer."""
    command = [sys.executable, "-m", "cnfgnn", "live", "retrain", str(models.run)]
    command += ["--state", str(models.state), "--hold-out", str(settings.hold_out)]
    command += ["--clock", settings.clock, "--timezone", settings.timezone]
    if settings.data is not None:
        command += ["--data", str(settings.data)]
    for key, value in settings.changes.items():
        command += ["--set", f"{key}={value}"]
    return command


async def _end(trainer: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        trainer.terminate()
    try:
        await asyncio.wait_for(trainer.wait(), ENDS_WITHIN)
    except TimeoutError:
        with suppress(ProcessLookupError):
            trainer.kill()
        await trainer.wait()
