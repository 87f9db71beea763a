"""What an owner does after its nodes: it evaluates on true readings, and may tell."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cnfgnn.algorithm import owner as owner_module
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.store import MemoryStore
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.prepared_series import OWN, PROFILES
from cnfgnn.runs.checkpoints import FolderStore
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import evaluate_best, train
from tests.conftest import network, server, small

BLUR = {"privacy.blur": 8.0}


def test_an_owner_has_the_readings_and_its_nodes_the_copy(data: Dataset) -> None:
    owner = simulate(data, small("cnfgnn-plus", **BLUR)).owners[0][1]
    assert not torch.equal(owner.data.inputs, owner.nodes.data.inputs)
    assert torch.equal(owner.data.observed, owner.nodes.data.observed)


def test_the_best_round_is_chosen_by_the_copy_and_errors_are_over_true_readings(data: Dataset) -> None:
    experiment = simulate(data, small("cnfgnn-plus", **BLUR))
    progress = train(experiment)
    for done in progress.history:  # 64 is the variance of the noise in the targets
        assert done.loss > done.validation.masked_rmse**2 + 32
    best = min(progress.history, key=lambda done: done.loss)
    assert progress.best is best
    result = evaluate_best(experiment, progress)
    owner = experiment.owners[0][1]
    assert owner.errors is not None
    assert torch.equal(result.test.sums, owner.errors)


def test_errors_that_are_not_finite_are_not_told(data: Dataset) -> None:
    """The server would refuse the whole answer, with the sums that it needs to choose a round."""
    experiment = simulate(data, small("cnfgnn-plus", **BLUR))
    strategy = server(experiment)
    strategy.round(1)
    assert strategy.score("validation").told.any()
    owner = experiment.owners[0][1]
    owner.data.targets = owner.data.targets * torch.inf
    sums = strategy.score("validation")
    assert owner.errors is not None
    assert not owner.errors.isfinite().all()
    assert not sums.told.any()
    assert sums.of_copy.isfinite().all()


def test_the_lowest_reading_is_that_of_the_readings_at_hand(data: Dataset) -> None:
    """It says whether ranges may reach below zero, and is remembered from one validation to the next."""
    owner = simulate(data, small("at-fedavg")).owners[0][1]
    other = copy.copy(owner.truth)
    other.values, other.missing = owner.truth.values.copy(), owner.truth.missing.copy()
    other.values[0, 2], other.values[1, 3], other.values[2, 40], other.missing[0, 2] = -9.0, -5.0, -7.0, True
    for truth in (other, owner.truth):
        owner.truth = truth
        for row in (40, 41, 0):
            known = truth.values[:, :row][~truth.missing[:, :row]]
            assert owner._lowest_before(row) == known.min(initial=np.inf)


def validated(data: Dataset, method: str = "cnfgnn-plus", **changes: Any) -> Owner:
    experiment = simulate(data, small(method, **changes))
    strategy = server(experiment)
    strategy.round(1)
    strategy.score("validation")
    return experiment.owners[0][1]


def independent_errors(owner: Owner, windows: int) -> np.ndarray:
    """(t n): so many of these windows, which end with the validation split, count as independent."""
    starts = torch.cat([owner.data.starts[split] for split in ("train", "validation")])[-windows:]
    ahead = starts.numpy()[:, None] + owner.data.history + np.arange(owner.data.horizon)
    known: np.ndarray = (~owner.truth.missing)[:, ahead].sum(axis=1)  # (n t)
    return (known / np.arange(1, owner.data.horizon + 1)).T


@pytest.mark.parametrize("changes", [{}, BLUR])
def test_intervals_of_a_short_validation_split_also_rest_on_training_windows(
    data: Dataset, changes: dict[str, Any]
) -> None:
    owner = validated(data, **changes)
    assert owner.intervals is not None
    windows = [len(owner.data.starts[split]) for split in ("train", "validation")]
    np.testing.assert_allclose(owner.intervals.seen, independent_errors(owner, sum(windows)))


def test_training_windows_only_make_up_for_what_the_validation_split_lacks(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(validated(data).data.starts["validation"])
    for enough, used in ((count + 7, count + 7), (count, count)):
        monkeypatch.setattr(owner_module, "CALIBRATING", enough)
        owner = validated(data)
        assert owner.intervals is not None
        np.testing.assert_allclose(owner.intervals.seen, independent_errors(owner, used))


def test_without_linear_forecasts_the_errors_of_training_windows_are_not_used(data: Dataset) -> None:
    """The network has seen these windows: its errors there are smaller than those to come."""
    owner = validated(data, "at-fedavg")
    assert owner.intervals is not None
    count = len(owner.data.starts["validation"])
    np.testing.assert_allclose(owner.intervals.seen, independent_errors(owner, count))


def test_intervals_rest_on_forecasts_of_training_windows_that_did_not_fit_them(data: Dataset) -> None:
    """Weights that are wrong in the folds alone, which no other forecast uses, make intervals wide."""
    owner = validated(data)
    assert owner.intervals is not None
    usual = owner.intervals.usual.mean()
    owner.data.linear[OWN].of_folds.mul_(3.0)
    owner.evaluate_intervals("validation")
    assert owner.intervals.usual.mean() > 2 * usual


def test_a_central_run_keeps_the_profile_of_the_copies_and_that_of_the_readings() -> None:
    stores: dict[str, MemoryStore] = {}
    config = small("mlp-central", **BLUR, **{"model.profile": True, "training.rounds": 1})
    data = network(seconds=3600)
    experiment = simulate(data, config, store=lambda name: stores.setdefault(name, MemoryStore()))
    progress = train(experiment)
    state = stores["server"].read(progress.best.tag)
    owner = experiment.owners[0][1]
    for name, prepared in ((PROFILES, owner.nodes.data), (f"owner.{PROFILES}", owner.data)):
        assert prepared.weekly_profiles is not None
        profile = torch.from_numpy(prepared.weekly_profiles)
        torch.testing.assert_close(state[name], profile, rtol=0, atol=0, equal_nan=True)
    assert not torch.equal(state[PROFILES].nan_to_num(), state[f"owner.{PROFILES}"].nan_to_num())


def test_a_central_run_without_a_blur_keeps_one_profile_and_can_be_read_again(tmp_path: Path) -> None:
    config = small("mlp-central", **{"model.profile": True, "training.rounds": 1})
    experiment = simulate(network(seconds=3600), config, store=lambda name: FolderStore(tmp_path / name))
    progress = train(experiment)
    state = FolderStore(tmp_path / "server").read(progress.best.tag)
    assert PROFILES in state
    assert f"owner.{PROFILES}" not in state
    evaluate_best(experiment, progress)
