"""What finished tasks leave in a kit, and how much of it is kept.

The engine keeps every task for ever: at the server a folder in `jobs`, at a site a folder with the task's id,
each with the task's log. Folders are renamed before they are deleted, so a process that looks through them
meanwhile finds a whole folder or none.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cnfgnn.errors import StorageError
from cnfgnn.federation.kits import kind, read_server, read_site
from cnfgnn.federation.processes import TASK_ID, tasks_of

JOBS = "jobs"
MARKERS = "rejoin"  # at a site: one file for each task that it takes part in
FINISHED = "FINISHED"  # the engine's states of a task that is over begin with it
GOING = ".gone-"  # begins the name of a folder that is being deleted


@dataclass(frozen=True)
class Tidied:
    """How many tasks were removed, and the bytes that their files had."""

    tasks: int = 0
    bytes: int = 0


def tidy(kit: Path, keep: int | None = None) -> Tidied:
    """Remove what all but the latest `keep` finished tasks left; as many as the kit says unless given."""
    busy = tasks_of(kit)
    if kind(kit) == "server":
        keep = read_server(kit).keep_tasks if keep is None else keep
        going = _finished_at_server(kit)[keep:]
        kept = {path.name for path in _folders(kit / JOBS)} - {path.name for path in going}
        going += [path for path in _folders(kit) if path.name not in kept]  # of a server that was killed
        going = [path for path in going if path.name not in busy]
    else:
        keep = read_site(kit).keep_tasks if keep is None else keep
        busy |= {marker.stem for marker in (kit / MARKERS).glob("*.json")}
        going = [path for path in _by_age(_folders(kit)) if path.name not in busy][keep:]
    removed = {path.name: _removed(kit, path) for path in going}
    for left in kit.glob(f"{GOING}*"):  # by a process that was killed meanwhile
        shutil.rmtree(left, ignore_errors=True)
    return Tidied(len(removed), sum(removed.values()))


def _finished_at_server(kit: Path) -> list[Path]:
    found = []
    for folder in _folders(kit / JOBS):
        try:
            meta = json.loads((folder / "meta").read_text(encoding="utf-8"))
            if str(meta["status"]).startswith(FINISHED):
                found.append((float(meta.get("submit_time", 0)), folder))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # being written, or not the engine's
    return [folder for _, folder in sorted(found, reverse=True)]


def _folders(place: Path) -> list[Path]:
    try:
        return [path for path in place.iterdir() if TASK_ID.fullmatch(path.name) and path.is_dir()]
    except FileNotFoundError:
        return []


def _by_age(folders: list[Path]) -> list[Path]:
    """The latest first."""
    aged = []
    for folder in folders:
        try:
            aged.append((folder.stat().st_mtime_ns, folder))
        except FileNotFoundError:
            continue
    return [folder for _, folder in sorted(aged, reverse=True)]


def _removed(kit: Path, folder: Path) -> int:
    size = sum(_sizes(folder))
    aside = kit / f"{GOING}{folder.parent.name}-{folder.name}"
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(folder, error) from error
    shutil.rmtree(aside, ignore_errors=True)
    return size


def _sizes(folder: Path) -> Iterator[int]:
    for file in folder.rglob("*"):
        try:
            yield file.lstat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue
