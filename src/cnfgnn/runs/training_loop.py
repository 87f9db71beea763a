"""Rounds until nothing gets better: validation, early stopping, best and last state, for every method."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.ledger import Bytes
from cnfgnn.data.windows import Split
from cnfgnn.errors import DivergedError
from cnfgnn.runs.scores import Errors, Scores

GONE_AFTER = 3  # evaluations that a sensor misses in a row before rounds are compared without it


@dataclass(frozen=True)
class Round:
    """What is known after a global round."""

    r_g: int
    loss: float  # validation mean of the kind of error that was trained on
    validation: Errors
    training_bytes: Bytes  # since the start
    best: bool  # so far
    judged: int = 0  # forecasts that the loss is of: fewer where sites were away
    compared: bool = True  # with the best round before it; False while it waits for sensors that were away
    without: tuple[int, ...] = ()  # rows of the sensors that the comparison left out, or waits for

    @property
    def tag(self) -> str:
        """The name of the state that every owner keeps of it."""
        return f"round-{self.r_g:05d}"


@dataclass(frozen=True)
class Phase:
    """How far a round has come that has not ended."""

    r_g: int
    done: int

    @property
    def tag(self) -> str:
        return f"round-{self.r_g:05d}-phase-{self.done}"


@dataclass
class Progress:
    """How far training has come; with the owners' states, all that is needed to go on."""

    history: list[Round] = field(default_factory=list)
    ledger: list[list[str | int]] = field(default_factory=list)
    phase: Phase | None = None  # of the round after the last one
    best_errors: list[list[float]] = field(default_factory=list)  # of each sensor in the best round: Judged
    missed: list[int] = field(default_factory=list)  # evaluations in a row that each sensor has missed

    @property
    def best(self) -> Round:
        return next(done for done in reversed(self.history) if done.best)

    @property
    def in_vain(self) -> int:
        """Rounds since the best one that were compared with it: those that count towards patience."""
        return sum(done.compared for done in self._since_best[1:])

    @property
    def left_out(self) -> list[int]:
        """Rows of the sensors without which the best round was chosen or defended."""
        return sorted({row for done in self._since_best if done.compared for row in done.without})

    @property
    def _since_best(self) -> list[Round]:
        return self.history[self.history.index(self.best) :]

    @property
    def kept(self) -> set[str]:
        """Tags of the states that must outlive the next save: the last one's and the best round's."""
        kept = {self.history[-1].tag, self.best.tag} if self.history else set()
        return kept | ({self.phase.tag} if self.phase else set())

    @property
    def last(self) -> str | None:
        """The tag of the state to go on from."""
        if self.phase is not None:
            return self.phase.tag
        return self.history[-1].tag if self.history else None


@dataclass(frozen=True, eq=False)
class Result:
    """A finished training: its experiment stands at the best round."""

    experiment: Experiment
    progress: Progress
    test: Scores

    def summary(self) -> dict[str, Any]:
        best = self.progress.best
        return {
            "method": self.experiment.method.name,
            "best_round": best.r_g,
            "rounds": len(self.progress.history),
            "left_out": self.progress.left_out,  # rows of sensors
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
    """Run global rounds until patience or the number of rounds is used up; go on from `progress` if given.

    When `on_round` is called, every owner has kept its state of the round that ended. With `on_phase` they
    also keep it where a round has come so far that it would be a pity to lose it.
    """
    strategy, training = experiment.strategy, experiment.config.training
    progress = progress or Progress()

    def reached(r_g: int, done: int) -> None:
        kept, progress.phase = progress.kept, Phase(r_g, done)
        strategy.save(progress.phase.tag, kept)
        progress.ledger = experiment.ledger.state()
        if on_phase is not None:
            on_phase(progress)

    if progress.last is not None:
        experiment.ledger.load(progress.ledger)
        strategy.restore(progress.last)
    if on_phase is not None:
        strategy.reached = reached
    for r_g in range(len(progress.history) + 1, (training.rounds if rounds is None else rounds) + 1):
        if progress.history and progress.in_vain >= training.patience:
            break
        try:
            strategy.round(r_g)
            kept, progress.phase = progress.kept, None
            progress.history.append(_judged(experiment, progress, r_g))
        except FloatingPointError as problem:  # sites are not sent what is no number
            raise DivergedError(r_g) from problem
        strategy.save(progress.history[-1].tag, kept | progress.kept)
        progress.ledger = experiment.ledger.state()
        if on_round is not None:
            on_round(progress)
    return progress


def finish(experiment: Experiment, progress: Progress) -> Result:
    """Go back to the best round and judge it on the test split."""
    experiment.strategy.restore(progress.best.tag, to_learn=False)
    return Result(experiment, progress, evaluate(experiment, "test"))


def evaluate(experiment: Experiment, split: Split = "test") -> Scores:
    """Everybody's errors on a split, with the weights they have now."""
    return Scores(experiment.strategy.score(split).cpu(), experiment.seen)


class Judged(NamedTuple):
    """A sensor's validation error of the kind that was trained on: its sum, and of how many forecasts."""

    error: float
    forecasts: float


class Verdict(NamedTuple):
    """How a round compares with the best one before it."""

    best: bool
    compared: bool = True
    without: tuple[int, ...] = ()


def _judged(experiment: Experiment, progress: Progress, r_g: int) -> Round:
    scores = evaluate(experiment, "validation")
    config = experiment.config
    masked, kind = config.data.missing == "masked", config.training.loss
    loss = scores.loss(masked, kind)
    if not math.isfinite(loss):
        raise DivergedError(r_g)
    sensors = [Judged(*sums) for sums in scores.per_sensor(masked, kind).tolist()]
    missed = progress.missed or [0] * len(sensors)
    progress.missed = [
        0 if one.forecasts else so_far + 1 for one, so_far in zip(sensors, missed, strict=True)
    ]
    judged = scores.forecasts
    verdict = Verdict(True)
    if progress.best_errors:
        best_errors = [Judged(*sums) for sums in progress.best_errors]
        verdict = _verdict(sensors, best_errors, progress.missed)
    elif progress.history:  # the run was begun by a version that did not keep each sensor's errors
        best = progress.best
        verdict = Verdict(judged > best.judged or (judged == best.judged and loss < best.loss))
    if verdict.best:
        progress.best_errors = [list(one) for one in sensors]
    moved = experiment.ledger.total("training")
    return Round(r_g, loss, scores.overall, moved, verdict.best, judged, verdict.compared, verdict.without)


def _verdict(now: Sequence[Judged], best: Sequence[Judged], missed: Sequence[int]) -> Verdict:
    """Compare a round with the best one so far, by the mean error over the sensors that judged both.

    A sensor that judged the best round and not this one may have missed a moment or may have left. Until it
    has missed `GONE_AFTER` evaluations in a row the round is not compared: it does not become the best one,
    so that a few sensors cannot choose a round for all by chance, and it does not count towards patience.
    From then on rounds are compared without that sensor.

    A sensor that judged this round and not the best one came (back) later, and the comparison leaves it out.
    Where such sensors are the majority, this round is the best: the other was chosen by too few.
    """
    pairs = list(zip(now, best, strict=True))
    waited_for = [row for row, (new, old) in enumerate(pairs) if old.forecasts and not new.forecasts]
    waited_for = [row for row in waited_for if missed[row] < GONE_AFTER]
    if waited_for:
        return Verdict(False, False, tuple(waited_for))
    both = [(new, old) for new, old in pairs if new.forecasts and old.forecasts]
    without = tuple(row for row, (new, old) in enumerate(pairs) if bool(new.forecasts) != bool(old.forecasts))
    if 2 * len(both) < sum(bool(new.forecasts) for new in now):
        return Verdict(True, True, without)
    new_mean, old_mean = (
        sum(one.error for one in side) / sum(one.forecasts for one in side)
        for side in zip(*both, strict=True)
    )
    return Verdict(new_mean < old_mean, True, without)
