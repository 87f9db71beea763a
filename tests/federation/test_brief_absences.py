"""A site that is away for a moment in the middle of an evaluation or a forecast."""

from __future__ import annotations

import threading
from pathlib import Path

import pandas as pd
import pytest

from cnfgnn.data.dataset import Dataset
from cnfgnn.transports.remote.messages import Unreachable, unpack
from tests.conftest import network, small
from tests.federation.in_memory_federation import SITES, InMemoryFederation, must_finish

AWAY = "north"


class AwayForAMoment(InMemoryFederation):
    """`AWAY` cannot be reached when hidden states are asked for, and is back before the others have sent
    theirs; so it does not get the embeddings that are made from them."""

    def __init__(self, folder: Path, data: Dataset) -> None:
        super().__init__(folder, data)
        self.leave()
        self.away = False

    def leave(self) -> None:
        self.away, self.left, self.hellos = True, threading.Event(), threading.Semaphore(0)

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        note = unpack(request)
        if site == AWAY and note.kind == "hello" and self.left.is_set():
            self.hellos.release()
        if self.away and b'"encode"' in bytes(note.payload):
            if site == AWAY:
                self.left.set()
                raise Unreachable("away for a moment")
            assert self.left.wait(60)
            if site == next(name for name in SITES if name != AWAY):
                assert self.hellos.acquire(timeout=60)
                assert self.hellos.acquire(timeout=60)  # the first one has been noted by now
                self.away = False
        return super().ask(site, request, timeout)


@pytest.fixture
def sites(tmp_path: Path) -> AwayForAMoment:
    found = AwayForAMoment(tmp_path, network(dropout=0))
    must_finish(found.train(small("at-fedavg", **{"training.rounds": 1})))
    return found


def test_an_evaluation_gives_the_errors_that_it_gives_with_all_sites(sites: AwayForAMoment) -> None:
    expected = sites.evaluate()["result"]["scores"]
    sites.leave()
    found = sites.evaluate()
    assert not sites.away
    assert found["result"]["absent"] == []
    assert found["result"]["scores"] == expected


def test_a_forecast_is_the_one_with_all_sites(sites: AwayForAMoment) -> None:
    must_finish(sites.forecast())
    expected = {name: sites.latest(name) for name in SITES}
    sites.leave()
    assert sites.forecast()["result"]["sites"] == list(SITES)
    assert not sites.away
    for name, frame in expected.items():
        assert frame is not None
        pd.testing.assert_frame_equal(sites.latest(name), frame)
