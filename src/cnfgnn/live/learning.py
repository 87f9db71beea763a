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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cnfgnn.algorithm.intervals import Intervals
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.readings import Readings
from cnfgnn.errors import CnfgnnError, ConfigError
from cnfgnn.live.models import Models, Record, Switch, trained_at
from cnfgnn.live.predictor import RunPredictor
from cnfgnn.live.retrain import RetrainSettings
from cnfgnn.live.service import LiveService
from cnfgnn.live.tracking import adapted_intervals
from cnfgnn.process_setup import PARENT
from cnfgnn.runs.folder import Run

PERIODS = {"hourly": 3600.0, "daily": 86_400.0, "weekly": 604_800.0}
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
FOLLOWED_EVERY = 0.5  # seconds between looks at the record of models
ENDS_WITHIN = 5.0  # seconds that a trainer has when the service ends
NICER, LOWEST_PRIORITY = 10, 19  # how much lower the trainer's priority is, unless told, as in nice(1)
LOG = "retrain.log"  # what the last trainer said


class Loaded(NamedTuple):
    """The predictor of a model, and the data that it was made with."""

    predictor: RunPredictor
    data: Dataset


Load = Callable[[str, Readings], Loaded]

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


@dataclass(frozen=True)
class LearningSettings:
    """How often to retrain, and with what.

    period   seconds between the beginnings of two retrainings; None: nothing is trained
    threads  that the trainer may compute with
    nicer    how much lower its priority is than the service's, on the scale of nice(1)
    """

    period: float | None = None
    threads: int = 1
    nicer: int = NICER
    retraining: RetrainSettings = field(default_factory=RetrainSettings)

    def command(self, run: Path, state: Path) -> list[str]:
        """The command line of the trainer."""
        r = self.retraining
        command = [sys.executable, "-m", "cnfgnn", "live", "retrain", str(run), "--state", str(state)]
        command += ["--hold-out", str(r.hold_out)]
        if r.data is not None:
            command += ["--data", str(r.data)]
        for key, value in r.changes.items():
            command += ["--set", f"{key}={value}"]
        return command


class Learning:
    """Keeps the service on the model that is live, and starts the trainer when it is due.

    load  makes the predictor of a model from the newest readings
    """

    def __init__(
        self,
        service: LiveService,
        run: Run,
        models: Models,
        model: str,
        load: Load,
        settings: LearningSettings,
    ) -> None:
        self.service, self.models, self.model, self.load = service, models, model, load
        self.run_of_model = run
        self.settings, self.loaded, self.started = settings, time.time(), time.time()
        self.trained = trained_at(run)
        models.report = self._failed
        models.live()  # reads the record
        self.trainer: asyncio.subprocess.Process | None = None
        service.metrics.model_trained.set(self.trained)

    async def run(self) -> None:
        """Follow and train until cancelled."""
        work = [self._follow()] if self.settings.period is None else [self._follow(), self._retrain()]
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
                    if live != self.model:
                        await self._switch(live)
                except Exception as error:  # the service goes on with the model it has
                    self._failed(error)
            await asyncio.sleep(FOLLOWED_EVERY)

    async def _switch(self, model: str) -> None:
        try:
            recent = self.service.recent
            predictor, intervals = await asyncio.to_thread(self._load, model, recent.until(recent.newest))
        except CnfgnnError as error:
            self._failed(error)
            await asyncio.to_thread(self._go_back, model, str(error))
            self.models.live()  # reads the record
            self.service.tell_switch(_told(self.models.record.switches[-1]))
            return
        await self.service.use(predictor, intervals)
        self.model = model
        self.run_of_model, self.loaded, self.trained = predictor.run, time.time(), trained_at(predictor.run)
        self.service.metrics.model_trained.set(self.trained)
        self.service.tell_switch(_told(self.models.record.switches[-1]))

    def _load(self, model: str, newest: Readings) -> tuple[RunPredictor, Intervals | None]:
        torch.set_num_threads(1)  # in this thread: forecasts go on meanwhile
        predictor, data = self.load(model, newest)
        return predictor, adapted_intervals(predictor, data)

    def _go_back(self, model: str, problem: str) -> None:
        """Record that a model cannot be loaded: the one that is loaded stays live."""
        why = f"{model} cannot be loaded ({problem})"
        if self.models.read().line[-2:] == (self.model, model):
            self.models.rollback(why)
        else:
            self.models.switch(self.model, why)

    # ---- training -----------------------------------------------------------------------------------

    async def _retrain(self) -> None:
        """Start a trainer when it is due; the next one is due a period after the last one began."""
        assert self.settings.period is not None
        period = self.settings.period / self.service.clock.speed
        since = self.models.record.tried or self.started
        while True:
            await asyncio.sleep(max(0.0, since + period - time.time()))
            since = time.time()
            try:
                await self._train()
            except Exception as error:  # the next period is another chance
                self._failed(error)

    async def _train(self) -> None:
        environment = os.environ | {
            "OMP_NUM_THREADS": str(self.settings.threads),
            "MKL_NUM_THREADS": str(self.settings.threads),
            PARENT: str(os.getpid()),
        }
        command = self.settings.command(self.models.run, self.models.state)
        with (self.models.state / LOG).open("wb") as said:
            trainer = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the service, which ends it
            )
        self.trainer = trainer
        with suppress(OSError):  # it may have ended already
            own = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, trainer.pid, min(own + self.settings.nicer, LOWEST_PRIORITY))
        try:
            code = await trainer.wait()
        except asyncio.CancelledError:
            await _end(trainer)
            raise
        finally:
            self.trainer = None
        self.service.metrics.trainers.labels("finished" if code == 0 else "failed").inc()
        if code == 0:
            log.warning("retrained: %s", _last_line(self.models.state / LOG))
        else:
            self._failed(
                RuntimeError(f"the trainer ended with {code}: {_last_line(self.models.state / LOG)}")
            )

    def _failed(self, error: Exception) -> None:
        """A failure here is logged and counted. It does not make the service degraded: forecasts go on."""
        self.service.metrics.failures.labels("learning").inc()
        log.warning("learning: %s", error if isinstance(error, CnfgnnError | RuntimeError) else repr(error))

    # ---- what is told -------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """The live model, and what became of the last trainings and switches; times are in UTC."""
        run, record = self.run_of_model, self.models.record
        return {
            "run": self.model,
            "method": run.config.method,
            "round": run.progress.best.r_g,
            "trained": written(self.trained),
            "loaded": written(self.loaded),
            "rollbackTo": record.line[-2] if len(record.line) > 1 else None,
            "switches": [_told(switch) for switch in record.switches],
            "retrainEvery": self.settings.period,
            "training": self.trainer is not None,
            "trainings": [
                {
                    "time": written(t.time),
                    "outcome": t.outcome,
                    "model": t.model,
                    "oldError": t.old_error,
                    "newError": t.new_error,
                    "text": t.text,
                }
                for t in record.trainings
            ],
        }


async def _end(trainer: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        trainer.terminate()
    try:
        await asyncio.wait_for(trainer.wait(), ENDS_WITHIN)
    except TimeoutError:
        with suppress(ProcessLookupError):
            trainer.kill()
        await trainer.wait()


def _told(switch: Switch) -> dict[str, str]:
    return {
        "time": written(switch.time),
        "from": switch.before,
        "to": switch.after,
        "why": switch.why,
    }


def written(seconds: float) -> str:
    """A time in seconds since 1970 as JSON has it: in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _last_line(file: Path) -> str:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:500] if lines else ""
