"""A live federation whose sites have other variables and covariates: they arrive like readings or are read
from files, forecasts use them, and of the true ones nothing leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cnfgnn.config.toml import dump_table
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.files.folder import load_readings
from cnfgnn.federation.site import nodes as site_nodes
from cnfgnn.federation.site.live.nodes import LiveSiteNodes
from cnfgnn.federation.site.readings import columns_of
from cnfgnn.federation.site.settings import read_site
from cnfgnn.federation.site_task import LiveTerms
from cnfgnn.files import write_whole
from cnfgnn.privacy.copies import CopyStore
from cnfgnn.testing.two_truths import another_truth
from tests.conftest import network, small
from tests.federation.in_memory_federation import must_finish
from tests.federation.live_federation import LIVE, LiveFederation, qualities, row_of
from tests.federation.test_inputs import LONG, say, site
from tests.privacy.test_by_construction import arrays_of, holds
from tests.privacy.two_truths import with_inputs
from tests.waiting import wait_for

KNOWN, ROWS = 120, 150
FULL = {"full"}


def city(n: int = 6) -> Dataset:
    data = network(n, ROWS, dropout=0)
    return replace(data, readings=with_inputs(data.readings))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> LiveFederation:
    """Three sites with a blur, which is another one for each input, and a run of one round."""
    sites = LiveFederation(tmp_path_factory.mktemp("inputs"), city(), KNOWN, blur=5.0)
    for name in sites.sites:
        say(sites, name, flow=30.0, rain=0.5, holiday="public")
    look_often(sites.kits["west"])
    must_finish(sites.train(small("cnfgnn-private", **{"training.rounds": 1})))
    return sites


def look_often(kit: Path) -> None:
    """Have a site look at its files before the deadline, which is soon in these tests."""
    file = kit / "local" / "site.toml"
    file.write_text(file.read_text().replace("port = 0", "port = 0\npoll = 0.05"))


def folder_of(sites: LiveFederation, name: str) -> Path:
    return sites.folder / "example" / "data" / name


# ---- forecasts --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_live_forecasts_from_other_inputs_are_those_of_federation_forecast(trained: LiveFederation) -> None:
    """West's flow comes as lines of its file, and that of the others by HTTP; rain is read again."""
    readings = trained.data.readings
    flow = readings.others[0].readings
    rain = folder_of(trained, "west") / "covariates" / "rain.csv"
    stronger = pd.read_csv(rain, index_col="time", parse_dates=True)
    stronger[stronger.index >= readings.times[KNOWN]] += 3
    with trained.live():
        service = trained.nodes["west"].service
        assert service is not None
        recent = wait_for(lambda: service.process, "the service of west").service.recent
        before = recent.covariates["rain"]
        stronger.to_csv(rain)
        wait_for(lambda: recent.covariates["rain"] is not before, "the new rain")
        for _ in range(2):
            row, columns = trained.row, trained.sites["west"]
            step = trained.send("north", "south")
            trained.client("west").post(row_of(trained.data, row, columns))
            with (folder_of(trained, "west") / "variables" / "flow.csv").open("a") as table:
                table.write(",".join([step, *(str(flow.values[row, k]) for k in columns)]) + "\n")
            made = trained.forecasts(step)
            assert {name: qualities(told) for name, told in made.items()} == dict.fromkeys(
                trained.sites, FULL
            )
        refused = trained.client("north").post(
            {"time": step, "variable": "humidity", "sensor": "s0", "value": 1}
        )
        assert refused.json["refused"][0]["reason"] == "unknown variable"
    times = pd.DatetimeIndex(readings.times[KNOWN : trained.row], name="time")
    for name, columns in trained.sites.items():  # what came by HTTP, for the command
        rows = readings.values[KNOWN : trained.row, columns]
        known = trained.readings(name)
        trained.write(name, pd.concat([known, pd.DataFrame(rows, times, known.columns)]))
        if name != "west":
            file = folder_of(trained, name) / "variables" / "flow.csv"
            known = pd.read_csv(file, index_col="time", parse_dates=True)
            rows = flow.values[KNOWN : trained.row, columns]
            pd.concat([known, pd.DataFrame(rows, times, known.columns)]).to_csv(file)
    must_finish(trained.forecast())
    for name, forecast in made.items():
        latest = trained.latest(name)
        assert latest is not None
        for sensor, told in forecast["sensors"].items():
            np.testing.assert_allclose(told["values"], latest[sensor], atol=2e-3)
    file = folder_of(trained, "west") / "variables" / "flow.csv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))  # what if it had not come?
    trained.forecast()
    without = trained.latest("west")
    assert without is not None
    assert all(abs(without[s] - told["values"]).max() > 0.01 for s, told in made["west"]["sensors"].items())


# ---- what leaves a site -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_nodes_have_no_way_to_true_inputs_and_the_server_sees_the_same_whatever_they_are(
    tmp_path: Path,
) -> None:
    data = city()
    sites = LiveFederation(tmp_path, data, KNOWN, blur=5.0)
    for name in sites.sites:
        say(sites, name, flow=30.0, rain=0.5, holiday=2.0)
    must_finish(sites.train(small("cnfgnn-private", **{"training.rounds": 1})))
    sites.copy_everything()
    heard, made = [], []
    for truth in (data, another_truth(data, "shuffled")):
        sites.begin_again(truth, KNOWN)
        with sites.live():
            made += [sites.forecasts(sites.send())["west"] for _ in range(3)]
            heard.append(sites.said)
            service, owner = sites.nodes["west"].service, sites.ends["west"].owner
            assert service is not None
            assert service.process is not None
            assert owner is not None
            recent = service.process.service.recent
            reached = arrays_of(owner.nodes)
            for one in recent.until(recent.newest).others:
                assert not holds(reached, one.readings.values)
    assert made[2]["sensors"] != made[5]["sensors"]
    for name in sites.sites:
        both = heard[0][name].keys() & heard[1][name].keys()
        assert len(both) >= 3 * 4  # due, turn, encode and forecast
        assert all(heard[0][name][key] == heard[1][name][key] for key in both)


def test_copies_of_a_live_site_are_those_of_its_trainings(tmp_path: Path) -> None:
    """Also if it forecast another variable before: a second copy of a reading tells more."""
    rows = LONG[:-8]  # the last four hours arrive live
    site(tmp_path, "speed", rows)
    before = site(tmp_path, "flow", rows)
    kit = tmp_path / "kit"
    plan = read_site(kit)
    blurring = before.live_blurring(plan)
    assert blurring is not None
    live = blurring.copy_of(before.observed)
    np.testing.assert_array_equal(live.values, before.copy.values)
    (tmp_path / "readings" / "readings.csv").write_text("\n".join(LONG))
    live = blurring.copy_of(load_readings(tmp_path / "readings", plan.reading))
    after = site(tmp_path, "flow")
    np.testing.assert_array_equal(live.values, after.copy.values)
    [speed], [of_live] = after.copy.others, live.others
    np.testing.assert_array_equal(of_live.readings.values, speed.readings.values)
    assert CopyStore(tmp_path / "readings" / "cnfgnn-private").count() == 64  # one of each reading


def test_a_site_that_forecasts_a_variable_of_another_file_cannot_be_live(tmp_path: Path) -> None:
    write_folder(city(3), tmp_path)
    content = {"name": "west", "sensors": ["s0"], "readings": "..", "reading": {"target": "flow"}}
    content["live"] = {"clock": "feed"}
    kit = tmp_path / "kit"
    (kit / "local").mkdir(parents=True)
    (kit / "local" / "site.toml").write_text(dump_table(content))
    nodes = LiveSiteNodes(kit, LiveTerms.of(LIVE))
    wait_for(lambda: "reading.target" in nodes.problem, "the site to refuse it")
    assert "write that variable to a folder of its own" in nodes.problem


@pytest.mark.parametrize("readings", ["../data", "../data/readings.csv"])
@pytest.mark.parametrize("name", ["readings.csv", "variables/flow.csv", "covariates/holiday.csv"])
def test_a_live_site_takes_part_once_its_files_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, readings: str
) -> None:
    """One of them may be empty or half-written at the moment at which the site starts."""
    monkeypatch.setattr(site_nodes, "LOOKED_EVERY", 0.02)
    folder, kit = tmp_path / "data", tmp_path / "kit"
    folder.mkdir()
    write_folder(city(3), folder)
    file = folder / name
    whole = file.read_bytes()
    file.write_bytes(b"")
    say_where(kit, readings)
    nodes = LiveSiteNodes(kit, LiveTerms.of(LIVE))
    wait_for(lambda: nodes.problem == site_nodes.UNUSABLE, "the site to refuse it")
    file.write_bytes(whole)
    wait_for(lambda: not nodes.problem, "the site to take part")


def test_a_live_site_takes_part_once_its_settings_name_a_folder_that_can_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_nodes, "LOOKED_EVERY", 0.02)
    folder, kit = tmp_path / "data", tmp_path / "kit"
    folder.mkdir()
    write_folder(city(3), folder)
    say_where(kit, f"../{'far' * 100}")
    nodes = LiveSiteNodes(kit, LiveTerms.of(LIVE))
    wait_for(lambda: nodes.problem == site_nodes.UNUSABLE, "the site to refuse it")
    say_where(kit, "../data")
    wait_for(lambda: not nodes.problem, "the site to take part")


def say_where(kit: Path, readings: str) -> None:
    """Write the settings of a live site, which may be reading them."""
    (kit / "local").mkdir(parents=True, exist_ok=True)
    content = {"name": "west", "sensors": ["s0"], "readings": readings, "live": {"clock": "feed"}}
    write_whole(kit / "local" / "site.toml", dump_table(content).encode())


def test_a_new_sensor_has_columns_of_inputs() -> None:
    readings = city(3).readings
    found = columns_of(readings, ["s2", "new"])
    flow, holiday, _ = found.others
    np.testing.assert_array_equal(flow.readings.values[:, 0], readings.others[0].readings.values[:, 2])
    assert np.isnan(flow.readings.values[:, 1]).all()
    assert holiday is readings.others[1]
