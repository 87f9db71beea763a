"""The same code on a CUDA device: the same results, and resuming stays bit-exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cnfgnn.algorithm.methods import METHODS, preset
from cnfgnn.algorithm.store import MemoryStore
from cnfgnn.data.dataset import Dataset
from cnfgnn.models import kernels
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import train
from tests.conftest import server, small

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


STUDIES: list[dict[str, Any]] = [{"method": method} for method in METHODS]
STUDIES += [
    {"method": "gru-fmtl", "training.fmtl_norm": "plain", "training.fmtl_lambda": 0.01},
    {"method": "at-fedavg", "model.global_input": "zero"},
]


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: "-".join(map(str, study.values())))
def test_a_device_gives_the_results_of_the_cpu(study: dict[str, Any], data: Dataset) -> None:
    losses = []
    for device in ("cpu", "cuda"):
        progress = train(simulate(data, small(**study, **{"compute.device": device})))
        losses.append([done.loss for done in progress.history])
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_every_precision_trains(precision: str, data: Dataset) -> None:
    config = small("at-fedavg", **{"compute.device": "cuda", "compute.precision": precision})
    reference = train(simulate(data, small("at-fedavg"))).best.loss
    assert train(simulate(data, config)).best.loss == pytest.approx(reference, rel=0.03)


# Widths at which kernels run: the presets', and some that are no power of two.
WIDTHS: list[dict[str, Any]] = [
    {"model.hidden": 64, "model.embedding": 64, "model.gn_widths": [256, 256, 128]},
    {"model.hidden": 64, "model.embedding": 48, "model.gn_widths": [64, 64, 32]},
    {"model.hidden": 40, "model.embedding": 24, "model.gn_widths": [32, 32]},
    {"model.hidden": 7, "model.embedding": 3, "model.gn_widths": [16, 16]},
    {"model.hidden": 64, "model.embedding": 64, "model.gn_widths": [48, 40]},  # by the plain twin
]


@pytest.mark.parametrize("widths", WIDTHS, ids=lambda widths: "-".join(map(str, widths.values())))
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_whole_training_by_kernels_stays_near_fp32(
    widths: dict[str, Any], schedule: str, data: Dataset
) -> None:
    losses = {}  # after one round: rounding then takes the two further and further apart
    for precision in ("fp32", "bf16"):
        changes = {"compute.device": "cuda", "compute.precision": precision, "training.schedule": schedule}
        experiment = simulate(data, small("at-fedavg", **widths, **changes, **{"training.rounds": 3}))
        losses[precision] = train(experiment).history[0].loss
        learner = server(experiment).gn
        assert learner is not None
        if precision == "bf16" and kernels.available(torch.device("cuda")):
            assert learner.by_kernels == (widths["model.gn_widths"] != [48, 40])
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)


@pytest.mark.parametrize("method", ["at-fedavg", "gru-fedavg", "gru-local", "cnfgnn-plus", "mlp-central"])
def test_the_presets_train_by_kernels(method: str, data: Dataset) -> None:
    """As `cnfgnn train` would, with the sizes of the preset itself."""
    changes = {"compute.device": "cuda", "training.rounds": 2, "training.client_batch": 32}
    losses = {}
    for precision in ("fp32", "bf16"):
        config = preset(method).with_changes(
            {**changes, "training.server_batch": 24, "compute.precision": precision}
        )
        losses[precision] = train(simulate(data, config)).history[0].loss
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: "-".join(map(str, study.values())))
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(study: dict[str, Any], data: Dataset) -> None:
    config = small(**study, **{"compute.device": "cuda", "compute.precision": "fp32", "training.rounds": 3})
    whole = simulate(data, config)
    straight = train(whole)
    stores: dict[str, MemoryStore] = {}

    def store(name: str) -> MemoryStore:
        return stores.setdefault(name, MemoryStore())

    stopped = train(simulate(data, config, store=store), rounds=1)
    second = simulate(data, config, store=store)
    resumed = train(second, stopped)
    assert resumed.history == straight.history
    assert torch.equal(second.strategy.score("test").told, whole.strategy.score("test").told)


@pytest.mark.parametrize("method", METHODS)
def test_memory_does_not_grow_with_rounds(method: str, data: Dataset) -> None:
    strategy = simulate(data, small(method, **{"compute.device": "cuda", "training.rounds": 9})).strategy
    taken = []
    for r_g in range(1, 10):
        strategy.round(r_g)
        strategy.score("validation")
        torch.cuda.synchronize()
        taken.append(torch.cuda.memory_reserved())
    assert taken[-1] == taken[2], taken
