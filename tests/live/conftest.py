"""One small run for all tests of the live service, and a service of it for each module that needs one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cnfgnn.live.options import FEED, LiveSettings
from cnfgnn.live.start import LiveProcess
from tests.live.small_service import Client, SmallRun, make_small_run, serving
from tests.waiting import wait_for


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return make_small_run(tmp_path_factory.mktemp("live"))


@pytest.fixture(scope="module")
def settings(small_run: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> LiveSettings:
    state = tmp_path_factory.mktemp("services") / "state"
    return LiveSettings(data=small_run.folder, state=state, clock=FEED, deadline=1, speed=100)


@pytest.fixture(scope="module")
def served(small_run: SmallRun, settings: LiveSettings) -> Iterator[tuple[LiveProcess, Client]]:
    with serving(small_run.run, settings) as (process, client):
        wait_for(lambda: client.get("/forecasts").status == 200, "the first forecast")
        yield process, client


@pytest.fixture
def client(served: tuple[LiveProcess, Client]) -> Client:
    return served[1]
