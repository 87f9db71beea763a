"""An estimate of how long training will still take, from the time it has taken so far."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

RECENT_ROUNDS = 5  # only the last ones, because the load of the machine changes
RECENT_MINIBATCHES = 50
ENOUGH_MINIBATCHES = 3  # of each phase of a round, before an estimate is given


class Pace:
    """Estimates the seconds of a round and the seconds left, from the ends of minibatches and rounds.

    A round has phases, and minibatches of one phase take longer than those of another. Until the first round
    has ended, its duration is estimated from the median minibatch of each phase. From then on it is the
    median of the last rounds. The first round includes work that is done only once, above all before its
    first minibatch: that is not expected of later rounds, and the round is dropped as soon as there is
    another.
    """

    def __init__(
        self, rounds: int, done: int, phases: Sequence[int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rounds, self.done, self.phases, self.clock = rounds, done, phases, clock
        self.seen: deque[float] = deque(maxlen=RECENT_ROUNDS)
        self.first = True
        self._begin_round()

    def _begin_round(self) -> None:
        self.begun = self.last = self.clock()
        self.ticks = 0
        self.between = [deque[float](maxlen=RECENT_MINIBATCHES) for _ in self.phases]
        # Seconds until the first minibatch of each phase.
        self.before: list[float | None] = [None for _ in self.phases]

    def tick(self) -> None:
        """Record the end of a minibatch."""
        now = self.clock()
        phase, place = self._phase_of(self.ticks)
        if place == 0:
            self.before[phase] = now - self.last
        else:
            self.between[phase].append(now - self.last)
        self.ticks, self.last = self.ticks + 1, now

    def round_done(self, seconds: float) -> None:
        """Record the end of a round that took so many seconds."""
        once = self.once
        if len(self.seen) == 1 and self.first:
            self.seen.clear()
            self.first = False
        self.seen.append(seconds - once)
        self.done += 1
        self._begin_round()

    @property
    def once(self) -> float:
        """Seconds before the very first minibatch that no later round will need."""
        before, between = self.before[0], self.between[0]
        if self.seen or before is None or not between:
            return 0.0
        return max(0.0, before - statistics.median(between))

    def a_round(self) -> float | None:
        """Estimated seconds of a round after the first; None while it is too early to tell."""
        if self.seen:
            return statistics.median(self.seen)
        seconds = 0.0
        for count, before, between in zip(self.phases, self.before, self.between, strict=True):
            if before is None or len(between) < min(ENOUGH_MINIBATCHES, count - 1):
                return None
            seconds += before + (count - 1) * (statistics.median(between) if between else 0.0)
        return seconds - self.once

    def left(self, until: int | None = None) -> float | None:
        """Estimated seconds until round `until`, by default the last, ends; None while it is too early."""
        if (each := self.a_round()) is None:
            return None
        rounds = (self.rounds if until is None else until) - self.done
        minibatches = sum(self.phases)
        share_left = 1 - self.ticks / minibatches if minibatches else 0.0
        # A round that is slower than those before is not over when they would have been.
        in_this_one = max(each + self.once - (self.clock() - self.begun), share_left * each)
        return max(0.0, (rounds - 1) * each + in_this_one)

    def _phase_of(self, minibatch: int) -> tuple[int, int]:
        """The phase of a minibatch and its position there; the last phase gets any that were not planned."""
        for phase, count in enumerate(self.phases):
            if minibatch < count or phase == len(self.phases) - 1:
                return phase, minibatch
            minibatch -= count
        raise AssertionError("a round has at least one phase")


class OtherPrograms:
    """How many of the machine's processors other programs use."""

    def __init__(self, used: Callable[[], Sequence[float]] | None = None) -> None:
        """`used` returns seconds: of the clock, of all processors that were busy, of this process."""
        self.used = used or _used
        self.begun = self.used()

    def processors(self) -> float:
        """On average since this object was made; 0 if that is not known."""
        clock, busy, own = (now - then for now, then in zip(self.used(), self.begun, strict=True))
        return max(0.0, (busy - own) / clock) if clock > 0 else 0.0


def _used() -> Sequence[float]:
    own, busy = time.process_time(), 0.0
    with suppress(OSError, ValueError):  # in a sandbox there may be no such file
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
        user, nice, system, _, _, interrupts, soft_interrupts, stolen = map(float, fields)
        ticks = user + nice + system + interrupts + soft_interrupts + stolen
        busy = ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic(), busy, own
