"""Rounds until nothing gets better: validation, early stopping, best and last state, for every method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cnfgnn.algorithm.ledger import Bytes
from cnfgnn.algorithm.series import SUMS
from cnfgnn.data.windows import Split
from cnfgnn.errors import DivergedError
from cnfgnn.evaluation import Errors, Scores
from cnfgnn.simulation import Experiment


@dataclass(frozen=True)
class Round:
    """What is known after a global round."""

    r_g: int
    loss: float  # validation mean of the kind of error that was trained on
    validation: Errors
    training_bytes: Bytes  # since the start
    best: bool  # so far
    judged: int = 0  # forecasts that the loss is of: fewer where sites were away

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

    @property
    def best(self) -> Round:
        return next(done for done in reversed(self.history) if done.best)

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
        if progress.history and r_g - progress.best.r_g > training.patience:
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


def _judged(experiment: Experiment, progress: Progress, r_g: int) -> Round:
    scores = evaluate(experiment, "validation")
    config = experiment.config
    loss = scores.loss(masked=config.data.missing == "masked", kind=config.training.loss)
    if not math.isfinite(loss):
        raise DivergedError(r_g)
    judged = int(scores.sums[..., SUMS.index("count")].sum())
    best = not progress.history or _better(loss, judged, progress.best)
    return Round(r_g, loss, scores.overall, experiment.ledger.total("training"), best, judged)


def _better(loss: float, judged: int, best: Round) -> bool:
    """Losses of different sensors cannot be compared: whoever judged more decides."""
    return judged > best.judged or (judged == best.judged and loss < best.loss)
