"""States are whole or not there, and old ones make room."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cnfgnn.errors import DataError
from cnfgnn.runs import FolderStore, MemoryStore, round_tag


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore | FolderStore:
    return MemoryStore() if request.param == "memory" else FolderStore(tmp_path / "states")


def test_what_was_written_comes_back_to_the_bit(store: MemoryStore | FolderStore) -> None:
    state = {"w": torch.randn(3, 4).double(), "steps": torch.tensor(5)}
    store.write("best", state)
    read = store.read("best")
    assert read.keys() == state.keys()
    assert all(torch.equal(read[name], state[name]) for name in state)


def test_a_state_does_not_change_with_the_tensors_it_was_made_from(store: MemoryStore | FolderStore) -> None:
    w = torch.zeros(2)
    store.write("best", {"w": w})
    w += 1
    store.read("best")["w"].add_(1)
    assert store.read("best")["w"].tolist() == [0.0, 0.0]


def test_the_last_two_rounds_and_the_best_are_kept(store: MemoryStore | FolderStore) -> None:
    store.write("best", {"w": torch.zeros(1)})
    for r_g in range(1, 13):
        store.write(round_tag(r_g), {"w": torch.tensor([float(r_g)])})
    assert store.read(round_tag(12))["w"] == 12
    assert store.read(round_tag(11))["w"] == 11
    assert store.read("best")["w"] == 0
    with pytest.raises(DataError, match="no"):
        store.read(round_tag(10))


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.write("best", {"w": torch.zeros(100)})
    path = tmp_path / "best.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"best\.safetensors.*damaged"):
        store.read("best")


def test_nothing_half_written_is_left_where_a_state_belongs(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.write("best", {"w": torch.zeros(2)})
    (tmp_path / "best.partial").mkdir()  # the place for writing aside cannot be used
    with pytest.raises(DataError, match="cannot be written"):
        store.write("best", {"w": torch.ones(2)})
    assert store.read("best")["w"].tolist() == [0.0, 0.0]
