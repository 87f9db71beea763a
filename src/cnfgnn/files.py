"""Files that are written as a whole or not at all, and small JSON files."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from cnfgnn.errors import RunError, StorageError


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file atomically: a reader finds the old content or the new one, never a part.

    The content is written to a file beside it, flushed to disk and renamed. Since the rename would replace a
    device or a pipe by a file, those are refused.
    """
    if not path.name:  # such as "."
        raise StorageError(path, "it is a folder")
    aside = path.with_name(f".{path.name}.partial")
    try:
        if path.exists() and not path.is_file():
            raise StorageError(path, "it is a folder" if path.is_dir() else "it is a device or a pipe")
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # it may not exist
            aside.unlink()
        raise StorageError(path, error) from error


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no such file.

    Raises:
        RunError: The file cannot be read or does not hold a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(path, "is damaged and cannot be read") from error
    if not isinstance(content, dict):
        raise RunError(path, "is damaged and cannot be read")
    return content


def read_json_or_empty(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing or damaged."""
    try:
        return read_json(path) or {}
    except RunError:
        return {}


def make_folder(folder: Path) -> Path:
    """Make a folder, and those above it, unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(folder, error) from error
    return folder


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def hold_lock(path: Path, folder: Path, holder: str = "process") -> int:
    """Hold a lock file until the returned handle is closed, or the process ends.

    Raises:
        RunError: Another process holds it; the error names the folder and, after `holder`, the process.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StorageError(path, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise RunError(folder, f"is in use by {holder} {owner}") from error
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return handle
