"""How long a site is given for a request: from what it took for the same kind of work before."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from cnfgnn.transports.remote.schema import Carried, Sizes

LEAST = 30.0  # seconds that every request is given, however quick the site usually is
SLACK = 4.0  # times as long as the site took for as much work at its slowest of late
FORGETS = 0.8  # what is left of an old slowest time when the next one is known
FIRST_WORK, FIRST_OTHER = 1800.0, 120.0  # seconds for a verb that was not measured at this site yet
WORK = ("census", "prepare", "update", "encode", "backward", "score", "forecast")


class Pace:
    """Seconds that one site takes for each verb, by the amount of work that it was asked for."""

    def __init__(self) -> None:
        self._each: dict[str, float] = {}  # verb -> seconds for one unit of work
        self._more: dict[str, float] = {}  # verb -> times as long, after it was late

    def deadline(self, calls: Sequence[Carried], known: Sizes) -> float:
        """Seconds after which a site that is still at work on these calls is left out."""
        return LEAST + sum(
            self._more.get(verb, 1.0)
            * (SLACK * self._each[verb] * units if verb in self._each else _first(verb))
            for verb, units in _by_verb(calls, known).items()
        )

    def learn(self, calls: Sequence[Carried], known: Sizes, seconds: Mapping[str, float]) -> None:
        """The calls are done, and each verb took so long."""
        for verb, units in _by_verb(calls, known).items():
            if verb in seconds:
                self._each[verb] = max(seconds[verb] / units, FORGETS * self._each.get(verb, 0.0))
                self._more.pop(verb, None)

    def missed(self, calls: Sequence[Carried]) -> None:
        """Twice as long the next time: a site that has become slow must be able to take part again."""
        for verb in {call.verb for call in calls}:
            self._more[verb] = 2 * self._more.get(verb, 1.0)


def _first(verb: str) -> float:
    return FIRST_WORK if verb in WORK else FIRST_OTHER


def _by_verb(calls: Sequence[Carried], known: Sizes) -> dict[str, float]:
    units: dict[str, float] = {}
    for verb, count in _units(calls, known):
        units[verb] = units.get(verb, 0.0) + count
    return units


def _units(calls: Sequence[Carried], known: Sizes) -> Iterator[tuple[str, float]]:
    """How much work each call is: minibatches or windows where it has any, else one."""
    for call in calls:
        known = known.after(call)
        told = call.numbers
        count = 1.0
        if call.verb == "update" and "until" in told:
            count = told["until"] - told["first"]
        elif call.verb == "update":
            count = told["r_c"] * math.ceil(known.windows.get("train", 1) / known.client_batch)
        elif "number" in told and known.prepared:
            count = known.drawn(told)
        elif "split" in told:
            count = known.windows.get(told["split"], 1)
        elif call.tensors:
            count = max(math.prod(tensor.shape[1:2]) for tensor in call.tensors.values())
        yield call.verb, max(1.0, float(count))
