"""Use a trained run: restore its best round on any data, and evaluate it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.methods import method_of
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.description import step_seconds
from cnfgnn.data.readings import Readings
from cnfgnn.data.series import PROFILES
from cnfgnn.data.source import open_data
from cnfgnn.data.windows import Split, Windows
from cnfgnn.errors import DataError, RunError
from cnfgnn.models.params import Params, is_personal, part, take
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import Scores
from cnfgnn.runs.simulation import seen_sensors, simulate
from cnfgnn.runs.training_loop import evaluate


def open_run_data(run: Run) -> Dataset:
    """Open the data that the run was trained on, as they are now; newer readings of its sensors are fine."""
    data = open_data(run.config)
    run.check_same_sensors(data)
    return data


def evaluate_run(run: Run, data: Dataset, split: Split = "test") -> Scores:
    """Errors of the run's best round on a split; seen and unseen sensors apart if only some trained."""
    experiment = restore_best(run, data)
    if experiment.windows.count(split) == 0:
        raise DataError(data.readings.source, f"there are no {split} windows with readings")
    seen = None
    if run.config.training.seen < 1 and list(data.readings.ids) == run.data.sensors:
        seen = seen_sensors(data, run.config.training.seen)
    return replace(evaluate(experiment, split), seen=seen)


def restore_best(run: Run, data: Dataset, windows: Windows | None = None) -> Experiment:
    """The run's best round on the sensors of `data`, with the scale that it was trained with.

    Averaged weights suit any sensor. If every sensor has its own model, data with a sensor that the run does
    not know are refused.
    """
    if not run.progress.history:
        raise RunError(run.folder, "has no finished round yet")
    step = step_seconds(data)
    if step != run.data.step_seconds:
        problem = f"readings come every {step} s, but {run.folder} was trained on one every"
        raise DataError(data.readings.source, f"{problem} {run.data.step_seconds} s")
    config = run.config.with_changes({"training.seen": 1.0})  # every sensor takes part now
    if config.compute.device.startswith("cuda") and not torch.cuda.is_available():
        config = config.with_changes({"compute.device": "cpu"})  # trained on another machine
    experiment = simulate(data, config, windows=windows, scaler=run.scaler)
    state = run.store("server").read(run.progress.best.tag)
    theta = part(state, "theta_bar.") or _weights_per_sensor(run, data.readings)
    personal = _personal_state(run, theta, data.readings, state)
    profiles = personal.pop(PROFILES, None)
    device = experiment.owners[0][1].compute.device
    weights = {name: w.to(device) for name, w in (theta | personal).items()}
    experiment.strategy.load_trained(weights, state)
    # On the run's own windows the profiles are computed again, each without the day it is used for.
    if profiles is not None and not (windows is None and _is_same_data(run, data)):
        for rows, clients in experiment.owners:
            clients.data.use_profiles(profiles[rows].numpy())
    return experiment


def _is_same_data(run: Run, data: Dataset) -> bool:
    try:
        run.check_same_data(data)
    except DataError:
        return False
    return True


def _weights_per_sensor(run: Run, readings: Readings) -> Params:
    """Each sensor's own weights, in the order of the readings."""
    row_of = {sensor: row for row, sensor in enumerate(run.data.sensors)}
    method = method_of(run.config.method).name
    for sensor in readings.ids:
        if sensor not in row_of:
            problem = f"{run.folder} has no model for this sensor, and {method} gives each one its own"
            raise DataError(readings.source, problem, column=sensor)
    theta = part(run.store("site-0").read(run.progress.best.tag), "theta.")
    if not theta or next(iter(theta.values())).shape[0] not in (1, len(row_of)):
        raise RunError(run.folder, "is damaged: its checkpoints do not match its sensors")
    return take(theta, torch.tensor([row_of[sensor] for sensor in readings.ids]))


def _personal_state(
    run: Run, theta: Params, readings: Readings, server_state: Mapping[str, Tensor]
) -> Params:
    """What belongs to each sensor alone (personal weights and weekly profiles), in the order of the readings.

    A sensor that the run does not know gets zeros and an unknown profile. The server of a federation never
    has any of this, so that nothing is returned there.
    """
    store, tag = run.store("site-0"), run.progress.best.tag
    state = store.read(tag) if store.has(tag) else server_state
    known = {name: w for name, w in (part(state, "theta.") or theta).items() if is_personal(name)}
    if PROFILES in state:
        known[PROFILES] = state[PROFILES]
    if not known:
        return {}
    row_of = {sensor: row for row, sensor in enumerate(_trained_sensors(run))}
    personal: Params = {}
    for name, w in known.items():
        unknown = torch.nan if name == PROFILES else 0.0
        personal[name] = w.new_full((len(readings.ids), *w.shape[1:]), unknown)
        for row, sensor in enumerate(readings.ids):
            if sensor in row_of:
                personal[name][row] = w[row_of[sensor]]
    return personal


def _trained_sensors(run: Run) -> list[str]:
    """The run's sensors without those that inductive training left out."""
    try:
        seen = run.events()[0].get("seen") or [True] * len(run.data.sensors)
    except (AttributeError, IndexError) as error:
        raise RunError(run.folder, "its events are damaged") from error
    return [sensor for sensor, did_train in zip(run.data.sensors, seen, strict=True) if did_train]
