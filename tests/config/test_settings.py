"""Settings are declared once, and an invalid value is refused with the name of its setting."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cnfgnn.algorithm.methods import check_method, preset
from cnfgnn.config.settings import SETTINGS, Config, settings_table
from cnfgnn.data.windows import Windows
from cnfgnn.errors import ConfigError


def test_changes_reach_their_section() -> None:
    config = Config().with_changes(
        {"training.rounds": 3, "seed": 7, "training.client_lr": 1, "model.gn_widths": [8, 4]}
    )
    assert (config.training.rounds, config.seed, config.model.gn_widths) == (3, 7, (8, 4))
    assert isinstance(config.training.client_lr, float)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.encoder", "perceptron"),
        ("model.decoder", "direct"),
        ("model.change", True),
        ("model.gaps", True),
        ("model.profile", True),
        ("model.calendar", 3),
        ("model.personal", 3),
    ],
)
def test_an_extended_node_model_has_one_layer(key: str, value: Any) -> None:
    two = {"model.layers": 2, "model.embedding": 0}
    Config().with_changes(two)
    Config().with_changes({key: value})
    shown = str(value).lower()
    with pytest.raises(ConfigError, match=f"^model.layers: .*{key}={shown} has one layer, not 2"):
        Config().with_changes({**two, key: value})


def test_a_history_or_horizon_that_is_too_short_is_named() -> None:
    for key in ("history", "horizon"):
        with pytest.raises(ConfigError, match=f"^data.{key}: must be at least 1, not 0$"):
            Windows.of(100, **{key: 0})


def test_an_unsupported_setting_is_refused_with_valid_values_only_if_there_are_any() -> None:
    with pytest.raises(ConfigError) as seen:
        check_method(preset("at").with_changes({"training.seen": 0.5}))
    assert str(seen.value).startswith("training.seen: must be 1 for at,")
    assert "valid" not in str(seen.value)
    with pytest.raises(ConfigError, match=r"^training.optimizer_state: .* \(valid: kept\)$"):
        check_method(preset("sl").with_changes({"training.optimizer_state": "fresh"}))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("training.round", 3, "rounds"),
        ("train.rounds", 3, "training"),
        ("training", 3, "training.rounds"),
        ("seed.x", 3, "not a section"),
        ("training.rounds", 0, "at least 1"),
        ("training.rounds", 2.5, "whole number"),
        ("training.rounds", "three", "whole number"),
        ("training.rounds", True, "whole number"),
        ("training.client_lr", 0.0, "greater than 0"),
        ("training.client_lr", float("nan"), "number"),
        ("training.seen", 1.5, "at most 1"),
        ("data.missing", "dropped", "as-truth, masked"),
        ("data.shares", [0.5, 0.5], "3 numbers"),
        ("compute.precision", "fp8", "bf16"),
        ("model.gn_widths", [], "at least one"),
        ("model.gn_widths", "wide", "list of numbers"),
        ("model.layers", 2, "one layer"),
        ("model.hidden", 70_000, "model.hidden: must be at most 65536"),
        ("model.embedding", 70_000, "model.embedding: must be at most 65536"),
        ("model.gn_widths", [8, 70_000], "model.gn_widths: must be at most 65536, not 70000"),
        ("model.calendar", 70_000, "model.calendar: must be at most 65536"),
        ("model.personal", 70_000, "model.personal: must be at most 65536"),
        ("method", 3, "takes text"),
    ],
)
def test_an_invalid_value_is_refused_with_a_sentence(key: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Config().with_changes({key: value})
    assert key in str(refusal.value)
    assert says in str(refusal.value)
    assert refusal.value.exit_code == 2


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(
            ["seed", "training.rounds", "data.shares", "model.hidden", "graph.direction", "x.y", ""]
        ),
        st.one_of(
            st.integers(), st.floats(), st.text(max_size=5), st.lists(st.floats(), max_size=4), st.none()
        ),
    )
)
def test_any_change_gives_a_configuration_or_a_config_error(changes: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(Config().with_changes(changes), Config)


def test_every_setting_is_declared_with_a_sentence_and_a_default_in_range() -> None:
    names = [setting.key for setting in settings_table(include_hidden=True)]
    config = Config().as_dict()
    sections = {key: value for key, value in config.items() if isinstance(value, dict)}
    nested = [f"{section}.{name}" for section, values in sections.items() for name in values]
    assert names == [*(key for key in config if key not in sections), *nested]
    for setting in settings_table(include_hidden=True):
        assert setting.help.endswith("."), setting.key
        assert setting.read(setting.default) == setting.default
        assert setting.type_name
        setting.check(setting.default)


def test_studies_of_deviations_are_hidden_but_can_be_set() -> None:
    hidden = {setting.key for setting in settings_table(True)} - {setting.key for setting in settings_table()}
    assert hidden == {
        "graph.direction",
        "model.global_input",
        "training.optimizer_state",
        "training.fmtl_norm",
    }
    assert Config().with_changes({"graph.direction": "paper"}).graph.direction == "paper"


@pytest.mark.parametrize(
    ("key", "accepted", "refused"),
    [
        ("model.hidden", [1, 65536], [0, 65537, True, 1.0, "1", None]),
        ("model.layers", [1, 100], [0, 101]),
        ("seed", [0, 2**63 - 1], [-1, 2**63, False]),
        ("training.client_batch", [1, 2**63 - 1], [0, 2**63]),
        ("training.client_lr", [1e-3, 1], [0.0, -1.0, float("nan"), float("inf"), True, 10**400]),
        ("training.sampling", [0.0, 0, 1000.0], [-1.0, float("nan")]),
        ("training.wire", ["full", "int8"], ["int4", ["full"], 8]),
        ("model.profile", [True, False], [0, 1, "true"]),
        ("model.gn_widths", [], [[1], (1,), 1]),
    ],
)
def test_a_site_accepts_only_the_declared_type_and_range(
    key: str, accepted: list[object], refused: list[object]
) -> None:
    assert all(SETTINGS[key].accepts(value) for value in accepted)
    assert not any(SETTINGS[key].accepts(value) for value in refused)
