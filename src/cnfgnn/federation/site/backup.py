"""Backing a site up, and restoring it, on the same machine or on another one.

Copies of readings that were made after a backup are lost with the machine, and nobody can know which of these
readings have been corrected since. The same noise on another value would give both away. So whatever has no
copy in the backup is retired, up to the moment of the restore: it stays its owner's, and is missing for the
federation for ever.
"""

from __future__ import annotations

import fcntl
import filecmp
import hashlib
import io
import json
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np

from cnfgnn.data.files.folder import read_rows
from cnfgnn.data.readings import Readings
from cnfgnn.data.refusals import Refusals
from cnfgnn.errors import ConfigError, DataError, RunError, StorageError
from cnfgnn.federation.kits.kit import check_is_site, role
from cnfgnn.federation.kits.processes import read_live, running
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.site.approvals import read_approvals
from cnfgnn.federation.site.copies import (
    RECORD,
    is_unfinished,
    known_steps,
    open_copies,
    record_of,
    settle_steps,
    write_record,
)
from cnfgnn.federation.site.copies import RESTORING as COPIES_RESTORING
from cnfgnn.federation.site.readings import load_site
from cnfgnn.federation.site.settings import private_folder, read_site
from cnfgnn.federation.site.status import STATES
from cnfgnn.federation.spans import FURTHEST_ZONE, format_time
from cnfgnn.files import holding_lock, make_folder, read_json, read_json_or_empty, writing_whole
from cnfgnn.live.intake.store import FILE as DATABASE
from cnfgnn.live.intake.store import stored_readings
from cnfgnn.live.options import FEED, LIVE
from cnfgnn.privacy.copies import COPIES_FILE, KEY_FILE, LAST_FILE, CopyStore, fingerprint_of
from cnfgnn.privacy.truth_and_copy import READINGS
from cnfgnn.transports.remote.limits import MOST_CLOCK_DIFFERENCE
from cnfgnn.version import __version__

ABOUT, END = "backup.json", "end.json"  # the first member of a backup, and the last
PRIVATE = "private"  # the name of the folder of key and copies in a backup
KIT = ("startup", "local", "start.sh", "stop.sh")  # what makes a folder this site's kit
SENT = "sent.jsonl"
RESTORING = ".restoring"
REPLACED = ".replaced"  # what was there, after its name
SNAPSHOT = f"{COPIES_FILE}.backup"  # in the private folder, while a backup is made
DAMAGED = "this is not the backup of a site, or it is cut off or damaged: restore the site from another one"


class Restored(NamedTuple):
    """What a restore has done.

    made     when the backup was made, in seconds since 1970; None for a copy of the private folder
    kit      whether the kit itself comes from the backup
    copies   how many readings have a copy; None if key and copies were complete and have stayed
    retired  the time up to which readings without a copy are retired
    runs     whose states come from the backup; those that were there have stayed
    approved the trainings that are approved again, as they were when the backup was made
    """

    made: float | None
    kit: bool
    copies: int | None
    retired: int | None
    runs: tuple[str, ...]
    approved: tuple[str, ...] = ()


# ---- back up --------------------------------------------------------------------------------------------


def back_up(kit: Path, file: Path) -> int:
    """Write a backup of a site, which may be running; returns how many readings have a copy in it.

    Raises:
        RunError: Key or copies are lost: a backup without them must not replace an earlier one.
    """
    check_is_site(kit)
    plan = read_site(kit)
    folder, record, count = private_folder(plan, kit), read_json(kit / "local" / RECORD), 0
    about = {"site": plan.name, "made": time.time(), "version": __version__}
    with writing_whole(file, 0o600) as out, tarfile.open(fileobj=out, mode="w") as tar:
        backup = Members(tar)
        backup.add(ABOUT, json.dumps(about).encode())
        for part in (*KIT, SENT, STATES):
            _add_all(backup, kit / part, part)
        if record is not None or CopyStore.exists(folder):  # last: they have all that states were made of
            with _snapshot(open_copies(folder, record)) as aside:
                for name in (KEY_FILE, COPIES_FILE):
                    backup.add_file(f"{PRIVATE}/{name}", aside / name)
                count = CopyStore(aside).count()
        backup.add(END, json.dumps(backup.about()).encode())
    return count


class Members:
    """The members of a backup as they are added. The last one tells how many there are, and their digest:
    without it, a backup that was cut off would look like one of a site that had less."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self.tar, self._count, self._digest = tar, 0, hashlib.sha256()

    def about(self) -> dict[str, Any]:
        return {"files": self._count, "sha256": self._digest.hexdigest()}

    def add(self, name: str, content: bytes, mode: int = 0o600) -> None:
        self._add(name, io.BytesIO(content), len(content), mode)

    def add_file(self, name: str, path: Path) -> None:
        """Add a file that does not change meanwhile, and may be large."""
        with path.open("rb") as content:
            self._add(name, content, path.stat().st_size, 0o600)

    def _add(self, name: str, content: IO[bytes], size: int, mode: int) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode, entry.mtime = size, mode, int(time.time())
        position = content.tell()
        self.tar.addfile(entry, content)
        content.seek(position)
        self.see(name, content)

    def see(self, name: str, content: IO[bytes]) -> None:
        self._count += 1
        one = hashlib.sha256(f"{name}\0".encode())
        while some := content.read(1 << 20):
            one.update(some)
        self._digest.update(one.digest())


@contextmanager
def _snapshot(store: CopyStore) -> Iterator[Path]:
    """Key and copies as they are now, in the private folder: the next backup finds and removes what one that
    was killed has left."""
    aside = store.folder / SNAPSHOT
    handle = os.open(store.folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        shutil.rmtree(aside, ignore_errors=True)
        store.snapshot(aside)
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(handle)


def _add_all(backup: Members, path: Path, name: str) -> None:
    """Add a file, or all files in a folder. One that is gone by now was removed by the running site."""
    try:
        about = path.lstat()
        if stat.S_ISDIR(about.st_mode):
            for inside in sorted(path.iterdir()):
                if not inside.name.startswith("."):  # a file that is being written
                    _add_all(backup, inside, f"{name}/{inside.name}")
        elif stat.S_ISREG(about.st_mode):
            backup.add(name, path.read_bytes(), about.st_mode & 0o700)
        else:
            problem = (
                "is a link or no file, so that a backup would lack it: put the file or folder itself there"
            )
            raise RunError(path, problem)
    except FileNotFoundError:
        return


# ---- restore --------------------------------------------------------------------------------------------


def restore(kit: Path, file: Path) -> Restored:
    """Restore a site from a backup, or from a copy of its private folder. What the site still has stays as it
    is: its kit, states of a run, and key and copies, if its record of them says that none is lost.

    Raises:
        RunError: The site runs, the backup is another site's or damaged, or its key is not the site's.
        CnfgnnError: The readings cannot be read: which of them are retired depends on their times.
    """
    umask = os.umask(0o077)  # whatever a restore makes is for the owner alone
    try:
        if file.is_dir():
            return _restore_from_folder(kit, file)
        if not file.exists():
            raise RunError(file, "there is no such backup")
        with tarfile.open(file, "r:") as backup:
            _check_whole(backup, file)
            return _restore_from(backup, kit, file)
    except (tarfile.TarError, EOFError) as error:
        raise RunError(file, DAMAGED) from error
    except OSError as error:
        raise StorageError(error.filename or kit, error) from error
    finally:
        os.umask(umask)


def _check_whole(backup: tarfile.TarFile, file: Path) -> None:
    """Refuse a backup of which a part is missing or has changed."""
    found, end = Members(backup), dict[str, Any]()
    for member in backup.getmembers():
        content = backup.extractfile(member) if member.isfile() and not member.issparse() else None
        if content is None or end:  # it ends with how many there are
            raise RunError(file, DAMAGED)
        if member.name == END:
            with suppress(ValueError):
                end = json.load(content)
        else:
            found.see(member.name, content)
    if end != found.about():
        raise RunError(file, DAMAGED)


def _restore_from_folder(kit: Path, folder: Path) -> Restored:
    check_is_site(kit)
    _check_is_copy(folder)
    with _stopped(kit):
        return Restored(None, False, *_restore_private(kit, None, lambda to: _copy(folder, to)), ())


def _restore_from(backup: tarfile.TarFile, kit: Path, file: Path) -> Restored:
    about, found = _about(backup, file), tuple[int | None, int | None]((None, None))
    new = _make_kit(backup, kit)
    check_is_site(kit)
    from_backup = new or is_unfinished(kit)
    if (name := read_site(kit).name) != about["site"]:
        raise RunError(file, f"this is the backup of site {about['site']}, and the kit is that of {name}")
    with _stopped(kit):
        if _has_copies(backup) and not _is_complete(kit):
            found = _restore_private(kit, about["made"], lambda to: _extract(backup, PRIVATE, to))
        elif _has_copies(backup):
            _check_same_key(backup, kit)
        elif from_backup and _begins_anew(kit, kit):
            found = _restore_private(kit, about["made"], _new_store)  # nobody knows what was copied since
        approved = tuple(read_approvals(kit)) if from_backup else ()
        return Restored(about["made"], new, *found, _restore_rest(backup, kit), approved)


def _begins_anew(settings: Path, kit: Path) -> bool:
    """Whether the site would make a new key."""
    plan = read_site(settings)
    blurs = plan.blur > 0 or any(plan.input_blurs.values())
    known = read_json_or_empty(settings / "local" / RECORD).get("key")
    return blurs and known is None and not CopyStore.exists(private_folder(plan, kit))


def _new_store(folder: Path) -> None:
    CopyStore(folder)


def _check_same_key(backup: tarfile.TarFile, kit: Path) -> None:
    """Refuse copies that were made with a new key although there is a backup of the one before."""
    content = backup.extractfile(f"{PRIVATE}/{KEY_FILE}")
    key = b"" if content is None else bytes.fromhex(content.read().decode().strip())
    if fingerprint_of(key) != read_json_or_empty(kit / "local" / RECORD).get("key"):
        problem = (
            "this site has made a new key since the backup, and a second copy of readings with it. Do not"
            " start it: move its private folder and local/copies.json away, and restore it again"
        )
        raise RunError(kit, problem)


def _has_copies(backup: tarfile.TarFile) -> bool:
    return f"{PRIVATE}/{COPIES_FILE}" in backup.getnames()


def _about(backup: tarfile.TarFile, file: Path) -> dict[str, Any]:
    try:
        content = backup.extractfile(ABOUT)
        about = json.loads(b"" if content is None else content.read())
        return {"site": str(about["site"]), "made": float(about["made"])}
    except (KeyError, ValueError, TypeError) as error:
        raise RunError(file, DAMAGED) from error


@contextmanager
def _stopped(kit: Path) -> Iterator[None]:
    """Inside, the site cannot start."""
    if running(kit) is not None or read_live(kit):
        raise RunError(kit, f"the site runs: stop it first (cnfgnn federation down {kit})")
    with holding_lock(kit / ".supervisor.lock", kit):
        yield


def _make_kit(backup: tarfile.TarFile, kit: Path) -> bool:
    """Make the kit, if there is none; returns whether there was none. It refuses to begin before its copies
    are restored: its record of them is as old as the backup."""
    if kit.exists() and (not kit.is_dir() or any(kit.iterdir())):
        role(kit)  # refuses a folder that is not a kit
        return False
    aside = kit.absolute().with_name(f".{kit.absolute().name}{RESTORING}")
    shutil.rmtree(aside, ignore_errors=True)
    for part in KIT:
        _extract(backup, part, aside / part)
    if _has_copies(backup) or _begins_anew(aside, kit):
        write_record(aside, {**read_json_or_empty(aside / "local" / RECORD), COPIES_RESTORING: True})
    aside.replace(kit)
    return True


def _restore_rest(backup: tarfile.TarFile, kit: Path) -> tuple[str, ...]:
    """Put back the states of runs that the kit has none of, and the account of what was sent."""
    aside = kit / RESTORING
    shutil.rmtree(aside, ignore_errors=True)
    _extract(backup, STATES, aside)
    states = make_folder(kit / STATES, 0o700)
    runs = []
    for run in sorted(aside.iterdir()) if aside.exists() else ():
        if not (states / run.name).exists():
            run.replace(states / run.name)
            runs.append(run.name)
    shutil.rmtree(aside, ignore_errors=True)
    if not (kit / SENT).exists():
        _extract(backup, SENT, kit / SENT)
    return tuple(runs)


def _restore_private(
    kit: Path, made: float | None, unpack: Callable[[Path], None]
) -> tuple[int | None, int | None]:
    """Put key and copies back, and retire what has no copy. Returns how many readings have one, and until
    when others are retired."""
    plan, record = read_site(kit), read_json(kit / "local" / RECORD)
    folder = private_folder(plan, kit)
    make_folder(folder).chmod(0o700)
    aside = folder / RESTORING
    # If this is killed, the site must not start: without a record, it would make a new key.
    write_record(kit, {**(record or {}), COPIES_RESTORING: True})
    try:
        shutil.rmtree(aside, ignore_errors=True)
        unpack(aside)
        store, found = CopyStore(aside), _all_at_hand(plan, kit)
        if record is not None and record.get("key", store.fingerprint) != store.fingerprint:
            raise RunError(kit, "this backup has another key than the one that this site has used")
        store.retire(_retired_until(plan, kit, found, store, record or {}, made))
        settle_steps(store, found)
    except Exception:
        shutil.rmtree(aside, ignore_errors=True)
        if record is not None:
            write_record(kit, record)
        raise
    remembered = {**record_of(store), "folder": str(folder)}
    # First the record: a kit that remembers a key never makes another one.
    write_record(kit, remembered)
    for ending in ("-journal", "-wal", "-shm"):  # they belong to the file that is replaced
        (folder / f"{COPIES_FILE}{ending}").unlink(missing_ok=True)
    (folder / LAST_FILE).unlink(missing_ok=True)  # those that were made last may be lost
    for name in (COPIES_FILE, KEY_FILE):
        before = folder / name
        if before.exists() and not (name == KEY_FILE and filecmp.cmp(before, aside / name, shallow=False)):
            before.replace(folder / f"{name}{REPLACED}")
        (aside / name).replace(folder / name)
    shutil.rmtree(aside)
    return remembered["readings"], remembered["retired"]


def _is_complete(kit: Path) -> bool:
    """Whether the kit knows that all copies which it has used are there, with their key."""
    record = read_json(kit / "local" / RECORD)
    try:
        if record is not None:
            open_copies(private_folder(read_site(kit), kit), record)
    except RunError:
        return False
    return record is not None


def _retired_until(
    plan: SitePlan,
    kit: Path,
    found: Readings,
    store: CopyStore,
    record: Mapping[str, Any],
    made: float | None,
) -> dict[str, int]:
    """The latest time of which a copy may be lost: of readings and of covariates, which are known ahead.

    Readings may have been copied until now, by the site's clock; of a recording, the newest one at hand
    counts. Times without a time zone may be ahead of UTC.
    """
    now = time.time()
    if made is not None and now < made:
        raise RunError(kit, f"this machine's clock is wrong: the backup was made at {format_time(int(made))}")
    measured = (found, *(one.readings for one in found.others if not one.known_ahead))
    assert plan.readings is not None
    # A site that was restored before may have copied rows that are left out here as far from all others.
    in_file = read_rows(kit / plan.readings, replace(plan.reading, refusals=Refusals()))
    times = np.concatenate([one.seconds[~one.missing.all(axis=1)] for one in (in_file, *measured)])
    stored = [row[0] for rows in stored_readings(kit / LIVE / DATABASE) for row in rows]
    times = np.concatenate([times, np.array(stored, dtype=np.int64)])
    step = max(one.step_seconds for one in measured if len(one.times) > 1)  # rows of this step have copies
    latest = int(now + max(MOST_CLOCK_DIFFERENCE, step) + (0 if found.utc else FURTHEST_ZONE))
    if (times > latest).any():
        newest = format_time(int(times.max()))
        problem = f"there are readings up to {newest}, later than this machine's clock"
        raise RunError(kit, f"{problem}: set the clock, or take them out of the files for good")
    until = max(latest, int(record.get("retired", 0)))
    if plan.live.clock == FEED:
        at_hand = int(times.max(initial=0))
        until = max(at_hand, store.newest(latest) or 0, int(record.get("retired", 0)))
    ahead = {one.name: int(np.max(one.readings.seconds)) for one in found.others if one.known_ahead}
    marks = dict(record.get("marks", {}))
    return {name: max(until, ahead.get(name, 0), marks.get(name, 0)) for name in {READINGS, *ahead, *marks}}


def _all_at_hand(plan: SitePlan, kit: Path) -> Readings:
    """Also rows that are far from all others: a training copies them; a live service leaves them out."""
    try:
        return load_site(plan, kit, live=True)
    except DataError:  # a live service does without the lines that cannot be read
        return load_site(plan, kit, live=True, refusals=Refusals(), known=known_steps(plan, kit))


def _extract(backup: tarfile.TarFile, part: str, to: Path) -> None:
    """Write a file of a backup, or all those of a folder, for their owner alone."""
    for member in backup.getmembers():
        path = PurePosixPath(member.name)
        if path.parts[:1] != (part,) or ".." in path.parts:
            continue
        target = to.joinpath(*path.parts[1:])
        make_folder(target.parent, 0o700)
        content = backup.extractfile(member)
        assert content is not None
        with writing_whole(target, 0o700 & member.mode | 0o600) as file:
            shutil.copyfileobj(content, file)


def _check_is_copy(folder: Path) -> None:
    for name in (KEY_FILE, COPIES_FILE):
        if not (folder / name).is_file():
            raise ConfigError(str(folder), f"this is no copy of a private folder: it has no {name}")


def _copy(folder: Path, to: Path) -> None:
    """The key and the copies of a copy of the private folder."""
    make_folder(to, 0o700)
    journal = f"{COPIES_FILE}-journal"  # of a process that was killed while it wrote
    for name in (KEY_FILE, COPIES_FILE, *([journal] if (folder / journal).is_file() else [])):
        with (folder / name).open("rb") as content, writing_whole(to / name, 0o600) as file:
            shutil.copyfileobj(content, file)
