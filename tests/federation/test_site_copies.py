"""A site's readings have one blurred copy, which belongs to the readings and outlives the kit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnfgnn.attack.smoothed_copies import SmoothedCopies
from cnfgnn.config.toml import dump_table
from cnfgnn.data.files.export import write_folder
from cnfgnn.errors import CnfgnnError, ConfigError, RunError
from cnfgnn.federation.operator.check import _smoothing, check_site
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.project import read_project
from cnfgnn.federation.site.copies import RECORD
from cnfgnn.federation.site.readings import SiteData, digest
from cnfgnn.federation.site.settings import PRIVATE, private_folder, read_site
from cnfgnn.privacy.copies import COPIES_FILE, KEY_FILE, TWO_COPIES, CopyStore
from cnfgnn.transports.remote.endpoint import Terms
from tests.conftest import network
from tests.federation.two_site_federation import write_project

SENSORS = ("s0", "s1")


def write_readings(folder: Path, plus: float = 0.0, at: slice = slice(0, 0)) -> None:
    data = network(n=2, rows=200, dropout=0.05)
    values = data.readings.values.copy()
    values[at] += np.float32(plus)
    folder.mkdir(exist_ok=True)
    write_folder(replace(data, readings=replace(data.readings, values=values)), folder)


def make_kit(folder: Path, **settings: Any) -> Path:
    (folder / "local").mkdir(parents=True, exist_ok=True)
    content = {"name": "north", "sensors": list(SENSORS), "readings": "../readings", "blur": 5.0}
    settings = {key: value for key, value in (content | settings).items() if value is not None}
    (folder / "local" / "site.toml").write_text(dump_table(settings))
    return folder


def site_data(kit: Path) -> SiteData:
    return SiteData(read_site(kit), kit)


def digest_of(data: SiteData) -> str:
    terms = Terms(data.first, data.step, 200, "fp64", "run")
    return digest(data.series(terms), terms)


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    write_readings(tmp_path / "readings")
    return make_kit(tmp_path / "kit")


# ---- settings ----------------------------------------------------------------------------------------


def test_a_site_chooses_its_blur_and_otherwise_has_the_projects(tmp_path: Path) -> None:
    assert read_site(make_kit(tmp_path, blur=None)).blur == 0
    assert read_site(make_kit(tmp_path, blur=None, least_blur=3)).blur == 3
    plan = read_site(make_kit(tmp_path, blur=7, least_blur=3.0, tell_errors=True, private="/srv/own"))
    assert (plan.blur, plan.least_blur, plan.tell_errors, plan.private) == (7, 3, True, "/srv/own")


@pytest.mark.parametrize(
    "wrong",
    [
        {"blur": -1},
        {"blur": "5"},
        {"blur": True},
        {"blur": float("inf")},
        {"blur": 1e-12},
        {"blur": 10**400},
        {"least_blur": -2},
        {"tell_errors": 1},
        {"private": 5},
    ],
)
def test_a_wrong_setting_is_refused_with_file_and_key(tmp_path: Path, wrong: dict[str, Any]) -> None:
    [key] = wrong
    with pytest.raises(ConfigError, match=rf"site\.toml: {key}: it must be"):
        read_site(make_kit(tmp_path, **wrong))


def test_the_kits_of_a_project_have_its_least_blur(tmp_path: Path) -> None:
    path = write_project(tmp_path, min_sites="1\nblur = 4")
    kits = make_kits(read_project(path), tmp_path / "kits")
    plan = read_site(kits["north"])
    assert (plan.least_blur, plan.blur) == (4, 4)
    assert "blur = 4" in (kits["server"] / "local" / "project.toml").read_text()
    with pytest.raises(ConfigError, match=r"blur: it must be a number in the unit of the readings"):
        read_project(write_project(tmp_path, min_sites="1\nblur = -4"))


def test_a_site_below_the_least_blur_refuses_by_itself(tmp_path: Path, kit: Path) -> None:
    make_kit(kit, blur=2, least_blur=5)
    problem = "blur: the blur of site north is 2, and this federation asks for at least 5"
    with pytest.raises(ConfigError, match=problem):
        site_data(kit)
    assert not (tmp_path / "readings" / PRIVATE).exists()  # no copy was made


# ---- copies ------------------------------------------------------------------------------------------


def test_the_server_gets_the_copy_and_the_owner_the_readings(kit: Path) -> None:
    data = site_data(kit)
    plain = site_data(make_kit(kit.parent / "plain", blur=0, private="private"))
    assert plain.copy is plain.truth
    assert plain.true_series(Terms(plain.first, plain.step, 200, "fp64", "run")) is None
    np.testing.assert_array_equal(data.truth.values, plain.truth.values)
    np.testing.assert_array_equal(data.copy.missing, data.truth.missing)
    apart = (data.copy.values - data.truth.values)[~data.truth.missing]
    assert np.std(apart) == pytest.approx(5, rel=0.2)
    assert data.describe() == {**plain.describe(), "blur": 5.0}
    assert data.sigmas == {5.0: int((~data.truth.missing).sum())}
    terms = Terms(data.first, data.step, 200, "fp64", "run")
    truth = data.true_series(terms)
    assert truth is not None
    np.testing.assert_array_equal(data.series(terms).values, data.copy.values.T.astype(np.float64))
    np.testing.assert_array_equal(truth.values, data.truth.values.T.astype(np.float64))


def test_the_first_copy_is_final_through_a_restart_a_correction_and_a_new_blur(kit: Path) -> None:
    first = site_data(kit)
    again = site_data(kit)
    np.testing.assert_array_equal(again.copy.values, first.copy.values)
    write_readings(kit.parent / "readings", plus=3, at=slice(50, 90))
    corrected = site_data(kit)
    assert not np.array_equal(corrected.truth.values, first.truth.values, equal_nan=True)
    np.testing.assert_array_equal(corrected.copy.values, first.copy.values)
    assert digest_of(corrected) == digest_of(first)  # a run goes on with the copy it began with
    for blur in (0, 1, 20):
        changed = site_data(make_kit(kit, blur=blur))
        np.testing.assert_array_equal(changed.copy.values, first.copy.values)
        assert changed.sigmas == first.sigmas


def write_first_rows(folder: Path, rows: int) -> None:
    write_readings(folder)
    lines = (folder / "readings.csv").read_text().splitlines(keepends=True)
    (folder / "readings.csv").write_text("".join(lines[: rows + 1]))


@pytest.mark.parametrize("older", [0.0, 2.0])
def test_a_site_reports_the_smallest_blur_of_its_copies(kit: Path, older: float) -> None:
    write_first_rows(kit.parent / "readings", 150)
    if older == 0:
        site_data(kit)  # makes the store; the next rows are read without a blur
        write_first_rows(kit.parent / "readings", 170)
    site_data(make_kit(kit, blur=older))
    write_readings(kit.parent / "readings")
    data = site_data(make_kit(kit, blur=6))
    assert 6 in data.sigmas
    assert data.describe()["blur"] == older
    said: list[str] = []
    with pytest.raises(CnfgnnError):  # the kit has no certificate
        said.extend(check_site_alone(kit))
    assert [line for line in said if f"the server is told a blur of {older:g}, the smallest" in line]
    with pytest.raises(ConfigError, match=rf"have a copy with a blur of {older:g} from an earlier time"):
        site_data(make_kit(kit, blur=6, least_blur=4))


def test_a_changed_mask_changes_the_digest(kit: Path) -> None:
    first = digest_of(site_data(kit))
    write_readings(kit.parent / "readings", plus=np.nan, at=slice(50, 51))
    assert digest_of(site_data(kit)) != first


def test_a_kit_that_is_issued_again_finds_the_same_copies(kit: Path) -> None:
    first = site_data(kit)
    shutil.rmtree(kit)
    renewed = make_kit(kit.parent / "renewed", blur=10)
    np.testing.assert_array_equal(site_data(renewed).copy.values, first.copy.values)
    as_file = make_kit(kit.parent / "again", readings="../readings/readings.csv")
    np.testing.assert_array_equal(site_data(as_file).copy.values, first.copy.values)


@pytest.mark.parametrize("lost", [KEY_FILE, COPIES_FILE, ""])
def test_a_lost_key_or_copy_stops_the_site(kit: Path, lost: str) -> None:
    site_data(kit)
    folder = private_folder(read_site(kit), kit)
    for path in folder.glob(f"{lost}*"):
        path.unlink()
    kept = sorted(path.name for path in folder.iterdir())
    with pytest.raises(RunError, match=rf"restore .* from a backup.*{TWO_COPIES}"):
        site_data(kit)
    with pytest.raises(RunError, match=TWO_COPIES):
        list(check_site_alone(kit))
    assert sorted(path.name for path in folder.iterdir()) == kept


def check_site_alone(kit: Path, hide: float | None = None) -> Iterator[str]:
    """The checks of `federation check` that need no server."""
    (kit / "startup").mkdir(exist_ok=True)
    (kit / "startup" / "fed_client.json").touch()
    return check_site(kit, hide)


def test_readings_that_moved_need_their_copies(kit: Path) -> None:
    first = site_data(kit)
    elsewhere = kit.parent / "elsewhere"
    write_readings(elsewhere)
    make_kit(kit, readings="../elsewhere")
    with pytest.raises(RunError, match=r"they were in .*readings/cnfgnn-private: move that folder here"):
        site_data(kit)
    assert not (elsewhere / PRIVATE).exists()
    (kit.parent / "readings" / PRIVATE).rename(elsewhere / PRIVATE)
    np.testing.assert_array_equal(site_data(kit).copy.values, first.copy.values)
    other = make_kit(kit.parent / "other", private="own")
    site_data(other)
    make_kit(kit, private="../other/own")
    with pytest.raises(RunError, match=r"holds the copies of another key"):
        site_data(kit)


def test_an_older_backup_of_the_copies_stops_the_site(kit: Path) -> None:
    write_first_rows(kit.parent / "readings", 150)
    site_data(kit)
    folder = private_folder(read_site(kit), kit)
    backup = shutil.copytree(folder, kit.parent / "backup")
    write_readings(kit.parent / "readings")
    newer = site_data(kit)
    made = sum(newer.sigmas.values())
    aside = folder.rename(kit.parent / "aside")
    shutil.copytree(backup, folder)
    older = CopyStore(backup).count()
    problem = rf"holds copies of {older} readings, and this site has used copies of {made}: .* newest backup"
    with pytest.raises(RunError, match=problem):
        site_data(make_kit(kit, blur=9))
    assert CopyStore(folder).count() == older  # no second copy was made
    shutil.rmtree(folder)
    aside.rename(folder)
    np.testing.assert_array_equal(site_data(kit).copy.values, newer.copy.values)


def test_a_new_key_is_announced_once(kit: Path) -> None:
    folder = private_folder(read_site(kit), kit)
    assert [line for line in site_data(kit).warnings() if f"a NEW key was made, in {folder}." in line]
    assert list(site_data(kit).copy_warnings) == []
    shutil.rmtree(kit)
    assert list(site_data(make_kit(kit)).copy_warnings) == []
    make_kit(kit, private="inside")
    shutil.copytree(folder, kit / "inside")
    for _ in range(2):
        assert [line for line in site_data(kit).warnings() if "is inside the kit" in line]


def test_check_announces_a_new_key(kit: Path) -> None:
    said: list[str] = []
    with pytest.raises(CnfgnnError):  # the kit has no certificate
        said.extend(check_site_alone(kit))
    assert [line for line in said if line.startswith("warning: a NEW key was made, in ")]


def test_a_folder_with_other_files_is_left_as_it_is(kit: Path) -> None:
    shared = kit.parent / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    make_kit(kit, private="../shared")
    (shared / "notes.txt").touch()
    with pytest.raises(RunError, match=r"other files are \(notes\.txt\): choose a new or an empty folder"):
        site_data(kit)
    assert shared.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in shared.iterdir()] == ["notes.txt"]
    (shared / "notes.txt").unlink()
    site_data(kit)
    assert shared.stat().st_mode & 0o777 == 0o700


def with_offset(folder: Path) -> None:
    """State the time zone of every row."""
    header, *rows = (folder / "readings.csv").read_text().splitlines()
    times = [row.split(",", 1) for row in rows]
    lines = [header, *(f"{time}Z,{rest}" for time, rest in times)]
    (folder / "readings.csv").write_text("\n".join(lines) + "\n")


def test_times_that_are_counted_in_another_way_stop_the_site(kit: Path) -> None:
    first = site_data(kit)
    made = CopyStore(private_folder(read_site(kit), kit)).count()
    with pytest.raises(RunError, match=r"made from readings in times without a time zone, and now .* in UTC"):
        site_data(make_kit(kit, reading={"timezone": "+01:00"}))
    with_offset(kit.parent / "readings")
    with pytest.raises(RunError, match=r"made from readings in times without a time zone, and now .* in UTC"):
        site_data(make_kit(kit))
    assert CopyStore(private_folder(read_site(kit), kit)).count() == made
    write_readings(kit.parent / "readings")
    np.testing.assert_array_equal(site_data(kit).copy.values, first.copy.values)


def test_another_time_zone_stops_the_site(kit: Path) -> None:
    site_data(make_kit(kit, reading={"timezone": "+01:00"}))
    with pytest.raises(
        RunError, match=r"reading\.timezone = '\+01:00', and now it is '\+02:00' in .*site\.toml"
    ):
        site_data(make_kit(kit, reading={"timezone": "+02:00"}))


def test_check_counts_readings_that_are_not_those_of_their_copies(kit: Path) -> None:
    def warnings() -> list[str]:
        said: list[str] = []
        with pytest.raises(CnfgnnError):  # the kit has no certificate
            said.extend(check_site_alone(kit))
        return [line for line in said if "not those that their copies were made of" in line]

    assert warnings() == []
    write_readings(kit.parent / "readings", plus=1, at=slice(50, 53))
    assert warnings() == []  # a few corrections
    write_readings(kit.parent / "readings", plus=1, at=slice(50, 90))
    corrected = int((~site_data(kit).observed.missing[50:90]).sum())
    [warning] = warnings()
    assert warning.startswith(f"warning: {corrected} readings are not those")


def test_the_key_is_in_its_own_file_alone(kit: Path) -> None:
    site_data(kit)
    folder = private_folder(read_site(kit), kit)
    key = (folder / KEY_FILE).read_text().strip()
    record = kit / "local" / RECORD
    assert json.loads(record.read_text()).keys() == {"key", "folder", "readings", "last"}
    for path in kit.parent.rglob("*"):
        if path.is_file() and path != folder / KEY_FILE:
            content = path.read_bytes()
            assert key.encode() not in content, path
            assert bytes.fromhex(key) not in content, path
    private = [folder / KEY_FILE, folder / COPIES_FILE, record]
    assert [path for path in private if path.stat().st_mode & 0o077] == []


def test_only_the_owner_learns_the_value_of_an_outlier(kit: Path) -> None:
    write_readings(kit.parent / "readings", plus=99999, at=slice(60, 61))
    data = site_data(kit)
    assert data.truth.missing[60].all()
    assert data.copy.missing[60].all()  # it is so far away that it is one in the copy, too
    assert [finding.kind for finding in data.findings] == ["outlier"]


def smoothing_in_check(kit: Path, hide: float | None = None) -> list[str]:
    said: list[str] = []
    with pytest.raises(CnfgnnError):  # the kit has no certificate
        said.extend(check_site_alone(kit, hide))
    return [line.removeprefix("smoothing: ") for line in said if line.startswith("smoothing: ")]


def test_check_tells_the_owner_what_a_smoother_would_make_of_the_copies(kit: Path) -> None:
    [few] = smoothing_in_check(kit)
    assert few.startswith("too few readings to say")
    write_folder(network(n=2, rows=700, dropout=0.05), kit.parent / "readings")
    [line] = smoothing_in_check(make_kit(kit, blur=2.0))
    truth = site_data(kit).truth
    found = SmoothedCopies.of(truth.values, truth.missing)
    assert found is not None
    assert f"misses these readings by {found.at(2.0).together:.3g} at a blur of 2, " in line
    assert line.endswith(f"guessing each sensor's mean misses by {found.guess:.3g}")
    before = {path: path.read_bytes() for path in kit.rglob("*") if path.is_file()}
    assert smoothing_in_check(kit, hide=1.0) == [line, found.hiding(1.0)]
    assert before == {path: path.read_bytes() for path in kit.rglob("*") if path.is_file()}


def test_check_says_so_if_readings_never_change() -> None:
    values = np.full((700, 2), 7.0, dtype=np.float32)
    found = SmoothedCopies.of(values, np.zeros(values.shape, dtype=np.bool_))
    [line] = _smoothing(found, 0.0, None)
    assert line == "smoothing: these readings never change, so that their mean tells all of them"


def test_check_tells_the_owner_what_is_protected(tmp_path: Path) -> None:
    kits = make_kits(read_project(write_project(tmp_path, min_sites="1\nblur = 4")), tmp_path / "kits")
    write_folder(network(n=3, rows=200, dropout=0.0), tmp_path)
    toml = kits["south"] / "local" / "site.toml"
    toml.write_text(toml.read_text() + f'readings = "{tmp_path / "readings.csv"}"\ntell_errors = true\n')

    def collected() -> list[str]:
        found: list[str] = []
        with pytest.raises(RunError, match="cannot be reached"):
            found.extend(check_site(kits["south"]))
        return found

    said = collected()
    assert "blur: 4; readings that have a copy: 400 with a blur of 4" in said
    assert (
        f"key and copies: {tmp_path / PRIVATE} (cnfgnn federation backup: they cannot be made again)" in said
    )
    assert [line for line in said if line.startswith("note: tell_errors is true")]
    assert not [line for line in said if "tell_coverage" in line]
    plain = toml.read_text()
    toml.write_text(plain + "[live]\ntell_coverage = true\n")
    assert [line for line in collected() if line.startswith("note: live.tell_coverage is true")]
    toml.write_text(plain + "blur = 6\n")
    assert "note: 400 readings had a copy before; it is final, whatever the blur is now" in collected()
    toml.write_text(toml.read_text().replace("least_blur = 4.0", "").replace("blur = 6", "blur = 0"))
    shutil.rmtree(tmp_path / PRIVATE)
    (kits["south"] / "local" / RECORD).unlink()
    assert [line for line in collected() if line.startswith("warning: blur is 0: the server can estimate")]
