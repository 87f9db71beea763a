"""A site is backed up while it runs, and restored: what has no copy in the backup is retired for ever."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from cnfgnn.data.prepared_series import PreparedSeries
from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.data.refusals import Refusals
from cnfgnn.data.series import Scaler, Series
from cnfgnn.data.windows import Windows
from cnfgnn.errors import CnfgnnError, DataError, RunError
from cnfgnn.federation.coverage_sums import ToldCoverage
from cnfgnn.federation.kits.process_identity import identity
from cnfgnn.federation.kits.processes import PROCESS_FILE
from cnfgnn.federation.project import SiteLive, SitePlan
from cnfgnn.federation.site import backup as backups
from cnfgnn.federation.site import nodes as site_nodes
from cnfgnn.federation.site.approvals import approve, read_approvals, revoke
from cnfgnn.federation.site.backup import back_up, restore
from cnfgnn.federation.site.copies import GRID, RECORD, STEPS, check_complete, record_of, settle_steps
from cnfgnn.federation.site.live.nodes import LiveSiteNodes, counted_readings, newest_copy, rows_until
from cnfgnn.federation.site.owner import SiteOwner
from cnfgnn.federation.site.readings import SiteData
from cnfgnn.federation.site.settings import private_folder, read_site
from cnfgnn.federation.site.status import STATES, read_site_status
from cnfgnn.federation.site.store import OwnerStore, SiteStore
from cnfgnn.live.forecasting.predictor import window_of
from cnfgnn.live.forecasting.schedule import Schedule
from cnfgnn.live.forecasting.watch import SUMS, Watch
from cnfgnn.live.intake.clock import FeedClock
from cnfgnn.live.intake.recent import Cell, RecentReadings
from cnfgnn.live.intake.store import ReadingStore
from cnfgnn.live.start import recent_readings
from cnfgnn.privacy.copies import COPIES_FILE, KEY_FILE, CopyStore
from cnfgnn.privacy.truth_and_copy import READINGS
from cnfgnn.transports.remote.endpoint import Terms
from tests.commands import said
from tests.conftest import network
from tests.federation.test_site_copies import digest_of, make_kit, site_data, write_readings
from tests.privacy.two_truths import with_inputs
from tests.waiting import wait_for

BEFORE, LOST, ROWS = 150, 180, 200  # rows that the backup has copies of, rows that were copied, all rows
LATE = 100  # a row that arrives after the backup
RECORDING = {"live": {"clock": "feed"}}  # the readings are from the past


def write_rows(folder: Path, rows: int, without: int | None = None, plus: float = 0.0) -> None:
    """The first rows, perhaps without a late one; `plus` is added to those from the backup on, and to it."""
    write_readings(folder)
    frame = pd.read_csv(folder / "readings.csv", index_col=0)
    frame.iloc[BEFORE:LOST] += plus
    frame.iloc[LATE] += plus
    if without is not None:
        frame.iloc[without] = np.nan
    frame.iloc[:rows].to_csv(folder / "readings.csv")


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    kit = make_kit(tmp_path / "kit", **RECORDING)
    (kit / "startup").mkdir()
    (kit / "startup" / "fed_client.json").touch()
    (kit / "start.sh").touch(0o755)
    write_rows(tmp_path / "readings", BEFORE, LATE)
    return kit


def folder_of(kit: Path) -> Path:
    return private_folder(read_site(kit), kit)


def use_more(kit: Path) -> SiteData:
    """Readings arrive after the backup, a late one among them, and have copies."""
    write_rows(kit.parent / "readings", LOST)
    return site_data(kit)


def test_a_restored_site_never_copies_what_has_no_copy_in_the_backup(kit: Path) -> None:
    first = site_data(kit)
    back_up(kit, kit.parent / "file")
    lost = use_more(kit)
    assert not lost.copy.missing[BEFORE:].all()
    shutil.rmtree(folder_of(kit))
    write_rows(kit.parent / "readings", LOST, plus=3.0)  # corrected since: the same noise would give it away
    done = restore(kit, kit.parent / "file")
    assert done.retired == int(lost.seconds[-1])
    told = []
    for plus in (3.0, 9.0):
        write_rows(kit.parent / "readings", LOST, plus=plus)
        data = site_data(kit)
        told.append((data.describe(), data.copy.values.tobytes()))
        assert data.copy.missing[BEFORE:].all()
        assert data.copy.missing[LATE].all()
        np.testing.assert_array_equal(data.copy.values[:BEFORE], first.copy.values)
        assert digest_of(data) == digest_of(first)  # a run goes on with the copy it began with
        assert not data.truth.missing[BEFORE:].all()  # it is still the owner's
        assert not data.truth.missing[LATE].all()
        assert data.last == first.last
        assert counted_readings(data).seconds[-1] == data.seconds[-1]
        assert [line for line in data.warnings() if "are retired" in line]
    assert told[0] == told[1]
    write_rows(kit.parent / "readings", ROWS, plus=3.0)
    data = site_data(kit)
    assert data.copy.missing[BEFORE:LOST].all()
    np.testing.assert_array_equal(data.copy.missing[LOST:], data.truth.missing[LOST:])
    assert data.last == int(data.seconds[-1])
    back_up(kit, kit.parent / "newer")
    assert restore(kit, kit.parent / "file").retired is None  # nothing is lost: all stays as it is
    np.testing.assert_array_equal(site_data(kit).copy.values, data.copy.values)


def test_each_restore_retires_more_and_never_less(kit: Path) -> None:
    site_data(kit)
    older = shutil.copytree(folder_of(kit), kit.parent / "older")  # as people made backups before
    use_more(kit)
    back_up(kit, kit.parent / "newer")
    write_rows(kit.parent / "readings", ROWS)
    site_data(kit)
    for source, copied in ((kit.parent / "newer", LOST), (older, BEFORE)):
        shutil.rmtree(folder_of(kit))
        done = restore(kit, source)
        data = site_data(kit)
        assert done.retired == int(data.seconds[-1])
        assert data.copy.missing[copied:].all()
        assert not data.copy.missing[copied - 10 : copied].all()
    write_rows(kit.parent / "readings", BEFORE)  # the newest reading at hand is an earlier one
    shutil.rmtree(folder_of(kit))
    assert restore(kit, older).retired == done.retired
    store = CopyStore(folder_of(kit))
    store.retire({"": 5})
    assert store.retired == {"": done.retired}


def test_copies_from_before_a_restore_are_refused(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old disk may turn up again; and a restore may be killed before it has put the folder in place."""
    site_data(kit)
    back_up(kit, kit.parent / "file")
    use_more(kit)
    old = folder_of(kit).rename(kit.parent / "old")
    restore(kit, kit.parent / "file")
    write_rows(kit.parent / "readings", ROWS)
    site_data(kit)
    shutil.rmtree(folder_of(kit))
    shutil.copytree(old, folder_of(kit))
    with pytest.raises(RunError, match="holds copies"):
        site_data(kit)
    assert restore(kit, kit.parent / "file").copies is not None
    assert sorted(path.name for path in folder_of(kit).iterdir()) == [
        COPIES_FILE,
        f"{COPIES_FILE}.replaced",
        KEY_FILE,
    ]

    def killed(path: Path, to: Path) -> None:
        if to == folder_of(kit) / COPIES_FILE:
            raise KeyboardInterrupt
        os.replace(path, to)

    shutil.rmtree(folder_of(kit))
    shutil.copytree(old, folder_of(kit))
    (kit / "local" / RECORD).unlink()  # of a kit that was issued anew
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        restore(kit, kit.parent / "file")
    monkeypatch.undo()
    with pytest.raises(RunError, match="restore"):
        site_data(kit)
    shutil.copy(old / COPIES_FILE, folder_of(kit) / COPIES_FILE)
    with pytest.raises(RunError, match="before this site was restored"):
        site_data(kit)
    restore(kit, kit.parent / "file")
    assert site_data(kit).copy.missing[BEFORE:].all()


def test_by_the_machines_clock_all_until_now_is_retired(kit: Path) -> None:
    site_data(make_kit(kit))
    back_up(kit, kit.parent / "file")
    shutil.rmtree(folder_of(kit))
    retired = restore(kit, kit.parent / "file").retired
    assert retired is not None
    assert 0 <= time.time() + 300 + 14 * 3600 - retired < 60  # times without a zone may be ahead of UTC


def test_what_is_known_ahead_is_retired_as_far_as_it_is_known(
    kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = site_data(kit)
    back_up(kit, kit.parent / "file")
    shutil.rmtree(folder_of(kit))
    with_rain = with_inputs(data.observed)
    monkeypatch.setattr(backups, "load_site", lambda *_, **__: with_rain)
    restore(kit, kit.parent / "file")
    store = CopyStore(folder_of(kit))
    flow, _, rain = (one.readings for one in with_rain.others)
    assert store.retired["rain"] == int(rain.seconds[-1]) > store.retired[""] == int(data.seconds[-1])
    assert "flow" not in store.retired  # variables are measured with the readings
    for name, readings in (("flow", flow), ("rain", rain)):
        assert np.isnan(store.blur(readings, 5.0, name).values).all()
    later = replace(flow, times=flow.times + np.timedelta64(1, "D"))
    assert np.isfinite(store.blur(later, 5.0, "flow").values[~later.missing]).any()


def test_a_site_is_restored_on_a_new_machine(kit: Path) -> None:
    first = site_data(kit)
    states = {"theta.w": torch.arange(4.0)}
    SiteStore(kit, "run", first.truth.ids).write("best", states, ())
    OwnerStore(kit, "run", first.truth.ids).write("best", states, ())
    (kit / "sent.jsonl").write_text("{}\n")
    file = kit.parent / "file"
    back_up(kit, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert not [path for path in kit.parent.iterdir() if path.name.startswith(".")]
    older = shutil.copytree(folder_of(kit), kit.parent / "older")
    use_more(kit)
    shutil.rmtree(folder_of(kit))
    shutil.rmtree(kit)
    readings = (kit.parent / "readings").rename(kit.parent / "elsewhere")
    with pytest.raises(CnfgnnError, match="readings"):  # put them back first
        restore(kit, file)
    readings.rename(kit.parent / "readings")
    shutil.copytree(older, folder_of(kit))  # by hand: the kit is as old, and cannot tell that copies are lost
    with pytest.raises(RunError, match="has not come to its end: repeat it"):
        site_data(kit)
    shown = said("federation", "restore", kit, file)
    assert "states: run" in shown
    assert "retired: readings up to " in shown
    np.testing.assert_array_equal(site_data(kit).copy.values[:BEFORE], first.copy.values)
    assert torch.equal(SiteStore(kit, "run").read("best")["theta.w"], states["theta.w"])
    assert torch.equal(OwnerStore(kit, "run").read("best")["theta.w"], states["theta.w"])
    assert (kit / "sent.jsonl").read_text() == "{}\n"
    assert (kit / "start.sh").stat().st_mode & 0o777 == 0o700
    assert site_data(kit).copy.missing[BEFORE:].all()
    files = [path for path in (*kit.rglob("*"), *folder_of(kit).iterdir()) if path.is_file()]
    assert [path for path in files if path.stat().st_mode & 0o077] == []


def test_a_site_that_has_lost_its_states_gets_them_back_and_keeps_its_copies(kit: Path) -> None:
    site_data(kit)
    for run in ("one", "two"):
        SiteStore(kit, run).write("best", {"theta.w": torch.zeros(1)}, ())
    back_up(kit, kit.parent / "file")
    newer = use_more(kit)
    shutil.rmtree(kit / STATES / "one")
    SiteStore(kit, "two").write("best", {"theta.w": torch.ones(1)}, ())
    done = restore(kit, kit.parent / "file")
    assert (done.runs, done.copies, done.retired) == (("one",), None, None)
    assert SiteStore(kit, "two").read("best")["theta.w"] == 1
    np.testing.assert_array_equal(site_data(kit).copy.values, newer.copy.values)


def test_a_restore_that_cannot_be_is_refused_and_changes_nothing(
    kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site_data(kit)
    file, other = kit.parent / "file", kit.parent / "other"
    back_up(kit, file)
    use_more(kit)
    shutil.rmtree(folder_of(kit))

    def refused(problem: str, source: Path = file) -> None:
        with pytest.raises(CnfgnnError, match=problem):
            restore(kit, source)
        assert not CopyStore.exists(folder_of(kit))

    (kit / PROCESS_FILE).write_text(json.dumps(identity(threading.get_native_id())))
    refused("the site runs: stop it first")
    (kit / PROCESS_FILE).unlink()
    whole = file.read_bytes()
    other.write_bytes(whole[: len(whole) // 2])
    refused("not the backup of a site, or it is cut off or damaged", other)
    refused("there is no such backup", kit.parent / "nothing")
    refused("it has no key", kit.parent)
    with monkeypatch.context() as patch:
        patch.setattr(backups.time, "time", lambda: 0.0)
        refused("this machine's clock is wrong: the backup was made at 20")
    readings = (kit.parent / "readings" / "readings.csv").rename(kit.parent / "aside.csv")
    refused("readings")
    readings = readings.rename(kit.parent / "readings" / "readings.csv")
    record = kit / "local" / RECORD
    before = record.read_text()
    record.write_text(json.dumps({**json.loads(before), "key": "another"}))
    refused("another key than the one that this site has used")
    record.write_text(before)
    make_kit(kit, name="south", **RECORDING)
    refused("this is the backup of site north, and the kit is that of south")


def test_a_backup_without_the_copies_does_not_replace_an_earlier_one(kit: Path) -> None:
    site_data(kit)
    file = kit.parent / "file"
    said("federation", "backup", kit, file)
    before = file.read_bytes()
    shutil.copytree(folder_of(kit), kit.parent / "older")
    use_more(kit)
    (folder_of(kit) / KEY_FILE).unlink()
    with pytest.raises(RunError, match="key"):
        back_up(kit, file)
    shutil.rmtree(folder_of(kit))
    with pytest.raises(RunError, match="are not here"):
        back_up(kit, file)
    shutil.copytree(kit.parent / "older", folder_of(kit))
    with pytest.raises(RunError, match="newest backup"):
        back_up(kit, file)
    assert file.read_bytes() == before
    assert sorted(path.name for path in kit.parent.iterdir() if path.name[0] in ".f") == ["file"]


def test_a_backup_is_consistent_while_copies_are_made(tmp_path: Path) -> None:
    store, readings = CopyStore(tmp_path / "own"), network(n=3, rows=400).readings
    copied = threading.Event()

    def copy_on() -> None:
        for sensor in (*readings.ids, *readings.ids):
            store.blur(readings.select([sensor]), 5.0)
        copied.set()

    thread = threading.Thread(target=copy_on)
    thread.start()
    counts = []
    while thread.is_alive() or not counts:
        store.snapshot(tmp_path / f"{len(counts)}")
        taken = CopyStore(tmp_path / f"{len(counts)}")
        counts.append(taken.count())
        assert sum(len(known) for _, known in taken.each()) == counts[-1]
    assert copied.is_set()
    assert counts == sorted(counts)


def test_a_site_takes_up_a_key_that_is_given_back(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_nodes, "LOOKED_EVERY", 0.02)
    site_data(kit)
    key = (folder_of(kit) / KEY_FILE).rename(kit.parent / "key")
    nodes = site_nodes.SiteNodes(kit)
    wait_for(lambda: nodes.problem == site_nodes.NO_COPIES, "the site to refuse")
    wait_for(lambda: read_site_status(kit).get("problems"), "the owner to be told")
    key.rename(folder_of(kit) / KEY_FILE)
    wait_for(lambda: not nodes.problem, "the site to take part again")
    wait_for(lambda: not read_site_status(kit)["problems"], "the owner to be told")


def test_older_copies_that_somebody_puts_there_are_refused_while_the_site_runs(kit: Path) -> None:
    data = site_data(kit)
    older = (folder_of(kit) / COPIES_FILE).read_bytes()
    running = use_more(kit)
    assert running.copies is not None
    file = folder_of(kit) / COPIES_FILE
    newer = file.read_bytes()
    for content in (older, None):
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(RunError, match=r"(r|R)estore .* backup"):
            running.copies.blur(running.observed, 5.0)
        assert file.exists() == (content is not None)  # no new one is made
    file.write_bytes(newer)
    copy = running.copies.blur(running.observed, 5.0)  # without a restart
    np.testing.assert_array_equal(
        copy.values[:BEFORE][~data.copy.missing], data.copy.values[~data.copy.missing]
    )


def test_older_copies_are_refused_also_if_there_are_as_many(kit: Path) -> None:
    """Two kits share a folder, and somebody puts an older database there."""
    site_data(kit)
    other = Path(shutil.copytree(kit, kit.parent / "other"))
    write_rows(kit.parent / "readings", LOST - 10)
    site_data(other)
    older = Path(shutil.copytree(folder_of(kit), kit.parent / "older"))
    use_more(other)
    shutil.copy(older / COPIES_FILE, folder_of(kit))
    with pytest.raises(RunError, match="but not those that were made last: the newer ones are lost"):
        site_data(kit)  # it has used none of those that are lost
    shutil.rmtree(folder_of(kit))
    shutil.copytree(older, folder_of(kit))
    write_rows(kit.parent / "readings", ROWS)
    site_data(kit)  # the folder as it was then: this kit cannot tell
    with pytest.raises(RunError, match="but not those that were made last: the newer ones are lost"):
        site_data(other)


# ---- whole or refused -------------------------------------------------------------------------------------


def test_a_backup_that_lacks_a_part_is_refused(kit: Path) -> None:
    site_data(kit)
    SiteStore(kit, "run").write("best", {"theta.w": torch.zeros(1)}, ())
    file, part = kit.parent / "file", kit.parent / "part"
    back_up(kit, file)
    content = file.read_bytes()
    with tarfile.open(file) as backup:
        ends = [member.offset for member in backup.getmembers()]
    for end in ends:
        part.write_bytes(content[:end])
        with pytest.raises(RunError, match="cut off or damaged"):
            restore(kit.parent / "new", part)
    part.write_bytes(content.replace(b"theta.w", b"theta.v"))
    with pytest.raises(RunError, match="cut off or damaged"):
        restore(kit.parent / "new", part)
    for kind in (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE):
        shutil.copy(file, part)
        more = tarfile.TarInfo("local/approved.json")
        more.type, more.linkname = kind, "/tmp"
        with tarfile.open(part, "a") as backup:
            backup.addfile(more)
        with pytest.raises(RunError, match="cut off or damaged"):
            restore(kit.parent / "new", part)
    assert not (kit.parent / "new").exists()


def test_a_link_in_a_kit_stops_a_backup(kit: Path) -> None:
    site_data(kit)
    (kit / "local" / "site.toml").rename(kit.parent / "site.toml")
    (kit / "local" / "site.toml").symlink_to(kit.parent / "site.toml")
    with pytest.raises(RunError, match=r"site.toml: is a link or no file, .* put the file or folder itself"):
        back_up(kit, kit.parent / "file")
    assert not (kit.parent / "file").exists()


def test_what_a_killed_backup_has_left_is_removed_by_the_next_one(kit: Path) -> None:
    site_data(kit)
    (folder_of(kit) / backups.SNAPSHOT).mkdir(0o700)
    (folder_of(kit) / backups.SNAPSHOT / KEY_FILE).write_text("secret")
    (kit.parent / ".file.partial").touch()  # such as one that somebody else has put there
    (kit.parent / ".file.partial").chmod(0o666)
    back_up(kit, kit.parent / "file")
    assert (kit.parent / "file").stat().st_mode & 0o777 == 0o600
    assert not (folder_of(kit) / backups.SNAPSHOT).exists()


def test_what_a_restore_makes_is_for_the_owner_alone(kit: Path) -> None:
    data = site_data(kit)
    OwnerStore(kit, "run", data.truth.ids).write("best", {"theta.w": torch.zeros(1)}, ())
    back_up(kit, kit.parent / "file")
    folder = folder_of(kit)
    shutil.rmtree(folder)
    shutil.rmtree(kit)
    umask = os.umask(0)
    try:
        folder.mkdir(0o755)  # on a new machine, by hand
        restore(kit, kit.parent / "file")
        assert os.umask(0) == 0
    finally:
        os.umask(umask)
    made = [kit, *kit.rglob("*"), folder, *folder.rglob("*")]
    assert [path for path in made if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize("with_copies", [True, False])
def test_a_site_does_not_start_after_a_restore_that_was_killed(
    kit: Path, monkeypatch: pytest.MonkeyPatch, with_copies: bool
) -> None:
    if with_copies:
        site_data(kit)
    back_up(kit, kit.parent / "file")
    use_more(kit)
    shutil.rmtree(folder_of(kit))
    if with_copies:
        (kit / "local" / RECORD).unlink()  # a kit that was issued anew
    else:
        shutil.rmtree(kit)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backups, "_all_at_hand", killed)
    with pytest.raises(KeyboardInterrupt):
        restore(kit, kit.parent / "file")
    monkeypatch.undo()
    with pytest.raises(RunError, match="has not come to its end: repeat it"):
        site_data(kit)
    assert not CopyStore.exists(folder_of(kit))
    assert restore(kit, kit.parent / "file").retired is not None
    write_rows(kit.parent / "readings", ROWS)
    assert site_data(kit).copy.missing[BEFORE:LOST].all()


def test_a_restore_names_the_approvals_that_it_brings_back(kit: Path) -> None:
    site_data(kit)
    approve(kit, "northtown-3")
    back_up(kit, kit.parent / "file")
    revoke(kit, "northtown-3")
    shutil.rmtree(folder_of(kit))
    assert "approved" not in said("federation", "restore", kit, kit.parent / "file")  # the kit has stayed
    assert not read_approvals(kit)
    shutil.rmtree(kit)
    shown = said("federation", "restore", kit, kit.parent / "file")
    assert "approved: northtown-3, as it was then; if you revoked it since, do so again" in shown
    assert "repeat what you changed since" in shown


# ---- what a restore must not forget ------------------------------------------------------------------------


def some_values(rows: int) -> np.ndarray[Any, Any]:
    return (60 + 5 * np.random.default_rng(0).standard_normal((rows, 2))).astype(np.float32)


def write_values(kit: Path, times: Any, values: np.ndarray[Any, Any]) -> None:
    index = pd.DatetimeIndex(times, name="time")
    pd.DataFrame(values, index=index, columns=["s0", "s1"]).to_csv(kit.parent / "readings" / "readings.csv")


def has_second_copies(first: SiteData, again: SiteData) -> bool:
    both = ~first.copy.missing & ~again.copy.missing
    return bool((both & (first.copy.values != again.copy.values)).any())


@pytest.mark.parametrize("step", [3600, 86_400])
def test_a_reading_of_the_step_that_runs_is_retired(kit: Path, step: int) -> None:
    make_kit(kit)
    end = (int(time.time()) // step + 1) * step  # rows may be stamped at the end of their interval
    times, values = pd.to_datetime(end - step * np.arange(200)[::-1], unit="s", utc=True), some_values(200)
    write_values(kit, times[:-1], values[:-1])
    site_data(kit)
    back_up(kit, kit.parent / "file")
    write_values(kit, times, values)
    first = site_data(kit)
    shutil.rmtree(folder_of(kit))
    values[-1] += 3
    write_values(kit, times, values)
    restore(kit, kit.parent / "file")
    again = site_data(kit)
    assert not has_second_copies(first, again)
    assert again.copy.missing[-1].all()


def test_a_clock_that_is_behind_stops_a_restore(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_kit(kit)
    now = time.time()
    times = pd.to_datetime((int(now) // 300 - np.arange(800)[::-1]) * 300, unit="s", utc=True)
    write_values(kit, times[:100], some_values(800)[:100])
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: now - 600 * 300)
        site_data(kit)
        back_up(kit, kit.parent / "file")
    write_values(kit, times, some_values(800))
    site_data(kit)
    shutil.rmtree(folder_of(kit))
    monkeypatch.setattr(time, "time", lambda: now - 300 * 300)
    with pytest.raises(RunError, match="later than this machine's clock: set the clock, or take them out"):
        restore(kit, kit.parent / "file")


def test_a_backup_from_before_the_first_copy_retires_everything(kit: Path) -> None:
    back_up(kit, kit.parent / "file")
    first = site_data(kit)
    shutil.rmtree(folder_of(kit))
    shutil.rmtree(kit)
    assert restore(kit, kit.parent / "file").retired is not None
    with pytest.raises(DataError, match="except for those that were retired"):
        site_data(kit)
    assert (~first.copy.missing).any()


def test_a_kit_that_has_made_a_new_key_is_not_taken_for_complete(kit: Path) -> None:
    site_data(kit)
    back_up(kit, kit.parent / "file")
    shutil.rmtree(folder_of(kit))
    (kit / "local" / RECORD).unlink()
    site_data(kit)  # started too early
    with pytest.raises(RunError, match="has made a new key since the backup"):
        restore(kit, kit.parent / "file")


def test_a_mark_never_moves_back(tmp_path: Path) -> None:
    store = CopyStore(tmp_path / "own")
    store.retire({"": 1000, "rain": 2000})
    store.retire({"": 900_000})
    values = np.arange(3, dtype=np.float32)[:, None]
    times = np.array([1500, 5000, 800_000]).astype("datetime64[s]")
    rain = Readings(times, ("rain",), values, np.isnan(values), source="rain")
    assert np.isnan(store.blur(rain, 1.0, "rain").values).all()
    record = record_of(store)
    assert record["marks"] == {"": 900_000, "rain": 2000}
    other = CopyStore(tmp_path / "other")
    other.retire({"": 900_000, "rain": 1000})
    with pytest.raises(RunError, match="from before this site was restored"):
        check_complete(other, {**record, "key": other.fingerprint})


def test_rows_after_a_long_pause_are_retired_too(kit: Path) -> None:
    times, values = pd.date_range("2024-01-01", periods=600, freq="5min"), some_values(600)
    rows = np.r_[0:150, 540:600]
    write_values(kit, times[:150], values[:150])
    make_kit(kit, live={"clock": "feed"})
    site_data(kit)
    back_up(kit, kit.parent / "file")
    write_values(kit, times[rows], values[rows])
    first = site_data(kit)
    shutil.rmtree(folder_of(kit))
    values[540:] += 3
    write_values(kit, times[rows], values[rows])
    restore(kit, kit.parent / "file")
    assert not has_second_copies(first, site_data(kit))


def test_a_logger_that_stamps_later_makes_no_second_copies(kit: Path) -> None:
    """Once most rows have another phase, a live site still counts them at the times that have copies."""
    old = pd.date_range("2024-01-01", periods=150, freq="5min")
    times = old.append(pd.date_range(old[-1] + pd.Timedelta(seconds=330), periods=250, freq="5min"))
    found = []
    for rows in (290, 310):
        write_values(kit, times[:rows], some_values(400)[:rows])
        found.append(SiteData(read_site(kit), kit, refusals=Refusals()))
    assert [int(one.seconds[0]) % 300 for one in found] == [0, 0]
    np.testing.assert_array_equal(found[1].copy.values[:290], found[0].copy.values[:290])
    write_values(kit, times[150:], some_values(400)[150:])
    with pytest.raises(RunError, match="30 s after one of 300 s"):
        site_data(kit)


def test_a_run_that_a_site_joined_after_the_backup_ends_in_a_sentence(kit: Path) -> None:
    site_data(kit)
    back_up(kit, kit.parent / "file")
    data = use_more(kit)
    terms = Terms(data.first, data.step, ROWS, "fp64", "run")

    def of_run() -> Series:
        site = site_nodes.SiteNodes(kit)
        wait_for(lambda: not site.problem, "the site to be ready")
        site.join(terms)
        assert site.joined is not None
        return site.joined.of_run()

    of_run()
    shutil.rmtree(folder_of(kit))
    restore(kit, kit.parent / "file")
    with pytest.raises(CnfgnnError, match="or a restore from a backup has retired some: start a new run"):
        of_run()


# ---- which of the retired readings are there -------------------------------------------------------------


def restored_site(kit: Path, live: bool) -> tuple[Any, np.ndarray[Any, Any]]:
    """Rows from 150 on are retired; returns the times and values of the recording."""
    make_kit(kit, **RECORDING)
    times, values = pd.date_range("2024-01-01", periods=200, freq="5min"), some_values(200)
    write_values(kit, times[:150], values[:150])
    load(kit, live)
    back_up(kit, kit.parent / "file")
    write_values(kit, times, values)
    load(kit, live)
    shutil.rmtree(folder_of(kit))
    restore(kit, kit.parent / "file")
    return times, values


def load(kit: Path, live: bool) -> SiteData:
    return SiteData(read_site(kit), kit, refusals=Refusals() if live else None)


def told_by(data: SiteData) -> list[Any]:
    """What the server hears of a site, in a training and when a live service begins."""
    terms = Terms(data.first, data.step, 200, "fp64", "run")
    recent = RecentReadings(counted_readings(data), 40, False)
    recent.retired = data.retired[READINGS]
    start = max(recent.newest, recent.retired)
    due = Schedule(recent.step, 60.0, 12).due(recent, start + 61.0)
    copy = newest_copy(data)
    return [
        data.describe(),
        digest_of(data),
        data.series(terms).values.tobytes(),
        recent.step,
        due,
        copy.times,
    ]


@pytest.mark.parametrize("live", [True, False])
def test_nobody_hears_which_retired_readings_are_there(kit: Path, live: bool) -> None:
    times, values = restored_site(kit, live)
    late = pd.date_range("2023-12-31", periods=400, freq="1min")  # retired ones of another step, and more
    more = np.concatenate([some_values(400), values[:150]])
    pause = pd.date_range("2024-01-02", periods=60, freq="5min")  # new ones; retired ones may bridge the gap
    worlds: list[tuple[Any, np.ndarray[Any, Any]]] = [
        (times, values),
        (times[:180], values[:180]),
        (times[:150], values[:150]),
        (times[np.r_[:150, 199]], values[np.r_[:150, 199]]),
        (late.append(times[:150]), more),
    ]
    for after in ([], pause):
        heard = []
        for stamps, numbers in worlds:
            stamps = stamps.append(pd.DatetimeIndex(after))
            write_values(kit, stamps, np.concatenate([numbers, some_values(60)[: len(after)]]))
            heard.append(told_by(load(kit, live)))
        for one in heard[1:]:
            assert str(one) == str(heard[0])
        assert heard[0][0]["step"] == 300


def test_a_retired_reading_that_arrives_makes_no_step_due() -> None:
    """With the machine's clock, those of the next minutes are retired, too."""
    readings = with_inputs(network(n=2, rows=50).readings)
    due, used = [], []
    for arrives, retired in ((True, 49), (False, 49), (True, 48), (True, 30)):
        values = np.full_like(readings.values, 50.0)
        values[-1] = 50.0 if arrives else np.nan
        values[:-1, 1] = np.nan if retired == 49 else 50.0
        recent = RecentReadings(replace(readings, values=values, missing=np.isnan(values)), 40, False)
        recent.retired = int(readings.seconds[retired])
        due.append(Schedule(300, 60.0, 12).due(recent, recent.newest + 1.0))
        rows = 50 if arrives else 49  # the last one comes before the forecast of the one before
        recent = RecentReadings(rows_of(replace(readings, values=values), slice(rows)), 40, False)
        recent.retired = int(readings.seconds[retired])
        used.append(recent.for_forecast(int(readings.seconds[48])))
    np.testing.assert_array_equal(used[0].values, used[1].values)
    np.testing.assert_array_equal(used[0].times, used[1].times)
    newest = int(readings.seconds[-1])
    assert due[0] == due[1] == newest - 300
    assert due[2:] == [newest, newest]


@pytest.mark.parametrize("tells", [True, False])
def test_errors_that_are_told_depend_on_no_retired_reading(kit: Path, tells: bool) -> None:
    times, values = restored_site(kit, False)
    make_kit(kit, **RECORDING, tell_errors=tells)
    used, ahead = [], []
    for plus in (0, 9):
        values[60:65] = 900.0  # outliers among readings like those with a copy
        values[150:] += 100 * plus
        write_values(kit, times, values)
        site = site_nodes.SiteNodes(kit)
        wait_for(lambda site=site: not site.problem, "the site to be ready")
        owner = site.join(Terms(int(times[0].timestamp()), 300, 200, "fp64", "run"))
        assert isinstance(owner, SiteOwner)
        owner.nodes.windows = Windows.next(200, 12, 3)
        ahead.append(owner._readings_to_use().values)
        owner.nodes.windows = Windows.of(200, 12, 3)
        used.append(owner._readings_to_use().values)
    assert np.array_equal(*used, equal_nan=True) == tells
    assert not np.array_equal(*ahead, equal_nan=True)  # forecasts of its own are nobody else's business


def test_coverage_is_told_once_no_retired_reading_counts() -> None:
    """The sums are those of a day, of forecasts that were made from a history."""
    report = replace(Watch(("a",), 3, 300, 12, True).report(str), sums=np.full((1, len(SUMS)), 99.0))
    site: Any = SimpleNamespace(
        plan=SitePlan("north", ("a",), live=SiteLive(tell_coverage=True)),
        predictor=SimpleNamespace(history=12, horizon=3),
        data=SimpleNamespace(step=300, retired={READINGS: 7200}),
        service=SimpleNamespace(process=SimpleNamespace(service=SimpleNamespace(report=report))),
        coverage=ToldCoverage(),
    )
    told = [step for step in range(0, 2 * 86_400, 300) if LiveSiteNodes._told_coverage(site, step)]
    assert 7200 + (288 + 12 + 3) * 300 < told[0] < 7200 + 86_400 + 3 * 3600


def test_a_recording_goes_on_from_the_restore_whatever_is_left_of_it(tmp_path: Path) -> None:
    """Readings that were stored six days after the restore follow it, not the newest one that is there."""
    readings, day = network(n=2, rows=50).readings, 86_400
    newest = int(readings.seconds[-1])
    with closing(ReadingStore(tmp_path)) as store:
        store.write(readings.ids, [Cell(newest + 10 * day, 0, 50.0)], {})
        for retired, found in ((None, newest), (newest + 4 * day, newest + 10 * day)):
            recent = recent_readings(readings, store, False, FeedClock.latest_after, retired)
            assert recent.newest == found


def test_retired_readings_do_not_decide_on_the_steps_of_a_live_site_with_gaps(kit: Path) -> None:
    times, values = restored_site(kit, True)
    heard = []
    for rows in (np.r_[0:150:2], np.r_[0:150:2, 151:200:2], np.r_[0:150:2, 150:200]):
        write_values(kit, times[rows], values[rows])
        heard.append(str(told_by(load(kit, True))))
    assert heard[0] == heard[1] == heard[2]


def test_few_rows_with_gaps_do_not_change_the_step_of_a_restored_site(tmp_path: Path) -> None:
    readings, store = network(n=2, rows=50).readings, CopyStore(tmp_path)
    first = int(readings.seconds[0])
    store.settle(GRID, f"300 {first % 300}")
    settle_steps(store, rows_of(readings, slice(0, 20, 2)))
    assert CopyStore.settled(tmp_path, STEPS) == f"300 {first}"


def test_a_live_site_goes_on_with_one_reading_after_the_restore(kit: Path) -> None:
    times, values = restored_site(kit, True)
    times = times.append(times[-1:] + pd.Timedelta("5min"))
    heard = []
    for first in (160, 199, 200):  # retired rows are there, or not
        write_values(kit, times[first:], np.concatenate([values, values[:1]])[first:])
        heard.append(str(told_by(load(kit, True))))
    assert heard[0] == heard[1] == heard[2]


@pytest.mark.parametrize("ahead", [-50, -3, 0, 3, 50])
def test_a_copy_that_is_shorter_than_the_history_makes_a_window(ahead: int) -> None:
    readings = network(n=2, rows=50).readings
    trained = PreparedSeries(
        Series.of(readings),
        Scaler(0.0, 1.0),
        "masked",
        Windows.of(50, 12, 3),
        torch.float64,
        torch.device("cpu"),
    )
    until = int(readings.seconds[-1]) + 300 * ahead
    for rows in (1, 5, 12):
        values = readings.values.copy()
        values[:-rows] = np.nan
        whole = replace(readings, values=values, missing=np.isnan(values))
        few = rows_of(readings, slice(50 - rows, None))
        short, same = (window_of(rows_until(one, until, 300, 24), trained) for one in (few, whole))
        assert torch.equal(short.inputs, same.inputs)
        assert torch.equal(short.observed, same.observed)


@pytest.mark.parametrize("live", [True, False])
def test_retired_readings_do_not_decide_whether_a_pause_is_too_long(kit: Path, live: bool) -> None:
    times, values = restored_site(kit, live)
    for pause, new in ((190, 1) if live else (900, 5), (1, 1)):
        later = pd.date_range(times[-1] + pd.Timedelta("5min") * pause, periods=new, freq="5min")
        off = times[160:161] + pd.Timedelta("17s")
        heard = []
        for old in (times[160:163], times[160:161].append(off), times[:0]):
            write_values(kit, old.append(later), np.concatenate([values[: len(old)], values[50 : 50 + new]]))
            heard.append(str(told_by(load(kit, live))))
        assert heard[0] == heard[1] == heard[2]


def test_another_restore_retires_rows_after_a_pause_that_only_known_steps_allow(kit: Path) -> None:
    times, values = restored_site(kit, False)
    later = pd.date_range(times[-1] + pd.Timedelta("5min") * 3000, periods=5, freq="5min")
    write_values(kit, times[160:170].append(later), values[:15])
    assert not load(kit, False).copy.missing[-5:].any()
    shutil.rmtree(folder_of(kit))
    assert restore(kit, kit.parent / "file").retired == int(later[-1].timestamp())
