"""A reading has one blurred copy, for ever, whatever happens to the reading, its unit or sigma."""

from __future__ import annotations

import itertools
import multiprocessing
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cnfgnn.privacy.copies
from cnfgnn.data.readings import Readings
from cnfgnn.errors import RunError
from cnfgnn.privacy.copies import (
    BLOCK,
    COPIES_FILE,
    KEY_FILE,
    LAST_FILE,
    READING,
    SENSORS_AT_ONCE,
    UNNAMED_KEY_FILE,
    Copies,
    CopyStore,
    SimulatedCopies,
)
from cnfgnn.privacy.noise import grid

ROWS, SENSORS = 40, 3
SIGMAS = st.just(0.0) | st.floats(1e-3, 50)


def some_readings(seed: int = 0, first: int = 0, rows: int = ROWS) -> Readings:
    rng = np.random.default_rng(seed)
    times = np.datetime64("2024-01-01T00:00:00") + 300 * np.arange(first, first + rows).astype(
        "timedelta64[s]"
    )
    values = rng.normal(50, 10, (rows, SENSORS)).astype(np.float32)
    values[rng.random((rows, SENSORS)) < 0.1] = np.nan
    values[3, 1] = 0
    missing = np.isnan(values) | (values == 0)
    return Readings(times, ("a", "b", "c"), values, missing, source="some readings")


def files_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


@pytest.fixture(params=["simulated", "on disk"])
def copies(request: pytest.FixtureRequest, tmp_path: Path) -> Copies:
    return SimulatedCopies(1) if request.param == "simulated" else CopyStore(tmp_path / "owner")


def test_only_observed_readings_are_blurred_and_gaps_stay_gaps(copies: Copies) -> None:
    true = some_readings()
    copy = copies.blur(true, 5.0)
    np.testing.assert_array_equal(copy.missing, true.missing)
    np.testing.assert_array_equal(np.isnan(copy.values), np.isnan(true.values))
    assert copy.values[3, 1] == 0
    apart = (copy.values - true.values)[~true.missing]
    assert np.std(apart) == pytest.approx(5.0, rel=0.3)
    assert (apart != 0).all()


def test_a_number_that_stands_for_missing_tells_nothing_else(copies: Copies) -> None:
    true = some_readings()
    values = true.values.copy()
    values[3, 1] = -999.125
    assert copies.blur(replace(true, values=values), 5.0).values[3, 1] == 0


def test_the_copy_is_the_same_each_time(copies: Copies) -> None:
    true = some_readings()
    np.testing.assert_array_equal(copies.blur(true, 5.0).values, copies.blur(true, 5.0).values)


def test_without_blur_the_copy_is_the_readings(copies: Copies) -> None:
    true = some_readings()
    np.testing.assert_array_equal(copies.blur(true, 0.0).values, true.values)


def test_the_first_copy_is_final(tmp_path: Path) -> None:
    true = some_readings()
    first = CopyStore(tmp_path).blur(true, 5.0).values
    corrected = replace(true, values=true.values + np.float32(7))
    np.testing.assert_array_equal(CopyStore(tmp_path).blur(corrected, 5.0).values, first)
    in_kmh = replace(true, values=true.values * np.float32(1.609))
    np.testing.assert_array_equal(CopyStore(tmp_path).blur(in_kmh, 5.0).values, first)
    for sigma in (0.0, 1.0, 50.0):
        np.testing.assert_array_equal(CopyStore(tmp_path).blur(true, sigma).values, first)


def test_copies_that_were_drawn_by_another_formula_stay_as_they_are(tmp_path: Path) -> None:
    """A store from a machine whose logarithm rounded differently, or from another version."""
    true, store = some_readings(), CopyStore(tmp_path)
    drawn = store.blur(true, 5.0).values
    with closing(sqlite3.connect(tmp_path / COPIES_FILE)) as database, database:
        for sensor, block, blob in database.execute("SELECT * FROM copies").fetchall():
            kept = np.frombuffer(blob, dtype=READING).copy()
            kept["copy"] += grid(5.0)
            row = (kept.tobytes(), sensor, block)
            database.execute("UPDATE copies SET readings = ? WHERE sensor = ? AND block = ?", row)
    for used in (store, CopyStore(tmp_path)):
        again = used.blur(true, 5.0).values
        np.testing.assert_array_equal(again[~true.missing], drawn[~true.missing] + np.float32(grid(5.0)))


def test_a_new_sigma_applies_to_new_readings(tmp_path: Path) -> None:
    long = some_readings(rows=400)
    early = replace(long, times=long.times[:200], values=long.values[:200], missing=long.missing[:200])
    first = CopyStore(tmp_path).blur(early, 1.0).values
    both = CopyStore(tmp_path).blur(long, 20.0)
    np.testing.assert_array_equal(both.values[:200], first)
    later = (both.values - long.values)[200:][~long.missing[200:]]
    assert np.std(later) == pytest.approx(20.0, rel=0.1)


def test_further_inputs_have_copies_and_noise_of_their_own(copies: Copies) -> None:
    true = some_readings()
    observed = ~true.missing
    noise = {}
    for name in ("flow", "", "rain", "flow", ""):
        drawn = (copies.blur(true, 5.0, name).values - true.values)[observed]
        np.testing.assert_array_equal(noise.setdefault(name, drawn), drawn)
    for one, other in itertools.combinations(noise.values(), 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.35
        assert not (one == other).all()


def test_copies_of_an_input_are_final_counted_and_compared(tmp_path: Path) -> None:
    true, store = some_readings(), CopyStore(tmp_path)
    first = store.blur(true, 5.0, "flow").values
    corrected = replace(true, values=true.values + np.float32(7))
    np.testing.assert_array_equal(CopyStore(tmp_path).blur(corrected, 1.0, "flow").values, first)
    known = int((~true.missing).sum())
    assert store.count() == known
    assert store.changed(corrected, "flow") == known
    assert store.changed(corrected) == 0  # the readings themselves have no copy yet
    store.blur(true, 2.0)
    assert store.count() == 2 * known


def test_two_owners_draw_different_noise(tmp_path: Path) -> None:
    true = some_readings()
    one, other = (CopyStore(tmp_path / name).blur(true, 5.0).values for name in ("one", "other"))
    assert np.isclose(one, other)[~true.missing].mean() < 0.1  # on a grid some meet by chance


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(4, 40), SIGMAS), min_size=1, max_size=4))
def test_however_readings_arrive_each_has_one_copy(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int, float]]
) -> None:
    folder = tmp_path_factory.mktemp("owner")
    seen: dict[tuple[str, np.datetime64], float] = {}
    for number, (first, rows, sigma) in enumerate(parts):
        part = some_readings(number, first, rows)
        copy = CopyStore(folder).blur(part, sigma)
        for row, column in np.argwhere(~part.missing):
            key = (part.ids[column], part.times[row])
            assert seen.setdefault(key, copy.values[row, column]) == copy.values[row, column]


def _blur(folder: Path, seed: int, all_here: Barrier) -> None:
    all_here.wait()
    CopyStore(folder).blur(some_readings(seed), 5.0)


def test_processes_at_the_same_time_agree_on_one_key_and_one_copy(tmp_path: Path) -> None:
    context, folder = multiprocessing.get_context("spawn"), tmp_path / "owner"
    all_here = context.Barrier(3)
    processes = [context.Process(target=_blur, args=(folder, seed, all_here)) for seed in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    first = CopyStore(folder).blur(some_readings(0), 5.0)
    again = CopyStore(folder).blur(some_readings(1), 5.0)
    observed = ~(first.missing | again.missing)
    np.testing.assert_array_equal(first.values[observed], again.values[observed])
    assert {path.name for path in folder.iterdir()} == {KEY_FILE, COPIES_FILE, LAST_FILE}


def test_a_reading_that_was_missing_for_a_while_has_its_first_copy(tmp_path: Path) -> None:
    true = some_readings()
    first = CopyStore(tmp_path).blur(true, 5.0)
    gone = replace(true, values=np.full_like(true.values, np.nan), missing=np.ones_like(true.missing))
    assert np.isnan(CopyStore(tmp_path).blur(gone, 5.0).values).all()
    back = replace(true, values=true.values + np.float32(30))
    np.testing.assert_array_equal(
        CopyStore(tmp_path).blur(back, 1.0).values[~true.missing], first.values[~true.missing]
    )


# ---- processes that are killed --------------------------------------------------------------------------

BLUR_FOR_EVER = """
import sys
from pathlib import Path
import numpy as np
from cnfgnn.data.readings import Readings
from cnfgnn.privacy.copies import CopyStore
store, rows, sensors = CopyStore(Path(sys.argv[1])), 500, tuple("abcdefgh")
for day in range(10000):
    steps = day * rows + np.arange(rows)
    times = np.datetime64("2024-01-01T00:00:00") + (300 * steps).astype("timedelta64[s]")
    values = np.full((rows, len(sensors)), 50, dtype=np.float32)
    store.blur(Readings(times, sensors, values, np.zeros(values.shape, dtype=bool)), 5.0)
    print(day, flush=True)
"""


def all_copies(folder: Path) -> list[tuple[str, np.ndarray]]:
    """What the database holds of each sensor."""
    with closing(sqlite3.connect(folder / COPIES_FILE)) as database:
        rows = database.execute("SELECT sensor, readings FROM copies ORDER BY sensor, block").fetchall()
    return [(sensor, np.frombuffer(content, dtype=READING)) for sensor, content in rows]


def test_a_process_that_is_killed_while_it_writes_leaves_copies_that_are_final(tmp_path: Path) -> None:
    folder = tmp_path / "owner"
    with subprocess.Popen([sys.executable, "-c", BLUR_FOR_EVER, folder], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        process.kill()
    kept = all_copies(folder)
    assert sum(len(copies) for _, copies in kept) >= 3 * 500 * 8
    assert all((np.diff(copies["time"]) > 0).all() for _, copies in kept)
    for sensor, copies in kept[:: len(kept) // 4]:
        times = copies["time"].astype("datetime64[s]")
        corrected = np.full((len(times), 1), 12, dtype=np.float32)
        mask = np.zeros(corrected.shape, dtype=np.bool_)
        again = CopyStore(folder).blur(Readings(times, (sensor,), corrected, mask), 1.0)
        np.testing.assert_array_equal(again.values[:, 0], copies["copy"])


class Killed(BaseException):
    """The process ends here."""


def _killed(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize("moment", ["_create", "new_key", "write_private", "fingerprint_of", "_rename"])
def test_a_process_that_is_killed_while_it_makes_the_key_leaves_a_folder_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(f"cnfgnn.privacy.copies.{moment}", _killed)
        with pytest.raises(Killed):
            CopyStore(tmp_path)
    assert not (tmp_path / KEY_FILE).exists()
    first = CopyStore(tmp_path).blur(some_readings(), 5.0)
    np.testing.assert_array_equal(CopyStore(tmp_path).blur(some_readings(), 5.0).values, first.values)
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert not (tmp_path / UNNAMED_KEY_FILE).exists()


def test_a_process_that_is_killed_before_its_copies_are_on_disk_has_not_used_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CopyStore(tmp_path)
    add = cnfgnn.privacy.copies._add

    def killed_later(database: sqlite3.Connection, series: tuple[str, str], made: np.ndarray) -> int:
        added = add(database, series, made)
        if series == ("", "b"):
            raise Killed
        return added

    with monkeypatch.context() as patch:
        patch.setattr("cnfgnn.privacy.copies._add", killed_later)
        with pytest.raises(Killed):
            store.blur(some_readings(), 5.0)
    assert all_copies(tmp_path) == []
    store.blur(some_readings(), 5.0)
    assert {sensor for sensor, _ in all_copies(tmp_path)} == {"a", "b", "c"}


# ---- damage ---------------------------------------------------------------------------------------------


def test_copies_beyond_a_block_and_of_many_sensors_come_back(tmp_path: Path) -> None:
    rows = 3 * BLOCK // 300
    times = np.datetime64("2024-01-01T00:00:00") + 300 * np.arange(rows).astype("timedelta64[s]")
    ids = tuple(f"s{k}" for k in range(SENSORS_AT_ONCE + 1))
    values = np.random.default_rng(0).normal(50, 10, (rows, len(ids))).astype(np.float32)
    true = Readings(times, ids, values, np.isnan(values))
    early = replace(true, times=times[5:900], values=values[5:900], missing=true.missing[5:900])
    store = CopyStore(tmp_path)
    first = store.blur(early, 5.0)
    all_of_them, sigmas = CopyStore(tmp_path).blur_with_sigmas(true, 2.0)
    np.testing.assert_array_equal(all_of_them.values[5:900], first.values)
    assert sigmas == {5.0: 895 * len(ids), 2.0: (rows - 895) * len(ids)}
    np.testing.assert_array_equal(CopyStore(tmp_path).blur(true, 9.0).values, all_of_them.values)


def test_an_empty_file_of_copies_beside_a_key_is_a_lost_one(tmp_path: Path) -> None:
    CopyStore(tmp_path).blur(some_readings(), 5.0)
    key = (tmp_path / KEY_FILE).read_bytes()
    for path in tmp_path.glob(f"{COPIES_FILE}*"):
        path.unlink()
    (tmp_path / COPIES_FILE).touch()
    with pytest.raises(RunError, match="is empty: restore this folder from a backup"):
        CopyStore(tmp_path)
    assert (tmp_path / KEY_FILE).read_bytes() == key


def test_a_lost_key_or_copy_stops_the_owner_and_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "owner"
    CopyStore(folder).blur(some_readings(), 5.0)
    for lost in (KEY_FILE, COPIES_FILE):
        partial = tmp_path / f"without {lost}"
        shutil.copytree(folder, partial)
        for path in partial.glob(f"{lost}*"):
            path.unlink()
        with pytest.raises(RunError, match=rf"{lost}: .* is missing: restore this folder from a backup"):
            CopyStore(partial)
        assert not (partial / lost).exists()


def test_another_key_or_a_damaged_file_is_refused(tmp_path: Path) -> None:
    CopyStore(tmp_path / "one").blur(some_readings(), 5.0)
    CopyStore(tmp_path / "other")
    key = tmp_path / "one" / KEY_FILE
    kept = key.read_bytes()
    shutil.copyfile(tmp_path / "other" / KEY_FILE, key)
    with pytest.raises(RunError, match="not the key that the blurred copies beside it were made with"):
        CopyStore(tmp_path / "one")
    key.write_text("not a key")
    with pytest.raises(RunError, match="is damaged: restore this folder"):
        CopyStore(tmp_path / "one")
    key.write_bytes(kept)
    (tmp_path / "one" / COPIES_FILE).write_bytes(b"not a database" * 100)
    with pytest.raises(RunError, match="is damaged: restore this folder"):
        CopyStore(tmp_path / "one")


@pytest.mark.parametrize("damage", ["cut off", "empty", "overwritten", "another file"])
def test_a_damaged_database_is_refused_and_left_as_it_is(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "owner"
    CopyStore(folder).blur(some_readings(rows=4000), 5.0)
    file = folder / COPIES_FILE
    whole = file.read_bytes()
    assert len(whole) > 8 * 4096  # pages of the database
    damaged = {
        "cut off": whole[: len(whole) // 2],
        "empty": b"",
        "overwritten": whole[:4096] + b"\xff" * (len(whole) - 4096),
        "another file": b"time,a,b,c\n" * 1000,
    }[damage]
    file.write_bytes(damaged)
    key = (folder / KEY_FILE).read_bytes()
    with pytest.raises(RunError, match=rf"{COPIES_FILE}: .* restore this folder from a backup"):
        CopyStore(folder).blur(some_readings(rows=4000), 5.0)
    assert (folder / KEY_FILE).read_bytes() == key


def test_only_the_owner_can_read_the_folder_and_the_key_is_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "owner"
    CopyStore(folder).blur(some_readings(), 5.0)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    key_file = folder / KEY_FILE
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    key = key_file.read_text().strip()
    for path in folder.iterdir():
        if path != key_file:
            assert key.encode() not in path.read_bytes()
            assert bytes.fromhex(key) not in path.read_bytes()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Exception, match="cannot be written"):
        CopyStore(tmp_path / "file" / "owner")
