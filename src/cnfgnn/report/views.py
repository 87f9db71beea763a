"""A run as plain data for the page: its events and its predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cnfgnn.algorithm.methods import method_of
from cnfgnn.config.toml import flat
from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import CnfgnnError, ConfigError, DataError, RunError
from cnfgnn.report.layout import Points, graph_layout, map_points
from cnfgnn.report.predictions import Predictions, predict
from cnfgnn.runs.baselines import all_baselines
from cnfgnn.runs.evaluate import data_of
from cnfgnn.runs.events import plain
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import Errors, IntervalErrors, Scores, scores_as_dict


@dataclass(frozen=True, eq=False)
class RunView:
    """Everything that the page shows about a run."""

    name: str
    method: str  # its name in the paper
    finished: bool
    best_round: int
    rounds: Sequence[dict[str, Any]]  # events
    test: dict[str, Any] | None  # as in the event: overall, per_step, per_node, seen, unseen
    ledger: Sequence[Sequence[str | int]]  # purpose, verb, direction, bytes per node, bytes per site
    settings: dict[str, Any]  # by dotted key
    fingerprint: str  # of the data
    data: dict[str, Any]  # name, from, to, rows, missing
    step_seconds: int
    sensors: Sequence[str]
    points: Points  # (n, 2) x, y
    located: bool  # whether points are true positions
    edges: npt.NDArray[np.int64]  # (e, 2) without self-loops, each pair once
    seen: Sequence[bool] | None = None  # which sensors trained; None if all
    predictions: Predictions | None = None
    no_predictions: str = ""  # why there are none
    baselines: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # name -> overall, per_step


def views(runs: Sequence[Run], data: Dataset | None = None) -> list[RunView]:
    """A view of each run; data that several runs share are opened once."""
    opened: dict[tuple[object, ...], Dataset | str] = {}
    shown = []
    for run in runs:
        key = (run.config.data.path, run.config.city, run.data.fingerprint)
        if data is None and key not in opened:
            opened[key] = _named_data(run)
        shown.append(view(run, opened[key] if data is None else data))
    names = Counter(view.name for view in shown)
    return [
        replace(view, name=str(run.folder)) if names[view.name] > 1 else view
        for run, view in zip(runs, shown, strict=True)
    ]


def view(run: Run, data: Dataset | str) -> RunView:
    """The view of a run, given its data or a sentence that says why they are not available."""
    if not run.progress.history:
        raise RunError(run.folder, "has no finished round yet, so that there is nothing to show")
    if isinstance(data, Dataset):
        run.check_same_data(data)
    predictions, events = _predictions(run, data), run.events()
    try:
        start, rounds = events[0], [event for event in events if event["event"] == "round"]
        known = start["data"]
        edges = _pairs(known["edges"])
        positions, seen = known["positions"], start["seen"]
        points = map_points(np.array(positions)) if positions else graph_layout(len(run.data.sensors), edges)
        test = events[-1] if run.finished else _test_errors(predictions, seen, data)
        ledger = events[-1]["ledger"] if run.finished else run.progress.ledger
        _check(rounds, run.progress.best.r_g, test, run.data.sensors)
        return RunView(
            name=run.folder.absolute().name,
            method=method_of(run.config.method).label,
            finished=run.finished,
            best_round=run.progress.best.r_g,
            rounds=rounds,
            test=test,
            ledger=[item for item in ledger if item[0] != "recovery"],
            settings=flat(plain(run.config.as_dict())),
            fingerprint=run.data.fingerprint,
            data={name: known[name] for name in ("name", "from", "to", "rows", "missing")},
            step_seconds=run.data.step_seconds,
            sensors=run.data.sensors,
            points=points,
            located=bool(positions),
            edges=edges,
            seen=seen,
            predictions=predictions if isinstance(predictions, Predictions) else None,
            no_predictions=predictions if isinstance(predictions, str) else "",
            baselines=_baselines(run, data) if isinstance(data, Dataset) else {},
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DataError(
            run.folder, "its events are damaged: an entry is missing or has the wrong type"
        ) from error


def _check(
    rounds: Sequence[dict[str, Any]], best: int, test: dict[str, Any] | None, sensors: Sequence[str]
) -> None:
    """Check every entry that is shown."""
    for done in rounds:
        _ = done["loss"], done["training_bytes"]["per_node"], done["training_bytes"]["per_site"]
    if best not in [done["round"] for done in rounds]:
        raise ValueError("rounds")
    if test is not None:
        by_sensor = [test["per_node"][sensor] for sensor in sensors]
        for errors in (test["overall"], *test["per_step"], *by_sensor, test["seen"], test["unseen"]):
            if errors is not None and set(errors) != {declared.name for declared in fields(Errors)}:
                raise ValueError("test")
        for found in (test.get("intervals") or {}).values():
            of_sensors = [found["per_node"][sensor] for sensor in sensors]
            for errors in (found["overall"], *found["per_step"], *of_sensors):
                if set(errors) != {field.name for field in fields(IntervalErrors)}:
                    raise ValueError("intervals")


def _baselines(run: Run, data: Dataset) -> dict[str, dict[str, Any]]:
    """The test errors of the simple forecasts, as the page shows those of a run."""
    return {
        name: {"overall": vars(scores.overall), "per_step": [vars(errors) for errors in scores.per_horizon]}
        for name, scores in all_baselines(data, run.config.data).items()
    }


def _named_data(run: Run) -> Dataset | str:
    """The data that the run's settings name if they are unchanged, or a sentence that says why not."""
    try:
        data = data_of(run, run.config)
        run.check_same_data(data)
    except CnfgnnError as problem:
        return str(problem)
    return data


def _predictions(run: Run, data: Dataset | str) -> Predictions | str:
    """The predictions of the best round, or a sentence that says why there are none."""
    if isinstance(data, str):
        return data
    try:
        return predict(run, data)
    except (RunError, ConfigError) as problem:
        return str(problem)


def _test_errors(
    predictions: Predictions | str, seen: list[bool] | None, data: Dataset | str
) -> dict[str, Any] | None:
    """Test errors of the best round so far, for a run that is not finished."""
    if isinstance(predictions, str) or isinstance(data, str):
        return None
    mask = None if seen is None else torch.tensor(seen)
    errors: dict[str, Any] = plain(
        scores_as_dict(Scores(torch.from_numpy(predictions.sums), mask), data.readings.ids)
    )
    return errors


def _pairs(edges: Sequence[Sequence[float]]) -> npt.NDArray[np.int64]:
    """Senders, receivers and weights -> (e, 2): the connected pairs."""
    both = np.array([edges[0], edges[1]], dtype=np.int64).T.reshape(-1, 2)
    both = np.unique(np.sort(both, axis=1), axis=0)
    pairs: npt.NDArray[np.int64] = both[both[:, 0] != both[:, 1]]
    return pairs
