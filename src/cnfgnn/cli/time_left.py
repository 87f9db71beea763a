"""How long training will still take, from what it has taken so far."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

ROUNDS_LOOKED_AT = 5  # the last ones: what else the machine does changes
MINIBATCHES_LOOKED_AT = 50
ENOUGH_MINIBATCHES = 3  # of each phase of a round, before a word is said


class Pace:
    """Seconds of a round and seconds left, told of minibatches and rounds as they end.

    A round has phases, and minibatches of one phase take longer than those of another. Until the first round
    has ended, its length is estimated from the median minibatch of each phase. From then on it is the median
    of the last rounds; the first one, which includes work that is done only once, no longer counts as soon as
    there is another.
    """

    def __init__(
        self, rounds: int, done: int, phases: Sequence[int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rounds, self.done, self.phases, self.clock = rounds, done, phases, clock
        self.seen: deque[float] = deque(maxlen=ROUNDS_LOOKED_AT)
        self.first = True
        self._begin_round()

    def _begin_round(self) -> None:
        self.begun = self.last = self.clock()
        self.ticks = 0
        self.between = [deque[float](maxlen=MINIBATCHES_LOOKED_AT) for _ in self.phases]
        self.before: list[float | None] = [None for _ in self.phases]  # until its first minibatch was done

    def tick(self) -> None:
        """A minibatch has ended."""
        now = self.clock()
        phase, place = self._phase_of(self.ticks)
        if place == 0:
            self.before[phase] = now - self.last
        else:
            self.between[phase].append(now - self.last)
        self.ticks, self.last = self.ticks + 1, now

    def round_done(self, seconds: float) -> None:
        if len(self.seen) == 1 and self.first:
            self.seen.clear()
            self.first = False
        self.seen.append(seconds)
        self.done += 1
        self._begin_round()

    def a_round(self) -> float | None:
        """Seconds; None: it cannot be said yet."""
        if self.seen:
            return statistics.median(self.seen)
        seconds = 0.0
        for count, before, between in zip(self.phases, self.before, self.between, strict=True):
            if before is None or len(between) < min(ENOUGH_MINIBATCHES, count - 1):
                return None
            seconds += before + (count - 1) * (statistics.median(between) if between else 0.0)
        return seconds

    def left(self, until: int | None = None) -> float | None:
        """Seconds until the end of that round, else of the last one there can be; None: it cannot be said."""
        if (each := self.a_round()) is None:
            return None
        rounds = (self.rounds if until is None else until) - self.done
        return max(0.0, rounds * each - min(self.clock() - self.begun, each))

    def _phase_of(self, minibatch: int) -> tuple[int, int]:
        """The phase of a round's minibatch and its place there; the last phase takes whatever comes late."""
        for phase, count in enumerate(self.phases):
            if minibatch < count or phase == len(self.phases) - 1:
                return phase, minibatch
            minibatch -= count
        raise AssertionError("a round has phases")
