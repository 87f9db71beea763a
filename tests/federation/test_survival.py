"""Real processes that are killed or go wrong while they train: what the others do, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cnfgnn.algorithm.methods import preset
from cnfgnn.config import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.federation import processes
from cnfgnn.federation.operating import TaskError
from cnfgnn.federation.serving import Task
from cnfgnn.runs import Run
from cnfgnn.simulation import simulate
from cnfgnn.training import Result, finish, train
from tests.conftest import server
from tests.federation import faulty
from tests.federation.living import ENGINE_WARNINGS, SITES, Living, awaited, dealt, living

pytestmark = ENGINE_WARNINGS


def config(rounds: int, method: str = "at-fedavg", **more: object) -> Config:
    settings = {
        "training.rounds": rounds,
        "training.patience": rounds,
        "training.client_batch": 128,
        "training.server_batch": 128,
        "compute.device": "cpu",
    }
    return preset(method).with_changes({**settings, **more})


def simulated(data: Dataset, config: Config) -> Result:
    experiment = simulate(data, config, groups=list(SITES.values()))
    return finish(experiment, train(experiment))


def assert_same(run: Run, expected: Result) -> None:
    """The weights of the best round, and what was sent apart from what had to be repeated."""
    left_out = ("set-up", "recovery")
    assert [item for item in run.test()["ledger"] if item[0] not in left_out] == [
        item for item in expected.experiment.ledger.state() if item[0] not in left_out
    ]
    state, same = run.store("server").read(run.progress.best.tag), server(expected.experiment)
    assert same.gn is not None
    for name, w in (same.theta_bar or {}).items():
        torch.testing.assert_close(state[f"theta_bar.{name}"], w, rtol=0, atol=1e-6)
    for name, w in same.gn.gn.state_dict().items():
        torch.testing.assert_close(state[f"gn.{name}"], w, rtol=0, atol=1e-6)


def test_killed_sites_rejoin_in_every_phase_and_nothing_is_lost_where_all_are_needed(tmp_path: Path) -> None:
    data, c = dealt(tmp_path / "city", days=2), config(6)
    with living(tmp_path, data, min_sites=3, faults=True) as sites:
        sites.begin_training(c)
        for phase, name in ((1, "north"), (2, "west"), (3, "south"), (4, "west")):
            sites.stands(name, phase)
            sites.kill_job(name)
        sites.stands("south", 1)
        sites.kill("south")
        sites.until(lambda: sites.status["waiting"], "it says that it waits")
        assert not sites.site("south")["reachable"]
        processes.up(sites.kits["south"])
        result = sites.end()
        expected = simulated(data, c)
        assert_same(sites.run(), expected)
        assert result["scores"]["overall"]["rmse"] == pytest.approx(expected.test.overall.rmse, abs=1e-6)
