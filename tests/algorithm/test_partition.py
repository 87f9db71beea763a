"""However nodes are put into groups, every method gives the same result."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cnfgnn.algorithm.compute import device as compute
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.server import Server
from cnfgnn.config.settings import Config
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import train
from tests.conftest import FEDERATED, network, small

DATA = network(seconds=3600)  # nearly a week: something is usual
partitions = st.lists(st.integers(0, 3), min_size=6, max_size=6)


def brief(method: str, **changes: Any) -> Config:
    """Two rounds with one epoch of each side."""
    return small(method, **{"training.client_rounds": 1, "training.server_rounds": 1, **changes})


def trained(config: Config, groups: list[list[int]] | None) -> Experiment:
    experiment = simulate(DATA, config, groups)
    train(experiment)
    return experiment


@functools.cache
def together(method: str, seen: float = 1.0) -> Experiment:
    return trained(brief(method, **{"training.seen": seen}), None)


def assert_same(one: Experiment, other: Experiment) -> None:
    first, second = one.strategy, other.strategy
    assert isinstance(first, Server)
    assert isinstance(second, Server)
    theta = zip(first.everyone.weights().items(), second.everyone.weights().values(), strict=True)
    for (name, expected), actual in theta:
        torch.testing.assert_close(
            actual, expected, rtol=0, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}"
        )
    if first.gn is not None:
        assert second.gn is not None
        for expected, actual in zip(first.gn.gn.parameters(), second.gn.gn.parameters(), strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(second.score("test").told, first.score("test").told, rtol=1e-8, atol=1e-7)


def groups_of(labels: list[int]) -> list[list[int]]:
    return [[i for i in range(6) if labels[i] == k] for k in sorted(set(labels))]


@pytest.mark.parametrize("method", FEDERATED)
@settings(max_examples=3, deadline=None)
@given(labels=partitions)
def test_any_partition_into_groups_gives_the_same_result(method: str, labels: list[int]) -> None:
    apart = trained(brief(method), groups_of(labels))
    assert_same(together(method), apart)


@pytest.mark.slow
@pytest.mark.parametrize("sequences", [1, 130])
@pytest.mark.parametrize("method", FEDERATED)
def test_it_makes_no_difference_how_many_nodes_are_computed_at_once(
    method: str, sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = together(method)
    monkeypatch.setitem(
        compute.SEQUENCES_AT_ONCE, "cpu", sequences
    )  # one node; four, and the two that are left
    assert_same(expected, trained(brief(method), None))


@pytest.mark.parametrize("method", ["at-fedavg", "gru-fedavg", "sl-fedavg"])
def test_inductive_training_does_not_depend_on_the_groups_either(method: str) -> None:
    apart = trained(brief(method, **{"training.seen": 0.5}), [[0, 1, 2], [3], [4, 5]])
    assert_same(together(method, 0.5), apart)


@pytest.mark.slow
@pytest.mark.parametrize("method", FEDERATED)
def test_the_paper_s_bytes_do_not_depend_on_the_groups(method: str) -> None:
    one, apart = (trained(brief(method), groups) for groups in (None, [[5, 0], [2], [1, 3, 4]]))
    whole, parts = one.ledger.total("training"), apart.ledger.total("training")
    assert whole.per_node == parts.per_node
    assert whole.per_site <= parts.per_site <= parts.per_node
