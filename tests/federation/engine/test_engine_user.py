"""Whom a site's engine becomes: another user if that one can use its files, and otherwise the site's own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cnfgnn.federation.engine import client
from cnfgnn.federation.engine.confine import Confinement, Limits

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
NOBODY = 65534


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that everybody can enter, and programs that everybody can read."""
    monkeypatch.setattr(client, "python_paths", lambda: ("/usr",))
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        (Path(folder) / "engine").mkdir(mode=0o700)
        yield Path(folder)


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> list[Limits]:
    """The limits that a process is about to be confined to, which cannot be undone for this one."""
    found: list[Limits] = []

    def confine(limits: Limits) -> Confinement:
        found.append(limits)
        return Confinement(7, str(limits.user), bool(limits.user), True, True, True)

    monkeypatch.setattr(client, "confine", confine)
    return found


def started(kit: Path) -> dict[str, object]:
    client.write_workspace(kit / "engine", {"startup/client.key": "secret"})
    return client.confine_to(kit / "engine", {"user": "nobody", "server_port": 1, "own_port": 2})


def owners(kit: Path) -> set[int]:
    return {path.stat().st_uid for path in [kit / "engine", *(kit / "engine").rglob("*")]}


def test_an_engine_that_root_starts_becomes_another_user(kit: Path, wanted: list[Limits]) -> None:
    assert "user_problem" not in started(kit)
    assert wanted[0].user == "nobody"
    assert owners(kit) == {NOBODY}


def test_a_kit_that_the_other_user_cannot_enter_is_named_and_the_engine_starts(
    kit: Path, wanted: list[Limits]
) -> None:
    started(kit)
    kit.chmod(0o700)  # also for one that had another user before
    problem = f"user nobody cannot read {kit / 'engine'} (it cannot enter {kit})"
    assert started(kit)["user_problem"] == problem
    assert wanted[1].user is None
    assert owners(kit) == {0}
