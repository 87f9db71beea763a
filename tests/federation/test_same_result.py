"""Real processes, provisioned and authenticated, give what the simulator gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cnfgnn.federation.serving import Task
from cnfgnn.forecasting import forecast_run
from tests.federation.living import ENGINE_WARNINGS, SITES, dealt, living
from tests.federation.undisturbed import assert_same, config, simulated

pytestmark = ENGINE_WARNINGS


def test_training_judging_and_forecasting_equal_the_simulators(tmp_path: Path) -> None:
    data = dealt(tmp_path / "city")
    with living(tmp_path, data) as sites:
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

        sites.begin(Task("forecast", "one"))
        assert sorted(sites.end()["sites"]) == sorted(SITES)
        together = forecast_run(run, data)  # as if one had all readings
        for name, rows in SITES.items():
            ahead = pd.read_csv(sites.kits[name] / "forecasts" / "latest.csv", index_col=0, parse_dates=True)
            assert list(ahead.columns) == [data.readings.ids[row] for row in rows]
            assert ahead.index[0] == pd.Timestamp(data.readings.times[-1] + data.readings.step)
            np.testing.assert_allclose(ahead, together[ahead.columns], rtol=0, atol=1e-3)
