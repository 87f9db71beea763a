"""A trained run put to use: judged on any data, or asked for the readings that come next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.methods import method_of
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.quality import Finding, out_of_range, treated
from cnfgnn.data.readings import Readings
from cnfgnn.data.source import open_data, step_seconds
from cnfgnn.data.windows import Split, Windows
from cnfgnn.errors import DataError, RunError
from cnfgnn.models.params import Params, is_personal, part, take
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import Scores
from cnfgnn.runs.simulation import seen_sensors, simulate
from cnfgnn.runs.training_loop import evaluate


def reopen(run: Run, data: Dataset, windows: Windows | None = None) -> Experiment:
    """The run's best round on the sensors of `data`, with the scale that it was trained with.

    Averaged weights suit any sensor; where each has its own, a sensor the run does not know is refused.
    """
    if not run.progress.history:
        raise RunError(run.folder, "has no finished round yet")
    if step_seconds(data) != run.data["step_seconds"]:
        raise DataError(
            data.readings.source,
            f"readings come every {step_seconds(data)} s, and {run.folder} was trained on one every"
            f" {run.data['step_seconds']} s",
        )
    config = run.config.with_changes({"training.seen": 1.0})  # everybody is present now
    if config.compute.device.startswith("cuda") and not torch.cuda.is_available():
        config = config.with_changes({"compute.device": "cpu"})  # trained elsewhere, used here
    experiment = simulate(data, config, windows=windows, scaler=run.scaler)
    state = run.store("server").read(run.progress.best.tag)
    theta = part(state, "theta_bar.") or _own_weights(run, data.readings)
    personal = _personal(run, theta, data.readings, state)
    usual_weeks = personal.pop("usual_weeks", None)
    device = experiment.owners[0][1].compute.device
    experiment.strategy.take({name: w.to(device) for name, w in (theta | personal).items()}, state)
    if usual_weeks is not None and not (windows is None and _is_its_own(run, data)):  # those it counts again
        for rows, clients in experiment.owners:
            clients.data.remember(usual_weeks[rows].numpy())
    return experiment


def own_data(run: Run) -> Dataset:
    """The data the run was trained on, as they are now: newer readings of the same sensors are welcome."""
    data = open_data(run.config)
    run.check_same_sensors(data)
    return data


def evaluate_run(run: Run, data: Dataset, split: Split = "test") -> Scores:
    """Errors of the run's best round on a split; where it trained on some sensors only, those apart."""
    experiment = reopen(run, data)
    if experiment.windows.count(split) == 0:
        raise DataError(data.readings.source, f"there are no {split} windows with readings")
    seen = None
    if run.config.training.seen < 1 and list(data.readings.ids) == run.data["sensors"]:
        seen = seen_sensors(data, run.config.training.seen)
    return replace(evaluate(experiment, split), seen=seen)


def forecast_run(run: Run, data: Dataset) -> pd.DataFrame:
    """The next readings of every sensor: a row per time after the last one, a column per sensor.

    A sensor that was silent through the whole history has no forecast (NaN).
    """
    d, rows = run.config.data, len(data.readings.times)
    if rows < d.history:
        raise DataError(
            data.readings.source, f"{rows} rows are fewer than the {d.history} that a forecast needs"
        )
    ahead = replace(data, readings=_extended(data.readings, d.horizon))
    experiment = reopen(run, ahead, Windows.next(rows, d.history, d.horizon))
    experiment.strategy.forecast()
    values = torch.full((len(data.readings.ids), d.horizon), torch.nan, dtype=torch.float64)
    for nodes, clients in experiment.owners:
        assert clients.owner.forecasts is not None
        values[nodes] = clients.owner.forecasts.cpu()
    times = pd.DatetimeIndex(
        ahead.readings.times[rows:], name="time", tz="UTC" if data.readings.utc else None
    )
    return pd.DataFrame(values.T.numpy(), index=times, columns=list(data.readings.ids))


def doubts(run: Run, data: Dataset) -> tuple[Finding, ...]:
    """Why forecasts from the newest readings may be nonsense: they lie far outside those of training.

    A run that was begun before ranges were kept, or by a federation, knows none, and nothing is found.
    """
    try:
        about = run.events()[0]["data"]
        kept = about.get("ranges") or []
        ranges = {sensor: range_ for sensor, range_ in zip(about["sensors"], kept, strict=False) if range_}
        ranges = {sensor: (float(low), float(high)) for sensor, (low, high) in ranges.items()}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise RunError(run.folder, "its events are damaged") from error
    used = treated(data.readings, run.config.data)
    last = slice(len(used.times) - run.config.data.history, None)
    newest = replace(used, times=used.times[last], values=used.values[last], missing=used.missing[last])
    return out_of_range(newest, ranges, run.scaler.std)


def _own_weights(run: Run, readings: Readings) -> Params:
    """Each sensor's own weights, in the order of the readings."""
    place = {sensor: row for row, sensor in enumerate(run.data["sensors"])}
    method = method_of(run.config.method).name
    for sensor in readings.ids:
        if sensor not in place:
            problem = f"{run.folder} has no model for this sensor, and {method} gives each one its own"
            raise DataError(readings.source, problem, column=sensor)
    theta = part(run.store("site-0").read(run.progress.best.tag), "theta.")
    if not theta or next(iter(theta.values())).shape[0] not in (1, len(place)):
        raise RunError(run.folder, "its states do not fit its sensors")
    return take(theta, torch.tensor([place[sensor] for sensor in readings.ids]))


def _is_its_own(run: Run, data: Dataset) -> bool:
    try:
        run.check_same_data(data)
    except DataError:
        return False
    return True


def _personal(run: Run, theta: Params, readings: Readings, pooled: Mapping[str, Tensor]) -> Params:
    """What belongs to each sensor alone, in the order of the readings; nothing for one the run does not know.

    A run of the simulator has it; the server of a federation does not.
    """
    kept, tag = run.store("site-0"), run.progress.best.tag
    state = kept.read(tag) if kept.has(tag) else pooled
    known = {name: w for name, w in (part(state, "theta.") or theta).items() if is_personal(name)}
    known |= {name: w for name, w in state.items() if name == "usual_weeks"}
    if not known:
        return {}
    try:
        seen = run.events()[0].get("seen") or [True] * len(run.data["sensors"])
    except (AttributeError, IndexError) as error:
        raise RunError(run.folder, "its events are damaged") from error
    trained = [sensor for sensor, did in zip(run.data["sensors"], seen, strict=True) if did]
    place = {sensor: row for row, sensor in enumerate(trained)}
    personal: Params = {}
    for name, w in known.items():
        nothing = torch.nan if name == "usual_weeks" else 0.0
        personal[name] = w.new_full((len(readings.ids), *w.shape[1:]), nothing)
        for row, sensor in enumerate(readings.ids):
            if sensor in place:
                personal[name][row] = w[place[sensor]]
    return personal


def _extended(readings: Readings, horizon: int) -> Readings:
    """The readings with as many empty rows after them as are to be forecast."""
    n = len(readings.ids)
    future = readings.times[-1] + readings.step * np.arange(1, horizon + 1)
    return replace(
        readings,
        times=np.concatenate([readings.times, future.astype(readings.times.dtype)]),
        values=np.concatenate([readings.values, np.full((horizon, n), np.nan, dtype=np.float32)]),
        missing=np.concatenate([readings.missing, np.ones((horizon, n), dtype=np.bool_)]),
    )
