"""One small run for all tests of the live service."""

from __future__ import annotations

import pytest

from tests.live.small_service import SmallRun, make_small_run


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return make_small_run(tmp_path_factory.mktemp("live"))
