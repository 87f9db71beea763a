"""Train a run to its end, from its last checkpoint on, and record every event."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from cnfgnn.algorithm.experiment import Experiment, model_of
from cnfgnn.algorithm.messages.ledger import Ledger
from cnfgnn.config.settings import Config, DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.inputs import InputNames
from cnfgnn.data.quality import findings, training_ranges
from cnfgnn.data.series import Scaler
from cnfgnn.data.windows import SPLITS
from cnfgnn.errors import CnfgnnError, StorageError
from cnfgnn.models.params import size
from cnfgnn.runs.evaluate import weights_of
from cnfgnn.runs.folder import Run
from cnfgnn.runs.record import write_record
from cnfgnn.runs.scores import scores_as_dict
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import Progress, Result, Round, evaluate_best, train
from cnfgnn.runs.warm_start import ROUNDS, Origin, go_on_from, settings_to_go_on
from cnfgnn.version import __version__

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Watcher(Protocol):
    """Follows a training, for example to show its progress."""

    def begin(self, experiment: Experiment, progress: Progress) -> None:
        """Training starts or resumes; `progress` holds the rounds that are done already."""

    def tick(self) -> None:
        """A minibatch is done."""

    def round_done(self, done: Round, best: Round, seconds: float) -> None:
        """A round is done and saved; `best` is the best one so far, `seconds` how long the round took."""

    def end(self) -> None:
        """Training has ended or failed; called whenever `begin` was."""


class Unwatched:
    """A `Watcher` that does nothing."""

    def begin(self, experiment: Experiment, progress: Progress) -> None: ...

    def tick(self) -> None: ...

    def round_done(self, done: Round, best: Round, seconds: float) -> None: ...

    def end(self) -> None: ...


def train_run(run: Run, data: Dataset, watcher: Watcher) -> Result:
    """Train a run in the simulator to its end and evaluate its best round on the test split.

    An interrupted run resumes bit for bit as if it had never stopped. A run with an origin begins with the
    weights of that run.
    """
    run.check_same_data(data)

    def experiment_with(scaler: Scaler | None) -> Experiment:
        return simulate(data, run.config, store=run.store, tick=watcher.tick, kept_scaler=scaler)

    def set_up() -> Experiment:
        if run.origin is None:
            return experiment_with(None)
        if run.progress.last_tag is not None:
            return experiment_with(run.scaler)
        weights = weights_of(Run.open(Path(run.origin.run)))
        experiment = experiment_with(weights.scaler)
        go_on_from(experiment, weights, data.readings.ids)
        return experiment

    result = train_run_with(run, set_up, lambda: _data_as_dict(data, run.config.data), watcher)
    write_record(run, data.readings, result.test)
    return result


def begin_from(earlier: Run, data: Dataset, folder: Path, changes: Mapping[str, Any] | None = None) -> Run:
    """Begin a run that goes on from the best round of an earlier one, with newer readings and its settings.

    Raises:
        ConfigError: The changes ask for another architecture.
        DataError: The readings come at another pace, or by another clock.
        RunError: The earlier run has no weights to go on from, or the folder is not empty.
    """
    weights_of(earlier)  # an unusable run is refused before anything is written
    earlier.check_same_times(data)
    config, origin = to_go_on(earlier, len(data.readings.times), changes or {})
    return Run.create(folder, config, data, origin)


def to_go_on(earlier: Run, rows: int, changes: Mapping[str, Any]) -> tuple[Config, Origin]:
    """The settings of a run that goes on from an earlier one, and what its manifest records about that."""
    before, chosen = earlier.origin, earlier.manifest.given
    config, cold_rounds = settings_to_go_on(earlier.config, chosen, before, rows, changes)
    given = ROUNDS in chosen if before is None else before.rounds_given
    folder, best = str(earlier.folder.absolute()), earlier.progress.best.r_g
    return config, Origin(folder, best, cold_rounds, given)


def train_run_with(
    run: Run,
    set_up: Callable[[], Experiment],
    describe_data: Callable[[], dict[str, Any]],
    watcher: Watcher,
    save_phases: bool = False,
) -> Result:
    """Train a run to its end on whatever experiment `set_up` returns, in the simulator or on a federation.

    `describe_data` is what the first event says about the data. With `save_phases`, checkpoints are also
    saved within a round, so that an interruption of a long round costs less.
    """
    with run.locked():
        run.rewind()
        progress = run.progress
        try:
            experiment = set_up()
            if not run.started:
                run.save_config(experiment.config)  # before the run counts as started
                run.append("start", **_start_event(experiment, describe_data()), **_origin_event(run))
                run.commit(progress, experiment.scaler)
        except CnfgnnError:
            run.discard_if_unused()
            raise
        with _tensorboard(run.folder / "tensorboard", len(progress.history)) as board:
            progress = _train_and_record(run, experiment, progress, watcher, board, save_phases)
        result = evaluate_best(experiment, progress)
        if not run.finished:
            test = _test_event(result, run.data.sensors, experiment.ledger, _is_blurred(run))
            run.append("test", **test)
            run.commit(progress, experiment.scaler, finished=True)
    return result


def train_watched(
    experiment: Experiment,
    progress: Progress,
    watcher: Watcher,
    save_round: Callable[[Progress, float], None] | None = None,
    on_phase: Callable[[Progress], None] | None = None,
) -> Progress:
    """Train to the end and keep `watcher` informed; a round is saved before the watcher is called."""
    since = time.perf_counter()

    def on_round(progress: Progress) -> None:
        nonlocal since
        seconds = time.perf_counter() - since
        if save_round is not None:
            save_round(progress, seconds)
        watcher.round_done(progress.history[-1], progress.best, seconds)
        since = time.perf_counter()

    watcher.begin(experiment, progress)
    try:
        return train(experiment, progress, on_round=on_round, on_phase=on_phase)
    finally:
        watcher.end()


def _train_and_record(
    run: Run,
    experiment: Experiment,
    progress: Progress,
    watcher: Watcher,
    board: SummaryWriter | None,
    save_phases: bool,
) -> Progress:
    def save_round(progress: Progress, seconds: float) -> None:
        done = progress.history[-1]
        run.append("round", **_round_event(done, run.data.sensors, seconds))
        run.commit(progress, experiment.scaler)
        if board is not None:
            _add_scalars(board, done)

    def save_phase(progress: Progress) -> None:
        run.commit(progress, experiment.scaler)

    return train_watched(experiment, progress, watcher, save_round, save_phase if save_phases else None)


# ---- events ---------------------------------------------------------------------------------------------


def _data_as_dict(data: Dataset, config: DataConfig) -> dict[str, Any]:
    """What the first event of a simulated run says about its data."""
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
        **{kind: list(names) for kind, names in InputNames.of(readings.others)._asdict().items() if names},
        "edges": [graph.senders.tolist(), graph.receivers.tolist(), graph.weights.tolist()],
        "ranges": training_ranges(readings, config),
        "findings": list(findings(data, config)),
    }


def _start_event(experiment: Experiment, data: dict[str, Any]) -> dict[str, Any]:
    learner = getattr(experiment.strategy, "gn", None)
    return {
        "version": __version__,
        "torch": torch.__version__,
        "config": experiment.config.as_dict(),
        "data": data,
        "windows": {split: experiment.windows.count(split) for split in SPLITS},
        "scaler": vars(experiment.scaler),
        "memory": experiment.memory_plan.as_json(),
        "parameters": {
            "node": size(model_of(experiment.config, experiment.inputs).init(torch.Generator())),
            "server": 0 if learner is None else sum(w.numel() for w in learner.gn.parameters()),
        },
        "seen": None if experiment.seen is None else experiment.seen.tolist(),
    }


def _origin_event(run: Run) -> dict[str, Any]:
    """What the first event of a run says about the one that it goes on from."""
    if run.origin is None:
        return {}
    try:
        before = Run.open(Path(run.origin.run)).data.sensors
    except CnfgnnError:  # a federation's may be gone at this place; its sites have their states
        before = run.data.sensors
    new = [sensor for sensor in run.data.sensors if sensor not in set(before)]
    gone = [sensor for sensor in before if sensor not in set(run.data.sensors)]
    return {"from": {**vars(run.origin), "new_sensors": new, "sensors_gone": gone}}


def _round_event(done: Round, sensors: Sequence[str], seconds: float) -> dict[str, Any]:
    return {
        "round": done.r_g,
        "loss": done.loss,
        "validation": vars(done.validation),
        "training_bytes": vars(done.training_bytes),
        "best": done.best,
        "compared": done.compared,
        "left_out": [sensors[row] for row in done.left_out],
        "seconds": round(seconds, 3),
    }


def _is_blurred(run: Run) -> bool:
    """Whether a copy that the run was trained on differs from the readings, at any site."""
    of_sites = run.events()[0]["data"].get("blur") or {}
    return run.config.privacy.blur > 0 or any(of_sites.values())


def _test_event(result: Result, sensors: Sequence[str], ledger: Ledger, blurred: bool) -> dict[str, Any]:
    return {
        "best_round": result.progress.best.r_g,
        "rounds": len(result.progress.history),
        "left_out": [sensors[row] for row in result.progress.left_out],
        **scores_as_dict(result.test, sensors),
        "errors_against": "copies" if blurred and not result.test.all_told else "readings",
        "ledger": [row for row in ledger.state() if row[0] != "recovery"],
    }


# ---- TensorBoard ----------------------------------------------------------------------------------------


@contextmanager
def _tensorboard(folder: Path, rounds: int) -> Iterator[SummaryWriter | None]:
    """TensorBoard's log; entries of an interrupted process beyond the last saved round are hidden."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # late: it takes a second to import
    except ImportError:  # it is not installed: training does not need it
        yield None
        return
    with _told_by_us("tensorboard"):
        try:
            board = SummaryWriter(str(folder), purge_step=rounds + 1)
        except OSError as error:
            raise StorageError(folder, error) from error
        try:
            yield board
        finally:
            with suppress(OSError):  # the disk is full: `_add_scalars` has said so
                board.close()


@contextmanager
def _told_by_us(package: str) -> Iterator[None]:
    """Keep Python from printing the OSErrors of a package's threads: the next call raises them again."""
    before = threading.excepthook

    def hook(args: Any) -> None:
        of_package = type(args.thread).__module__.startswith(package)
        if not (of_package and issubclass(args.exc_type, OSError)):
            before(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


def _add_scalars(board: SummaryWriter, done: Round) -> None:
    try:
        board.add_scalar("validation/loss", done.loss, done.r_g)
        for name, value in vars(done.validation).items():
            board.add_scalar(f"validation/{name}", value, done.r_g)
        for name, value in vars(done.training_bytes).items():
            board.add_scalar(f"bytes/{name}", value, done.r_g)
        board.flush()
    except OSError as error:
        raise StorageError(board.log_dir, error) from error
