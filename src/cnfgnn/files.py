"""Files that are written as a whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from cnfgnn.errors import StorageError


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
