"""Nodes that are divided between the processes of one training: a transport for process 0.

To the server the nodes look as if they were in its own process: it knows the same groups, gets the same
answers and finds the same checkpoints. Each group is cut into as many parts as there are processes. A call
goes to every process with the rows of its part. The states that parts save come back with their answers, are
joined and stored here; those to restore are read here, cut and sent along. Intervals depend on the errors of
all nodes of a group, so they are calibrated here.

This is for one party with several processes or GPUs: what owners keep to themselves in a federation passes
between these processes. Sites of a federation are elsewhere, in `remote/`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.calls import Call, MemoryLimit, Payload, for_rows, gathered
from cnfgnn.algorithm.dispatch import run
from cnfgnn.algorithm.intervals import Calibration, Floats, Intervals
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.store import Store
from cnfgnn.algorithm.verbs import Restore, Score
from cnfgnn.errors import NodeError, RunError
from cnfgnn.models.params import models, weighted_mean
from cnfgnn.transports.divided_state import LEAST_NODES, joined_state, state_of_rows
from cnfgnn.transports.processes import Processes

NODES, OWNER = "site", "owner"  # who saves a state: a group of nodes, and its owner
States = dict[str, dict[str, dict[str, Tensor]]]
"""By who saved them, and by tag."""


@dataclass(frozen=True)
class Saved:
    """A state on its way to the process that stores it."""

    tag: str
    state: dict[str, Tensor]
    keep: tuple[str, ...]


class CarriedStore:
    """The store of a part: it holds what process 0 has sent to restore, and what is to be sent to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.to_send: Saved | None = None
        self.arrived: dict[str, dict[str, Tensor]] = {}

    def write(self, tag: str, tensors: Mapping[str, Tensor], keep: Collection[str]) -> None:
        self.to_send = Saved(tag, {name: x.detach().clone() for name, x in tensors.items()}, tuple(keep))

    def read(self, tag: str) -> dict[str, Tensor]:
        if tag not in self.arrived:
            raise RunError(f"{tag} of {self.name}", "this checkpoint is missing")
        return dict(self.arrived[tag])

    def has(self, tag: str) -> bool:
        return tag in self.arrived

    def earlier(self, run: str, tag: str) -> dict[str, Tensor]:
        """Nothing: a run of the simulator gives weights to another one by itself."""
        return {}


@dataclass(frozen=True, eq=False)
class Part:
    """The nodes of a group that this process holds: their rows, their owner, and both stores."""

    rows: Tensor
    owner: Owner
    stores: Mapping[str, CarriedStore]


@dataclass(frozen=True, eq=False)
class Request:
    """What process 0 asks of one process, by the number of a group.

    calls      for the part of that group
    states     by who saved them and by tag: to restore
    intervals  calibrated since the last request; None if that was impossible
    """

    calls: dict[int, list[Call]] = field(default_factory=dict)
    states: dict[int, States] = field(default_factory=dict)
    intervals: dict[int, dict[str, Tensor] | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Answer:
    """What comes back, by the number of a group: replies to the calls, states to store, what intervals are
    calibrated from, and the sums that judge them."""

    replies: dict[int, list[dict[str, Tensor]]] = field(default_factory=dict)
    saved: dict[int, dict[str, Saved]] = field(default_factory=dict)
    calibrations: dict[int, Calibration | None] = field(default_factory=dict)
    interval_sums: dict[int, Floats | None] = field(default_factory=dict)


def carried_out(parts: Mapping[int, Part], request: Request) -> Answer:
    """In any process: have one's own parts carry out a request."""
    answer = Answer()
    for group, state in request.intervals.items():
        parts[group].owner.intervals = None if state is None else Intervals.of(state)
    for group, calls in request.calls.items():
        part = parts[group]
        for who, store in part.stores.items():
            store.to_send = None
            store.arrived = dict(request.states.get(group, {}).get(who, {}))
        part.owner.calibration = None
        answer.replies[group] = run(part.owner, calls)
        answer.saved[group] = {who: s.to_send for who, s in part.stores.items() if s.to_send is not None}
        answer.calibrations[group], part.owner.calibration = part.owner.calibration, None
        answer.interval_sums[group] = part.owner.interval_sums if part.owner.tells else None
    return answer


def divide(group: Tensor, processes: int) -> list[Tensor]:
    """The rows of a group for each process: about as many each, in order; all for the first if too few."""
    if len(group) < LEAST_NODES * processes:
        return [group, *[group[:0]] * (processes - 1)]
    return list(torch.tensor_split(group, processes))


@dataclass(frozen=True, eq=False)
class Group:
    """A group of nodes: the rows of its part in each process, and where it and its owner save states."""

    name: str
    parts: Sequence[Tensor]
    stores: Mapping[str, Store]

    @property
    def rows(self) -> Tensor:
        return torch.cat(list(self.parts))

    def states(self, calls: Sequence[Call]) -> States:
        """The states of all nodes that some of these calls restore."""
        found: States = {who: {} for who in self.stores}
        for call in calls:
            if call.verb == Restore.name:
                tag = str(call.numbers["tag"])
                for who, store in self.stores.items():
                    if who == NODES or store.has(tag):  # an owner may have nothing to save
                        found[who][tag] = store.read(tag)
        return found

    def place(self, process: int) -> slice:
        """Which of the group's nodes one process holds."""
        start = sum(map(len, self.parts[:process]))
        return slice(start, start + len(self.parts[process]))

    def cut(self, process: int, states: States) -> States:
        """The states of one part, from those of all nodes."""
        place, n = self.place(process), len(self.rows)
        return {
            who: {tag: state_of_rows(state, place, n) for tag, state in by_tag.items()}
            for who, by_tag in states.items()
        }

    def cut_intervals(self, process: int, intervals: Intervals | None) -> dict[str, Tensor] | None:
        """The intervals of one part, from those of all nodes."""
        if intervals is None:
            return None
        return intervals.select(np.arange(len(self.rows))[self.place(process)]).state()

    def store(self, saved: Sequence[Mapping[str, Saved]]) -> None:
        """Store what the parts have saved; `saved` has an entry for each process that holds one."""
        sizes = [len(part) for part in self.parts if len(part)]
        for who, store in self.stores.items():
            states = [of_part[who] for of_part in saved if who in of_part]
            if states:
                joined = joined_state([one.state for one in states], sizes)
                store.write(states[0].tag, joined, states[0].keep)


class Divided:
    """The transport. `own` are the parts that process 0 holds itself."""

    def __init__(self, processes: Processes, groups: Sequence[Group], own: Mapping[int, Part]) -> None:
        self.processes, self.groups, self.own = processes, list(groups), own
        self.sites = [group.rows for group in groups]
        self.memory_limits = [MemoryLimit(group.name) for group in groups]
        self._intervals: dict[int, Intervals | None] = {}  # calibrated, to be sent with the next request
        self._interval_sums: list[dict[int, Floats | None]] = []  # of each process, from the last score

    def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload:
        place = torch.full((sum(map(len, self.sites)),), -1, dtype=torch.long)
        place[rows] = torch.arange(len(rows))
        asked = [k for k, group in enumerate(self.sites) if (place[group] >= 0).any()]
        for k in asked:
            if (place[self.sites[k]] < 0).any():
                reason = "only some of its nodes were asked: put the others into a group of their own"
                raise NodeError(self.groups[k].name, calls[-1].verb, reason)
        requests = self._requests(calls, asked, place)
        answers = self.processes.ask(requests, lambda: carried_out(self.own, requests[0]))
        joined = [self._joined(number, call, answers, place) for number, call in enumerate(calls)]
        for k in asked:
            self.groups[k].store([answer.saved[k] for answer in answers if k in answer.saved])
        if scored := [call.numbers["split"] for call in calls if call.verb == Score.name]:
            self._interval_sums = [answer.interval_sums for answer in answers]
            if scored[-1] == "validation":
                self._calibrate(asked, answers)
        return Payload(joined, torch.ones(len(rows), dtype=torch.bool))

    def wait(self, answered: Tensor) -> bool:
        """Never wait: a process that is gone ends the training."""
        return False

    def interval_sums_elsewhere(self) -> list[tuple[Tensor, Floats | None]]:
        """Of every part in another process: its rows, and the sums that judge its intervals."""
        return [
            (self.groups[k].parts[process], sums)
            for process, of_process in enumerate(self._interval_sums)
            for k, sums in of_process.items()
            if process != self.processes.rank
        ]

    def _requests(self, calls: Sequence[Call], asked: Sequence[int], place: Tensor) -> list[Request]:
        """One for each process."""
        states = {k: self.groups[k].states(calls) for k in asked}
        calibrated, self._intervals = self._intervals, {}
        requests = [Request() for _ in range(self.processes.count)]
        for process, request in enumerate(requests):
            for k, group in enumerate(self.groups):
                rows = group.parts[process]
                if k in states and len(rows):
                    request.calls[k] = [_for_part(call, place[rows]) for call in calls]
                    request.states[k] = group.cut(process, states[k])
                if k in calibrated and len(rows):
                    request.intervals[k] = group.cut_intervals(process, calibrated[k])
        return requests

    def _joined(
        self, number: int, call: Call, answers: Sequence[Answer], place: Tensor
    ) -> Mapping[str, Tensor]:
        """The replies of all parts to one of the calls, node-major; or their mean, if that was asked for and
        one of the parts could not hold the weights of all its nodes."""
        parts = [
            (place[self.groups[k].parts[process]], replies[number])
            for process, answer in enumerate(answers)
            for k, replies in answer.replies.items()
        ]
        by = call.mean_by
        if by is None or all(models(reply) == len(where) for where, reply in parts):
            return gathered(parts, int((place >= 0).sum()))
        counted = [(where, reply) for where, reply in parts if by[where].sum() > 0]
        means = [
            weighted_mean(reply, by[where]) if models(reply) == len(where) else reply
            for where, reply in counted
        ]
        of_parts = {name: torch.cat([mean[name].to(w) for mean in means]) for name, w in means[0].items()}
        return weighted_mean(of_parts, torch.stack([by[where].sum() for where, _ in counted]))

    def _calibrate(self, asked: Sequence[int], answers: Sequence[Answer]) -> None:
        """Calibrate the intervals of each group from the errors of all its parts."""
        for k in asked:
            found = [answer.calibrations[k] for answer in answers if k in answer.calibrations]
            known = [calibration for calibration in found if calibration is not None]
            self._intervals[k] = Calibration.joined(known).intervals() if known else None


def _for_part(call: Call, where: Tensor) -> Call:
    """The call for some rows of those that are asked."""
    return replace(for_rows(call, where), mean_by=None if call.mean_by is None else call.mean_by[where])
