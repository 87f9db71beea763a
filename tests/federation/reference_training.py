"""The simulator's result of an undisturbed training, to compare a federation's with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cnfgnn.algorithm.methods import preset
from cnfgnn.config.settings import Config
from cnfgnn.config.toml import dump
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.description import fingerprint
from cnfgnn.data.windows import Windows
from cnfgnn.federation.site.store import OWNER, STATES
from cnfgnn.runs.checkpoints import FolderStore
from cnfgnn.runs.folder import Run
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import Result, evaluate_best, train
from tests.conftest import server
from tests.federation.running_federation import SITES


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
    """Train in the simulator with one thread, as sites do: otherwise sums differ in their last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        experiment = simulate(data, config, groups=list(SITES.values()))
        return evaluate_best(experiment, train(experiment))
    finally:
        torch.set_num_threads(threads)


def assert_same(run: Run, expected: Result) -> None:
    """Compare the weights of the best round, and the ledger without set-up and recovery."""
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


def assert_own_state_is_at_the_site(kit: Path, name: str, run: Run, expected: Result, site: int) -> None:
    """Compare the site's states with the simulator's: trust, weekly profiles and optimiser. The server has
    none of them."""
    [folder] = (kit / STATES).glob(f"{name}-*")
    owner, tag = expected.experiment.owners[site][1], expected.progress.best.tag
    for store, same in (
        (FolderStore(folder), owner.nodes.store),
        (own := FolderStore(folder / OWNER), owner.store),
    ):
        kept = store.read(tag)
        assert kept.keys() == same.read(tag).keys()
        for tensor, w in same.read(tag).items():
            torch.testing.assert_close(kept[tensor], w, rtol=0, atol=1e-6, equal_nan=True)
    assert "trust" in own.read(tag)
    assert own.read(tag)["usual_weeks"].nan_to_num().any()
    servers = run.store("server").read(run.progress.best.tag)
    assert not [tensor for tensor in servers if "trust" in tensor or "usual" in tensor]


def forecasts(expected: Result, data: Dataset) -> pd.DataFrame:
    """The simulator's forecasts from the saved states of the nodes, with a column per sensor."""
    before, r, d = expected.experiment, data.readings, expected.experiment.config.data
    future = r.times[-1] + r.step * np.arange(1, d.horizon + 1)
    unknown = np.full((d.horizon, len(r.ids)), np.nan, dtype=r.values.dtype)
    longer = replace(
        r,
        times=np.concatenate([r.times, future.astype(r.times.dtype)]),
        values=np.concatenate([r.values, unknown]),
        missing=np.concatenate([r.missing, np.isnan(unknown)]),
    )
    stores = {"server": server(before).store}
    for k, (_, owner) in enumerate(before.owners):
        stores |= {f"site-{k}": owner.nodes.store, f"owner-{k}": owner.store}
    ahead = simulate(
        replace(data, readings=longer),
        before.config,
        groups=[rows.tolist() for rows, _ in before.owners],
        store=stores.__getitem__,
        windows=Windows.next(len(r.times), d.history, d.horizon),
        scaler=before.scaler,
    )
    server(ahead).restore(expected.progress.best.tag, to_learn=False)
    server(ahead).forecast()
    values = torch.full((len(r.ids), d.horizon), torch.nan, dtype=torch.float64)
    for rows, owner in ahead.owners:
        assert owner.forecasts is not None
        values[rows] = owner.forecasts.double()
    return pd.DataFrame(values.T.numpy(), index=pd.DatetimeIndex(future), columns=list(r.ids))


def assert_as_good_as_undisturbed(error: float, data: Dataset, config: Config) -> None:
    """A training with failures is another draw, like another seed, and seeds differ by up to 2 % here."""
    expected = undisturbed_error(data, config)
    print(f"test error {error:.4f}, undisturbed {expected:.4f}")
    assert error <= 1.05 * expected


_ERRORS: dict[tuple[str, str], float] = {}


def undisturbed_error(data: Dataset, config: Config) -> float:
    """The test error in the simulator, which several tests ask for: it is simulated once."""
    key = fingerprint(data), dump(config)
    if key not in _ERRORS:
        _ERRORS[key] = simulated(data, config).test.overall.rmse
    return _ERRORS[key]
