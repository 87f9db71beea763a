"""Small runs to attack, one for each family of node models, trained once for all tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cnfgnn.algorithm.methods import preset
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.source import open_data
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Unwatched, train_run

FAMILIES = ("at-fedavg", "cnfgnn-plus")


def to_attack(method: str, **changes: Any) -> Config:
    """Four days of four sensors."""
    sizes: dict[str, Any] = {"model.hidden": 16, "model.embedding": 6, "model.gn_widths": [8, 8]}
    if method == "cnfgnn-plus":
        sizes |= {
            "model.hidden": 32,
            "model.sent": 24,
            "training.average_every": 3,
        }
    return preset(method).with_changes(
        {
            "city.sensors": 4,
            "city.days": 4,
            "training.rounds": 1,
            "training.client_rounds": 1,
            "training.client_batch": 64,
            "training.server_batch": 64,
            "compute.device": "cpu",
            **sizes,
            **changes,
        }
    )


@pytest.fixture(scope="session")
def attacked_city() -> Dataset:
    return open_data(to_attack("at-fedavg"))


@pytest.fixture(scope="session")
def attacked_runs(tmp_path_factory: pytest.TempPathFactory, attacked_city: Dataset) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("attacked")
    for method in FAMILIES:
        run = Run.create(place / method, to_attack(method), attacked_city)
        train_run(run, attacked_city, Unwatched())
    return {method: place / method for method in FAMILIES}
