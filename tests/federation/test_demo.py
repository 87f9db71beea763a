"""The demonstration of a federation leaves nothing behind, and tells what has happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnfgnn.errors import ConfigError
from cnfgnn.federation import demo


def test_a_number_of_rounds_that_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.rounds"):
        demo.demonstrate(tmp_path / "demo", 0, lambda status: None, print)
    assert not list(tmp_path.iterdir())


def test_a_site_that_was_not_killed_has_not_rejoined(tmp_path: Path) -> None:
    """As in a training of one round."""
    told: list[str] = []
    failure = demo._SiteFailure(tmp_path, told.append)
    failure({"round": 1, "sites": {demo.KILLED_SITE: {}}})
    failure.end()
    assert told == []
