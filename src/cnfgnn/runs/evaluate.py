"""Use a trained run: restore its best round on any data, and evaluate it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.methods import method_of
from cnfgnn.algorithm.node_state import OWNER, THETA, TRUST
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.inputs import INPUT_SCALES, with_inputs
from cnfgnn.data.prepared_series import LINEAR, USUAL
from cnfgnn.data.readings import Readings
from cnfgnn.data.source import open_data
from cnfgnn.data.windows import Split, Windows
from cnfgnn.errors import DataError, RunError
from cnfgnn.models.params import Params, part, take
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import Scores
from cnfgnn.runs.simulation import seen_sensors, simulate
from cnfgnn.runs.training_loop import evaluate
from cnfgnn.runs.warm_start import InOrder, Weights


def open_run_data(run: Run) -> Dataset:
    """Open the data that the run was trained on, as they are now; newer readings of its sensors are fine."""
    data = data_of(run, run.config)
    run.check_same_sensors(data)
    return data


def data_of(run: Run, config: Config, path: Path | None = None) -> Dataset:
    """Open the data at a path, or those that a run names, with its settings or changed ones."""
    if path is not None or config.data.path != "city" or run.data.federation:
        return open_data(config, path)
    named_alike = run.data.name == f"city-{run.config.city.sensors}"  # if not, none is simulated
    if not named_alike or not run.began_with(own := open_data(run.config)):
        problem = f"was trained on readings in memory ({run.data.name}): give them, or newer ones"
        raise DataError(run.folder, problem)
    return own if config == run.config else open_data(config)


def evaluate_run(run: Run, data: Dataset, split: Split = "test") -> Scores:
    """Errors of the run's best round on a split; seen and unseen sensors apart if only some trained."""
    experiment = restore_best(run, data)
    if experiment.windows.count(split) == 0:
        raise DataError(data.readings.source, f"there are no {split} windows with readings")
    seen = None
    if run.config.training.seen < 1 and list(data.readings.ids) == run.data.sensors:
        seen = seen_sensors(data, run.config.training.seen)
    return replace(evaluate(experiment, split), seen=seen)


def restore_best(
    run: Run, data: Dataset, windows: Windows | None = None, one_by_one: bool = False
) -> Experiment:
    """The run's best round on the sensors of `data`, with the scale that it was trained with.

    With `one_by_one`, each window is forecast as if it were alone: in int8, numbers of windows that are sent
    together are rounded together, and those of a single one are not rounded.

    Averaged weights suit any sensor. If every sensor has its own model, data with a sensor that the run does
    not know are refused.
    """
    if not run.progress.history:
        raise RunError(run.folder, "has no finished round yet")
    run.check_same_times(data)
    config = run.config.with_changes({"training.seen": 1.0})  # every sensor takes part now
    if one_by_one and config.training.wire == "int8":
        config = config.with_changes({"training.wire": "full"})
    if config.model.takes_inputs:
        data = replace(data, readings=with_inputs(data.readings, run.data.inputs, str(run.folder)))
    if config.compute.device.startswith("cuda") and not torch.cuda.is_available():
        config = config.with_changes({"compute.device": "cpu"})  # trained on another machine
    experiment = simulate(data, config, windows=windows, scaler=run.scaler)
    state = run.store("server").read(run.progress.best.tag)
    in_order = InOrder(_trained_sensors(run), data.readings.ids)
    theta = in_order.pooled(part(state, "theta_bar.")) or _weights_per_sensor(run, data.readings)
    of_nodes = _saved_by(run, "site-0", state)
    of_owner = _saved_by(run, "owner-0", {**state, **part(state, OWNER)})
    device = experiment.owners[0][1].nodes.compute.device
    experiment.strategy.load_trained({name: w.to(device) for name, w in theta.items()}, state)
    for rows, owner in experiment.owners:
        if TRUST in of_owner:
            owner.trust = in_order(of_owner[TRUST], 1.0)[rows].to(device)
        owner.load_intervals(of_owner)
        if owner.intervals is not None:
            owner.intervals = owner.intervals.select(in_order.rows[rows].numpy())
    # On the run's own windows the profiles are computed again, each without the day it is used for.
    own_windows = windows is None and _is_same_data(run, data)
    for rows, owner in experiment.owners:
        owner.data.use(_computed(of_owner, in_order, rows, own_windows))
        if owner.nodes.data is not owner.data:
            owner.nodes.data.use(_computed(of_nodes, in_order, rows, own_windows))
    return experiment


def weights_of(run: Run) -> Weights:
    """What a new training can go on from: the weights of the run's best round."""
    if not run.progress.history:
        raise RunError(run.folder, "has no finished round yet, so there is nothing to go on from")
    if run.data.federation is not None:
        problem = "is a run of a federation, whose sites keep what they learned"
        raise RunError(run.folder, f"{problem}: use cnfgnn federation train --from")
    state = run.store("server").read(run.progress.best.tag)
    theta = part(state, "theta_bar.") or part(_saved_by(run, "site-0", state), THETA)
    return Weights(_trained_sensors(run), theta, state, run.scaler)


def _computed(
    state: Mapping[str, Tensor], in_order: InOrder, rows: Tensor, own_windows: bool
) -> dict[str, Tensor]:
    """The linear forecasters and the scales of further inputs in a saved state, and the profiles unless these
    are the run's own windows; for the sensors in these rows."""
    return {
        name: in_order(x, torch.nan)[rows]
        for name, x in state.items()
        if name.startswith(LINEAR) or name == INPUT_SCALES or (name.startswith(USUAL) and not own_windows)
    }


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


def _saved_by(run: Run, party: str, otherwise: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The state that a party saved with the best round. The server of a federation has no other party's; a
    centralised method has only the server's."""
    store, tag = run.store(party), run.progress.best.tag
    return store.read(tag) if store.has(tag) else otherwise


def _trained_sensors(run: Run) -> list[str]:
    """The run's sensors without those that inductive training left out."""
    with run.reading_events():
        seen = run.events()[0].get("seen") or [True] * len(run.data.sensors)
    return [sensor for sensor, did_train in zip(run.data.sensors, seen, strict=True) if did_train]
