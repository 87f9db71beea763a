"""The targets of `make fuzz` take what is good, and refuse what is damaged in a sentence."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.targets import TARGETS, damaged


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_read_or_refused(name: str) -> None:
    target, random = TARGETS[name], Random(7)
    for content in target.good:
        target.read(content)
    refused = 0
    for _ in range(150):
        try:
            target.read(damaged(random, target.good))
        except target.refusals:
            refused += 1
    assert (refused > 0) == bool(target.refusals)
