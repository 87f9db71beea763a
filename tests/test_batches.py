"""Minibatches are as large as the settings say, or the settings are refused."""

from __future__ import annotations

import pytest

from cnfgnn.errors import ConfigError
from cnfgnn.simulation import simulate
from tests.conftest import network, small


@pytest.mark.parametrize(
    ("method", "key"),
    [
        ("at-fedavg", "training.client_batch"),
        ("at-fedavg", "training.server_batch"),
        ("sl", "training.server_batch"),
        ("gru-fedavg", "training.client_batch"),
        ("gru-central", "training.client_batch"),
    ],
)
def test_a_minibatch_larger_than_the_data_is_refused_with_the_largest_that_can_be(
    method: str, key: str
) -> None:
    data = network(dropout=0.0)  # 89 training windows
    assert simulate(data, small(method, **{key: 89})).windows.count("train") == 89
    with pytest.raises(ConfigError) as told:
        simulate(data, small(method, **{key: 90}))
    assert str(told.value) == f"{key}: minibatches of 90 need more than the 89 training windows: at most 89"
    assert told.value.exit_code == 2


def test_a_minibatch_that_a_method_does_not_draw_may_have_any_size() -> None:
    data = network(dropout=0.0)
    for method, unused in (("sl", "training.client_batch"), ("gru-fedavg", "training.server_batch")):
        assert simulate(data, small(method, **{unused: 90})).windows.count("train") == 89
