"""No reading, target or forecast crosses between nodes and server, whatever the method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from cnfgnn.algorithm.calls import Call, Payload
from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute import Compute
from cnfgnn.algorithm.series import Series
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.windows import Windows
from cnfgnn.simulation import federate
from cnfgnn.storage import MemoryStore
from cnfgnn.training import evaluate, train
from cnfgnn.transports.in_process import InProcess
from tests.conftest import FEDERATED, network, small

CALLS_WITH_TENSORS = {
    "census",
    "prepare",
    "load",
    "embed",
    "step",
    "pull",
    "weights",
    "encode",
    "backward",
    "score",
}


class Recorder(InProcess):
    """Keeps a copy of everything that crosses."""

    def __init__(self, groups: Sequence[tuple[Tensor, Clients]]) -> None:
        super().__init__(groups)
        self.crossed: list[tuple[str, Tensor]] = []

    def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload:
        payload = super().exchange(calls, rows)
        for call, reply in zip(calls, payload.replies, strict=True):
            for name, tensor in [*call.tensors.items(), *reply.items()]:
                self.crossed.append((f"{call.verb}.{name}", tensor.detach().clone()))
        return payload


def readings_in(tensor: Tensor, known: np.ndarray) -> int:
    """How many of the tensor's values are, to nine digits, one of the known ones (sorted)."""
    values = tensor.double().flatten().numpy()
    values = values[np.isfinite(values) & (values != 0)]
    place = np.clip(np.searchsorted(known, values), 1, len(known) - 1)
    gap = np.minimum(abs(known[place] - values), abs(known[place - 1] - values))
    return int((gap <= 1e-9 * abs(values)).sum())


@pytest.mark.parametrize("missing", ["as-truth", "masked"])
@pytest.mark.parametrize("method", FEDERATED)
def test_nothing_that_crosses_is_a_reading_raw_or_scaled(method: str, missing: str) -> None:
    data: Dataset = network(seed=4)
    config = small(method, **{"data.missing": missing})
    groups = [np.array([0, 1, 2]), np.array([3]), np.array([4, 5])]
    compute = Compute.of(config.compute)
    recorder = Recorder(
        [(torch.from_numpy(g), Clients(Series.of(data.readings, g), compute, MemoryStore())) for g in groups]
    )
    windows = Windows.of(len(data.readings.times))
    experiment = federate(recorder, data.graph, windows, config, None, "network", MemoryStore())
    train(experiment)
    evaluate(experiment)
    raw = data.readings.values[~data.readings.missing].astype(np.float64)
    scaled = (raw - experiment.scaler.mean) / experiment.scaler.std
    known = np.sort(np.concatenate([raw, scaled]))
    assert readings_in(torch.from_numpy(raw[:5]), known) == 5  # the search itself works
    verbs = {name.split(".")[0] for name, _ in recorder.crossed}
    assert {"census", "score"} <= verbs <= CALLS_WITH_TENSORS
    leaks = {name: readings_in(t, known) for name, t in recorder.crossed if t.is_floating_point()}
    assert not any(leaks.values()), leaks
