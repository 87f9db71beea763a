"""A site resumes from the newest state that it has, and its states are private."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from cnfgnn.algorithm.store import SiteMemoryStore
from cnfgnn.federation.site.store import SiteStore


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_a_missing_state_is_replaced_by_the_latest_earlier_one(kind: str, tmp_path: Path) -> None:
    store = SiteMemoryStore() if kind == "memory" else SiteStore(tmp_path, "run")
    assert store.read("round-00001") == {}
    tags = ["round-00001", "round-00002-phase-1", "round-00002-phase-3", "round-00002"]
    for k, tag in enumerate(tags[:3]):
        store.write(tag, {"w": torch.tensor([float(k)])}, tags)
    assert store.read("round-00002")["w"].item() == 2.0  # the third phase of the round, not the round before
    assert store.read("round-00002-phase-1")["w"].item() == 1.0
    assert store.read("round-00001")["w"].item() == 0.0
    store.write("round-00002", {"w": torch.tensor([3.0])}, tags)
    assert store.read("round-00003-phase-1")["w"].item() == 3.0


def test_states_are_readable_by_their_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Path, "chmod")  # not even for a moment by others
    store = SiteStore(tmp_path, "run")
    store.write("round-00001", {"w": torch.zeros(1)}, ())
    for path in (store.folder, store.folder.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in store.folder.iterdir())
