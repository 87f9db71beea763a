"""How long a site is given for a request: derived from what it took for the same kind of work before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.algorithm.messages.verb import Verb
from cnfgnn.algorithm.messages.verbs import VERBS, Encode, Score, Update
from cnfgnn.transports.remote.schema import CallHeader, read_request

LEAST = 30.0  # seconds for every request, however fast the site usually is
SLACK = 4.0  # times as long as the site recently took for the same work at its slowest
DECAY = 0.8  # the share of an old slowest time that still counts when the next one is measured
FIRST_WORK, FIRST_OTHER = 1800.0, 120.0  # seconds for a verb that was not measured at this site yet


Work = Mapping[str, float]
"""How much there is to do of each verb, in units of its own."""


class Pace:
    """Seconds that one site takes for each verb, per unit of work."""

    def __init__(self) -> None:
        self._per_unit: dict[str, float] = {}  # verb -> seconds
        self._factor: dict[str, float] = {}  # verb -> how many times longer it is given, after it was late

    def deadline(self, work: Work) -> float:
        """Seconds after which a site that is still working on this is left out."""
        total = LEAST
        for verb, units in work.items():
            if verb in self._per_unit:
                expected = SLACK * self._per_unit[verb] * units
            else:
                expected = FIRST_WORK if VERBS[verb].computes else FIRST_OTHER
            total += self._factor.get(verb, 1.0) * expected
        return total

    def learn(self, work: Work, seconds: Mapping[str, float]) -> None:
        """The work is done, and each verb took so many seconds."""
        for verb, units in work.items():
            if verb in seconds:
                before = DECAY * self._per_unit.get(verb, 0.0)
                self._per_unit[verb] = max(seconds[verb] / units, before)
                self._factor.pop(verb, None)

    def missed(self, work: Work) -> None:
        """Allow twice as long the next time: a site that has become slow must be able to take part again."""
        for verb in work:
            self._factor[verb] = 2 * self._factor.get(verb, 1.0)


def work_of(calls: Sequence[CallHeader], known: Sizes) -> Work:
    """How much work these calls are for a site of which this is known before them."""
    units: dict[str, float] = {}
    for call in calls:
        request = read_request(call)
        known = request.after(known, call.tensors)
        work = max(1.0, float(_units(request, call, known)))
        units[call.verb] = units.get(call.verb, 0.0) + work
    return units


def _units(request: Verb, call: CallHeader, known: Sizes) -> float:
    """How much work a call is: minibatches or windows if it is about any, else 1."""
    if isinstance(request, Update):
        if request.minibatches is not None:
            return request.minibatches.until - request.minibatches.first
        return request.r_c * math.ceil(known.windows.get("train", 1) / known.client_batch)
    if request.minibatch is not None and known.prepared:
        return known.drawn(request.minibatch)
    if isinstance(request, Encode | Score):
        return known.windows.get(request.split, 1)
    if call.tensors:
        return max(math.prod(tensor.shape[1:2]) for tensor in call.tensors.values())
    return 1.0
