"""A federation that is live, in one process: its forecasts, its failures, and what leaves a site."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from cnfgnn.data.dataset import Dataset
from cnfgnn.federation.operator.status import live_service
from cnfgnn.federation.server import task_context
from cnfgnn.federation.server.live import task as live_task
from cnfgnn.federation.site.backup import back_up, restore
from cnfgnn.federation.site.live import predictor as live_predictor
from cnfgnn.federation.site.settings import private_folder, read_site
from cnfgnn.federation.site.status import read_site_status
from cnfgnn.live.intake.clock import FeedClock
from cnfgnn.privacy.copies import CopyStore
from tests.conftest import network, small
from tests.federation.in_memory_federation import must_finish
from tests.federation.live_federation import LIVE_FOLDER, LiveFederation, row_of
from tests.federation.undisturbed_ranges import assert_same_ranges, undisturbed
from tests.live.web.test_broker import Device, Mosquitto, needs_mosquitto
from tests.privacy.test_by_construction import arrays_of, holds
from tests.waiting import wait_for

KNOWN, ROWS = 120, 190
FULL = {"full"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> LiveFederation:
    """Three sites with a blur and a run of one round."""
    data = network(rows=ROWS, dropout=0)
    sites = LiveFederation(tmp_path_factory.mktemp("sites"), data, KNOWN, blur=5.0)
    must_finish(sites.train(small("cnfgnn-private", **{"training.rounds": 1})))
    return sites


@pytest.fixture
def sites(trained: LiveFederation) -> Iterator[LiveFederation]:
    with trained.live():
        yield trained


@pytest.fixture
def begun(trained: LiveFederation) -> Iterator[LiveFederation]:
    """The same, whose services have never run: the next row is the one after those in the files."""
    trained.begin_again(trained.data, len(trained.readings("west")))
    with trained.live():
        yield trained


def notice_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server ask sites more often than usual, so that each soon notices that the other is gone."""
    monkeypatch.setattr(live_predictor, "ANSWERS_WITHIN", 0.3)


def everywhere(sites: LiveFederation, found: set[str]) -> dict[str, set[str]]:
    return dict.fromkeys(sites.sites, found)


def test_live_forecasts_and_ranges_are_those_of_federation_forecast(trained: LiveFederation) -> None:
    """The command goes on from the ranges that the services have left."""
    with trained.live():
        for _ in range(3):
            step = trained.send()
            made = trained.forecasts(step)
        assert trained.live_status["sites"].keys() == trained.sites.keys()
    for name, rows in trained.sites.items():
        added = trained.data.readings.values[KNOWN : trained.row, rows]
        times = pd.DatetimeIndex(trained.data.readings.times[KNOWN : trained.row])
        before = trained.readings(name)
        trained.write(name, pd.concat([before, pd.DataFrame(added, times, before.columns)]))
    must_finish(trained.forecast(intervals=(80, 95)))
    for name, forecast in made.items():
        latest = trained.latest(name)
        assert latest is not None
        own = {column for column in latest.columns if " " not in column}
        assert set(forecast["sensors"]) == own  # its own sensors, and no others
        assert [pd.Timestamp(time) for time in forecast["times"]] == list(latest.index)
        for sensor, told in forecast["sensors"].items():
            assert told["quality"] == "full"
            np.testing.assert_allclose(told["values"], latest[sensor], atol=2e-3)
            for level, bounds in told["intervals"].items():
                for end in ("low", "high"):
                    np.testing.assert_allclose(bounds[end], latest[f"{sensor} {end} {level}"], atol=3e-3)


def test_a_site_answers_its_owner_and_neither_other_users_nor_web_pages(sites: LiveFederation) -> None:
    """A forged value would also take the one copy that a reading ever gets."""
    forged = row_of(sites.data, sites.row, sites.sites["west"])
    forged["values"] = dict.fromkeys(forged["values"], 12.345)
    client, kit = sites.client("west"), sites.kits["west"]
    assert client.without_token().post(forged).status == 401
    assert client.without_token().get("/sensors").status == 401
    assert client.post(forged, Origin="https://evil.example").status == 403
    assert client.post(forged, Sec_Fetch_Site="cross-site").status == 403
    assert client.ask("POST", "/readings", json.dumps(forged)).status == 415
    assert sites.next_forecasts() == everywhere(sites, FULL)
    assert "12.345" not in client.get("/sensors").body.decode()
    recorded = read_site_status(kit)["live"]
    assert Path(recorded["token_file"]) == kit / LIVE_FOLDER / "token"
    told = live_service(kit, recorded)
    assert told is not None
    assert told["health"]["quality"]["full"] == len(sites.sites["west"])  # `federation status` has the token
    assert client.headers["Authorization"].removeprefix("Bearer ") not in json.dumps(told)
    assert client.without_token().get("/health").json == {"status": told["health"]["status"]}


@pytest.mark.slow
def test_a_site_that_cannot_be_reached_goes_on_and_rejoins_while_the_others_go_on(
    sites: LiveFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice_soon(monkeypatch)
    monkeypatch.setattr(live_predictor, "OLDEST_EMBEDDING", 1)
    assert sites.next_forecasts() == everywhere(sites, FULL)
    sites.unreachable = {"south"}
    wait_for(lambda: not sites.status["sites"]["south"]["reachable"], "the server to notice")
    others = {"north": FULL, "west": FULL}
    assert sites.next_forecasts() == {**others, "south": {"last embedding"}}
    assert sites.next_forecasts() == {**others, "south": {"no embedding"}}
    assert sites.client("south").get("/health").json["server"] == "unreachable"
    sites.unreachable = set()
    sites.wait_until_joined("south")
    assert sites.next_forecasts() == everywhere(sites, FULL)


def test_a_site_that_is_restarted_joins_again_with_the_readings_that_it_has_acknowledged(
    sites: LiveFederation,
) -> None:
    assert sites.next_forecasts() == everywhere(sites, FULL)
    sites.unreachable = {"west"}
    sites.end_site("west")
    assert sites.next_forecasts("north", "south") == {"north": FULL, "south": FULL}
    sites.restart("west")
    sites.unreachable = set()
    step = str(sites.data.readings.times[sites.row - 2])  # the last one that it has readings of
    sites.wait_until_joined("west")
    assert sites.next_forecasts() == everywhere(sites, FULL)
    told = sites.client("west").get("/forecasts").json["sensors"]["s3"]
    assert told["lastReading"] > step


def test_a_site_that_hears_late_that_the_server_counts_on_it_has_its_embedding(
    sites: LiveFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = sites.nodes["west"].predictor
    assert predictor is not None
    hear, row = predictor.hear, sites.data.readings.times[sites.row]
    step, asked = int(row.astype("datetime64[s]").astype(np.int64)), 0

    def hear_late(joined: bool, done: int) -> None:
        nonlocal asked
        asked += predictor._due >= step
        hear(joined and asked > 2, done)

    monkeypatch.setattr(predictor, "hear", hear_late)
    wait_for(lambda: not predictor.joined, "the site to hear that it is not counted on")
    assert sites.next_forecasts() == everywhere(sites, FULL)


def test_an_error_in_taking_in_sites_does_not_end_the_service(
    sites: LiveFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_task, "PAUSE", 0.1)
    with monkeypatch.context() as broken:

        def welcome(newcomers: live_task.Newcomers) -> None:
            raise IndexError("a list of sites has changed")

        broken.setattr(live_task.Newcomers, "welcome", welcome)
        said = "taking in sites and sensors failed: IndexError: a list of sites has changed"
        wait_for(lambda: sites.live_status["problem"] == said, "the operator to be told")
        assert sites.next_forecasts() == everywhere(sites, FULL)
    assert sites.next_forecasts() == everywhere(sites, FULL)
    sites.unreachable = {"west"}
    sites.restart("west")
    sites.unreachable = set()
    sites.wait_until_joined("west")
    assert sites.next_forecasts() == everywhere(sites, FULL)
    assert sites.live_status["problem"] == ""


def test_a_live_task_gives_freed_memory_back(
    trained: LiveFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that is kept, as trainings do, grows slowly in a process that runs for weeks."""

    def kept() -> None:
        raise AssertionError("this process keeps freed memory")

    monkeypatch.setattr(task_context, "keep_freed_memory", kept)
    with trained.live():
        assert trained.next_forecasts() == everywhere(trained, FULL)
    assert "keeps freed memory" in trained.forecast()["problem"]


@pytest.mark.slow
def test_sites_outlive_their_server_and_follow_the_next_one(
    trained: LiveFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice_soon(monkeypatch)
    with trained.sites_are_live():
        with trained.server_is_live(dies=True):
            assert trained.next_forecasts() == everywhere(trained, FULL)
        assert trained.next_forecasts() == everywhere(trained, {"last embedding"})
        with trained.server_is_live():
            for name in trained.sites:
                trained.wait_until_joined(name)
            assert trained.next_forecasts() == everywhere(trained, FULL)
        assert all(site.ended.is_set() for site in trained.nodes.values())
        assert trained.status["services_ended"] == list(trained.sites)


@pytest.mark.slow
def test_a_site_whose_readings_are_late_is_not_waited_for_after_the_deadline(sites: LiveFederation) -> None:
    step = sites.send("north", "south")
    made = sites.forecasts(step, "north", "south")
    assert all(told["quality"] == "full" for told in made["south"]["sensors"].values())
    due = ("due", int(np.datetime64(step, "s").astype(int)))
    assert sites.said["west"].get(due, {"present": 0})["present"] == 0
    assert sites.next_forecasts() == everywhere(sites, FULL)


@pytest.mark.slow
def test_a_server_that_names_steps_in_the_future_costs_no_site_its_readings(
    trained: LiveFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither far ahead nor one after the other, each as far as a site may follow."""
    notice_soon(monkeypatch)
    trained.begin_again(trained.data, len(trained.readings("west")))
    with trained.sites_are_live():
        with trained.server_is_live(dies=True):
            trained.wait_until_joined("west")
            assert trained.next_forecasts() == everywhere(trained, FULL)
            service = trained.nodes["west"].service
            assert service is not None
            assert service.process is not None
            recent, clock = service.process.service.recent, service.process.service.clock
            newest, lead = recent.newest, FeedClock.LEAD
            times = newest - recent.step * np.arange(KNOWN)
            before = recent.values_at(recent.ids, times)
            assert np.isfinite(before).all()
            for ahead in (lead // 2, lead, lead + 1, 2 * lead, 3 * lead, 2016, 10**6):
                step = newest + ahead * recent.step
                monkeypatch.setattr(live_task.SiteSteps, "common", lambda steps, step=step: (step, True))
                said = str(np.datetime64(step, "s"))
                wait_for(lambda said=said: trained.live_status["step"] == said, "the step")  # type: ignore[misc]
            wait_for(lambda: clock.now() > newest + lead * recent.step - 1, "the clock")
            assert clock.now() < newest + (lead + 1) * recent.step
            np.testing.assert_array_equal(recent.values_at(recent.ids, times), before)
            problems = read_site_status(trained.kits["west"])["problems"]
            assert [told["problem"] for told in problems if told["part"] == "clock"]
        monkeypatch.undo()
        with trained.server_is_live():
            for name in trained.sites:
                trained.wait_until_joined(name)
            for _ in range(lead):
                step = trained.send()
            assert recent.present(recent.newest).all()
            assert str(np.datetime64(recent.newest, "s")) == step
            np.testing.assert_array_equal(recent.values_at(recent.ids, times), before)
            assert trained.next_forecasts() == everywhere(trained, FULL)
            predictor = trained.nodes["west"].predictor
            assert predictor is not None
            assert predictor._embedding is not None
            assert predictor._embedding.step == recent.newest  # and not the one that was sent for the future


# ---- what a site serves ------------------------------------------------------------------------------------


def test_a_site_serves_ranges_errors_places_and_its_model_of_its_own_sensors(begun: LiveFederation) -> None:
    for _ in range(4):
        made = begun.forecasts(begun.send())
    positions = begun.data.readings.positions
    assert positions is not None
    for name, columns in begun.sites.items():
        own, client = {begun.data.readings.ids[k]: positions[k] for k in columns}, begun.client(name)
        assert_same_ranges(made[name], undisturbed(begun.kits[name], begun.data, columns))
        places = {told["id"]: told for told in client.get("/sensors?steps=1").json["sensors"]}
        assert places.keys() == own.keys()
        for sensor, place in own.items():
            assert [places[sensor][key] for key in ("latitude", "longitude")] == pytest.approx(
                place, abs=1e-5
            )
        watched = client.get("/watch").json
        assert watched["sensors"].keys() == own.keys()
        assert watched["overall"]["count"] >= (1 + 2 + 3) * len(columns)
        model = client.get("/model").json
        assert (model["site"], model["run"], model["round"], model["switches"]) == (name, "one", 1, [])
        assert model["trained"] <= model["loaded"]
        metrics = client.get("/metrics").body.decode()
        assert 'cnfgnn_live_alarms{kind="frozen"} 0.0' in metrics
        assert "cnfgnn_live_model_trained_timestamp_seconds 1." in metrics
        latest = begun.kits[name] / LIVE_FOLDER / "latest.csv"
        wait_for(partial(has_columns, latest, "low_80,high_80,low_95,high_95"), "latest.csv")
        assert begun.live_status["sites"][name]["coverage"] is None


def has_columns(file: Path, names: str) -> bool:
    return file.exists() and file.read_text().splitlines()[0].endswith(f",{names}")


@pytest.mark.slow
def test_a_restarted_site_goes_on_with_its_ranges(begun: LiveFederation) -> None:
    for _ in range(3):
        begun.forecasts(begun.send())
    before = begun.client("west").get("/watch").json["overall"]["count"]
    begun.end_site("west")
    begun.restart("west")
    begun.wait_until_joined("west")
    made = begun.forecasts(begun.send())
    assert_same_ranges(made["west"], undisturbed(begun.kits["west"], begun.data, begun.sites["west"]))
    assert begun.client("west").get("/watch").json["overall"]["count"] > before > 0


@needs_mosquitto
@pytest.mark.slow
def test_readings_and_forecasts_of_a_site_go_through_its_own_broker(
    trained: LiveFederation, tmp_path: Path
) -> None:
    trained.begin_again(trained.data, len(trained.readings("west")))
    broker = Mosquitto(tmp_path)
    trained.set("west", mqtt=broker.url)
    try:
        device = Device(broker)
        with trained.live():
            wait_for(lambda: device.heard.get("cnfgnn/status") == "online", "the service at the broker")
            for _ in range(2):
                row = trained.row
                step = trained.send("north", "south")
                device.send_row(row_of(trained.data, row, trained.sites["west"]))
                made = trained.forecasts(step, "west")["west"]
            wait_for(lambda: is_about(device, made), "the forecasts")
        device.end()
        topics = [topic for topic in device.heard if "Datastreams" in topic]
        assert len(topics) == len(trained.sites["west"])
        for sensor, told in made["sensors"].items():
            assert told["quality"] == "full"
            assert device.forecast(sensor)["result"] == told["values"]
            assert device.forecast(sensor)["parameters"]["intervals"] == told["intervals"]
    finally:
        trained.set("west", mqtt=None)
        broker.end()


def is_about(device: Device, made: Mapping[str, Any]) -> bool:
    """Whether every sensor of a forecast has it at the broker."""
    told = [device.forecast(sensor) for sensor in made["sensors"]]
    return all(one is not None and one["resultTime"] == made["made"] for one in told)


# ---- what leaves a site ------------------------------------------------------------------------------------


def test_nodes_of_a_live_site_have_no_way_to_its_readings(sites: LiveFederation) -> None:
    assert sites.next_forecasts() == everywhere(sites, FULL)
    for name, site in sites.nodes.items():
        owner = sites.ends[name].owner
        assert owner is not None
        assert site.service is not None
        assert site.service.process is not None
        recent = site.service.process.service.recent
        truth = recent.until(recent.newest).values
        reached = arrays_of(owner.nodes)
        secrets = [truth, truth[-owner.nodes.data.history :]]
        tracking = site.service.process.service.tracking
        assert tracking is not None
        assert tracking.intervals is not None
        secrets += [tracking.intervals.reach, tracking.intervals.made, tracking.watch.sums]
        assert not any(holds(reached, secret) for secret in secrets)


class Heard(NamedTuple):
    """What the server heard while rows were sent, and what a site told its own people."""

    said: dict[str, dict[object, object]]
    forecast: Mapping[str, Any]
    watched: Mapping[str, Any]
    shown: Mapping[str, Any]


def heard_with(sites: LiveFederation, truth: Dataset, known: int) -> Heard:
    """Be live with these readings until an hour has passed in them."""
    sites.begin_again(truth, known)
    with sites.live():
        while not (step := sites.send()).endswith(":00:00"):
            sites.forecasts(step)
        made = sites.forecasts(step)["west"]
        wait_for(lambda: sites.live_status["step"] == step, "the server's status")
        return Heard(sites.said, made, sites.client("west").get("/watch").json, sites.live_status["sites"])


@pytest.mark.slow
def test_the_server_sees_the_same_whatever_the_readings_are_if_their_copies_are_the_same(
    tmp_path: Path,
) -> None:
    """Nothing that is learned from truth shows: no forecast, range, error or alarm. Where one owner tells the
    coverage of its ranges, that is what differs, and nothing else."""
    data, known = network(rows=ROWS, dropout=0), KNOWN + 6
    sites = LiveFederation(tmp_path, data, known, blur=5.0)
    must_finish(sites.train(small("cnfgnn-private", **{"training.rounds": 1})))
    sites.copy_everything()
    other = replace(data, readings=replace(data.readings, values=data.readings.values[::-1].copy()))
    one, two = (heard_with(sites, truth, known) for truth in (data, other))
    for name in sites.sites:
        assert different(one.said[name], two.said[name]) == {}
        asked = [told for (kind, _), told in one.said[name].items() if kind == "due"]  # type: ignore[misc]
        assert all(told.keys() == {"step", "present", "ready"} for told in asked)  # type: ignore[attr-defined]
        assert one.shown[name]["coverage"] is None
    for part in ("values", "intervals"):
        first, second = ([told[part] for told in h.forecast["sensors"].values()] for h in (one, two))
        assert first != second
    assert one.watched["overall"] != two.watched["overall"]

    sites.set("west", tell_coverage=True)
    one, two = (heard_with(sites, truth, known) for truth in (data, other))
    for name in ("north", "south"):
        assert different(one.said[name], two.said[name]) == {}
    found = different(one.said["west"], two.said["west"])
    assert len(found) == 1  # once an hour
    for told, shown in zip(*found.values(), [h.shown["west"] for h in (one, two)], strict=True):
        assert told["coverage"] == shown["coverage"]
        assert told["coverage"]["count"] >= told["coverage"]["95"] >= told["coverage"]["80"] > 0
    assert len({json.dumps(told | {"coverage": None}) for told in next(iter(found.values()))}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("retires", [True, False])
def test_a_restored_live_site_sends_the_same_whatever_became_of_its_retired_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retires: bool
) -> None:
    """Four rows had copies that are lost, and are perhaps corrected. The test of the test: without retiring
    them, the server sees it."""
    data, known = network(rows=ROWS, dropout=0), KNOWN + 4
    sites = LiveFederation(tmp_path, data, KNOWN, blur=5.0)
    must_finish(sites.train(small("cnfgnn-private", **{"training.rounds": 1})))
    kit, file = sites.kits["west"], tmp_path / "backup"
    back_up(kit, file)
    if not retires:
        monkeypatch.setattr(CopyStore, "retire", lambda store, until: None)
        monkeypatch.setattr(CopyStore, "retired", {"": 0})
    corrected = data.readings.values.copy()
    corrected[KNOWN:known, sites.sites["west"]] += 7
    said = []
    for values in (data.readings.values, corrected):
        truth = replace(data, readings=replace(data.readings, values=values))
        sites.begin_again(truth, known)
        for name, columns in sites.sites.items():
            before = sites.readings(name)
            times = pd.DatetimeIndex(data.readings.times[:known])
            sites.write(name, pd.DataFrame(values[:known, columns], times, before.columns))
        shutil.rmtree(private_folder(read_site(kit), kit))
        restore(kit, file)
        with sites.live():
            for _ in range(3):
                sites.forecasts(sites.send())
        said.append(sites.said)
    assert (different(said[0]["west"], said[1]["west"]) == {}) == retires
    for name in ("north", "south"):  # their embeddings differ; they answer the same
        assert different(said[0][name], said[1][name]) == {}


def different(one: dict[object, object], two: dict[object, object]) -> dict[object, list[Any]]:
    """Answers to the same request that differ. Which steps pass before the first row is sent is a matter of
    time, and so is which requests are asked."""
    both = one.keys() & two.keys()
    assert len(both) >= 3 * 4  # due, turn, encode and forecast
    return {key: [one[key], two[key]] for key in both if one[key] != two[key]}


# ---- other models ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_site_follows_the_server_to_another_run(
    trained: LiveFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To one like it, with the same service, and to one whose forecasts are shorter, with another one."""
    notice_soon(monkeypatch)
    for name, horizon in (("two", 5), ("three", 3)):
        must_finish(
            trained.train(small("cnfgnn-private", **{"training.rounds": 1, "data.horizon": horizon}), name)
        )
    trained.begin_again(trained.data, len(trained.readings("west")))
    with trained.sites_are_live():
        models, services = [], []
        for run, horizon in (("one", 5), ("two", 5), ("three", 3)):
            with trained.server_is_live(dies=True, run=run):
                wait_for(lambda run=run: is_model(trained, run), f"run {run}")  # type: ignore[misc]
                for _ in range(2):
                    made = trained.forecasts(trained.send())["west"]
                models.append(trained.client("west").get("/model").json)
                services.append(trained.nodes["west"].service)
            for told in made["sensors"].values():
                assert len(told["values"]) == len(told["intervals"]["80"]["low"]) == horizon
        assert services[0] is services[1] is not services[2]
        switches = [(told["from"], told["to"]) for told in models[-1]["switches"]]
        assert switches == [("one, round 1", "two, round 1"), ("two, round 1", "three, round 1")]


def is_model(sites: LiveFederation, run: str) -> bool:
    """Whether west takes part with this run, and its service has followed."""
    predictor = sites.nodes["west"].predictor
    if predictor is None or not predictor.joined or not predictor.ready.run.startswith(run):
        return False
    return bool(sites.client("west").get("/model").json["run"] == run)


@pytest.mark.slow
def test_a_disk_that_takes_no_more_copies_is_told_to_the_owner_and_to_nobody_else(tmp_path: Path) -> None:
    sites = LiveFederation(tmp_path / "sites", network(rows=ROWS, dropout=0), KNOWN, blur=5.0)
    kit, disk = sites.kits["west"], tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this user cannot mount a disk")
    try:
        settings = kit / "local" / "site.toml"
        settings.write_text(f'private = "{disk / "private"}"\n{settings.read_text()}')
        must_finish(sites.train(small("cnfgnn-private", **{"training.rounds": 1})))
        with sites.live():
            for no_more, why in ((full(disk), "disk is full"), (read_only(disk), "readonly")):
                assert sites.next_forecasts() == everywhere(sites, FULL)
                with no_more:
                    found = [sites.next_forecasts() for _ in range(2)][-1]
                    assert found == {**everywhere(sites, FULL), "west": {"last embedding"}}
                    assert why in str(read_site_status(kit)["problems"][-1])
                    assert str(disk) not in json.dumps(sites.status)
                wait_for(lambda: sites.next_forecasts() == everywhere(sites, FULL), "west is back")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    with suppress(OSError), (disk / "other").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    yield
    (disk / "other").unlink()


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


# ---- files of a site ---------------------------------------------------------------------------------------


def test_a_site_survives_lines_that_are_no_readings_and_starts_with_them(
    begun: LiveFederation, caplog: pytest.LogCaptureFixture
) -> None:
    file = begun._file("west")
    before = file.read_text()
    bad = ["nonsense", "2199-01-01 00:00:00,1,2,3", f"{before.splitlines()[-1].split(',')[0]},50,51,52", "20"]
    try:
        with file.open("a") as opened:
            opened.write("\n".join(bad))
        client, number = begun.client("west"), before.count("\n") + 1
        wait_for(lambda: "refused" in client.get("/health").json, "the lines to be refused")
        told = [
            record.getMessage() for record in caplog.records if "readings.csv, line" in record.getMessage()
        ]
        assert [f"line {number + k}" in told[k] for k in range(len(told))] == [True, True]
        assert "2199-01-01 00:00:00 has not come yet" in told[1]
        begun.end_site("west")
        begun.restart("west")
        begun.wait_until_joined("west")
        assert begun.next_forecasts() == everywhere(begun, FULL)
        service = begun.nodes["west"].service
        assert service is not None
        assert service.process is not None
        values = service.process.service.recent.until(service.process.service.recent.newest).values
        assert values[-2].tolist() == [50, 51, 52]
    finally:
        file.write_text(before)
