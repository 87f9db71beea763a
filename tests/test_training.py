"""Training stops when it should, keeps its best round, and resumes to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cnfgnn.algorithm.methods import METHODS
from cnfgnn.config import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.runs import FolderStore
from cnfgnn.simulation import Experiment, simulate
from cnfgnn.training import Progress, evaluate, train
from tests.conftest import small


def through_files(progress: Progress, folder: Path) -> Progress:
    """The same progress with its tensors read back from disk."""
    for name, state in (("last", progress.last), ("best", progress.best)):
        save_file(state, folder / name)
    read = {name: dict(load_file(folder / name)) for name in ("last", "best")}
    return Progress(list(progress.history), read["last"], read["best"], progress.ledger)


def final_state(experiment: Experiment) -> dict[str, torch.Tensor]:
    """Everything the server and, through its store, every node has at the end."""
    state = {f"server.{name}": tensor for name, tensor in experiment.strategy.save("round-99999").items()}
    return state | {"scores": experiment.strategy.score("test")}


@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    method: str, optimizer_state: str, data: Dataset, tmp_path: Path
) -> None:
    if METHODS[method].strategy == "split" and optimizer_state == "fresh":
        optimizer_state = "kept"
    config = small(method, **{"training.rounds": 4, "training.optimizer_state": optimizer_state})

    def start(folder: str) -> Experiment:
        return simulate(data, config, store=lambda name: FolderStore(tmp_path / folder / name))

    whole = start("whole")
    straight = train(whole)
    first = start("parts")
    stopped = through_files(train(first, rounds=2), tmp_path)
    second = start("parts")  # a new process would begin like this
    resumed = train(second, stopped)
    assert resumed.history == straight.history
    expected, actual = final_state(whole), final_state(second)
    assert expected.keys() == actual.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name
    for stored in (tmp_path / "whole").rglob("*.safetensors"):
        other = load_file(tmp_path / "parts" / stored.relative_to(tmp_path / "whole"))
        for name, tensor in load_file(stored).items():
            assert torch.equal(other[name], tensor), f"{stored.name} {name}"


def test_the_best_round_comes_back(data: Dataset) -> None:
    config = small("at-fedavg", **{"training.rounds": 5, "training.client_lr": 0.05})
    experiment = simulate(data, config)
    progress = train(experiment)
    best = progress.best_round
    assert best.loss == min(r.loss for r in progress.history)
    experiment.strategy.restore("best", progress.best)
    again = evaluate(experiment, "validation")
    assert again.overall == best.validation


def test_training_stops_after_patience_rounds_without_a_better_one(data: Dataset) -> None:
    config = small("gru-fedavg", **{"training.rounds": 40, "training.patience": 2, "training.client_lr": 0.5})
    progress = train(simulate(data, config))
    assert len(progress.history) == progress.best_round.r_g + 2 < 40


def test_a_finished_run_does_not_train_on(data: Dataset) -> None:
    config: Config = small("gru-fedavg")
    experiment = simulate(data, config)
    progress = train(experiment)
    assert len(train(experiment, progress).history) == config.training.rounds


def test_rounds_are_reported_as_they_end(data: Dataset) -> None:
    seen: list[int] = []
    train(simulate(data, small("gru-local")), on_round=lambda done: seen.append(done.r_g))
    assert seen == [1, 2]
