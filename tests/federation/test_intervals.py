"""Sites write intervals beside their forecasts, from their own errors; nothing of them reaches the server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cnfgnn.federation.site.owner import EVALUATIONS, SiteOwner
from cnfgnn.federation.site.status import read_site_status
from cnfgnn.federation.site.store import INTERVALS, OWNER, STATES
from cnfgnn.federation.task import Task
from cnfgnn.forecasters.intervals import Intervals
from tests.conftest import network, small
from tests.federation.in_memory_federation import SITES, InMemoryFederation, must_finish

LONGER = network(rows=174)  # half an hour, two hours later


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> InMemoryFederation:
    made = InMemoryFederation(tmp_path_factory.mktemp("intervals"), network(rows=150), blur=2.0)
    made.set("south", tell_errors=True)
    must_finish(made.train(small("cnfgnn-private", **{"training.rounds": 1})))
    return made


def forecast(sites: InMemoryFederation, *levels: int) -> None:
    must_finish(sites.run_task(Task("forecast", "one", intervals=levels, wait=20.0)))


def kept(sites: InMemoryFederation, name: str) -> Intervals:
    """The intervals as the site keeps them for its next forecast, in a file that only its owner can read."""
    folder: Path
    [folder] = (sites.kits[name] / STATES).glob(f"*/{OWNER}/{INTERVALS}")
    [file] = folder.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    owner = sites.ends[name].owner
    assert isinstance(owner, SiteOwner)
    return Intervals.of(owner.own_store.read_intervals(file.stem))


def with_rows(sites: InMemoryFederation, rows: int) -> None:
    """Each site gets newer readings, up to this many rows."""
    r = LONGER.readings
    index = pd.DatetimeIndex(r.times[:rows], name="time")
    for name, group in SITES.items():
        columns = [r.ids[row] for row in group]
        old = sites.readings(name)
        index = index.tz_localize(old.index.tz) if index.tz is None and old.index.tz else index
        new = pd.DataFrame(r.values[:rows, list(group)], index=index, columns=columns)
        sites.write(name, pd.concat([old, new[len(old) :]]))


def test_each_site_judges_its_own_intervals_and_the_server_learns_nothing_of_them(
    sites: InMemoryFederation,
) -> None:
    result = sites.evaluate()["result"]
    assert result["scores"]["intervals"] is None
    assert "coverage" not in json.dumps(dict(sites.status))
    for name in SITES:
        [file] = (sites.kits[name] / EVALUATIONS).glob("*-test.json")
        found = json.loads(file.read_text())["intervals"]
        assert 0 < found["80"]["overall"]["coverage"] <= found["95"]["overall"]["coverage"] <= 1
        assert len(found["80"]["per_node"]) == len(SITES[name])


@pytest.mark.slow
def test_a_site_writes_bounds_and_goes_on_from_there_when_readings_have_come(
    sites: InMemoryFederation,
) -> None:
    forecast(sites)
    plain = sites.latest("west")
    forecast(sites, 80, 95)
    first = sites.latest("west")
    assert plain is not None
    assert first is not None
    assert list(first.columns[: len(plain.columns)]) == list(plain.columns)
    assert first[plain.columns].equals(plain)
    sensor = plain.columns[0]
    assert list(first.columns[3:7]) == [
        f"{sensor} {side} {level}" for level in (80, 95) for side in ("low", "high")
    ]
    assert (first[f"{sensor} low 95"] <= first[f"{sensor} low 80"]).all()
    assert (first[f"{sensor} low 80"] <= first[f"{sensor} high 80"]).all()

    before = kept(sites, "west")
    again = sites.latest("west")
    forecast(sites, 80, 95)  # the same moment once more: nothing new is known
    assert sites.latest("west").equals(again)  # type: ignore[union-attr]
    assert np.array_equal(kept(sites, "west").reach, before.reach)

    with_rows(sites, 156)
    forecast(sites, 80, 95)
    after = kept(sites, "west")
    assert before.row is not None
    assert after.row == before.row + 6
    moved = (after.reach != before.reach).any(axis=(1, 2))  # (t n)
    assert moved.any()
    expected = Intervals.of(before.state())  # the errors of the earlier forecast, and no others
    expected.renumber(149 - before.row)
    r, rows = LONGER.readings, list(SITES["west"])
    expected.catch_up(155, r.values[:156, rows].T.astype(float), ~r.missing[:156, rows].T)
    assert after.reach == pytest.approx(expected.reach)


def test_the_server_does_not_notice_that_intervals_failed(
    sites: InMemoryFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sites.evaluate()["result"]

    def fails(*arguments: object) -> None:
        raise ValueError("-12.5 is a reading")

    monkeypatch.setattr(Intervals, "follow", fails)
    status = sites.evaluate()
    assert status["result"] == expected  # what the owner of south tells is among it
    assert "-12.5" in read_site_status(sites.kits["south"])["problems"][-1]["problem"]
    assert "-12.5" not in json.dumps(dict(status))
