"""The processes of a training beside the first: each holds a part of the nodes and does what process 0 asks.

`transports/divided.py` is the other end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.description import fingerprint
from cnfgnn.data.inputs import used_inputs
from cnfgnn.errors import CnfgnnError, DataError
from cnfgnn.process_setup import Launch
from cnfgnn.runs.evaluate import weights_of
from cnfgnn.runs.folder import Run
from cnfgnn.runs.simulation import SetUp, own_parts
from cnfgnn.runs.warm_start import give_own_weights
from cnfgnn.transports.divided import Part, Request, carried_out
from cnfgnn.transports.processes import LEADER, End, Failure, Processes

STOPPED = 130  # the exit code after Ctrl-C


@dataclass(frozen=True)
class SameData:
    """Have you read the data that the run was begun with? Their fingerprint depends on the settings."""

    config: Config
    fingerprint: str


@dataclass(frozen=True)
class GoOn:
    """Begin with the weights of this run."""

    run: str


class Follower:
    """What a process knows that does not lead."""

    def __init__(self, processes: Processes, data: Dataset) -> None:
        self.processes, self.data = processes, data
        self.parts: dict[int, Part] = {}

    def answer(self, message: object) -> Any:
        match message:
            case SameData(config, expected):
                self._check_same_data(config, expected)
            case SetUp(config):
                self.config = config
                self.parts = own_parts(self.data, config, self.processes)
            case GoOn(run):
                owners = [(part.rows, part.owner) for part in self.parts.values()]
                weights = weights_of(Run.open(Path(run)))
                give_own_weights(owners, self.config, weights, self.data.readings.ids)
            case Request():
                return carried_out(self.parts, message)
            case _:
                raise TypeError(f"there is no such message: {type(message).__name__}")
        return None

    def _check_same_data(self, config: Config, expected: str) -> None:
        used = replace(self.data, readings=used_inputs(self.data.readings, config))
        if fingerprint(used) != expected:
            problem = "its readings or graph are not those that process 0 has read"
            raise DataError(self.data.readings.source, problem)

    def follow(self) -> int:
        """Answer until the training ends; returns the exit code that all processes end with."""
        while not isinstance(message := self.processes.receive(LEADER), End):
            answer: Any
            try:
                answer = self.answer(message)
            except Exception as problem:  # process 0 reports it, and all processes end
                answer = Failure.of(problem, self.processes.rank)
            self.processes.send(LEADER, answer)
        return message.exit_code


@contextmanager
def several_processes() -> Iterator[Processes | None]:
    """The processes that torchrun has started for this training; None if it is this one alone.

    They end together: if process 0 ends inside, with or without a problem, the others end with the same code.
    """
    launch = Launch.of_torchrun()
    if launch is None:
        yield None
        return
    processes = Processes.join(launch)
    try:
        yield processes
    except BaseException as end:
        processes.end(STOPPED if isinstance(end, KeyboardInterrupt) else getattr(end, "exit_code", 1))
        raise
    processes.end(0)
    processes.leave()


@contextmanager
def agreement(processes: Processes | None) -> Iterator[None]:
    """Inside is what each process does by itself; it has succeeded if it has in all of them."""
    problem: CnfgnnError | None = None
    try:
        yield
    except CnfgnnError as found:
        if processes is None:
            raise
        problem = found
    if processes is not None:
        processes.agree(problem)
