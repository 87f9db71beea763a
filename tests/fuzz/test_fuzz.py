"""The targets of `make fuzz` take what is good, and refuse what is damaged in a sentence."""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from tests.fuzz.targets import TARGETS, damaged


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_read_or_refused(name: str) -> None:
    target, random = TARGETS[name], Random(7)
    for content in target.good:
        target.read(content)
    for _ in range(150):
        with contextlib.suppress(*target.refusals):
            target.read(damaged(random, target.good))
