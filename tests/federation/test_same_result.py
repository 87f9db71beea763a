"""A federation of real processes gives the same result as the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cnfgnn.federation.task import Task
from cnfgnn.runs.forecast import forecast_run
from tests.commands import said
from tests.federation.reference_training import (
    assert_own_state_is_at_the_site,
    assert_same,
    config,
    forecasts,
    simulated,
)
from tests.federation.running_federation import (
    ALL_COME,
    ENGINE_WARNINGS,
    SITES,
    RunningFederation,
    city_on_disk,
    running_federation,
)

pytestmark = ENGINE_WARNINGS


@pytest.mark.slow
def test_training_evaluation_and_forecasts_equal_the_simulators(tmp_path: Path) -> None:
    """With `cnfgnn-plus`, which has all that a method can have. Weights of `at-fedavg` are compared in
    test_recovery.py, and its forecasts in test_forecast_start.py."""
    data = city_on_disk(tmp_path / "city")
    changes = {"training.server_batch": 64, "training.average_every": 3}
    c = config(2, "cnfgnn-plus", **changes)
    # All sites are required: on a busy machine one may be silent for long enough to be left out of a round.
    with running_federation(tmp_path, data, min_sites=len(SITES)) as sites:
        for name in SITES:  # as in the simulator: otherwise the server has errors without trust
            settings = sites.kits[name] / "local" / "site.toml"
            settings.write_text(settings.read_text() + "tell_errors = true\n")
        result = sites.train(c, wait=ALL_COME)
        run, expected = sites.run(), simulated(data, c)
        assert run.finished
        assert_same(run, expected)
        assert result["scores"]["overall"]["rmse"] == pytest.approx(expected.test.overall.rmse, abs=1e-6)
        for k, name in enumerate(SITES):
            assert_own_state_is_at_the_site(sites.kits[name], "one", run, expected, k)

        asked = ("--split", "validation", "--record", "--json")
        told = said("federation", "evaluate", sites.server, "one", *asked)
        assert "keeps the hidden states that the sites sent" in told
        evaluated = json.loads(told.splitlines()[-1])  # the lines before it are stderr's
        assert evaluated["overall"]["rmse"] == pytest.approx(run.progress.best.validation.rmse, abs=1e-9)
        check_that_the_recording_can_be_attacked(run.folder, tmp_path / "city")

        together = forecasts(expected, data)
        assert_forecasts(sites, together)
        from_server_alone = forecast_run(run, data)[together.columns]  # lacks what owners learned
        assert (abs(from_server_alone.to_numpy() - together.to_numpy()).max(axis=0) > 1e-3).all()


def check_that_the_recording_can_be_attacked(run: Path, data: Path) -> None:
    assert "the readings of a federation are with their owners" in said("attack", run, fails=True)
    chosen = ("--split", "validation", "--attacks", "series", "--windows", 20, "--device", "cpu", "--json")
    report = json.loads(said("attack", run, data, *chosen).splitlines()[-1])
    assert len(report["sensors"]) == 7  # the eighth one colludes
    assert {line["attack"] for line in report["lines"]} == {"guess", "series"}


def assert_forecasts(sites: RunningFederation, together: pd.DataFrame) -> None:
    """Compare each site's forecasts with those of the simulator."""
    sites.begin(Task("forecast", "one"))
    assert sorted(sites.end()["sites"]) == sorted(SITES)
    for site, rows in SITES.items():
        ahead = pd.read_csv(sites.kits[site] / "forecasts" / "latest.csv", index_col=0, parse_dates=True)
        assert list(ahead.columns) == [together.columns[row] for row in rows]
        assert ahead.index[0] == together.index[0]
        np.testing.assert_allclose(ahead, together[ahead.columns], rtol=0, atol=1e-3)
