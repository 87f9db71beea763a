"""One baseline at a time: a test that compares with the last value need not wait for the regression."""

from __future__ import annotations

from functools import partial

from cnfgnn.config.settings import DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.windows import Split
from cnfgnn.runs.baselines import BASELINES, Prepared
from cnfgnn.runs.scores import Scores


def _of(name: str, data: Dataset, config: DataConfig, split: Split = "test") -> Scores:
    scores = BASELINES[name](Prepared.of(data, config), split)
    assert scores is not None
    return scores


last_value, daily_average, ridge = (partial(_of, name) for name in ("last value", "daily average", "ridge"))
