"""A run carried to its end, from wherever it stands, with everything that happens written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from cnfgnn.algorithm.experiment import Experiment, model_of
from cnfgnn.algorithm.ledger import Ledger
from cnfgnn.config.settings import DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.quality import findings, training_ranges
from cnfgnn.data.windows import SPLITS
from cnfgnn.errors import CnfgnnError, StorageError
from cnfgnn.models.params import size
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import Scores
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import Progress, Result, Round, finish, train
from cnfgnn.version import __version__

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Watcher(Protocol):
    """Whoever waits for a run: told of its beginning, every minibatch, every round and its end."""

    def begin(self, experiment: Experiment, progress: Progress) -> None:
        """Training begins or goes on: `progress` holds the rounds that are done already."""

    def tick(self) -> None:
        """A minibatch is done."""

    def round_done(self, done: Round, best: Round, seconds: float) -> None:
        """A round has ended, `best` is the best one so far, and it took so many seconds."""

    def end(self) -> None:
        """Training has ended, or has failed: told whenever `begin` was."""


class Unwatched:
    """Nobody waits."""

    def begin(self, experiment: Experiment, progress: Progress) -> None: ...

    def tick(self) -> None: ...

    def round_done(self, done: Round, best: Round, seconds: float) -> None: ...

    def end(self) -> None: ...


def carry_on(run: Run, data: Dataset, watcher: Watcher) -> Result:
    """Train until the end, then judge the best round; a run that was interrupted goes on bit for bit."""
    run.check_same_data(data)

    def set_up() -> Experiment:
        return simulate(data, run.config, store=run.store, tick=watcher.tick)

    return carry(run, set_up, lambda: _about(data, run.config.data), watcher)


def carry(
    run: Run,
    set_up: Callable[[], Experiment],
    about: Callable[[], dict[str, Any]],
    watcher: Watcher,
    by_phase: bool = False,
) -> Result:
    """The same for any experiment on data that `about` describes; `by_phase` loses less of a long round."""
    with run.locked():
        run.rewind()
        progress = run.progress
        try:
            experiment = set_up()
            if run.manifest["events"] == 0:
                run.append("start", **_start(experiment, about()))
                run.commit(progress, experiment.scaler)
            run.settle(experiment.config)
        except CnfgnnError:
            run.discard_if_unused()
            raise
        with _board(run.folder / "tensorboard", len(progress.history)) as board:
            progress = _trained(run, experiment, progress, watcher, board, by_phase)
        result = finish(experiment, progress)
        if not run.finished:
            run.append("test", **_test(result, run.data["sensors"], experiment.ledger))
            run.commit(progress, experiment.scaler, finished=True)
    return result


def watched(
    experiment: Experiment,
    progress: Progress,
    watcher: Watcher,
    keep: Callable[[Progress, float], None] = lambda progress, seconds: None,
    on_phase: Callable[[Progress], None] | None = None,
) -> Progress:
    """Train until the end while `watcher` is told of everything; it is told of a round and its seconds once
    `keep` has kept the round."""
    since = time.perf_counter()

    def on_round(progress: Progress) -> None:
        nonlocal since
        seconds = time.perf_counter() - since
        keep(progress, seconds)
        watcher.round_done(progress.history[-1], progress.best, seconds)
        since = time.perf_counter()

    watcher.begin(experiment, progress)
    try:
        return train(experiment, progress, on_round=on_round, on_phase=on_phase)
    finally:
        watcher.end()


def _trained(
    run: Run,
    experiment: Experiment,
    progress: Progress,
    watcher: Watcher,
    board: SummaryWriter,
    by_phase: bool,
) -> Progress:
    def keep(progress: Progress, seconds: float) -> None:
        done = progress.history[-1]
        fields, sensors = asdict(done), run.data["sensors"]
        fields["left_out"] = [sensors[row] for row in fields.pop("without")]
        run.append("round", round=fields.pop("r_g"), **fields, seconds=round(seconds, 3))
        run.commit(progress, experiment.scaler)
        board.add_scalar("validation/loss", done.loss, done.r_g)
        for name, value in vars(done.validation).items():
            board.add_scalar(f"validation/{name}", value, done.r_g)
        for name, value in vars(done.training_bytes).items():
            board.add_scalar(f"bytes/{name}", value, done.r_g)
        board.flush()

    on_phase = (lambda progress: run.commit(progress, experiment.scaler)) if by_phase else None
    return watched(experiment, progress, watcher, keep, on_phase)


def _about(data: Dataset, config: DataConfig) -> dict[str, Any]:
    readings, graph = data.readings, data.graph
    return {
        "name": data.name,
        "sensors": list(readings.ids),
        "positions": None if readings.positions is None else readings.positions.tolist(),
        "from": str(readings.times[0]),
        "to": str(readings.times[-1]),
        "rows": len(readings.times),
        "missing": float(readings.missing.mean()),
        "understood": list(readings.notes),
        "edges": [graph.senders.tolist(), graph.receivers.tolist(), graph.weights.tolist()],
        "ranges": training_ranges(readings, config),
        "findings": list(findings(data, config)),
    }


def _start(experiment: Experiment, about: dict[str, Any]) -> dict[str, Any]:
    learner = getattr(experiment.strategy, "gn", None)
    return {
        "version": __version__,
        "torch": torch.__version__,
        "config": experiment.config.as_dict(),
        "data": about,
        "windows": {split: experiment.windows.count(split) for split in SPLITS},
        "scaler": vars(experiment.scaler),
        "memory": vars(experiment.keeping),
        "parameters": {
            "node": size(model_of(experiment.config).init(torch.Generator())),
            "server": 0 if learner is None else sum(w.numel() for w in learner.gn.parameters()),
        },
        "seen": None if experiment.seen is None else experiment.seen.tolist(),
    }


def _test(result: Result, ids: Sequence[str], ledger: Ledger) -> dict[str, Any]:
    return {
        "best_round": result.progress.best.r_g,
        "rounds": len(result.progress.history),
        "left_out": [ids[row] for row in result.progress.left_out],
        **scores_as_dict(result.test, ids),
        "ledger": [row for row in ledger.state() if row[0] != "recovery"],
    }


def scores_as_dict(scores: Scores, ids: Sequence[str]) -> dict[str, Any]:
    """Every figure of both kinds: overall, by step ahead, by sensor, and seen apart from unseen."""
    per_node = dict(zip(ids, map(vars, scores.per_node), strict=True))
    unseen = scores.unseen_nodes
    return {
        "overall": vars(scores.overall),
        "per_step": [vars(errors) for errors in scores.per_horizon],
        "per_node": per_node,
        "seen": vars(scores.seen_nodes) if unseen is not None else None,
        "unseen": vars(unseen) if unseen is not None else None,
    }


@contextmanager
def _board(folder: Path, rounds: int) -> Iterator[SummaryWriter]:
    """TensorBoard's log; what an interrupted process had logged beyond the last kept round is hidden."""
    from torch.utils.tensorboard import SummaryWriter  # late: it takes a second to import

    try:
        board = SummaryWriter(str(folder), purge_step=rounds + 1)
    except OSError as error:
        raise StorageError(folder, error) from error
    try:
        yield board
    finally:
        board.close()
