"""What time it is for the service: the machine's time, or the time of a recording that is played to it.

All times are whole seconds since 1970, as the readings count them: in UTC, or in the local time of a zone if
the readings of a run have no time zone.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, tzinfo
from typing import Protocol

from cnfgnn.transports.remote.limits import MOST_CLOCK_DIFFERENCE


class Clock(Protocol):
    """The time, and how fast it passes."""

    speed: float  # seconds that pass on this clock in one second

    def now(self) -> float:
        """The time now."""

    def heard(self, seconds: int) -> None:
        """A reading of this time has arrived."""

    def told(self, seconds: int) -> None:
        """Another party is at this time."""

    def latest(self, step: int) -> float:
        """Readings after this time are from the future, for sensors with a reading every `step` seconds."""

    def furthest(self, step: int) -> float:
        """The latest time that another party can be at; what it says of later ones is ignored."""


class SystemClock:
    """The machine's clock."""

    speed = 1.0

    def __init__(self, zone: tzinfo = UTC) -> None:
        self.zone = zone

    def now(self) -> float:
        if self.zone is UTC:
            return time.time()
        local = datetime.now(self.zone)
        return local.replace(tzinfo=UTC).timestamp()

    def heard(self, seconds: int) -> None:
        """Readings do not set the machine's clock."""

    def told(self, seconds: int) -> None:
        """Nor do others."""

    def latest(self, step: int) -> float:
        return self.now() + step / 2  # clocks of sensors may be a little fast

    def furthest(self, step: int) -> float:
        return self.now() + step + MOST_CLOCK_DIFFERENCE


class FeedClock:
    """The time of a recording: its readings set the clock, which passes at the speed of the recording.

    It never runs ahead of the feed by a whole step: while the feed pauses, time stands still, and no reading
    is late only because the recording was started late. Where the readings of a site pause, the server's
    steps set its clock forward, up to `LEAD` steps after its newest reading.
    """

    LONGEST_GAP = 7 * 86_400  # seconds; a reading further ahead is taken for a mistake
    LEAD = 12  # steps

    def __init__(self, start: float, step: int, speed: float = 1.0) -> None:
        self.speed, self.step = speed, step
        self._time, self._since = start, time.monotonic()
        self._newest = start  # the time of the newest reading

    def now(self) -> float:
        passed = (time.monotonic() - self._since) * self.speed
        return self._time + min(passed, 0.999 * self.step)

    def heard(self, seconds: int) -> None:
        self._newest = max(self._newest, seconds)
        self.told(seconds)

    def told(self, seconds: int) -> None:
        if self._time < seconds <= self.furthest(self.step):
            self._time, self._since = seconds, time.monotonic()

    def latest(self, step: int) -> float:
        return self.latest_after(self._time)

    @classmethod
    def latest_after(cls, seconds: float) -> float:
        """The same for a recording that is at this time."""
        return seconds + cls.LONGEST_GAP

    def furthest(self, step: int) -> float:
        return self._newest + self.LEAD * step


class Zone:
    """How times are read and written: in UTC if the readings are, otherwise as local times of a zone."""

    def __init__(self, utc: bool, zone: tzinfo = UTC) -> None:
        self.utc, self.zone = utc, UTC if utc else zone

    def seconds(self, moment: datetime) -> float:
        """A time without an offset is taken as it is, one with an offset is converted."""
        if moment.tzinfo is not None:
            moment = moment.astimezone(self.zone)
        return moment.replace(tzinfo=UTC).timestamp()

    def in_utc(self, seconds: float) -> float:
        """The time in UTC of one here; of two, the later."""
        return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=self.zone, fold=1).timestamp()

    def read(self, text: str) -> float:
        """Read a time in ISO 8601; of an interval, its end. Raises ValueError if it is none."""
        return self.seconds(datetime.fromisoformat(text.strip().rpartition("/")[2]))

    def write(self, seconds: float) -> str:
        """In ISO 8601, to the second; with Z if it is UTC."""
        text = datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return text + "Z" if self.utc else text
