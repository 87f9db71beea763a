"""The estimate of the training time comes early and settles within three rounds; the clock is simulated."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cnfgnn.algorithm.messages.ledger import Bytes
from cnfgnn.algorithm.methods import METHODS, preset
from cnfgnn.cli.progress import Outlook, quicker
from cnfgnn.cli.time_left import OtherPrograms, Pace
from cnfgnn.data.dataset import Dataset
from cnfgnn.runs.scores import Errors
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import Progress, Round
from tests.commands import said
from tests.conftest import small
from tests.waiting import wait_for

PHASES, MINIBATCH_S = (4, 11), (0.5, 2.0)
ENCODE_S, EVALUATE_S, WARM_UP_S = 1.5, 2.0, 30.0
UNEVEN = (0.8, 1.2)  # minibatches take turns
ROUND_S = ENCODE_S + EVALUATE_S
ROUND_S += sum(s * UNEVEN[k % 2] for n, s in zip(PHASES, MINIBATCH_S, strict=True) for k in range(n))


class Training:
    """Rounds of alternating training: the first one also warms up, and one of them is held up."""

    def __init__(self, rounds: int, held_up: Sequence[int] = ()) -> None:
        self.now, self.rounds, self.held_up, self.others = 100.0, rounds, held_up, 0.0
        self.outlook = Outlook(
            preset("cnfgnn").with_changes({"training.rounds": rounds}),
            Progress(),
            PHASES,
            lambda: self.now,
            OtherPrograms(lambda: (self.now, self.others * (self.now - 100.0), 0.0)),
        )
        self.pace: Pace = self.outlook.pace

    def minibatches(self, r_g: int) -> Iterator[int]:
        """After each minibatch of a round, its number."""
        self.now += WARM_UP_S if r_g == 1 else 0
        for phase, (count, seconds) in enumerate(zip(PHASES, MINIBATCH_S, strict=True)):
            self.now += ENCODE_S if phase else 0
            for number in range(count):
                self.now += seconds * UNEVEN[number % 2]
                self.pace.tick()
                yield number + phase * PHASES[0]

    def round(self, r_g: int) -> None:
        begun = self.now
        for _ in self.minibatches(r_g):
            pass
        self.now += EVALUATE_S + (300.0 if r_g in self.held_up else 0)
        self.pace.round_done(self.now - begun)


def test_there_is_no_estimate_before_minibatches_of_every_phase() -> None:
    training = Training(50)
    can_tell = [number for number in training.minibatches(1) if training.pace.a_round() is not None]
    assert can_tell == list(range(PHASES[0] + 3, sum(PHASES)))


def test_the_first_round_is_estimated_from_its_minibatches_without_what_is_done_only_once() -> None:
    training = Training(50)
    told = [(training.now, training.pace.a_round(), training.pace.left()) for _ in training.minibatches(1)]
    for now, seconds, left in told[PHASES[0] + 3 :]:
        assert seconds == pytest.approx(ROUND_S, rel=0.12)
        assert left == pytest.approx(WARM_UP_S + 50 * ROUND_S - (now - 100.0), rel=0.12)


def test_the_estimate_settles_within_three_rounds() -> None:
    training = Training(50)
    for r_g in (1, 2, 3):
        training.round(r_g)
        left = training.pace.left()
        assert left is not None
        truth = (50 - r_g) * ROUND_S
        assert left == pytest.approx(truth, rel=0.02)


def test_what_comes_before_the_first_minibatch_of_every_round_is_expected_of_later_ones() -> None:
    now = [0.0]
    pace = Pace(10, 0, (2,), lambda: now[0])
    for _ in range(3):
        begun = now[0]
        for seconds in (7.0, 1.0):
            now[0] += seconds
            pace.tick()
        pace.round_done(now[0] - begun)
    assert pace.a_round() == 8.0


def test_one_slow_round_does_not_change_the_estimate() -> None:
    training = Training(20, held_up=[4])
    for r_g in range(1, 7):
        training.round(r_g)
    assert training.pace.a_round() == pytest.approx(ROUND_S, rel=0.02)


def test_the_time_left_falls_within_a_round_and_is_never_negative() -> None:
    training = Training(3)
    training.round(1)
    training.round(2)
    left = [training.pace.left() for _ in training.minibatches(3)]
    assert left == sorted(left, reverse=True)  # type: ignore[type-var]
    assert left[-1] is not None
    assert 0 <= left[-1] < ROUND_S / 4
    training.now += 1000.0
    assert training.pace.left() == 0.0


def test_the_time_left_is_not_over_before_the_minibatches_are() -> None:
    training = Training(3)
    training.round(1)
    training.round(2)
    half = next(number for number in training.minibatches(3) if number == sum(PHASES) // 2)
    training.now += 10 * ROUND_S  # other work is on the machine now
    assert training.pace.left() == pytest.approx((1 - (half + 1) / sum(PHASES)) * ROUND_S, rel=0.02)


def test_one_minibatch_is_enough_for_a_phase_that_has_no_more() -> None:
    now = [0.0]
    pace = Pace(10, 0, (1, 2), lambda: now[0])
    for seconds in (3.0, 5.0, 5.0):
        assert pace.a_round() is None
        now[0] += seconds
        pace.tick()
    assert pace.a_round() == 13.0
    assert pace.left() == pytest.approx(130.0 - 13.0)


def test_the_estimate_is_announced_once_with_quicker_options() -> None:
    training = Training(50)
    lines = [training.outlook.announcement() for _ in training.minibatches(1)]
    (line,) = [line for line in lines if line is not None]
    assert line.startswith("about ")
    assert ", roughly 2" in line
    assert "min for 50 rounds, or until 20 rounds in a row bring no improvement" in line
    assert line.endswith("--set training.rounds=10, or --method cnfgnn-plus, 12 rounds of a smaller model")
    assert "\n" not in line
    training.round(1)
    assert training.outlook.announcement() is None


def test_the_estimate_says_how_busy_other_programs_keep_the_machine() -> None:
    training = Training(50)
    training.others = 1.24
    (line,) = [line for _ in training.minibatches(1) if (line := training.outlook.announcement())]
    assert f"min for 50 rounds while other programs use 1.2 of {os.cpu_count()} processors, or until" in line


def test_other_programs_are_told_from_this_one() -> None:
    busy = OtherPrograms(iter([(0.0, 50.0, 5.0), (10.0, 65.0, 9.0)]).__next__)
    assert busy.processors() == pytest.approx(1.1)
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        others = OtherPrograms()
        wait_for(lambda: others.processors() > 0.3, "another program is seen")
    finally:
        program.kill()
        program.wait()


def test_the_estimate_for_one_round_is_its_whole_duration() -> None:
    training = Training(1)
    lines = [training.outlook.announcement() for _ in training.minibatches(1)]
    (line,) = [line for line in lines if line is not None]
    seconds = re.fullmatch(r"about (\d+) s for 1 round", line)
    assert seconds is not None
    assert int(seconds[1]) == pytest.approx(WARM_UP_S + ROUND_S, rel=0.1)


def test_nothing_is_announced_after_the_last_round() -> None:
    config = preset("cnfgnn").with_changes({"training.rounds": 1})
    outlook = Outlook(config, Progress(), PHASES, lambda: 0.0)
    outlook.pace.round_done(13.0)
    assert outlook.announcement() is None


def test_the_time_left_is_also_given_without_improvement() -> None:
    training = Training(50)
    for r_g in (1, 2, 3):
        training.round(r_g)
    minutes = ROUND_S / 60
    training.outlook.best = 3
    assert training.outlook.left(early=True) == (
        f"at most {47 * minutes:.0f} min left ({20 * minutes:.0f} min without improvement)"
    )
    assert training.outlook.left() == f"at most {47 * minutes:.0f} min left"
    training.outlook.best = 40
    assert training.outlook.left(early=True) == f"at most {47 * minutes:.0f} min left"


def test_patience_counts_from_the_best_round_also_after_a_resumption() -> None:
    first, second = (Round(r_g, 1.0, Errors(*[0.0] * 5), Bytes(0, 0), r_g == 1) for r_g in (1, 2))
    outlook = Outlook(preset("cnfgnn-plus"), Progress([first, second]), PHASES, lambda: 0.0)
    assert outlook.best == 1
    outlook.round_done(replace(second, r_g=3), 10.0)
    assert outlook.best == 1
    outlook.round_done(replace(first, r_g=4), 10.0)
    assert outlook.best == 4


def test_suggested_options_are_quicker() -> None:
    beyond = preset("cnfgnn-plus")
    for name in METHODS:
        for way in quicker(preset(name)):
            if "cnfgnn-plus" in way:
                assert METHODS[name].graph_network
                assert beyond.training.rounds < preset(name).training.rounds
                assert max(beyond.model.gn_widths) < min(preset(name).model.gn_widths)
    assert quicker(preset("cnfgnn").with_changes({"training.rounds": 1})) == []
    assert not any("cnfgnn-plus" in way for way in quicker(beyond))


@pytest.mark.parametrize("method", METHODS)
def test_phases_are_the_minibatches_of_a_round(method: str, data: Dataset) -> None:
    ticks: list[int] = []
    strategy = simulate(data, small(method), tick=lambda: ticks.append(1)).strategy
    strategy.round(1)
    strategy.score("validation")  # some methods hand out a round's work only when its result is asked for
    assert len(ticks) == sum(strategy.phases) == strategy.minibatches
    assert len(strategy.phases) == (2 if method in ("at", "at-fedavg") else 1)


@pytest.mark.slow
def test_training_announces_how_long_it_takes(tmp_path: Path) -> None:
    tiny = ["--set=city.sensors=3", "--set=city.days=2", "--set=training.rounds=3", "--set=model.hidden=4"]
    lines = said("train", "--out", tmp_path / "run", *tiny, "--set=model.embedding=4").splitlines()
    (line,) = [line for line in lines if line.startswith("about ")]
    first = next(line for line in lines if line.startswith("round 1/3"))
    assert lines.index(line) < lines.index(first)
    assert " a round, roughly " in line
    assert "for 3 rounds" in line
    assert ", at most " in first
