"""Nodes are told the settings that are declared as told, and sites accept nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from cnfgnn.algorithm.messages.number_rules import number_fields, read_numbers, write_numbers
from cnfgnn.algorithm.messages.settings import NodeSettings
from cnfgnn.algorithm.methods import METHODS, preset
from cnfgnn.config.settings import Config, settings_table

# The names of the numbers that `prepare` carries: they do not change from version to version.
ON_THE_WIRE = {
    "seed",
    "hidden",
    "layers",
    "embedding",
    "client_batch",
    "server_batch",
    "client_lr",
    "keep_optimizer",
    "sampling",
    "missing",
    "keeping",
    "variables",
    "covariates",
    "wire",
    "encoder",
    "decoder",
    "change",
    "linear",
    "levels",
    "gaps",
    "profile",
    "calendar",
    "personal",
    "sent",
    "loss",
    "decay_rounds",
}


@pytest.mark.parametrize("method", METHODS)
def test_settings_survive_the_way_to_a_node(method: str) -> None:
    settings = NodeSettings.of(preset(method, like="metr-la"), "bf16")
    numbers = write_numbers(settings)
    assert read_numbers(NodeSettings, numbers) == settings
    assert numbers.keys() == number_fields(NodeSettings, numbers).keys() == ON_THE_WIRE


def test_a_setting_that_is_sent_reaches_the_node_and_others_do_not() -> None:
    changes: dict[str, Any] = {
        "seed": 5,
        "data.missing": "as-truth",
        "model.hidden": 3,
        "model.gn_widths": [7],
        "training.wire": "bf16",
        "training.server_lr": 0.5,
        "training.schedule": "cosine",
        "training.rounds": 4,
        "training.optimizer_state": "kept",
    }
    settings = NodeSettings.of(Config().with_changes(changes))
    assert (settings.seed, settings.model.hidden) == (5, 3)
    assert (settings.missing, settings.wire) == ("as-truth", "bf16")
    assert (settings.decay_rounds, settings.keep_optimizer) == (4, True)
    assert settings.model.gn_widths == Config().model.gn_widths
    sent = {setting.name for setting in settings_table(include_hidden=True) if setting.sent_to_nodes}
    assert sent | {"keep_optimizer", "decay_rounds", "keeping", "variables", "covariates"} == ON_THE_WIRE


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("keep_optimizer", 1),
        ("decay_rounds", -1),
        ("decay_rounds", True),
        ("keeping", "half"),
        ("variables", 65),
        ("hidden", 0),
    ],
)
def test_a_site_refuses_what_cannot_be(name: str, wrong: object) -> None:
    assert not number_fields(NodeSettings)[name].accepts(wrong)
