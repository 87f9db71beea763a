"""The status of a task: a small file in the server's kit that the server's job keeps replacing, and what it
says."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnfgnn.errors import StorageError
from cnfgnn.federation.kits.process_identity import identity, is_running
from cnfgnn.federation.objections import code_of
from cnfgnn.federation.status import Problem, Status
from cnfgnn.files import read_json, read_json_or_empty, write_whole
from cnfgnn.runs.events import plain

if TYPE_CHECKING:  # commands read what a job writes, without loading PyTorch
    from cnfgnn.algorithm.experiment import Experiment
    from cnfgnn.runs.training_loop import Progress, Round
    from cnfgnn.transports.remote.transport import RemoteTransport

STATUS, TRAINING = "status.json", "training.json"  # the second one is of a training beside a live task
STOP = "stop"  # a file with the token of the task that is to stop
STOP_TRAINING = "stop-training"  # the same for a training beside a live task
WRITE_INTERVAL = 0.5  # seconds
WRITTEN_EVERY = 5.0  # seconds at most, also if nothing changes
PROBE = ".probe"  # a file that shows whether there is space for another
OLD_AFTER = 30.0  # seconds after which a status that was not written says nothing about now
STARTING = "it is starting"  # why a site is missing that is expected any moment
FINAL_STATES = ("finished", "stopped", "failed")
SITE_FIELDS = ("present", "reachable", "last_seen", "latency", "windows", "refused", "problem", "holding_up")
PHASES = {"weights": 1, "save": 1, "encode": 2, "backward": 3, "score": 4}


class StatusFile:
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
        tried = time.monotonic()
        while not self._ended.wait(WRITE_INTERVAL):
            if self._changed.is_set() or time.monotonic() - tried > WRITTEN_EVERY:
                self._changed.clear()
                tried = time.monotonic()
                with suppress(StorageError):  # the disk is full: readers see that the status is old
                    self._write()

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

    def __init__(self, status: StatusFile, sites: Mapping[str, Sequence[str]]) -> None:
        """`sites` lists the sensors of each site, in the order of their rows."""
        self.status, self.minibatch = status, 0
        self.owners = [site for site, sensors in sites.items() for _ in sensors]
        self.sensors = [sensor for sensors in sites.values() for sensor in sensors]

    def begin(self, experiment: Experiment, progress: Progress) -> None:
        done = len(progress.history)
        self.metric = experiment.config.data.metric
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
            metric=self.metric,
            loss=done.loss,
            error=getattr(done.validation, self.metric),
            best_error=getattr(best.validation, self.metric),
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
    sites = {site.name: {key: getattr(site, key) for key in SITE_FIELDS} for site in transport.parties}
    for site in transport.parties:
        sites[site.name] |= {"bytes": site.carried, "sensors": len(site.rows)}
        sites[site.name]["objection"] = "" if site.reachable else code_of(site.problem)
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


def is_active(recorded: Mapping[str, Any]) -> bool:
    """Whether the process that wrote a status still runs and has not finished its task."""
    process = recorded.get("process") or {}
    return recorded.get("state") not in FINAL_STATES and isinstance(process, dict) and is_running(process)


def objection_to(kit: Path, site: str) -> str:
    """The word for why the task that is under way leaves a site out; empty if it does not."""
    task = read_json_or_empty(kit / STATUS)
    if not is_active(task):
        return ""
    known = (task.get("sites") or {}).get(site)
    return str(known.get("objection", "") if known else (task.get("objections") or {}).get(site, ""))


def when_ended(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status of a task whose process has ended: unless it says how, the task was interrupted."""
    if recorded.get("state") in FINAL_STATES:
        return recorded
    why = dict.fromkeys(recorded.get("sites") or {}, "the task is interrupted")
    return {**_without_sites(recorded), "state": "interrupted", "waiting": False, "missing": why}


def when_old(kit: Path, recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status of a task that is under way; if its process could not write it of late, nothing is known of
    the sites, and its problem says why."""
    age = time.time() - float(recorded.get("time") or time.time())
    if age < OLD_AFTER:
        return recorded
    problem = f"its status is {age:.0f} s old, and how it is now is not known"
    if why := writing_problem(kit):
        problem = f"{problem}, because {why}"
    unknown = dict.fromkeys(recorded.get("sites") or {}, "the status of the task is old")
    away = _without_sites(recorded, problem="", holding_up="")
    return {**away, "old": problem, "problem": problem, "missing": unknown}


def _without_sites(recorded: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The same without a site that is there."""
    away, known = {"present": False, "reachable": False, **changes}, recorded.get("sites") or {}
    return {**recorded, "sites": {name: {**site, **away} for name, site in known.items()}}


def writing_problem(kit: Path) -> str:
    """Why nothing can be written into a kit; empty if it can be."""
    try:
        write_whole(kit / PROBE, bytes(4096))
        (kit / PROBE).unlink(missing_ok=True)
    except StorageError as error:
        return f"its disk is full or read-only ({error}): free space"
    return ""


def task_status(recorded: Mapping[str, Any]) -> Status:
    """What the file says of a task and of each site in it, which is "present", "absent" or "starting"."""
    missing, known = dict(recorded.get("missing") or {}), dict(recorded.get("sites") or {})
    exchanged = bool(recorded.get("exchanges"))
    return Status(
        "task",
        f"{recorded.get('do')} {recorded.get('run')}",
        str(recorded.get("state")),
        recorded.get("began"),
        recorded,
        [Problem(str(recorded["problem"]))] if recorded.get("problem") else [],
        {
            name: _site_in_task(name, known.get(name), missing.get(name), exchanged)
            for name in known or missing
        },
    )


def _site_in_task(name: str, site: Mapping[str, Any] | None, missing: str | None, exchanged: bool) -> Status:
    """`missing`: why it was not there when the task began; `site`: what is known of it since then."""
    if site is None:
        state = "starting" if missing == STARTING else "absent"
        return Status("site", name, state, problems=[Problem(str(missing))])
    left_out = exchanged and not site["present"] and bool(site["problem"])
    if site["reachable"] and not left_out:
        problems = [Problem(site["problem"])] if site["problem"] else []
        return Status("site", name, "present", known=site, problems=problems)
    reason = site["problem"] or missing or "it has not answered yet"
    return Status("site", name, "absent", site.get("last_seen"), site, [Problem(reason)])
