"""A run continues with the readings that it began with, and with no others."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable, Iterator

import pandas as pd
import pytest

from cnfgnn.federation.server.status import STATUS
from cnfgnn.federation.site.store import JOINED, STATES
from tests.conftest import network, small
from tests.federation.in_memory_federation import SITES, InMemoryFederation, must_finish
from tests.waiting import wait_for

MANY = {"training.rounds": 1000, "training.patience": 1000, "training.client_rounds": 1}
REFUSED = "its readings have changed since it joined this run"
SHORTER = 10  # rows that west does not have yet when training begins


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> InMemoryFederation:
    """A federation whose training was stopped after its first rounds."""
    sites = InMemoryFederation(tmp_path_factory.mktemp("sites"), network(dropout=0))
    sites.write("west", sites.readings("west").iloc[:-SHORTER])
    sites.stop_after(1)
    status = sites.train(small("gru-fedavg", **MANY))
    assert status["state"] == "stopped", status["problem"]
    return sites


@pytest.fixture
def sites(begun: InMemoryFederation) -> Iterator[InMemoryFederation]:
    before = {name: begun.readings(name) for name in SITES}
    begun.stop_after(1)
    yield begun
    for name, frame in before.items():
        begun.write(name, frame)


def appended(frame: pd.DataFrame, rows: int) -> pd.DataFrame:
    step = frame.index[1] - frame.index[0]
    newer = frame.iloc[-rows:]
    return pd.concat([frame, newer.set_index(newer.index + rows * step)])


@pytest.mark.parametrize(
    "changed",
    [
        lambda frame: frame * 10,
        lambda frame: frame.iloc[-40:],
        lambda frame: frame.set_index(frame.index + pd.Timedelta(seconds=300)),
    ],
    ids=["ten times as large", "most rows gone", "a step later"],
)
def test_a_site_with_changed_readings_is_refused_by_name_when_training_resumes(
    sites: InMemoryFederation,
    changed: Callable[[pd.DataFrame], pd.DataFrame],
    caplog: pytest.LogCaptureFixture,
) -> None:
    sites.write("west", changed(sites.readings("west")))
    status = sites.resume()
    assert (status["state"], status["exit_code"]) == ("failed", 3)
    assert "site 'west'" in status["problem"]
    assert REFUSED in status["problem"]
    [line] = [record.message for record in caplog.records if "have changed since this site" in record.message]
    assert "west/readings.csv" in line  # the owner's log says which file; the server is not told
    assert "readings.csv" not in status["problem"]
    must_finish(sites.forecast())  # a forecast uses new and corrected readings


def test_readings_far_outside_of_the_trainings_range_warn_the_owner_only(
    sites: InMemoryFederation, caplog: pytest.LogCaptureFixture
) -> None:
    own = sites.readings("south")
    odd = own.copy()
    odd.iloc[-12:, 1] = 54321.25  # too many in a row to be treated as outliers
    sites.write("south", odd)
    status = must_finish(sites.forecast())
    [line] = [record.message for record in caplog.records if "far outside" in record.message]
    assert line.startswith(f"sensor {own.columns[1]}: the newest readings lie far outside those of training")
    assert "54321.2" not in (sites.server / STATUS).read_text()
    assert not [line for line in status["warnings"] if own.columns[1] in line]
    sites.write("south", own)
    caplog.clear()
    sites.forecast()
    assert not [record for record in caplog.records if "far outside" in record.message]


def test_newer_rows_are_accepted_and_the_run_does_not_use_them(sites: InMemoryFederation) -> None:
    sites.write("north", appended(sites.readings("north"), 20))
    sites.write(
        "west", appended(sites.readings("west"), 2 * SHORTER)
    )  # some at steps where other sites had readings
    status = sites.resume()
    assert status["state"] == "stopped", status["problem"]
    west = sites.ends["west"].owner
    assert west is not None
    assert west.nodes.series.missing[:, -SHORTER:].all()


@pytest.mark.slow
def test_a_site_that_rejoins_with_changed_readings_is_left_out_until_they_are_restored(
    sites: InMemoryFederation,
) -> None:
    right = sites.readings("west")
    end = threading.Event()
    sites.stop = end.is_set
    worker = threading.Thread(target=sites.resume, daemon=True)
    worker.start()
    try:
        wait_for(lambda: _site(sites).get("present", False), "west takes part")
        sites.write("west", right * 10)
        sites.restart("west")
        wait_for(lambda: REFUSED in _site(sites).get("problem", ""), "west is refused")
        wait_for(lambda: not _site(sites)["reachable"], "west gets no more requests")
        now = sites.status["round"]
        wait_for(lambda: sites.status["round"] > now, "the others continue")
        assert not _site(sites)["present"]
        sites.write("west", right)
        sites.restart("west")
        wait_for(lambda: _site(sites)["present"], "west rejoins")
    finally:
        end.set()
        worker.join(60)
    assert sites.status["state"] == "stopped", sites.status["problem"]


def _site(sites: InMemoryFederation) -> dict[str, object]:
    return (
        dict((sites.status.get("sites") or {}).get("west", {}))
        if sites.status.get("state") == "running"
        else {}
    )


def test_the_record_of_a_sites_readings_stays_at_the_site(begun: InMemoryFederation) -> None:
    for name in SITES:
        [file] = (begun.kits[name] / STATES).glob(f"one-*/{JOINED}")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list(begun.server.rglob(JOINED))
