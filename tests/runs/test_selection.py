"""Which round is the best one where sites were away when some rounds were judged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.messages.sums import Sums
from cnfgnn.algorithm.store import MemoryStore, SiteMemoryStore
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.prepared_series import SUMS
from cnfgnn.errors import RunError
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import Scores
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.train import Unwatched, train_run_with
from cnfgnn.runs.training_loop import (
    GONE_AFTER,
    Comparison,
    Progress,
    SensorError,
    _compare,
    evaluate_best,
    train,
)
from tests.conftest import network, small, transport

GROUPS = [[0], [1, 2], [3, 4, 5]]
NORTH, SOUTH, WEST = {"site-0"}, {"site-1"}, {"site-2"}
REMAINING = [1, 2, 3, 4, 5]  # without the sensor of site-0


QUICK = {"training.client_lr": 0.01, "training.client_rounds": 1, "training.client_batch": 80}


def judged(means: Mapping[int, float], sensors: int = 4) -> list[SensorError]:
    """Sensors by their mean error over ten forecasts; the others were away."""
    return [
        SensorError(10 * means[row], 10.0) if row in means else SensorError(0.0, 0.0)
        for row in range(sensors)
    ]


# ---- the rule ---------------------------------------------------------------------------------------------


def test_rounds_that_the_same_sensors_judged_are_compared_on_all_of_them() -> None:
    best = judged({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0})
    assert _compare(judged({0: 3.0, 1: 2.0, 2: 2.0, 3: 2.0}), best, [0] * 4) == Comparison(best=True)
    assert _compare(best, best, [0] * 4) == Comparison(best=False)


def test_a_lone_sensor_does_not_choose_for_those_who_missed_a_moment() -> None:
    best, now = judged({0: 1.0, 1: 5.0, 2: 5.0, 3: 5.0}), judged({0: 0.1})
    for missed in range(1, GONE_AFTER):
        assert _compare(now, best, [0, missed, missed, missed]) == Comparison(False, False, (1, 2, 3))
    one_may_come_back = [0, GONE_AFTER, GONE_AFTER, GONE_AFTER - 1]
    assert _compare(now, best, one_may_come_back) == Comparison(False, False, (3,))


def test_those_who_left_are_left_out_and_named() -> None:
    best = judged({0: 0.1, 1: 2.0, 2: 2.0, 3: 2.0})
    missed = [GONE_AFTER, 0, 0, 0]
    assert _compare(judged({1: 1.9, 2: 1.9, 3: 1.9}), best, missed) == Comparison(True, True, (0,))
    assert _compare(judged({1: 2.1, 2: 2.1, 3: 2.1}), best, missed) == Comparison(False, True, (0,))


def test_those_who_came_later_are_left_out_unless_they_are_the_majority() -> None:
    best = judged({0: 1.0, 1: 1.0})
    assert _compare(judged({0: 2.0, 1: 2.0, 2: 0.1, 3: 0.1}), best, [0] * 4) == Comparison(
        False, True, (2, 3)
    )
    assert _compare(judged({0: 0.5, 1: 0.5, 2: 9.0, 3: 9.0}), best, [0] * 4) == Comparison(True, True, (2, 3))
    alone = judged({0: 1.0})
    assert _compare(judged({0: 2.0, 1: 9.0, 2: 9.0}), alone, [0] * 4) == Comparison(True, True, (1, 2))
    gone = [GONE_AFTER, 0, 0, 0]
    assert _compare(judged({1: 9.0}), alone, gone) == Comparison(True, True, (0, 1))


# ---- a training ------------------------------------------------------------------------------------------


class Absences:
    """Sites that are away from the first moment of a round on, by round; and the sums that each round had."""

    def __init__(self, experiment: Experiment, away: Callable[[int], set[str]]) -> None:
        self.sums: list[torch.Tensor] = []
        carrier, strategy = transport(experiment), experiment.strategy
        round_, score = strategy.round, strategy.score

        def begin(r_g: int) -> None:
            carrier.away = away(r_g)
            round_(r_g)

        def note(split: Any) -> Sums:
            found = score(split)
            if split == "validation":
                self.sums.append(found.of_copy)
            return found

        strategy.round, strategy.score = begin, note  # type: ignore[method-assign]

    def loss(self, r_g: int, rows: list[int]) -> float:
        return Scores(self.sums[r_g - 1][rows]).loss(masked=True)


def start(data: Dataset, rounds: int, **more: Any) -> Experiment:
    config = small("gru-fedavg", **{**QUICK, "training.rounds": rounds, **more})
    return simulate(data, config, groups=GROUPS)


def with_losses(experiment: Experiment, losses: list[float]) -> Experiment:
    """Has rounds with these validation losses, whatever is learned."""
    score, left = experiment.strategy.score, iter(losses)

    def scripted(split: Any) -> Sums:
        found = score(split)
        if split == "validation":
            errors = [not name.endswith("count") for name in SUMS]
            errors_only = torch.tensor(errors, dtype=found.of_copy.dtype)
            share = next(left) / Scores(found.of_copy).loss(masked=True)
            found = found._replace(of_copy=found.of_copy * (1 + (share - 1) * errors_only))
        return found

    experiment.strategy.score = scripted  # type: ignore[method-assign]
    return experiment


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_round_with_the_lowest_loss_is_the_best_and_patience_waits_for_a_lower_one(
    data: Dataset, schedule: str
) -> None:
    losses = [3.0, 2.0, 2.001, 1.995, 1.996, 2.5, 1.9951, 1.0]
    changes = {"training.schedule": schedule, "training.patience": 3}
    progress = train(with_losses(start(data, len(losses), **changes), losses))
    assert [done.loss for done in progress.history] == pytest.approx(losses[:7])
    assert [done.r_g for done in progress.history if done.best] == [1, 2, 4]
    assert progress.best.r_g == 4


@pytest.mark.slow
def test_a_site_that_leaves_for_good_does_not_freeze_the_choice(data: Dataset) -> None:
    experiment = start(data, 9, **{"training.client_rounds": 3, "training.client_batch": 32})
    seen = Absences(experiment, lambda r_g: NORTH if r_g >= 3 else set())
    progress = train(experiment)
    first = min((1, 2), key=lambda r_g: seen.loss(r_g, [0, *REMAINING]))
    compared = [first, *range(2 + GONE_AFTER, 10)]
    assert progress.best.r_g == min(compared, key=lambda r_g: seen.loss(r_g, REMAINING)) > 2
    assert [done.compared for done in progress.history] == [True] * 2 + [False] * (GONE_AFTER - 1) + [
        True
    ] * 5
    result = evaluate_best(experiment, progress)
    assert progress.left_out == result.summary()["left_out"]
    assert result.test.sums[1:].any(dim=-1).any(dim=-1).all()


def test_sensors_that_the_best_round_was_defended_without_are_named(data: Dataset) -> None:
    experiment = start(data, 5)
    seen = Absences(experiment, lambda r_g: NORTH if r_g >= 2 else set())

    def spoil(progress: Progress) -> None:
        for _, owner in experiment.owners:  # from here on nothing is better than the first round
            owner.nodes.theta = {name: w * 40 for name, w in owner.nodes.theta.items()}

    progress = train(experiment, on_round=spoil)
    assert progress.best.r_g == 1
    assert seen.loss(1, REMAINING) < min(seen.loss(r_g, REMAINING) for r_g in range(2, 6))
    assert progress.left_out == [0]
    assert [done.compared for done in progress.history] == [True, False, False, True, True]


def test_a_round_that_one_site_judged_alone_is_no_better_by_chance(data: Dataset) -> None:
    experiment = start(data, 6)
    seen = Absences(experiment, lambda r_g: NORTH | SOUTH if r_g == 4 else set())
    progress = train(experiment)
    alone = progress.history[3]
    assert (alone.best, alone.compared, alone.left_out) == (False, False, (0, 1, 2))
    everybody = [r_g for r_g in range(1, 7) if r_g != 4]
    assert progress.best.r_g == min(everybody, key=lambda r_g: seen.loss(r_g, list(range(6))))


def test_patience_counts_rounds_that_were_compared(data: Dataset) -> None:
    hopeless = {"training.patience": 2, "training.client_lr": 1.0}
    undisturbed = train(start(data, 40, **hopeless))
    experiment = start(data, 40, **hopeless)
    last = len(undisturbed.history)
    Absences(experiment, lambda r_g: WEST if r_g == last else set())
    progress = train(experiment)
    assert not progress.history[last - 1].compared
    assert len(progress.history) > last
    assert progress.rounds_without_improvement == 2


# ---- what is kept of it ----------------------------------------------------------------------------------


def lasting(folder: Path, data: Dataset, away: Callable[[int], set[str]], rounds: int) -> Run:
    """A run in its folder; a second call goes on where the first stopped."""
    stores = _STORES.setdefault(folder, {})
    config = small("gru-fedavg", **{**QUICK, "training.rounds": 6})
    run = Run.open(folder) if folder.exists() else Run.create(folder, config, data)
    run.config = config.with_changes({"training.rounds": rounds})

    def set_up() -> Experiment:
        def store(name: str) -> MemoryStore:
            return stores.setdefault(name, MemoryStore() if name == "server" else SiteMemoryStore())

        experiment = simulate(data, run.config, groups=GROUPS, store=store)
        Absences(experiment, away)
        return experiment

    train_run_with(run, set_up, lambda: {}, Unwatched())
    return run


_STORES: dict[Path, dict[str, MemoryStore]] = {}


@pytest.mark.slow
def test_a_run_resumed_while_a_site_is_gone_chooses_as_an_uninterrupted_one(tmp_path: Path) -> None:
    data = network()

    def away(r_g: int) -> set[str]:
        return NORTH if r_g >= 3 else set()

    whole = lasting(tmp_path / "whole", data, away, 6)
    parts = lasting(tmp_path / "parts", data, away, 4)
    parts.extend(6, 100)  # takes back that it was judged at its end
    parts = lasting(tmp_path / "parts", data, away, 6)
    one, two = Run.open(whole.folder).progress, Run.open(parts.folder).progress
    assert one.history == two.history
    assert (one.best_errors, one.missed) == (two.best_errors, two.missed)
    assert one.missed == [4, 0, 0, 0, 6, 0]  # the sensor of north, and one that was silent all the time
    events = [event for event in whole.events() if event["event"] == "round"]
    assert [event["left_out"] for event in events] == [[], [], *[["s0"] for _ in range(GONE_AFTER - 1)]] + [
        ["s0"] if 0 in done.left_out else [] for done in one.history[1 + GONE_AFTER :]
    ]
    assert whole.test()["left_out"] == (["s0"] if one.left_out else [])


@pytest.mark.parametrize("name", ["best_errors", "missed"])
def test_a_manifest_with_the_errors_of_other_sensors_is_damaged(
    name: str, tmp_path: Path, data: Dataset
) -> None:
    run = lasting(tmp_path / "run", data, lambda r_g: set(), 1)
    path = run.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["progress"][name].pop()
    path.write_text(json.dumps(manifest))
    with pytest.raises(RunError, match="damaged"):
        Run.open(run.folder)


def test_progress_without_an_absence_leaves_nobody_out(data: Dataset) -> None:
    progress: Progress = train(start(data, 3))
    assert progress.left_out == []
    assert all(done.compared and done.left_out == () for done in progress.history)
