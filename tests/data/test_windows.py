"""Windows: the published counts, the split in time, which of them a node can use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnfgnn.data.windows import SPLITS, Windows, heard_windows
from cnfgnn.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("rows", "counts"),
    [(34272, (23974, 3425, 6850)), (52116, (36465, 5209, 10419))],
    ids=["metr-la", "pems-bay"],
)
def test_counts_of_the_papers_table_1(rows, counts):
    windows = Windows.of(rows)
    assert tuple(windows.count(split) for split in SPLITS) == counts


@given(rows=st.integers(2, 400), history=st.integers(1, 20), horizon=st.integers(1, 20))
def test_splits_follow_each_other_and_use_every_window_once(rows, history, horizon):
    try:
        windows = Windows.of(rows, history, horizon)
    except DataError:
        assert rows < history + horizon
        return
    starts = np.concatenate([windows.starts[split] for split in SPLITS])
    assert starts.tolist() == list(range(rows - history - horizon + 1))
    assert starts[-1] + windows.length == rows


def test_shares_can_leave_a_split_empty():
    windows = Windows.of(33, shares=(0.5, 0.5, 0.0))
    assert [windows.count(split) for split in SPLITS] == [5, 5, 0]


@pytest.mark.parametrize(
    "settings", [{"history": 0}, {"horizon": 0}, {"shares": (0.5, 0.1, 0.1)}, {"shares": (1.5, -0.5, 0.0)}]
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigError):
        Windows.of(100, **settings)


def test_too_few_rows_are_told():
    with pytest.raises(DataError, match=r"x.csv: 23 rows leave no training windows of 12 \+ 12 steps"):
        Windows.of(23, source="x.csv")
    assert Windows.of(24).count("train") == 1


def test_only_keeps_the_chosen_windows():
    windows = Windows.of(33)
    kept = {split: windows.starts[split] % 2 == 0 for split in SPLITS}
    assert [windows.only(kept).starts[split].tolist() for split in SPLITS] == [[0, 2, 4, 6], [], [8]]
    assert windows.only(kept).length == 24


@given(
    observed=st.lists(st.booleans(), min_size=8, max_size=25),
    history=st.integers(1, 4),
    horizon=st.integers(1, 4),
)
def test_a_node_is_heard_in_the_windows_with_an_observed_input(observed, history, horizon):
    starts = np.arange(len(observed) - history - horizon + 1)
    slow = [any(observed[start : start + history]) for start in starts]
    found = heard_windows(np.array([observed]), starts, Windows({}, history, horizon))
    assert found[0].tolist() == slow
