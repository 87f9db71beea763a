"""Training stops when it should, keeps its best round, and resumes to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnfgnn.algorithm.methods import METHODS
from cnfgnn.algorithm.store import MemoryStore
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import DivergedError
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import Progress, evaluate, train
from cnfgnn.testing import check_resume
from tests.conftest import small


@pytest.mark.parametrize("optimizer_state", [pytest.param("fresh", marks=pytest.mark.slow), "kept"])
@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    method: str, optimizer_state: str, tmp_path: Path
) -> None:
    if METHODS[method].strategy == "split" and optimizer_state == "fresh":
        optimizer_state = "kept"
    check_resume(method, tmp_path, **{"training.optimizer_state": optimizer_state})


def test_the_best_round_comes_back(data: Dataset) -> None:
    config = small("at-fedavg", **{"training.rounds": 5, "training.client_lr": 0.05})
    experiment = simulate(data, config)
    progress = train(experiment)
    best = progress.best
    assert best.loss == min(r.loss for r in progress.history)
    experiment.strategy.restore(best.tag)
    again = evaluate(experiment, "validation")
    assert again.overall == best.validation


def test_training_stops_after_patience_rounds_without_a_better_one(data: Dataset) -> None:
    config = small("gru-fedavg", **{"training.rounds": 40, "training.patience": 2, "training.client_lr": 0.5})
    progress = train(simulate(data, config))
    assert len(progress.history) == progress.best.r_g + 2 < 40


def test_a_finished_run_does_not_train_on(data: Dataset) -> None:
    config: Config = small("gru-fedavg")
    experiment = simulate(data, config)
    progress = train(experiment)
    assert len(train(experiment, progress).history) == config.training.rounds


def test_rounds_are_reported_as_they_end(data: Dataset) -> None:
    seen: list[int] = []
    train(simulate(data, small("gru-local")), on_round=lambda progress: seen.append(progress.history[-1].r_g))
    assert seen == [1, 2]


def test_owners_keep_the_last_two_rounds_and_the_best(data: Dataset) -> None:
    stores: dict[str, MemoryStore] = {}
    config = small("at", **{"training.rounds": 6, "training.client_lr": 0.08, "training.patience": 6})
    experiment = simulate(data, config, store=lambda name: stores.setdefault(name, MemoryStore()))
    progress = train(experiment)
    expected = {progress.best.tag, *(done.tag for done in progress.history[-2:])}
    assert set(stores) == {"server", "site-0", "owner-0"}
    for store in stores.values():
        assert expected <= set(store.states) <= expected | {done.tag for done in progress.history[-3:]}


def test_a_loss_that_is_no_number_stops_training_and_keeps_the_rounds_before(data: Dataset) -> None:
    stores: dict[str, MemoryStore] = {}
    config = small("gru-fedavg", **{"training.rounds": 30})
    experiment = simulate(data, config, store=lambda name: stores.setdefault(name, MemoryStore()))

    def poison(progress: Progress) -> None:
        if len(progress.history) == 2:
            for w in experiment.owners[0][1].nodes.theta.values():
                w.fill_(float("nan"))

    with pytest.raises(DivergedError, match="round 3"):
        train(experiment, on_round=poison)
    assert {"round-00002"} <= set(stores["server"].states) <= {"round-00001", "round-00002"}
