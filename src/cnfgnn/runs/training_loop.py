"""The training loop of every method: rounds, validation, early stopping, best and last checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.messages.ledger import Bytes
from cnfgnn.data.windows import Split
from cnfgnn.errors import DivergedError
from cnfgnn.forecasters.intervals import Floats
from cnfgnn.runs.scores import Errors, IntervalScores, Scores

GONE_AFTER = 3  # evaluations in a row that a sensor misses before rounds are compared without it


@dataclass(frozen=True)
class Round:
    """The outcome of one global round.

    loss            mean validation error against the copies, of the kind that was trained on (see
                    `training.loss`): it chooses the best round
    validation      validation errors of every kind; true ones if all owners tell them
    training_bytes  bytes that training has moved since the start of the run
    best            whether this was the best round so far: the one with the lowest loss
    compared        whether the round was compared with the best one before it; False while the comparison
                    waits for sensors that were absent
    left_out        rows of the sensors that the comparison left out, or waits for
    """

    r_g: int
    loss: float
    validation: Errors
    training_bytes: Bytes
    best: bool
    compared: bool = True
    left_out: tuple[int, ...] = ()

    @property
    def tag(self) -> str:
        """The name of the checkpoint that every owner saves after this round."""
        return f"round-{self.r_g:05d}"


@dataclass(frozen=True)
class Phase:
    """A checkpoint within a round: round `r_g` has completed phase `done`."""

    r_g: int
    done: int

    @property
    def tag(self) -> str:
        """The name of the checkpoint that every owner saves after this phase."""
        return f"round-{self.r_g:05d}-phase-{self.done}"


@dataclass
class Progress:
    """How far training has come: together with the owners' checkpoints, all that is needed to resume.

    history      the rounds that are done
    ledger       bytes moved so far, as `Ledger.state` returns them
    phase        the last completed phase of the unfinished round, if phases are saved
    best_errors  each sensor's validation error in the best round, with which others are compared: its sum and
                 the number of forecasts
    missed       how many evaluations in a row each sensor has missed
    """

    history: list[Round] = field(default_factory=list)
    ledger: list[list[str | int]] = field(default_factory=list)
    phase: Phase | None = None
    best_errors: list[tuple[float, float]] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)

    @property
    def best(self) -> Round:
        """The round whose weights are used: the one with the lowest validation loss."""
        return next(done for done in reversed(self.history) if done.best)

    @property
    def rounds_without_improvement(self) -> int:
        """Rounds since the best one that were compared with it; `training.patience` limits them."""
        return sum(done.compared for done in self._since_best[1:])

    @property
    def left_out(self) -> list[int]:
        """Rows of the sensors that had no say in the choice of the best round."""
        return sorted({row for done in self._since_best if done.compared for row in done.left_out})

    @property
    def _since_best(self) -> list[Round]:
        return self.history[self.history.index(self.best) :]

    @property
    def tags_in_use(self) -> set[str]:
        """Tags of the checkpoints that must survive the next save: the last one and the best round's."""
        tags = set()
        if self.history:
            tags |= {self.history[-1].tag, self.best.tag}
        if self.phase is not None:
            tags.add(self.phase.tag)
        return tags

    @property
    def last_tag(self) -> str | None:
        """The tag of the checkpoint to resume from; None before the first one."""
        if self.phase is not None:
            return self.phase.tag
        return self.history[-1].tag if self.history else None

    def snapshot(self) -> Progress:
        """A copy that further training does not change."""
        return replace(self, history=list(self.history))


@dataclass(frozen=True, eq=False)
class Result:
    """A finished training, with the best round's weights restored in `experiment`."""

    experiment: Experiment
    progress: Progress
    test: Scores

    def summary(self) -> dict[str, Any]:
        """The main figures as plain values, ready for JSON; `left_out` holds rows of sensors."""
        best = self.progress.best
        return {
            "method": self.experiment.method.name,
            "best_round": best.r_g,
            "rounds": len(self.progress.history),
            "left_out": self.progress.left_out,
            "validation": vars(best.validation),
            "test": self.test.summary(),
            "bytes": vars(best.training_bytes),
        }


def train(
    experiment: Experiment,
    progress: Progress | None = None,
    on_round: Callable[[Progress], None] | None = None,
    rounds: int | None = None,
    on_phase: Callable[[Progress], None] | None = None,
) -> Progress:
    """Run global rounds until `training.rounds` or `training.patience` is reached.

    Given `progress`, training resumes from its last checkpoint. `on_round` is called after every owner has
    saved its checkpoint of the round. With `on_phase`, owners also save checkpoints within a round, after the
    phases that are expensive to repeat.
    """
    strategy, training = experiment.strategy, experiment.config.training
    progress = progress or Progress()
    last_round = training.rounds if rounds is None else rounds

    def phase_done(r_g: int, done: int) -> None:
        in_use = progress.tags_in_use
        progress.phase = Phase(r_g, done)
        strategy.save(progress.phase.tag, in_use)
        progress.ledger = experiment.ledger.state()
        if on_phase is not None:
            on_phase(progress)

    if progress.last_tag is not None:
        experiment.ledger.load(progress.ledger)
        strategy.restore(progress.last_tag)
    if on_phase is not None:
        strategy.reached = phase_done
    for r_g in range(len(progress.history) + 1, last_round + 1):
        if progress.history and progress.rounds_without_improvement >= training.patience:
            break
        try:
            strategy.round(r_g)
            in_use = progress.tags_in_use
            progress.phase = None
            progress.history.append(_evaluated(experiment, progress, r_g))
        except FloatingPointError as problem:  # non-finite tensors are never sent to sites
            raise DivergedError(r_g) from problem
        strategy.save(progress.history[-1].tag, in_use | progress.tags_in_use)
        progress.ledger = experiment.ledger.state()
        if on_round is not None:
            on_round(progress)
    return progress


def evaluate_best(experiment: Experiment, progress: Progress) -> Result:
    """Restore the best round and evaluate it on the test split."""
    experiment.strategy.restore(progress.best.tag, to_learn=False)
    return Result(experiment, progress, evaluate(experiment, "test"))


def evaluate(experiment: Experiment, split: Split = "test") -> Scores:
    """The errors of all nodes on a split, with their current weights; true ones as far as owners tell."""
    sums = experiment.strategy.score(split)
    intervals = _interval_scores(experiment)
    return Scores(sums.best_known.cpu(), experiment.seen, sums.told.cpu(), sums.all_told, intervals)


def _interval_scores(experiment: Experiment) -> IntervalScores | None:
    """How good the intervals of all owners of this training were in the last evaluation; None if there are no
    such owners here, or one of them had no intervals or does not tell errors."""
    parts = [(rows, owner.interval_sums if owner.tells else None) for rows, owner in experiment.owners]
    n = sum(len(rows) for rows, _ in parts)
    sums: Floats | None = None
    for rows, of_owner in parts:
        if of_owner is None:
            return None
        if sums is None:
            sums = np.zeros((n, *of_owner.shape[1:]))
        sums[rows.numpy()] = of_owner
    return None if sums is None else IntervalScores(sums)


class SensorError(NamedTuple):
    """A sensor's summed validation error, of the kind that was trained on, and its number of forecasts."""

    error: float
    forecasts: float


class Comparison(NamedTuple):
    """How a round compares with the best one before it."""

    best: bool
    compared: bool = True
    left_out: tuple[int, ...] = ()


def _evaluated(experiment: Experiment, progress: Progress, r_g: int) -> Round:
    """Evaluate a round on the validation split and compare it with the best one so far."""
    sums = experiment.strategy.score("validation")
    scores = Scores(sums.of_copy.cpu(), experiment.seen)
    config = experiment.config
    masked, kind = config.data.missing == "masked", config.training.loss
    loss = scores.loss(masked, kind)
    if not math.isfinite(loss):
        raise DivergedError(r_g)
    sensors = [SensorError(*sums) for sums in scores.per_sensor(masked, kind).tolist()]
    missed = progress.missed or [0] * len(sensors)
    progress.missed = [
        0 if sensor.forecasts else so_far + 1 for sensor, so_far in zip(sensors, missed, strict=True)
    ]
    if progress.history:
        best_errors = [SensorError(*sums) for sums in progress.best_errors]
        comparison = _compare(sensors, best_errors, progress.missed)
    else:
        comparison = Comparison(best=True)
    if comparison.best:
        progress.best_errors = [(sensor.error, sensor.forecasts) for sensor in sensors]
    return Round(
        r_g=r_g,
        loss=loss,
        validation=Scores(sums.best_known.cpu()).overall,
        training_bytes=experiment.ledger.total("training"),
        best=comparison.best,
        compared=comparison.compared,
        left_out=comparison.left_out,
    )


def _compare(now: Sequence[SensorError], best: Sequence[SensorError], missed: Sequence[int]) -> Comparison:
    """Compare a round with the best one so far, by the mean error over the sensors that evaluated both.

    A sensor that evaluated that round but not this one may be late or may have left for good. Until it
    has missed `GONE_AFTER` evaluations in a row, the round is not compared: it cannot become the best one, so
    that a few sensors do not choose a round for all by chance, and it does not count towards patience. After
    that, rounds are compared without the sensor.

    A sensor that evaluated this round but not the other has (re)joined since, and the comparison leaves it
    out. If such sensors are the majority, this round takes its place: too few had chosen the other.
    """
    pairs = list(zip(now, best, strict=True))
    absent = [row for row, (new, old) in enumerate(pairs) if old.forecasts and not new.forecasts]
    awaited = [row for row in absent if missed[row] < GONE_AFTER]
    if awaited:
        return Comparison(best=False, compared=False, left_out=tuple(awaited))
    both = [(new, old) for new, old in pairs if new.forecasts and old.forecasts]
    left_out = tuple(
        row for row, (new, old) in enumerate(pairs) if bool(new.forecasts) != bool(old.forecasts)
    )
    if 2 * len(both) < sum(bool(new.forecasts) for new in now):
        return Comparison(best=True, left_out=left_out)
    new_mean = _mean_error([new for new, _ in both])
    old_mean = _mean_error([old for _, old in both])
    return Comparison(new_mean < old_mean, left_out=left_out)


def _mean_error(sensors: Sequence[SensorError]) -> float:
    return sum(sensor.error for sensor in sensors) / sum(sensor.forecasts for sensor in sensors)
