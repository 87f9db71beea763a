"""When a forecast is due: as soon as every sensor that is expected has sent its reading, or at the deadline.

The deadline makes nobody wait for a sensor that is late or broken. A sensor that has been silent for a whole
history is not waited for at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from cnfgnn.live.intake.recent import RecentReadings

SHARE_OF_STEP = 0.2  # of a step: how long after it the deadline is, unless told
LEAST_PAUSE = 1.0  # seconds between two forecasts of the same step
LEAST_GRACE = 2.0  # seconds after a deadline in which the next forecast is still on time


@dataclass(frozen=True)
class Schedule:
    """Deadlines, `deadline` seconds after each step; sensors are expected for `history` steps."""

    step: int
    deadline: float
    history: int

    def due(self, recent: RecentReadings, now: float) -> int | None:
        """The step whose forecast should be made now; None if none should."""
        passed = self._last_passed(recent, now)
        newest = recent.newest
        candidate = newest if newest > passed and self._is_complete(recent, newest) else passed
        return candidate if recent.made is None or candidate > recent.made else None

    def next_deadline(self, recent: RecentReadings, now: float) -> float:
        """The time of the next deadline."""
        return self._last_passed(recent, now) + self.step + self.deadline

    def again(self, made: float) -> float:
        """The time before which a forecast that was made at a time is not made again."""
        return made + max(self.deadline, LEAST_PAUSE)

    def valid_until(self, step: int) -> float:
        """When the forecast after the next step should be there, with a little grace."""
        return step + self.step + self.deadline + max(self.deadline, LEAST_GRACE)

    def _last_passed(self, recent: RecentReadings, now: float) -> int:
        """The last step whose deadline has passed."""
        return recent.newest + self.step * int((now - self.deadline - recent.newest) // self.step)

    def _is_complete(self, recent: RecentReadings, step: int) -> bool:
        if step <= recent.retired:  # the server would notice whether they are there
            return False
        there = recent.present(step)
        expected = recent.recently_present(step, self.history)
        if not there.any() or not there[expected].all():
            return False
        return recent.variables_are_complete(step, expected, self.history)
