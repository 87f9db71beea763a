"""No reading, target or forecast crosses between nodes and server, whatever the method; nor what is usual for
a sensor, nor weights of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.experiment import Experiment, federate
from cnfgnn.algorithm.messages.calls import Call, Payload
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.store import MemoryStore
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.series import Series
from cnfgnn.data.windows import Windows
from cnfgnn.runs.training_loop import evaluate, train
from cnfgnn.transports.in_process import InProcess
from tests.conftest import FEDERATED, HISTORY, HORIZON, network, small

CALLS_WITH_TENSORS = {
    "census",
    "prepare",
    "load",
    "inform",
    "embed",
    "step",
    "pull",
    "weights",
    "levels",
    "encode",
    "backward",
    "score",
}


class Recorder(InProcess):
    """Keeps a copy of everything that crosses."""

    def __init__(self, groups: Sequence[tuple[Tensor, Owner]]) -> None:
        super().__init__(groups)
        self.crossed: list[tuple[str, Tensor]] = []

    def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload:
        payload = super().exchange(calls, rows)
        for call, reply in zip(calls, payload.replies, strict=True):
            for name, tensor in [*call.tensors.items(), *reply.items()]:
                self.crossed.append((f"{call.verb}.{name}", tensor.detach().clone()))
        return payload


def readings_in(tensor: Tensor, known: np.ndarray, digits: int = 9) -> int:
    """How many of the tensor's values are, to so many digits, one of the known ones (sorted)."""
    values = tensor.double().flatten().numpy()
    values = values[np.isfinite(values) & (values != 0)]
    place = np.clip(np.searchsorted(known, values), 1, len(known) - 1)
    gap = np.minimum(abs(known[place] - values), abs(known[place - 1] - values))
    return int((gap <= 10.0**-digits * abs(values)).sum())


HOUR = 3600


def owner(series: Series, compute: Compute) -> Owner:
    return Owner(Clients(series, compute, MemoryStore()), series, MemoryStore())


def recorded(method: str, missing: str, seconds: int) -> tuple[Recorder, Dataset, Experiment]:
    """A training with all that crossed, as it was computed: rounded to fewer bytes it would not be found."""
    data: Dataset = network(seed=4, seconds=seconds)
    config = small(method, **{"data.missing": missing, "training.wire": "full"})
    groups = [np.array([0, 1, 2]), np.array([3]), np.array([4, 5])]
    compute = Compute.of(config.compute)
    recorder = Recorder([(torch.from_numpy(g), owner(Series.of(data.readings, g), compute)) for g in groups])
    windows = Windows.of(len(data.readings.times), HISTORY, HORIZON)
    experiment = federate(recorder, data.graph, windows, config, None, "network", MemoryStore())
    train(experiment)
    evaluate(experiment)
    return recorder, data, experiment


@pytest.mark.parametrize("missing", ["as-truth", "masked"])
@pytest.mark.parametrize("method", FEDERATED)
def test_nothing_that_crosses_is_a_reading_raw_or_scaled(method: str, missing: str) -> None:
    recorder, data, experiment = recorded(method, missing, 300)
    raw = data.readings.values[~data.readings.missing].astype(np.float64)
    scaled = (raw - experiment.scaler.mean) / experiment.scaler.std
    known = np.sort(np.concatenate([raw, scaled]))
    assert readings_in(torch.from_numpy(raw[:5]), known) == 5  # the search itself works
    verbs = {name.split(".")[0] for name, _ in recorder.crossed}
    assert {"census", "score"} <= verbs <= CALLS_WITH_TENSORS
    leaks = {name: readings_in(t, known) for name, t in recorder.crossed if t.is_floating_point()}
    assert not any(leaks.values()), leaks


def own_to(owner: Owner) -> list[Tensor]:
    """What a node knows of itself: its usual week, what that says of every row, in the readings' unit and
    scaled, and of every training window."""
    data = owner.data
    assert data.usual is not None
    assert data.weekly_profiles is not None
    batch = data.batch("train", slice(None))
    assert batch.usual_change is not None
    weeks = torch.from_numpy(data.weekly_profiles)
    scaled = (weeks - data.scaler.mean) / data.scaler.std
    return [weeks, scaled, data.usual, data.unscaled(data.usual), batch.usual_change]


@pytest.mark.parametrize("missing", ["as-truth", "masked"])
@pytest.mark.parametrize("method", ["cnfgnn-plus", "mlp-fedavg"])
def test_nothing_that_crosses_is_usual_for_a_sensor(method: str, missing: str) -> None:
    recorder, _, _ = recorded(method, missing, HOUR)
    own = [tensor for _, owner in recorder.groups for tensor in own_to(owner)]
    known = np.concatenate([tensor.double().flatten().numpy() for tensor in own])
    known = np.unique(known[np.isfinite(known) & (known != 0)])
    for tensor in own:  # the search itself works
        assert readings_in(tensor, known, 12) == int((tensor.nan_to_num() != 0).sum()) > 0
    assert not [name for name, _ in recorder.crossed if "usual" in name]
    leaks = {name: readings_in(t, known, 12) for name, t in recorder.crossed if t.is_floating_point()}
    assert not any(leaks.values()), leaks
