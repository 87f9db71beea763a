"""Removing the files of finished tasks, so that a kit keeps those of the latest tasks only.

The engine keeps every task forever: at the server a folder in `jobs`, at a site a folder in its workspace,
each with the task's log. A site's own process of a task writes a log, too. A folder is renamed before it is
deleted, so that a process that scans them at the same time finds a complete folder or none.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cnfgnn.errors import StorageError
from cnfgnn.federation.kits.engine_files import ENGINE_FOLDER, TASK_ID
from cnfgnn.federation.kits.kit import role
from cnfgnn.federation.kits.processes import active_tasks

JOBS = "jobs"
TASKS = "tasks"  # in a site's kit: the logs of its own processes, one for each task
FINISHED = "FINISHED"  # how the engine's states of a finished task begin
DELETED_PREFIX = ".gone-"  # begins the name of a folder that is being deleted


@dataclass(frozen=True)
class Removed:
    """How many tasks were removed, and the size of their files."""

    tasks: int = 0
    bytes: int = 0


def remove_old_tasks(kit: Path, keep: int) -> Removed:
    """Remove the files of all but the latest `keep` finished tasks."""
    old = _old_at_server(kit, keep) if role(kit) == "server" else _old_at_site(kit, keep)
    size = sum(remove_folder(kit, path) for path in old)
    for leftover in kit.glob(f"{DELETED_PREFIX}*"):  # of a process that was killed while it deleted
        with suppress(RecursionError):
            shutil.rmtree(leftover, ignore_errors=True)
    return Removed(len({path.name.partition(".")[0] for path in old}), size)


def _old_at_server(kit: Path, keep: int) -> list[Path]:
    active = active_tasks(kit)
    old = _finished_at_server(kit)[keep:]
    kept = {path.name for path in _task_folders(kit / JOBS)} - {path.name for path in old}
    # A server that was killed leaves folders outside of `jobs` too.
    old += [path for path in _task_folders(kit) if path.name not in kept]
    return [path for path in old if path.name not in active]


def _old_at_site(kit: Path, keep: int) -> list[Path]:
    """Logs of the site's own processes, and folders of its engine."""
    active = active_tasks(kit)
    logs = [path for path in (kit / TASKS).glob("*.txt*") if path.name.partition(".")[0] not in active]
    folders = [path for path in _task_folders(kit / ENGINE_FOLDER) if path.name not in active]
    return _latest_first(logs)[keep:] + _latest_first(folders)[keep:]


def _finished_at_server(kit: Path) -> list[Path]:
    found = []
    for folder in _task_folders(kit / JOBS):
        try:
            meta = json.loads((folder / "meta").read_text(encoding="utf-8"))
            if str(meta["status"]).startswith(FINISHED):
                found.append((float(meta.get("submit_time", 0)), folder))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # it is being written, or is not the engine's
    return [folder for _, folder in sorted(found, reverse=True)]


def _task_folders(place: Path) -> list[Path]:
    try:
        return [path for path in place.iterdir() if TASK_ID.fullmatch(path.name) and path.is_dir()]
    except FileNotFoundError:
        return []


def _latest_first(paths: list[Path]) -> list[Path]:
    return sorted(paths, key=_changed_at, reverse=True)


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def remove_folder(kit: Path, folder: Path) -> int:
    """Delete a folder, or a single file; return its size in bytes."""
    renamed = kit / f"{DELETED_PREFIX}{folder.parent.name}-{folder.name}"
    try:
        folder.rename(renamed)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(folder, error) from error
    size = sum(file.lstat().st_size for file in (renamed, *renamed.rglob("*")) if file.is_file())
    if renamed.is_dir() and not renamed.is_symlink():
        shutil.rmtree(renamed, ignore_errors=True)
    else:
        renamed.unlink(missing_ok=True)
    return size
