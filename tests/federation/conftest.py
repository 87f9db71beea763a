"""Federations of real processes run one after the other, also where tests run side by side: each of them
starts a dozen processes."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.xdist_group("federation"))
