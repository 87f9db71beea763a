"""A federation of real processes gives the same result as the simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cnfgnn.data.dataset import Dataset
from cnfgnn.federation.server_task import Task
from cnfgnn.runs.forecast import forecast_run
from tests.federation.reference_training import (
    assert_personal_state_is_at_the_site,
    assert_same,
    config,
    forecasts,
    simulated,
)
from tests.federation.running_federation import (
    ENGINE_WARNINGS,
    SITES,
    RunningFederation,
    city_on_disk,
    running_federation,
)

pytestmark = ENGINE_WARNINGS


@pytest.mark.slow
def test_training_evaluation_and_forecasts_equal_the_simulators(tmp_path: Path) -> None:
    """Both methods in one federation, because starting one takes longer than training."""
    data = city_on_disk(tmp_path / "city")
    with running_federation(tmp_path, data) as sites:
        check_at_fedavg(sites, data)
        check_cnfgnn_plus(sites, data)


def check_at_fedavg(sites: RunningFederation, data: Dataset) -> None:
    result = sites.train(config(2))
    run = sites.run()
    assert run.finished
    expected = simulated(data, config(2))
    assert_same(run, expected)
    assert result["scores"]["overall"]["rmse"] == pytest.approx(expected.test.overall.rmse, abs=1e-6)

    sites.begin(Task("evaluate", "one", split="validation"))
    evaluated = sites.end()["scores"]
    best = run.progress.best.validation
    assert evaluated["overall"]["rmse"] == pytest.approx(best.rmse, abs=1e-9)

    assert_forecasts(sites, "one", forecast_run(run, data))  # from all readings in one place


def check_cnfgnn_plus(sites: RunningFederation, data: Dataset) -> None:
    c = config(2, "cnfgnn-plus", **{"training.server_batch": 64, "training.average_every": 3})
    for name in SITES:  # as in the simulator: otherwise the server has errors without personal weights
        settings = sites.kits[name] / "local" / "site.toml"
        settings.write_text(settings.read_text() + "tell_errors = true\n")
    result = sites.train(c, "two")
    run, expected = sites.run("two"), simulated(data, c)
    assert_same(run, expected)
    assert result["scores"]["overall"]["rmse"] == pytest.approx(expected.test.overall.rmse, abs=1e-6)
    for k, name in enumerate(SITES):
        assert_personal_state_is_at_the_site(sites.kits[name], "two", run, expected, k)
    together = forecasts(expected, data)
    assert_forecasts(sites, "two", together)
    from_server_alone = forecast_run(run, data)[together.columns]  # lacks the personal weights
    assert (abs(from_server_alone.to_numpy() - together.to_numpy()).max(axis=0) > 0.05).all()


def assert_forecasts(sites: RunningFederation, name: str, together: pd.DataFrame) -> None:
    """Compare each site's forecasts with those of the simulator."""
    sites.begin(Task("forecast", name))
    assert sorted(sites.end()["sites"]) == sorted(SITES)
    for site, rows in SITES.items():
        ahead = pd.read_csv(sites.kits[site] / "forecasts" / "latest.csv", index_col=0, parse_dates=True)
        assert list(ahead.columns) == [together.columns[row] for row in rows]
        assert ahead.index[0] == together.index[0]
        np.testing.assert_allclose(ahead, together[ahead.columns], rtol=0, atol=1e-3)
