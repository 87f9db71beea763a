"""Rounds until nothing gets better: validation, early stopping, best and last state, for every method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cnfgnn.algorithm.ledger import Bytes
from cnfgnn.data.windows import Split
from cnfgnn.evaluation import Errors, Scores
from cnfgnn.runs import round_tag
from cnfgnn.simulation import Experiment


@dataclass(frozen=True)
class Round:
    """What is known after a global round."""

    r_g: int
    loss: float  # validation mean squared error of the kind that was trained on
    validation: Errors
    training_bytes: Bytes  # since the start
    best: bool


@dataclass
class Progress:
    """How far training has come; with the states, all that is needed to go on."""

    history: list[Round] = field(default_factory=list)
    last: dict[str, Tensor] = field(default_factory=dict)  # the server's state after the last round
    best: dict[str, Tensor] = field(default_factory=dict)
    ledger: list[list[str | int]] = field(default_factory=list)

    @property
    def best_round(self) -> Round:
        return next(r for r in reversed(self.history) if r.best)


@dataclass(frozen=True, eq=False)
class Result:
    """A finished training: its experiment stands at the best round."""

    experiment: Experiment
    progress: Progress
    test: Scores

    @property
    def best_round(self) -> Round:
        return self.progress.best_round

    def summary(self) -> dict[str, Any]:
        best = self.best_round
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
    on_round: Callable[[Round], None] | None = None,
    rounds: int | None = None,
) -> Progress:
    """Run global rounds until patience or the number of rounds is used up; go on from `progress` if given."""
    strategy, training = experiment.strategy, experiment.config.training
    progress = progress or Progress()
    if progress.history:
        experiment.ledger.load(progress.ledger)
        strategy.restore(round_tag(progress.history[-1].r_g), progress.last)
    for r_g in range(len(progress.history) + 1, (rounds or training.rounds) + 1):
        if progress.history and r_g - progress.best_round.r_g > training.patience:
            break
        strategy.round(r_g)
        done = _judged(experiment, progress, r_g)
        progress.history.append(done)
        progress.last = strategy.save(round_tag(r_g))
        if done.best:
            progress.best = strategy.save("best")
        progress.ledger = experiment.ledger.state()
        if on_round is not None:
            on_round(done)
    return progress


def evaluate(experiment: Experiment, split: Split = "test") -> Scores:
    """Everybody's errors on a split, with the weights they have now."""
    return Scores(experiment.strategy.score(split).cpu(), experiment.seen)


def _judged(experiment: Experiment, progress: Progress, r_g: int) -> Round:
    scores = evaluate(experiment, "validation")
    loss = scores.loss(masked=experiment.config.data.missing == "masked")
    best = not progress.history or loss < progress.best_round.loss
    return Round(r_g, loss, scores.overall, experiment.ledger.total("training"), best)
