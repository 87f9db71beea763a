"""Kinds of data are compared before the test split."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from cnfgnn.config.settings import DataConfig
from cnfgnn.data.windows import Windows
from tests.conftest import network


def test_no_target_of_the_test_split_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "studies"))
    kinds = importlib.import_module("kinds")
    for rows in (100, 233):
        windows = Windows.of(rows)
        kept = kinds.before(network(6, rows), kinds.BEFORE_TEST, DataConfig()).readings
        assert len(kept.times) == windows.starts["test"][0] + windows.history
        assert len(kinds.before(network(6, rows), 0.5, DataConfig()).readings.times) == rows // 2
    config = DataConfig(horizon=30, shares=(0.5, 0.2, 0.3))
    windows = Windows.of(233, config.history, config.horizon, config.shares)
    kept = kinds.before(network(6, 233), kinds.BEFORE_TEST, config).readings
    assert len(kept.times) == windows.starts["test"][0] + windows.history
