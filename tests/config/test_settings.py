"""A setting that cannot be is refused by its name."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cnfgnn.algorithm.methods import check_method, preset
from cnfgnn.config.settings import Config
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
        ("model.personal_head", True),
    ],
)
def test_whatever_a_node_model_has_beyond_the_papers_it_has_one_layer(key: str, value: Any) -> None:
    two = {"model.layers": 2, "model.embedding": 0}
    Config().with_changes(two)
    Config().with_changes({key: value})
    shown = str(value).lower()
    with pytest.raises(ConfigError, match=f"^model.layers: .*{key}={shown} has one layer, not 2"):
        Config().with_changes({**two, key: value})


def test_whichever_of_history_and_horizon_is_too_short_is_named() -> None:
    for key in ("history", "horizon"):
        with pytest.raises(ConfigError, match=f"^data.{key}: must be at least 1, not 0$"):
            Windows.of(100, **{key: 0})


def test_what_a_method_cannot_do_is_not_followed_by_values_that_its_setting_does_not_take() -> None:
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
        ("training.client_lr", 0.0, "positive"),
        ("training.client_lr", float("nan"), "number"),
        ("training.seen", 1.5, "(0, 1]"),
        ("data.missing", "dropped", "as-truth, masked"),
        ("data.shares", [0.5, 0.5], "3 numbers"),
        ("compute.precision", "fp8", "bf16"),
        ("model.gn_widths", [], "one or more"),
        ("model.gn_widths", "wide", "list of numbers"),
        ("model.layers", 2, "one layer"),
        ("model.hidden", 70_000, "model.hidden: a width of at most 65536"),
        ("model.embedding", 70_000, "model.embedding: a width of at most 65536"),
        ("model.gn_widths", [8, 70_000], "model.gn_widths: a width of at most 65536 can be meant, not 70000"),
        ("model.calendar", 70_000, "model.calendar: a width of at most 65536"),
        ("model.personal", 70_000, "model.personal: a width of at most 65536"),
        ("method", 3, "a word"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(key: str, value: Any, says: str) -> None:
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
