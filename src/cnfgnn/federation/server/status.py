"""The status of a task: a small file in the server's kit that the server's job keeps replacing."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.errors import StorageError
from cnfgnn.federation.kits.process_identity import identity
from cnfgnn.files import read_json, write_whole
from cnfgnn.runs.events import plain
from cnfgnn.runs.training_loop import Progress, Round
from cnfgnn.transports.remote.transport import RemoteTransport

STATUS, TRAINING = "status.json", "training.json"  # the second one is of a training beside a live task
STOP = "stop"  # a file with the token of the task that is to stop
STOP_TRAINING = "stop-training"  # the same for a training beside a live task
WRITE_INTERVAL = 0.5  # seconds
STARTING = "it is starting"  # why a site is missing that is expected any moment
PHASES = {"weights": 1, "save": 1, "encode": 2, "backward": 3, "score": 4}


class Status:
    """What the operator sees while a task runs; it contains no reading and no forecast."""

    def __init__(self, kit: Path, token: str, **about: Any) -> None:
        self.path = kit / (TRAINING if about.get("do") == "retrain" else STATUS)
        self.transport: RemoteTransport | None = None  # once there is one, the sites are included
        self.fields: dict[str, Any] = {"token": token, "state": "connecting", **about}
        self.fields["process"] = identity(os.getpid())
        self.fields |= {"began": time.time(), "problem": "", "exit_code": 0}
        self._changed, self._ended = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._write()
        threading.Thread(target=self._keep_writing, daemon=True).start()

    def set(self, **fields: Any) -> None:
        with self._lock:
            self.fields |= fields
        self._changed.set()

    def touch(self) -> None:
        self._changed.set()

    def end(self, state: str, **fields: Any) -> None:
        """Write the final state; nothing is written after it."""
        self._ended.set()
        self.set(state=state, ended=time.time(), **fields)
        self._write()

    def _keep_writing(self) -> None:
        while not self._ended.wait(WRITE_INTERVAL):
            if self._changed.is_set():
                self._changed.clear()
                try:
                    self._write()
                except StorageError:
                    continue  # the disk is full: the run itself reports that when it cannot save a state

    def _write(self) -> None:
        with self._lock:
            content = {**self.fields, "time": time.time(), **_site_fields(self.transport)}
            text = json.dumps(plain(content), allow_nan=False)
            partial = self.path.with_name(f".{self.path.name}.partial")
            try:  # renamed, so that a reader finds a complete file; not synced, as it is replaced in a second
                partial.write_text(text, encoding="utf-8")
                partial.chmod(0o600)
                partial.replace(self.path)
            except OSError as error:
                raise StorageError(self.path, error) from error


class StatusWatcher:
    """A `Watcher` that records the progress of training in the status."""

    def __init__(self, status: Status, sites: Mapping[str, Sequence[str]]) -> None:
        """`sites` lists the sensors of each site, in the order of their rows."""
        self.status, self.minibatch = status, 0
        self.owners = [site for site, sensors in sites.items() for _ in sensors]
        self.sensors = [sensor for sensors in sites.values() for sensor in sensors]

    def begin(self, experiment: Experiment, progress: Progress) -> None:
        done = len(progress.history)
        self.kind = experiment.config.data.metric
        self.rounds = experiment.config.training.rounds
        self.status.set(state="running", round=done + 1, rounds=self.rounds, method=experiment.method.name)
        if progress.history:
            self._record(progress.history[-1], progress.best)

    def tick(self) -> None:
        self.minibatch += 1
        self.status.set(minibatch=self.minibatch)

    def round_done(self, done: Round, best: Round, seconds: float) -> None:
        self._record(done, best)
        self.minibatch = 0
        self.status.set(round=min(done.r_g + 1, self.rounds), done=done.r_g, minibatch=0, seconds=seconds)

    def end(self) -> None: ...

    def _record(self, done: Round, best: Round) -> None:
        self.status.set(
            kind=self.kind,
            loss=done.loss,
            error=getattr(done.validation, self.kind),
            best_error=getattr(best.validation, self.kind),
            best_round=best.r_g,
            compared=done.compared,
            left_out={
                "sites": list(dict.fromkeys(self.owners[row] for row in done.left_out)),
                "sensors": [self.sensors[row] for row in done.left_out],
            },
            training_bytes=vars(done.training_bytes),
            when=time.time(),
        )


def _site_fields(transport: RemoteTransport | None) -> dict[str, Any]:
    if transport is None:
        return {}
    sites = {
        site.name: {
            "present": site.present,
            "reachable": site.reachable,
            "last_seen": site.last_seen,
            "latency": site.latency,
            "windows": site.windows,
            "refused": site.refused,
            "problem": site.problem,
            "holding_up": site.holding_up,
            "bytes": site.carried,
            "sensors": len(site.rows),
        }
        for site in transport.parties
    }
    return {
        "waiting": transport.waiting,
        "phase": PHASES.get(transport.verb, 0),
        "exchanges": transport.exchanges,
        "engine_seconds": round(transport.engine_seconds, 3),
        "site_seconds": round(transport.site_seconds, 3),
        "sites": sites,
    }


def request_stop(kit: Path, token: str, file: str = STOP) -> None:
    """Ask the server's job to stop its task itself, before the engine ends the sites' jobs."""
    write_whole(kit / file, token.encode())


def stop_requested(kit: Path, token: str, file: str = STOP) -> bool:
    try:
        return (kit / file).read_text(encoding="utf-8") == token
    except (OSError, ValueError):
        return False


def read_status(kit: Path, file: str = STATUS) -> Mapping[str, Any] | None:
    """The file's content; None if no task has written one yet."""
    return read_json(kit / file)
