"""The small runs are fixtures of all tests of this folder."""

from __future__ import annotations

from tests.attack.small_runs import attacked_city, attacked_runs

__all__ = ["attacked_city", "attacked_runs"]
