"""Every method of the paper learns: it beats the forecast that learns nothing, on the synthetic city."""

from __future__ import annotations

from typing import Any

import pytest

import cnfgnn
from cnfgnn.algorithm.methods import METHODS, preset
from cnfgnn.config.presets import PRIVATE
from tests.one_baseline import last_value

SIZES: dict[str, Any] = {"model.hidden": 16, "training.client_rounds": 1, "training.rounds": 8}
SIZES |= {f"training.{side}_lr": 1e-2 for side in ("client", "server")}
SIZES |= {f"training.{side}_batch": 64 for side in ("client", "server")}
GRAPH_SIZES: dict[str, Any] = {"model.embedding": 16, "model.gn_widths": [32, 16]}


@pytest.fixture(scope="module")
def city() -> cnfgnn.Dataset:
    return cnfgnn.city(sensors=6, days=4)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_it_beats_the_last_value(method: str, city: cnfgnn.Dataset) -> None:
    config = preset(method).with_changes(SIZES | (GRAPH_SIZES if METHODS[method].graph_network else {}))
    if method == PRIVATE:
        config = config.with_changes({"privacy.blur": 5.0})
    result = cnfgnn.fit(city, config)
    floor = last_value(city, config.data).overall.masked_rmse
    assert result.test.overall.masked_rmse < 0.93 * floor


def test_the_last_value_is_judged_as_a_plain_computation_would() -> None:
    data = cnfgnn.city(sensors=3, days=1, dropout=0.0)
    values = data.readings.values.astype(float)
    starts = range(len(values) - 23)[-round(0.2 * (len(values) - 23)) :]
    errors = [values[s + 12 : s + 24] - values[s + 11] for s in starts]
    expected = (sum((e**2).sum() for e in errors) / sum(e.size for e in errors)) ** 0.5
    assert last_value(data, preset().data).overall.rmse == pytest.approx(expected)
