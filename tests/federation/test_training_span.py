"""Which time steps a training uses when one site has rows far from those of the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cnfgnn.errors import RunError
from cnfgnn.federation.operator.check import check_site
from cnfgnn.federation.site.readings import isolated_rows
from cnfgnn.federation.spans import Span, age_if_old, training_span
from cnfgnn.runs.folder import Run
from tests.conftest import network, small
from tests.federation.in_memory_federation import SITES, InMemoryFederation, ending, must_finish, with_row

MONTH = 30 * 288  # steps


@pytest.fixture
def sites(tmp_path: Path) -> InMemoryFederation:
    return InMemoryFederation(tmp_path, network(dropout=0))


def checked(kit: Path) -> list[str]:
    """What `check` prints about the readings; its last check, the connection to the server, fails here."""
    lines: list[str] = []
    with pytest.raises(RunError, match="cannot be reached"):
        lines.extend(check_site(kit))
    return lines


@pytest.mark.parametrize("steps", [-MONTH, MONTH])
def test_an_isolated_row_a_month_from_the_rest_is_ignored_and_its_site_is_named(
    sites: InMemoryFederation, steps: int
) -> None:
    own = sites.readings("west")
    before = checked(sites.kits["west"])
    assert not [line for line in before if line.startswith("warning: 1 row")]
    sites.write("west", with_row(own, steps))
    status = must_finish(sites.train(small("gru-fedavg", **{"training.rounds": 1})))
    assert any(line.startswith("site west ignores 1 row") for line in status["warnings"])
    run = Run.open(sites.server / "runs" / "one")
    assert run.data.rows == len(own)
    assert run.data.federation.first == int(own.index[0].timestamp())
    odd = own.index[0 if steps < 0 else -1] + steps * pd.Timedelta(seconds=300)
    [warning] = [line for line in checked(sites.kits["west"]) if line.startswith("warning: 1 row")]
    assert odd.strftime("%Y-%m-%dT%H:%M") in warning


def test_a_site_with_few_readings_from_another_year_is_named_and_the_others_train(
    sites: InMemoryFederation,
) -> None:
    own = sites.readings("south")
    sites.write("south", own.iloc[:120].set_index(own.index[:120] - pd.Timedelta(days=365)))
    status = must_finish(sites.train(small("gru-fedavg", **{"training.rounds": 1})))
    [warning] = [line for line in status["warnings"] if "site south" in line and "are not used" in line]
    assert "2023-01-01" in warning
    assert Run.open(sites.server / "runs" / "one").data.rows == len(own)


def test_a_long_dense_history_at_one_site_extends_the_span_and_a_sparse_one_does_not() -> None:
    def span(first: int, rows: int, measured: int) -> Span:
        return Span(first * 300, (first + rows - 1) * 300, 300, True, measured=measured)

    others = {"a": span(9000, 1000, 900), "b": span(9100, 950, 950)}
    whole, warnings = training_span({**others, "c": span(0, 10_000, 8000)})
    assert (whole.first, whole.rows, warnings) == (0, 10_050, [])
    whole, [warning] = training_span({**others, "c": span(0, 10_000, 1500)})
    assert (whole.first, whole.rows) == (9000 * 300, 1050)
    assert warning.startswith("site c")
    whole, warnings = training_span({"c": span(0, 10_000, 1500)})  # there is no other site to compare with
    assert (whole.rows, warnings) == (10_000, [])
    whole, warnings = training_span({"a": span(0, 300, 300), "b": span(100_000, 200, 200)})
    assert (whole.first, len(warnings)) == (0, 1)  # the one with more readings counts


@pytest.mark.parametrize(
    ("rows", "isolated"),
    [
        ([0, *range(9000, 9500)], [0]),
        ([*range(500), 9000, 20_000], [500, 501]),
        ([0, 4000, *range(9000, 9500), 40_000], [0, 1, 502]),
        ([*range(500), *range(600, 1100)], []),  # an outage
        ([*range(150), *range(9000, 9500)], []),  # enough to learn from
        ([*range(500), 520], []),  # not far
        ([7], []),
    ],
)
def test_which_rows_are_isolated(rows: list[int], isolated: list[int]) -> None:
    assert np.flatnonzero(isolated_rows(np.array(rows))).tolist() == isolated


def test_old_readings_are_used_and_their_sites_are_named(sites: InMemoryFederation) -> None:
    now = pd.Timestamp.now(tz="UTC").floor("300s")
    for name in SITES:
        newest = now - pd.Timedelta(days=3 if name == "west" else 0)
        sites.write(name, ending(sites.readings(name), newest))
    status = must_finish(sites.train(small("gru-fedavg", **{"training.rounds": 1})))
    old = [line for line in status["warnings"] if line.endswith(" old")]
    assert old == ["the newest reading of site west is 3 days old"]
    status = must_finish(sites.forecast())
    assert "the newest reading of site west is 3 days old" in status["warnings"]
    assert status["result"]["without"] == {}
    assert any(line.startswith("site west: no reading of 3 of its 3 sensors") for line in status["warnings"])
    [warning] = [line for line in checked(sites.kits["west"]) if line.startswith("warning: the newest")]
    assert "is 3 days old" in warning
    assert not [line for line in checked(sites.kits["north"]) if line.startswith("warning: the newest")]
    for name in SITES:  # all equally old: that is no reason to refuse
        sites.write(name, ending(sites.readings(name), now - pd.Timedelta(days=800)))
    status = sites.forecast()
    assert status["result"]["without"] == {}
    assert "the newest reading of sites north, south, west is 800 days old" in status["warnings"]


@pytest.mark.parametrize(
    ("hours", "step", "utc", "old"),
    [
        (23, 300, True, ""),
        (30, 300, True, "30 hours"),
        (30, 300, False, ""),
        (62, 300, False, "2 days"),
        (9 * 24, 86_400, True, ""),
        (11 * 24, 86_400, True, "11 days"),
    ],
)
def test_readings_are_old_after_a_day_and_ten_steps(hours: int, step: int, utc: bool, old: str) -> None:
    assert age_if_old(1_700_000_000 - hours * 3600, step, utc, 1_700_000_000.0) == old


def test_isolated_rows_are_ignored_even_if_every_site_has_one_at_the_same_time(
    sites: InMemoryFederation,
) -> None:
    for name in SITES:
        sites.write(name, with_row(sites.readings(name), -MONTH))
    status = must_finish(sites.train(small("gru-fedavg", **{"training.rounds": 1})))
    assert len([line for line in status["warnings"] if "ignores 1 row" in line]) == len(SITES)
