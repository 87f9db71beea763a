"""Bounds that processes without PyTorch must know as well."""

from __future__ import annotations

PIECE = 4 << 20  # bytes of payload in one note, where a project says nothing else
LARGEST_PIECE = 64 << 20
MOST_CLOCK_DIFFERENCE = 300.0  # seconds; a site whose clock is wrong stamps its readings wrongly
