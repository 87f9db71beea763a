"""Real processes, provisioned and authenticated, give what the simulator gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cnfgnn.data.dataset import Dataset
from cnfgnn.federation.server_task import Task
from cnfgnn.runs.forecast import forecast_run
from tests.federation.living import ENGINE_WARNINGS, SITES, Living, dealt, living
from tests.federation.undisturbed import (
    assert_kept_by_its_site,
    assert_same,
    config,
    forecasts,
    simulated,
)

pytestmark = ENGINE_WARNINGS


@pytest.mark.slow
def test_training_judging_and_forecasting_equal_the_simulators(tmp_path: Path) -> None:
    """The paper's method and ours, one after the other: to start a federation takes longer than to train."""
    data = dealt(tmp_path / "city")
    with living(tmp_path, data) as sites:
        the_papers_method(sites, data)
        what_is_a_sensors_own_is_kept_by_its_site_and_found_again(sites, data)


def the_papers_method(sites: Living, data: Dataset) -> None:
    result = sites.train(config(2))
    run = sites.run()
    assert run.finished
    expected = simulated(data, config(2))
    assert_same(run, expected)
    assert result["scores"]["overall"]["rmse"] == pytest.approx(expected.test.overall.rmse, abs=1e-6)

    sites.begin(Task("evaluate", "one", split="validation"))
    judged = sites.end()["scores"]
    best = run.progress.best.validation
    assert judged["overall"]["rmse"] == pytest.approx(best.rmse, abs=1e-9)

    forecast_as(sites, "one", forecast_run(run, data))  # as if one had all readings


def what_is_a_sensors_own_is_kept_by_its_site_and_found_again(sites: Living, data: Dataset) -> None:
    c = config(2, "cnfgnn-plus", **{"training.server_batch": 64, "training.average_every": 3})
    result = sites.train(c, "two")
    run, expected = sites.run("two"), simulated(data, c)
    assert_same(run, expected)
    assert result["scores"]["overall"]["rmse"] == pytest.approx(expected.test.overall.rmse, abs=1e-6)
    for k, name in enumerate(SITES):
        assert_kept_by_its_site(sites.kits[name], "two", run, expected, k)
    together = forecasts(expected, data)
    forecast_as(sites, "two", together)
    without = forecast_run(run, data)[together.columns]  # from what the server has alone
    assert (abs(without.to_numpy() - together.to_numpy()).max(axis=0) > 0.05).all()


def forecast_as(sites: Living, name: str, together: pd.DataFrame) -> None:
    """Each site's forecasts of its own sensors are these."""
    sites.begin(Task("forecast", name))
    assert sorted(sites.end()["sites"]) == sorted(SITES)
    for site, rows in SITES.items():
        ahead = pd.read_csv(sites.kits[site] / "forecasts" / "latest.csv", index_col=0, parse_dates=True)
        assert list(ahead.columns) == [together.columns[row] for row in rows]
        assert ahead.index[0] == together.index[0]
        np.testing.assert_allclose(ahead, together[ahead.columns], rtol=0, atol=1e-3)
