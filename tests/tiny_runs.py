"""Two tiny runs on the same small city, trained once for all tests of pages, tables and commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnfgnn.algorithm.methods import METHODS, preset
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.source import open_data
from cnfgnn.report.layout import map_points
from cnfgnn.report.predictions import Predictions
from cnfgnn.report.views import RunView
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Unwatched, train_run

METHODS_SHOWN = ("at-fedavg", "gru-fedavg")


def tiny(method: str, **changes: Any) -> Any:
    sizes = {"model.embedding": 8, "model.gn_widths": [8, 8]} if METHODS[method].graph_network else {}
    return preset(method).with_changes(
        {
            "city.sensors": 6,
            "city.days": 2,
            "model.hidden": 8,
            "training.rounds": 2,
            "training.client_batch": 64,
            "training.client_rounds": 1,
            "training.client_lr": 0.01,
            "compute.device": "cpu",
            **sizes,
            **changes,
        }
    )


@pytest.fixture(scope="session")
def city_data() -> Dataset:
    return open_data(tiny("at-fedavg"))


@pytest.fixture(scope="session")
def run_folders(tmp_path_factory: pytest.TempPathFactory, city_data: Dataset) -> list[Path]:
    place = tmp_path_factory.mktemp("runs")
    for method in METHODS_SHOWN:
        train_run(Run.create(place / method, tiny(method), city_data), city_data, Unwatched())
    return [place / method for method in METHODS_SHOWN]


def large_view(n: int = 325, t: int = 12, days: int = 7, seed: int = 0) -> RunView:
    """A run on as many sensors as PEMS-BAY has, of noise: nothing in it can be compressed well."""
    rng = np.random.default_rng(seed)
    rows = days * 288
    errors = {name: float(v) for name, v in zip(NAMES, rng.random(5), strict=True)}
    truth = rng.uniform(0, 80, (n, rows))
    edges = rng.integers(0, n, (2600, 2))
    times = np.datetime64("2017-06-01T00:00:00") + 300 * np.arange(rows).astype("timedelta64[s]")
    sensors = [str(400000 + i) for i in range(n)]
    test = {"overall": errors, "per_step": [errors] * t, "seen": None, "unseen": None}
    moved = {"per_node": 1, "per_site": 1}
    return RunView(
        name=f"large-{seed}",
        method="CNFGNN",
        finished=True,
        best_round=1,
        rounds=[{"round": 1, "loss": 1.0, "validation": errors, "training_bytes": moved, "best": True}],
        test=test | {"per_node": dict.fromkeys(sensors, errors)},
        ledger=[["training", "encode", "up", 5, 5]],
        settings={
            "method": "at-fedavg",
            "data.horizon": t,
            "data.missing": "masked",
            "training.loss": "square",
        },
        fingerprint="noise",
        data={"name": "large", "from": "2017-01-01", "to": "2017-07-01", "rows": 52116, "missing": 0.0},
        step_seconds=300,
        sensors=sensors,
        points=map_points(rng.uniform(37, 38, (n, 2))),
        located=True,
        edges=edges,
        predictions=Predictions(
            rng.random((n, t, 8)),
            rng.random((n, 24, 8)),
            times,
            truth,
            (3, 6, 12),
            truth + rng.normal(0, 9, (3, n, rows)),
        ),
    )


def with_errors(view: RunView) -> RunView:
    """The same run with another error and another interval for each sensor, and bounds of intervals."""
    assert view.test is not None
    assert view.predictions is not None
    rng = np.random.default_rng(9)
    per_node = {
        sensor: dict(zip(NAMES, errors, strict=True))
        for sensor, errors in zip(
            view.sensors, rng.gamma(4.0, 1.0, (len(view.sensors), 5)).tolist(), strict=True
        )
    }
    parts = ("coverage", "width", "score")
    found = {s: dict(zip(parts, rng.random(3).tolist(), strict=True)) for s in view.sensors}
    first = found[view.sensors[0]]
    level = {"overall": first, "per_step": [first] * len(view.test["per_step"]), "per_node": found}
    truth = view.predictions.truth
    bands = np.stack([[truth - width, truth + width] for width in (5, 9)])
    return replace(
        view,
        test=view.test | {"per_node": per_node, "intervals": {"80": level, "95": level}},
        predictions=replace(view.predictions, bands=bands),
    )


NAMES = ("rmse", "mae", "masked_rmse", "masked_mae", "masked_mape")
