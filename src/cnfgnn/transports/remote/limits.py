"""What processes without PyTorch need to know of messages as well."""

from __future__ import annotations

PIECE = 4 << 20  # bytes of payload in one note, unless the project sets another size
LARGEST_PIECE = 64 << 20
MOST_CLOCK_DIFFERENCE = 300.0  # seconds; a site with a wrong clock has wrong timestamps


class Malformed(ValueError):
    """A message that does not follow the protocol; the reason in one sentence."""
