"""A few lines of Python run a method end to end."""

from __future__ import annotations

import math

import pytest

import cnfgnn


@pytest.fixture(scope="module")
def result() -> cnfgnn.Result:
    city = cnfgnn.city(sensors=3, days=1)
    small = {"model__hidden": 4, "model__embedding": 4, "model__gn_widths": [8, 4], "training__rounds": 2}
    return cnfgnn.fit(city, "cnfgnn", **small)


def test_the_result_tells_errors_of_both_kinds_and_bytes(result: cnfgnn.Result) -> None:
    summary = result.summary()
    assert summary["method"] == "at-fedavg"
    assert set(summary["test"]) == {"overall", "step 3", "step 6", "step 12"}
    assert math.isfinite(summary["test"]["overall"]["masked_mae"])
    assert summary["bytes"]["per_node"] > summary["bytes"]["per_site"] > 0


def test_the_experiment_stands_at_its_best_round(result: cnfgnn.Result) -> None:
    assert cnfgnn.evaluate(result.experiment, "validation").overall == result.progress.best.validation


def test_settings_are_changed_by_name_and_unknown_ones_refused() -> None:
    with pytest.raises(cnfgnn.ConfigError, match="rounds"):
        cnfgnn.fit(cnfgnn.city(sensors=2, days=1), training__epochs=3)


def test_everything_promised_is_there() -> None:
    for name in cnfgnn.__all__:
        assert getattr(cnfgnn, name) is not None
