"""Sites whose readings have gaps and different time spans: windows are numbered by time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.store import MemoryStore
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.readings import Readings
from cnfgnn.data.refusals import Refusals
from cnfgnn.errors import ConfigError, DataError, RunError
from cnfgnn.federation.operator.check import check_site
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.project import SitePlan, read_project
from cnfgnn.federation.site.readings import SiteData
from cnfgnn.federation.site.settings import read_site
from cnfgnn.federation.spans import Span, covering_span
from cnfgnn.federation.task import check_federated
from cnfgnn.runs.simulation import simulate
from cnfgnn.transports.remote.endpoint import Endpoint, Terms
from tests.conftest import network, server, small
from tests.federation.two_site_federation import write_project
from tests.transports.remote.test_transport import GROUPS, Wires, federated

KEPT = ((0, 150), (20, 110), (40, 150))  # the rows that each site has
GAP = slice(60, 75)  # rows that are missing from the first site's file


def cut(data: Dataset, rows: np.ndarray) -> Dataset:
    r = data.readings
    readings = Readings(r.times[rows], r.ids, r.values[rows], r.missing[rows], r.positions, r.source)
    return replace(data, readings=readings)


@pytest.fixture
def ragged(tmp_path: Path) -> tuple[Dataset, list[SiteData]]:
    """The data of all sites together, NaN where the owner has no reading, and each site's own data."""
    data, owned = network(), []
    values = data.readings.values.copy()
    for k, (group, (first, last)) in enumerate(zip(GROUPS, KEPT, strict=True)):
        rows = np.arange(first, last)
        if k == 0:
            rows = np.setdiff1d(rows, np.arange(150)[GAP])
        gone = np.setdiff1d(np.arange(150), rows)
        values[np.ix_(gone, group)] = np.nan
        ids = [data.readings.ids[i] for i in group]
        folder = tmp_path / f"site-{k}"
        folder.mkdir()
        write_folder(cut(data.select(ids), rows), folder)
        owned.append(SiteData(SitePlan(f"site-{k}", tuple(ids), str(folder)), tmp_path))
    r = data.readings
    whole = replace(data, readings=replace(r, values=values, missing=np.isnan(values)))
    return whole, owned


def spans(owned: list[SiteData]) -> dict[str, Span]:
    return {f"site-{k}": Span(own.first, own.last, own.step, False) for k, own in enumerate(owned)}


@pytest.mark.parametrize(
    ("method", "missing"),
    [
        pytest.param("at-fedavg", "masked", marks=pytest.mark.slow),
        ("sl", "as-truth"),
        *(("gru-fedavg", "masked"), ("gru-fedavg", "as-truth"), ("gru-local", "masked")),
        pytest.param("at-fedavg", "as-truth", marks=pytest.mark.slow),
    ],
)
def test_sites_with_gaps_train_like_the_simulator_on_the_whole_data_with_gaps(
    method: str, missing: str, ragged: tuple[Dataset, list[SiteData]]
) -> None:
    whole, owned = ragged
    config = small(method, **{"data.missing": missing})
    span = covering_span(spans(owned))
    assert span.rows == 150
    wires = Wires(whole, config)
    terms = Terms(span.first, span.step, span.rows, config.compute.precision, "run")
    compute = Compute.of(config.compute)

    def end(own: SiteData, name: str) -> Endpoint:
        def join(terms: Terms) -> Owner:
            nodes = Clients(own.series(terms), compute, MemoryStore(), name)
            return Owner(nodes, nodes.series, MemoryStore())

        return Endpoint(join, dict)

    wires.ends = [end(own, f"site-{k}") for k, own in enumerate(owned)]
    transport = wires.transport()
    transport.terms = terms
    experiment, same = federated(wires, transport), simulate(whole, config, groups=GROUPS)
    has = server(experiment).nodes.present("train")
    assert has is not None
    assert not has[1, :8].any()  # its readings begin later: the node is masked out
    assert not has[0].all()  # its gap is longer than a window's inputs
    assert has[3:].any(dim=0).sum() < has.shape[1]
    for one in (experiment, same):
        for r_g in (1, 2):
            server(one).round(r_g)
    torch.testing.assert_close(
        server(experiment).score("test").of_copy, server(same).score("test").of_copy, rtol=0, atol=1e-9
    )


def test_other_steps_and_shifted_timestamps_are_refused(
    ragged: tuple[Dataset, list[SiteData]],
) -> None:
    own = ragged[1][0]
    with pytest.raises(DataError, match="300 s apart, and those of the other sites 600 s"):
        own.series(Terms(own.first, 600, 150, "fp32", "run"))
    with pytest.raises(DataError, match="shifted against the other sites' steps"):
        own.series(Terms(own.first - 7, 300, 150, "fp32", "run"))


def test_a_site_needs_a_path_to_readings_that_contain_its_sensors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"site\.toml: readings"):
        SiteData(SitePlan("north", ("s0",), None), tmp_path)
    write_folder(network(), tmp_path)
    with pytest.raises(DataError, match="'s9'"):
        SiteData(SitePlan("north", ("s0", "s9"), str(tmp_path)), tmp_path)
    with pytest.raises(DataError, match="no such file or folder"):
        SiteData(SitePlan("north", ("s0",), str(tmp_path / "nowhere")), tmp_path)


def test_a_site_treats_outliers_as_missing_unless_its_settings_keep_them(tmp_path: Path) -> None:
    data = network(n=2, dropout=0.0)
    values = data.readings.values.copy()
    values[70, 1], values[::10, 0] = 99999, -999
    write_folder(replace(data, readings=replace(data.readings, values=values)), tmp_path)
    (tmp_path / "local").mkdir()
    toml = 'name = "a"\nsensors = ["s0", "s1"]\nreadings = "readings.csv"\n'

    def missing(more: str) -> list[int]:
        (tmp_path / "local" / "site.toml").write_text(toml + more)
        own = SiteData(read_site(tmp_path), tmp_path)
        terms = Terms(own.first, own.step, 150, "fp64", "run")
        assert np.array_equal(own.series(terms).missing, own.truth.missing.T)
        return own.truth.missing.sum(axis=0).tolist()

    assert missing("") == [0, 1]
    assert missing('outliers = "keep"\nmissing_value = -999') == [15, 0]
    assert missing("missing_value = [-999, 99999]") == [15, 1]
    with pytest.raises(ConfigError, match=r"site.toml: outliers: cannot be 'drop' \(valid: missing, keep\)"):
        missing('outliers = "drop"')


def test_the_server_cannot_decide_which_readings_of_a_site_are_missing() -> None:
    for change in ({"data.outliers": "keep"}, {"data.missing_value": [-999]}):
        with pytest.raises(ConfigError, match=r"each site decides .* in its local/site.toml"):
            check_federated(small("at-fedavg", **change))
    check_federated(small("at-fedavg"))


def test_check_reports_suspicious_readings_at_the_site(tmp_path: Path) -> None:
    made = make_kits(read_project(write_project(tmp_path)), tmp_path / "kits")["south"]
    data = network(n=3, rows=200, dropout=0.0)
    values = data.readings.values.copy()
    values[70, 1], values[::10, 2] = 99999, -999
    write_folder(replace(data, readings=replace(data.readings, values=values)), tmp_path)
    toml = made / "local" / "site.toml"
    toml.write_text(f'name = "south"\nsensors = ["s2", "s1"]\nreadings = "{tmp_path / "readings.csv"}"\n')

    def notes() -> list[str]:
        lines: list[str] = []
        with pytest.raises(
            RunError, match="cannot be reached"
        ):  # the last check is the connection to the server
            lines.extend(check_site(made))
        return [line for line in lines if line.startswith("note: ")]

    outlier, code, where = notes()
    assert outlier.startswith(
        "note: sensor s1: 1 reading of 99999 at 2024-01-01T05:50:00 is treated as missing"
    )
    assert code.startswith("note: sensor s2: -999 occurs 20 times")
    assert code.endswith("set missing_value=-999")
    assert where == f"note: change missing_value and outliers in {toml}"
    toml.write_text(f"{toml.read_text()}missing_value = -999\n")
    assert len(notes()) == 2


def test_a_live_site_reads_a_file_that_its_trainings_refuse(tmp_path: Path) -> None:
    """What cannot be read is left out and named; the copy of a corrected reading stays as it was made."""
    write_folder(network(n=2, dropout=0.0), tmp_path)
    (tmp_path / "local").mkdir()
    file = tmp_path / "readings.csv"
    toml = 'name = "a"\nsensors = ["s0", "s1"]\nreadings = "readings.csv"\nblur = 5.0\nprivate = "private"\n'
    (tmp_path / "local" / "site.toml").write_text(toml)
    plan = read_site(tmp_path)
    before = SiteData(plan, tmp_path)
    time = file.read_text().splitlines()[70].split(",")[0]
    with file.open("a") as opened:
        opened.write(f"nonsense\n{time},99.5,\n2024-01-01 1")
    with pytest.raises(DataError, match="line 152"):
        SiteData(plan, tmp_path)
    refusals = Refusals()
    now = SiteData(plan, tmp_path, refusals=refusals)
    [refused] = refusals.found
    assert str(refused.error) == f"{file}, line 152: 1 fields, but the header has 3"
    np.testing.assert_array_equal(now.copy.values, before.copy.values)
    assert now.truth.values[69, 0] == 99.5
    assert (now.truth.values != before.truth.values).sum() == 1


def test_a_live_site_begins_although_a_sensor_was_silent_for_as_long_as_its_file_reaches_back(
    tmp_path: Path,
) -> None:
    (tmp_path / "local").mkdir()
    times = [f"2024-01-01 {hour:02}:{minute:02}" for hour in range(3) for minute in range(0, 60, 5)]
    (tmp_path / "readings.csv").write_text("time,sensor,value\n" + "".join(f"{t},s0,50.5\n" for t in times))
    toml = 'name = "a"\nsensors = ["s0", "s1"]\nreadings = "readings.csv"\n'
    (tmp_path / "local" / "site.toml").write_text(toml)
    with pytest.raises(DataError, match="s1"):
        SiteData(read_site(tmp_path), tmp_path)
    live = SiteData(read_site(tmp_path), tmp_path, refusals=Refusals())
    assert live.truth.ids == ("s0", "s1")
    assert live.truth.missing.all(axis=0).tolist() == [False, True]
