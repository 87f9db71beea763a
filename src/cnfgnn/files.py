"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from cnfgnn.errors import StorageError


def write_whole(path: Path, content: bytes) -> None:
    """Write aside, flush to disk, rename: a reader finds the old file or the new one, never a part."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True) if aside.is_file() else None
        raise StorageError(path, error) from error


def make_folder(folder: Path) -> Path:
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
