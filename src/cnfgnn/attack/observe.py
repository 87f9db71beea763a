"""Record what the server of a simulator's run receives: its best round is encoded and trained once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.methods import method_of
from cnfgnn.algorithm.server import Alternating, Server
from cnfgnn.attack.inversion import counted
from cnfgnn.attack.recording import RECORDING_FILE, PublicFacts, Recorder, Recording, SetUp
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.quality import clean_dataset
from cnfgnn.data.series import Series
from cnfgnn.data.windows import Split, Windows
from cnfgnn.errors import DataError, RunError
from cnfgnn.models.params import part
from cnfgnn.runs.evaluate import restore_best
from cnfgnn.runs.folder import Run

TRAINING_WINDOWS = 2016  # the newest training windows are attacked with gradients: a week of them


@dataclass(frozen=True, eq=False)
class Observation:
    """What the server has, and, to compare with, the copy (n T) of the readings that all of it is made from.

    The copy is None if the nodes are elsewhere: their owners have it.
    """

    recording: Recording
    copy: Tensor | None


def check_attackable(run: Run) -> None:
    """Refuse a run whose server receives no hidden states, or does not know the weights behind them."""
    problem = nothing_to_attack(run.config.method, run.config.model.levels)
    if not problem and not run.progress.history:
        problem = "has no finished round yet"
    if not problem and run.config.model.takes_inputs and any(run.data.inputs):
        problem = f"was trained with further inputs ({run.data.inputs}), which these attacks do not know"
    if problem:
        raise RunError(run.folder, problem)


def nothing_to_attack(name: str, levels: bool = False) -> str:
    """Why the server of a method receives nothing that these attacks begin with; empty if it does.

    levels  whether nodes send levels (`model.levels`), from which readings follow whatever the weights are
    """
    method = method_of(name)
    if not method.federated:
        return f"{method.name} pools all readings in one place, so that there is no server to attack"
    if not method.graph_network:
        return f"{method.name} sends no hidden states, which these attacks begin with"
    if method.sharing != "average" and not levels:
        return f"with {method.name} every node keeps weights of its own, and the server does not know them"
    return ""


def observe(
    run: Run,
    data: Dataset,
    split: Split = "test",
    windows: int = 0,
    training: bool = True,
    tick: Callable[[float], None] = lambda share: None,
) -> Observation:
    """What the server of a run receives, as a recording.

    If the run folder has a recording, that is it; the readings add which of them are missing. Otherwise the
    run's best round is set up again in the simulator, evaluated and, with `training`, trained for one more
    round.

    windows  how many windows of the split to keep; 0 keeps all
    tick     called with the share that is done
    """
    check_attackable(run)
    tick(0.0)
    path = run.folder / RECORDING_FILE
    if path.is_file():
        copy, recording = None, _first_windows(Recording.load(path), split, windows)
        series = Series.of(clean_dataset(data, run.config.data).readings)
        if recording.nodes != series.nodes:
            problem = f"has {recording.nodes} sensors, but the readings to judge by have {series.nodes}"
            raise RunError(path, problem)
    elif run.data.federation is not None:
        problem = "its server kept no recording: cnfgnn federation evaluate KIT RUN --record makes one"
        raise RunError(run.folder, problem)
    else:
        experiment = restore_best(run, data)
        series = _series(experiment)
        copy = torch.from_numpy(series.values)
        recording = _record(run, experiment, split, windows, training, tick)
    if recording.public is None:
        blur = recording.blur
        if blur is None:
            blur = torch.full((series.nodes,), run.config.privacy.blur, dtype=torch.float64)
        public = _public_facts(recording.set_up, series, data.readings.ids, blur)
        recording = replace(recording, public=public)
    tick(1.0)
    return Observation(recording, copy)


def _record(
    run: Run,
    experiment: Experiment,
    split: Split,
    windows: int,
    training: bool,
    tick: Callable[[float], None],
) -> Recording:
    server = experiment.strategy
    assert isinstance(server, Server)
    kept = _kept(experiment.windows, split, windows, training)
    clients = experiment.owners[0][1].nodes
    told = SetUp(clients.settings, experiment.scaler, experiment.windows)
    recorder = Recorder(server.everyone.transport, kept, told)
    server.everyone.transport = server.nodes.transport = recorder
    state = run.store("server").read(run.progress.best.tag)
    server.everyone.census(experiment.windows, experiment.config.data.missing)
    averaged = part(state, "theta_bar.")
    if averaged:
        server.everyone.load(averaged, "evaluation", wire="full")
    server.everyone.encode(split=split, purpose="evaluation")
    if training and averaged:
        server.inform()  # as before the first round: levels do not depend on weights
        _count(experiment, server, tick)
        server.step = int(state["step"])
        if isinstance(server, Alternating):
            server.embed(server.encode())
        server.round(min(run.progress.best.r_g + 1, experiment.config.training.rounds))
    return recorder.recording()


def _count(experiment: Experiment, server: Server, tick: Callable[[float], None]) -> None:
    """Count the minibatches of the coming round."""
    server.tick = counted(tick, max(1, server.minibatches))
    for _, owner in experiment.owners:
        owner.nodes.tick = server.tick


def _kept(windows: Windows, split: Split, count: int, training: bool) -> dict[Split, slice]:
    """Which windows to record: the first ones of the split, and the newest ones of training."""
    available = windows.count(split)
    if available == 0:
        raise DataError(split, "there are no windows with readings in this split")
    kept: dict[Split, slice] = {split: slice(0, min(count, available) if count else available)}
    if training and split != "train":
        train = windows.count("train")
        kept["train"] = slice(max(0, train - (count or TRAINING_WINDOWS)), train)
    return kept


def _first_windows(recording: Recording, split: Split, count: int) -> Recording:
    """A recording with no more than so many windows of a split; 0 keeps all."""
    if not count or split not in recording.states:
        return recording
    states = recording.states[split]
    first = replace(states, h_c=states.h_c[:, :count], places=states.places[:count])
    return replace(recording, states={**recording.states, split: first})


def _public_facts(told: SetUp, series: Series, ids: tuple[str, ...], blur: Tensor) -> PublicFacts:
    """Times, and which readings there are: the values are not used."""
    treatment, known = told.settings.missing, None
    absent = series.absent(treatment)
    if told.settings.model.profile:
        values = np.where(absent, np.nan, 0.0)
        without_values = Series(values, series.missing, series.time_of_day, series.weekday)
        known = torch.from_numpy(~np.isnan(without_values.weekly_profiles(told.windows, treatment).at_rows))
    return PublicFacts(
        ids,
        torch.from_numpy(series.time_of_day),
        torch.from_numpy(np.stack([series.calendar.slot, series.weekday], axis=1)),
        torch.from_numpy(absent.copy()),
        torch.from_numpy(~series.missing),
        known,
        blur,
    )


def _series(experiment: Experiment) -> Series:
    """What the nodes compute with, of all of them."""
    parts = [(rows.numpy(), owner.nodes.series) for rows, owner in experiment.owners]
    first = parts[0][1]
    n = sum(len(rows) for rows, _ in parts)
    values, missing = np.empty((n, first.values.shape[1])), np.empty((n, first.values.shape[1]), dtype=bool)
    for rows, series in parts:
        values[rows], missing[rows] = series.values, series.missing
    return Series(values, missing, first.time_of_day, first.weekday)
