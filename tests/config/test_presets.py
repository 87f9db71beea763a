"""Presets change these settings and no others: published figures depend on every one of them."""

from __future__ import annotations

from typing import Any

import pytest

from cnfgnn.algorithm.methods import METHODS, preset
from cnfgnn.config.presets import METHOD_SETTINGS
from cnfgnn.config.settings import SETTINGS, Config

PLUS: dict[str, Any] = {
    "model.encoder": "perceptron",
    "model.decoder": "direct",
    "model.change": True,
    "model.gaps": True,
    "model.linear": True,
    "model.profile": True,
    "training.rounds": 12,
    "training.client_lr": 2e-3,
    "training.optimizer_state": "kept",
    "training.schedule": "cosine",
    "training.average_every": 20,
    "training.wire": "int8",
}
BASELINE: dict[str, Any] = {"model.hidden": 100, "model.embedding": 0, "training.client_batch": 256}
PLUS_WITH_GRAPH = PLUS | {
    "model.embedding": 16,
    "model.sent": 32,
    "model.gn_widths": (64, 64),
    "model.gn_mean": True,
    "training.server_batch": 128,
    "training.server_lr": 2e-3,
}
FOR_OTHER_DATA: dict[str, dict[str, Any]] = {
    "at-fedavg": {},
    "at": {},
    "sl": {"training.optimizer_state": "kept", "training.server_batch": 128},
    "sl-fedavg": {"training.optimizer_state": "kept", "training.server_batch": 128},
    "gru-gn-central": {"training.client_batch": 64},
    "gru-central": BASELINE,
    "gru-fedavg": BASELINE,
    "gru-local": BASELINE | {"training.client_rounds": 5},
    "gru-fmtl": BASELINE | {"training.client_rounds": 5},
    "cnfgnn-plus": PLUS_WITH_GRAPH | {"model.levels": True},
    "cnfgnn-private": PLUS_WITH_GRAPH | {"model.levels": True},
    # it sends nothing and averages nothing, and its minibatches are those of the defaults
    "cnfgnn-plus-central": {
        **{
            key: v
            for key, v in PLUS_WITH_GRAPH.items()
            if key not in ("model.sent", "training.average_every")
        },
        "model.levels": True,
    },
    "mlp-fedavg": PLUS | {"model.embedding": 0},
    "mlp-central": {
        "model.encoder": "perceptron",
        "model.decoder": "direct",
        "model.change": True,
        "model.gaps": True,
        "model.personal": 16,
        "model.calendar": 16,
        "model.hidden": 320,
        "model.embedding": 0,
        "training.rounds": 20,
        "training.client_batch": 16,
    },
}
PUBLISHED: dict[str, Any] = {
    "data.missing": "as-truth",
    "training.sampling": 1000.0,
    "training.rounds": 500,
}


def changed(config: Config) -> dict[str, Any]:
    values = {key: config.setting(key) for key in SETTINGS if key != "method"}
    return {key: value for key, value in values.items() if value != SETTINGS[key].default}


def test_every_method_has_settings() -> None:
    assert METHODS.keys() == METHOD_SETTINGS.keys() == FOR_OTHER_DATA.keys()


@pytest.mark.parametrize("method", METHODS)
def test_settings_for_other_data(method: str) -> None:
    config = preset(method)
    assert changed(config) == FOR_OTHER_DATA[method]
    assert config.method == method
    assert config.given == frozenset()


def test_the_large_baseline_for_pems_bay() -> None:
    assert changed(preset("gru-fmtl", "727k", "pems-bay")) == {
        **PUBLISHED,
        "model.hidden": 200,
        "model.layers": 2,
        "model.embedding": 0,
        "training.client_rounds": 5,
        "training.patience": 50,
    }
    assert preset("gru-fmtl", "727k", "pems-bay").training.client_batch == 128


def test_the_inductive_experiment() -> None:
    for like, server_rounds in (("metr-la", 1), ("pems-bay", 20)):
        made = preset("at-fedavg", like=like, inductive=True)  # type: ignore[arg-type]
        assert made.training.server_rounds == server_rounds
    assert changed(preset("at-fedavg", like="metr-la", inductive=True)) == PUBLISHED
    patient = BASELINE | {"data.missing": "as-truth", "training.rounds": 500}
    assert changed(preset("gru-fedavg", like="metr-la", inductive=True)) == patient


@pytest.mark.parametrize("method", ["cnfgnn-plus", "cnfgnn-plus-central", "mlp-fedavg", "mlp-central"])
def test_methods_beyond_the_paper_only_take_missing_readings_from_what_was_published(method: str) -> None:
    # Zeros that stand for missing readings would be in the means of levels.
    expected = {key: v for key, v in FOR_OTHER_DATA[method].items() if key != "model.levels"}
    assert changed(preset(method, like="pems-bay")) == expected | {"data.missing": "as-truth"}
