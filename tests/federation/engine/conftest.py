"""What tests of the engine's components share."""

from __future__ import annotations

import pytest

from cnfgnn.federation.engine.guard import message_checks, site_commands, site_reports


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The guards that components install: their names, as they would also guard a test's own sessions."""
    names: list[str] = []
    for module in (message_checks, site_commands, site_reports):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(module, "install", lambda name=name: names.append(name))
    return names
