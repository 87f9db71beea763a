"""What a training gives that nothing disturbs, to hold others against."""

from __future__ import annotations

import torch

from cnfgnn.algorithm.methods import preset
from cnfgnn.config import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.runs import Run
from cnfgnn.simulation import simulate
from cnfgnn.training import Result, finish, train
from tests.conftest import server
from tests.federation.living import SITES


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
    """With as many threads as the sites' processes have: else sums differ in their last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        experiment = simulate(data, config, groups=list(SITES.values()))
        return finish(experiment, train(experiment))
    finally:
        torch.set_num_threads(threads)


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


def assert_within_noise(error: float, data: Dataset, config: Config) -> None:
    """No further from the undisturbed training's test error than those of three seeds lie apart."""
    seeds = range(config.seed, config.seed + 3)
    errors = [simulated(data, config.with_changes({"seed": seed})).test.overall.rmse for seed in seeds]
    print(f"test error {error:.4f}, undisturbed {errors}")
    assert abs(error - errors[0]) <= max(errors) - min(errors)
