"""However nodes are put into groups, every method gives the same result."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnfgnn.algorithm.compute import device as compute
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.testing import assert_same, assert_same_bytes, one_epoch, trained
from tests.conftest import FEDERATED

partitions = st.lists(st.integers(0, 3), min_size=6, max_size=6)


@functools.cache
def together(method: str, seen: float = 1.0) -> Experiment:
    return trained(one_epoch(method, **{"training.seen": seen}), None)


def groups_of(labels: list[int]) -> list[list[int]]:
    return [[i for i in range(6) if labels[i] == k] for k in sorted(set(labels))]


@pytest.mark.parametrize("method", FEDERATED)
@settings(max_examples=3, deadline=None)
@given(labels=partitions)
def test_any_partition_into_groups_gives_the_same_result(method: str, labels: list[int]) -> None:
    apart = trained(one_epoch(method), groups_of(labels))
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
    assert_same(expected, trained(one_epoch(method), None))


@pytest.mark.parametrize("method", ["at-fedavg", "gru-fedavg", "sl-fedavg"])
def test_inductive_training_does_not_depend_on_the_groups_either(method: str) -> None:
    apart = trained(one_epoch(method, **{"training.seen": 0.5}), [[0, 1, 2], [3], [4, 5]])
    assert_same(together(method, 0.5), apart)


@pytest.mark.slow
@pytest.mark.parametrize("method", FEDERATED)
def test_the_paper_s_bytes_do_not_depend_on_the_groups(method: str) -> None:
    one, apart = (trained(one_epoch(method), groups) for groups in (None, [[5, 0], [2], [1, 3, 4]]))
    assert_same_bytes(one, apart)
