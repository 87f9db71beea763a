"""Two truths with one copy, in more stories than `cnfgnn.testing` has: a restored backup, and a run in a
folder that is killed, resumed and used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.description import describe
from cnfgnn.data.inputs import Input
from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.privacy.copies import CopyStore
from cnfgnn.runs.evaluate import evaluate_run
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import forecast_run
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.train import Unwatched, train_run_with
from cnfgnn.testing.two_truths import (
    Faults,
    Killed,
    Seen,
    TwoTruths,
    Values,
    another_truth,
    few_sensors,
    recorded,
)

NOW = 1_700_000_000.0


def city(seed: int = 0, n: int = 4, rows: int = 80, inputs: bool = False) -> Dataset:
    """A few sensors by the hour, so that a week has something usual."""
    data = few_sensors(seed, n, rows)
    return replace(data, readings=with_inputs(data.readings, seed)) if inputs else data


def with_inputs(readings: Readings, seed: int = 0) -> Readings:
    """The readings with a variable of each sensor, and two covariates that hold for all, one of them by the
    half hour and until after the last reading."""
    rng, n, step = np.random.default_rng(seed), len(readings.ids), np.timedelta64(1800, "s")
    flow = (900 + rng.normal(0, 99, readings.values.shape)).astype(np.float32)
    flow[rng.random(flow.shape) < 0.1] = np.nan
    times = readings.times[0] + step * np.arange(2 * len(readings.times) + 5)
    rain = rng.gamma(1.0, 2.0, (len(times), 1)).astype(np.float32)
    by_day = readings.times[:: max(24, len(readings.times) // 4)]
    holiday = (np.arange(len(by_day))[:, None] % 2).astype(np.float32)
    assert flow.shape == (len(readings.times), n)

    def made(name: str, times: Any, values: Values, ids: tuple[str, ...]) -> Readings:
        return Readings(times.astype("datetime64[s]"), ids, values, np.isnan(values), source=name)

    others = (
        Input("flow", False, made("flow", readings.times, flow, readings.ids)),
        Input("holiday", True, made("holiday", by_day, holiday, ("holiday",)), for_all=True),
        Input("rain", True, made("rain", times, rain, ("rain",)), for_all=True),
    )
    return replace(readings, others=others)


def restored(
    folder: Path, config: Config, data: Dataset, kinds: tuple[str, str], retires: bool = True
) -> tuple[TwoTruths, TwoTruths]:
    """Two owners after a restore from the same backup, each with copies of its own from then on.

    The backup has copies of the first half of the rows, except for a late one. Until three quarters,
    and in the late row, their readings differ, and so does which of them are missing. The newest
    quarter, which arrives after the restore, is the same. Nothing is retired unless `retires`.
    """
    late, half, until = 10, len(data.readings.times) // 2, 3 * len(data.readings.times) // 4
    lost = np.zeros(data.readings.values.shape, dtype=np.bool_)
    lost[[late, *range(half, until)]] = True
    copied = replace(data.readings, values=np.where(lost, np.nan, data.readings.values))
    CopyStore(folder / "backup").blur(rows_of(copied, slice(0, half)), config.privacy.blur)
    owners = []
    for k, kind in enumerate(kinds):
        values = np.where(lost, another_truth(data, kind, k).readings.values, data.readings.values)
        values[half + k] = np.nan
        CopyStore(folder / "backup").snapshot(folder / f"{k}")
        copies = CopyStore(folder / f"{k}")
        if retires:
            copies.retire({"": int(data.readings.seconds[until - 1])})
        truth = replace(data, readings=replace(data.readings, values=values))
        owners.append(TwoTruths(truth, truth, copies, config))
    return owners[0], owners[1]


def train_in_folder(truths: TwoTruths, data: Dataset, folder: Path, killed: int) -> Seen:
    """Train a run in a folder on one of the truths, kill and resume it, evaluate it and forecast with it."""
    seen = Seen()
    set_up = partial(simulate, copies=truths.copies, tells=False)
    public = replace(truths.one, readings=truths.copies.blur(truths.one.readings, 1.0))

    def go_on(run: Run) -> None:
        def experiment() -> Experiment:
            return set_up(data, truths.config, store=run.store)

        about = {"name": data.name, "from": str(data.readings.times[0])}
        train_run_with(run, experiment, lambda: about, Unwatched(), save_phases=True)

    with (
        _still_clock(),
        recorded(seen, Faults(killed=frozenset({killed}))),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("cnfgnn.runs.evaluate.simulate", set_up)
        with pytest.raises(Killed):
            go_on(Run.begin(folder, truths.config, describe(public)))
        run = Run.open(folder)
        go_on(run)
        seen.files["scores"] = evaluate_run(run, data).sums.numpy().tobytes()
        seen.of_owner["forecasts"] = forecast_run(run, data, [80]).to_numpy().tobytes()
    for number, path in enumerate(sorted(filter(Path.is_file, folder.rglob("*")), key=_in_order)):
        name = str(path.relative_to(folder))
        if name.startswith("tensorboard/"):  # the name counts the files that a process has written
            name = f"tensorboard/{number}"
        where = seen.of_owner if name.startswith("checkpoints/owner-") else seen.files
        where[name] = path.read_bytes()
    return seen


def _in_order(path: Path) -> tuple[Path, int, str]:
    """By name; TensorBoard's files by the number that their names end in: the tenth comes after the ninth."""
    number = path.suffix.removeprefix(".")
    return path.parent, int(number) if path.parent.name == "tensorboard" else 0, path.name


@contextmanager
def quick_fits() -> Iterator[None]:
    """Inside, linear forecasters are chosen from fewer: fitting them would take more than half of a trial."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cnfgnn.forecasters.linear.PENALTIES", (1.0, 100.0))
        patch.setattr("cnfgnn.data.prepared_series.FOLDS", 2)
        yield


@contextmanager
def _still_clock() -> Iterator[None]:
    """Inside, no time passes: files hold times and durations, which are not compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: NOW)
        patch.setattr("time.perf_counter", lambda: 0.0)
        yield
