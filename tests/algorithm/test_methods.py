"""Every row of the paper's tables has its published settings."""

from __future__ import annotations

from typing import Any

import pytest

from cnfgnn.algorithm.methods import METHODS, check_method, method_of, preset
from cnfgnn.errors import ConfigError
from cnfgnn.studies.published import TEST_RMSE

ROWS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("gru-central", "63k", "metr-la", {"client_batch": 256, "patience": 50}),
    ("gru-central", "63k", "pems-bay", {"client_batch": 64, "patience": 50}),
    ("gru-central", "727k", "metr-la", {"client_batch": 128}),
    ("gru-central", "727k", "pems-bay", {"client_batch": 64}),
    ("gru-gn-central", "63k", "metr-la", {"client_batch": 64, "patience": 50}),
    ("gru-gn-central", "63k", "pems-bay", {"client_batch": 128}),
    ("gru-local", "63k", "metr-la", {"client_batch": 256, "client_rounds": 5, "patience": 50}),
    ("gru-local", "727k", "pems-bay", {"client_batch": 128, "client_rounds": 5, "patience": 20}),
    ("gru-fedavg", "63k", "metr-la", {"client_batch": 256, "client_rounds": 1, "sampling": 0}),
    ("gru-fedavg", "727k", "pems-bay", {"client_batch": 128, "patience": 50}),
    ("gru-fmtl", "63k", "pems-bay", {"client_batch": 256, "client_rounds": 5, "fmtl_lambda": 0.1}),
    ("gru-fmtl", "727k", "pems-bay", {"client_batch": 128}),
    ("sl", "63k", "metr-la", {"server_batch": 128, "optimizer_state": "kept", "patience": 50}),
    ("sl-fedavg", "63k", "pems-bay", {"server_batch": 128, "optimizer_state": "kept"}),
    ("at", "63k", "metr-la", {"client_rounds": 1, "server_rounds": 1, "patience": 20}),
    ("at", "63k", "pems-bay", {"client_rounds": 1, "server_rounds": 20, "patience": 20}),
    ("at-fedavg", "63k", "metr-la", {"client_batch": 128, "server_batch": 48, "server_rounds": 1}),
    ("at-fedavg", "63k", "pems-bay", {"server_rounds": 20, "sampling": 1000, "optimizer_state": "fresh"}),
]


@pytest.mark.parametrize(("name", "size", "like", "expected"), ROWS)
def test_published_settings(name: str, size: str, like: Any, expected: dict[str, Any]) -> None:
    config = preset(name, size, like)
    assert {key: getattr(config.training, key) for key in expected} == expected
    assert config.data.missing == "as-truth"
    assert (config.training.client_lr, config.training.server_lr) == (1e-3, 1e-3)


def test_every_published_row_has_a_preset() -> None:
    for like, rows in TEST_RMSE.items():
        for name, size in rows:
            assert check_method(preset(name, size, like)).name == name  # type: ignore[arg-type]


def test_inductive_runs_take_the_server_rounds_of_their_data_and_less_patience() -> None:
    inductive = preset("at-fedavg", like="metr-la", inductive=True).training
    assert (inductive.server_rounds, inductive.patience) == (1, 20)
    assert preset("at-fedavg", like="pems-bay", inductive=True).training.server_rounds == 20
    assert preset("gru-fedavg", like="metr-la", inductive=True).training.patience == 20


def test_other_data_are_masked_and_trained_without_scheduled_sampling() -> None:
    for name in METHODS:
        config = preset(name)
        assert config.data.missing == "masked"
        assert config.training.sampling == 0


def test_the_papers_method_has_an_alias_and_ours_is_the_default() -> None:
    assert preset("cnfgnn").method == "at-fedavg"
    assert preset().method == "cnfgnn-plus"
    assert method_of("centralized").name == "gru-gn-central"


def test_an_unknown_method_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(ConfigError, match="at-fedavg"):
        method_of("cnn")
    with pytest.raises(ConfigError, match="63k"):
        preset("at-fedavg", "727k")
    with pytest.raises(ConfigError, match="pems-bay"):
        preset("at-fedavg", like="mnist")  # type: ignore[arg-type]


def test_settings_a_method_cannot_do_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.embedding"):
        check_method(preset("gru-fedavg").with_changes({"model.embedding": 8}))
    with pytest.raises(ConfigError, match=r"model\.embedding"):
        check_method(preset("at").with_changes({"model.embedding": 0}))
    with pytest.raises(ConfigError, match="optimizer_state"):
        check_method(preset("sl").with_changes({"training.optimizer_state": "fresh"}))
    with pytest.raises(ConfigError, match=r"^model\.personal: must be 0 for cnfgnn-plus; only .*mlp-central"):
        check_method(preset("cnfgnn-plus").with_changes({"model.personal": 2}))
