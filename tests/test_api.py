"""A few lines of Python run a method end to end."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import cnfgnn
from cnfgnn.errors import ConfigError, DataError
from cnfgnn.training import evaluate


@pytest.fixture(scope="module")
def result() -> cnfgnn.Result:
    city = cnfgnn.city(sensors=3, days=2)
    small = {"model__hidden": 4, "model__embedding": 4, "model__gn_widths": [8, 4], "training__rounds": 2}
    return cnfgnn.fit(city, "cnfgnn", **small)


def test_the_result_tells_errors_of_both_kinds_and_bytes(result: cnfgnn.Result) -> None:
    summary = result.summary()
    assert summary["method"] == "at-fedavg"
    assert set(summary["test"]) == {"overall", "step 3", "step 6", "step 12"}
    assert math.isfinite(summary["test"]["overall"]["masked_mae"])
    assert summary["bytes"]["per_node"] > summary["bytes"]["per_site"] > 0


def test_the_experiment_stands_at_its_best_round(result: cnfgnn.Result) -> None:
    assert evaluate(result.experiment, "validation").overall == result.progress.best.validation


def test_a_run_on_disk_is_taken_up_by_name(tmp_path: Path) -> None:
    city = cnfgnn.city(sensors=3, days=2)
    small = {"model__hidden": 4, "training__rounds": 2, "city__sensors": 3, "city__days": 2}
    result = cnfgnn.fit(city, "gru-fedavg", out=tmp_path / "run", **small)
    assert cnfgnn.evaluate(tmp_path / "run").overall == result.test.overall
    assert cnfgnn.evaluate(tmp_path / "run", split="train").overall != result.test.overall
    assert cnfgnn.forecast(tmp_path / "run").shape == (12, 3)
    assert cnfgnn.forecast(tmp_path / "run", cnfgnn.city(sensors=5, days=1)).shape == (12, 5)
    cnfgnn.fit(city, "gru-fedavg", out=tmp_path / "other", model__hidden=4, training__rounds=1)
    with pytest.raises(DataError, match="not those of"):
        cnfgnn.evaluate(tmp_path / "other")  # it was trained on data that its settings do not name
    assert cnfgnn.resume(tmp_path / "run").progress.history == result.progress.history


def test_settings_are_changed_by_name_and_unknown_ones_refused() -> None:
    with pytest.raises(ConfigError, match="rounds"):
        cnfgnn.fit(cnfgnn.city(sensors=2, days=1), training__epochs=3)


def test_everything_promised_is_there() -> None:
    for name in cnfgnn.__all__:
        assert getattr(cnfgnn, name) is not None
