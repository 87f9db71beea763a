"""How long to wait before a process that has ended is started again."""

from __future__ import annotations

STABLE_UPTIME = 60.0  # seconds of uptime after which earlier crashes no longer count
LONGEST_PAUSE = 30.0  # seconds


class Pauses:
    """No pause after the first crash, then growing ones: its owner may mend the cause meanwhile."""

    def __init__(self) -> None:
        self.crashes = 0

    def after(self, uptime: float) -> float:
        """Seconds to wait after a crash of a process that had run for `uptime` seconds."""
        self.crashes = 1 if uptime > STABLE_UPTIME else self.crashes + 1
        return min(2.0 ** (self.crashes - 2), LONGEST_PAUSE) if self.crashes > 1 else 0.0
