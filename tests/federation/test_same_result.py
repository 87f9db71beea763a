"""Real processes, provisioned and authenticated, give what the simulator gives."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from cnfgnn.algorithm.methods import preset
from cnfgnn.config import Config
from cnfgnn.federation.serving import Task
from cnfgnn.simulation import simulate
from cnfgnn.training import finish, train
from tests.conftest import server
from tests.federation.living import ENGINE_WARNINGS, SITES, dealt, living

pytestmark = ENGINE_WARNINGS


def config(method: str, rounds: int = 2) -> Config:
    return preset(method).with_changes(
        {
            "training.rounds": rounds,
            "training.client_batch": 128,
            "training.server_batch": 128,
            "compute.device": "cpu",
        }
    )


def test_training_judging_and_forecasting_equal_the_simulators(tmp_path: Path) -> None:
    data = dealt(tmp_path / "city")
    with living(tmp_path, data) as sites:
        result = sites.train(config("at-fedavg"))
        run = sites.run()
        assert run.finished
        same = simulate(data, config("at-fedavg"), groups=list(SITES.values()))
        expected = finish(same, train(same))
        assert [item for item in run.test()["ledger"] if item[0] != "set-up"] == [
            item for item in same.ledger.state() if item[0] not in ("set-up", "recovery")
        ]
        state = run.store("server").read(run.progress.best.tag)
        for name, w in (server(same).theta_bar or {}).items():
            torch.testing.assert_close(state[f"theta_bar.{name}"], w, rtol=0, atol=1e-6)
        assert server(same).gn is not None
        for name, w in server(same).gn.gn.state_dict().items():  # type: ignore[union-attr]
            torch.testing.assert_close(state[f"gn.{name}"], w, rtol=0, atol=1e-6)
        assert result["scores"]["overall"]["rmse"] == pytest.approx(expected.test.overall.rmse, abs=1e-6)

        sites.begin(Task("evaluate", "one", split="validation"))
        judged = sites.end()["scores"]
        best = run.progress.best.validation
        assert judged["overall"]["rmse"] == pytest.approx(best.rmse, abs=1e-9)

        sites.begin(Task("forecast", "one"))
        assert sorted(sites.end()["sites"]) == sorted(SITES)
        for name, rows in SITES.items():
            ahead = pd.read_csv(sites.kits[name] / "forecasts" / "latest.csv", index_col=0, parse_dates=True)
            assert list(ahead.columns) == [data.readings.ids[row] for row in rows]
            assert ahead.index[0] == pd.Timestamp(data.readings.times[-1] + data.readings.step)
            assert len(ahead) == 12
