"""Retraining of a live federation: the command that keeps it live submits a training every period."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.operator.tasks import is_live, run_beside
from cnfgnn.federation.server.live.models import FederatedModels
from cnfgnn.federation.task import Task

CHECKED_EVERY = 1.0  # seconds
ENDS_WITHIN = 60.0  # seconds that a training has to stop

Say = Callable[[str], None]


@dataclass(frozen=True)
class RetrainPlan:
    """How often a live federation is retrained, and how models are judged.

    run       that it went live with
    period    seconds between the beginnings of two trainings
    hold_out  days at the end that both models are judged by
    wait      seconds for sites that are not connected
    """

    kit: Path
    run: str
    period: float
    hold_out: float
    wait: float


@contextmanager
def retraining(plan: RetrainPlan | None, terms: Mapping[str, Any], say: Say) -> Iterator[None]:
    """Inside, the federation is retrained as planned; `terms` are those of its live task. The period of a
    recording passes as fast as the recording."""
    if plan is None:
        yield
        return
    stopping = threading.Event()
    speed = float(terms["speed"]) if terms["feed"] else 1.0
    thread = threading.Thread(
        target=_repeat, args=[plan, speed, stopping, say], name="retraining", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(ENDS_WITHIN)


def _repeat(plan: RetrainPlan, speed: float, stopping: threading.Event, say: Say) -> None:
    """Train when a period has passed since the last training began, or since the federation first went live
    with a period; also across restarts."""
    models = FederatedModels(plan.kit, plan.run)
    if models.read().tried is None:
        models.note_try()
    since = models.read().tried or time.time()
    while not stopping.wait(CHECKED_EVERY):
        if time.time() < since + plan.period / speed or not is_live(plan.kit, plan.run):
            continue
        since = time.time()
        try:
            say(f"retrained: {train_once(plan, stopping.is_set)}")
        except CnfgnnError as error:  # the next period is another chance
            if not stopping.is_set():
                say(f"not retrained: {error}")


def train_once(plan: RetrainPlan, stopped: Callable[[], bool]) -> str:
    """Train and judge once; what came of it."""
    models = FederatedModels(plan.kit, plan.run)
    kept = models.kept_states()
    task = Task(
        "retrain",
        models.new_name(),
        earlier=models.live(),
        line=plan.run,
        hold_out=plan.hold_out,
        wait=plan.wait,
        states={} if kept is None else kept._asdict(),
    )
    return str(run_beside(plan.kit, task, stopped)["text"])
