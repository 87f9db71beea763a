"""Files that are written as a whole or not at all, and small JSON files."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from cnfgnn.errors import RunError, StorageError


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file atomically: a reader finds the old content or the new one, never a part.

    The content is written to a file beside it, flushed to disk and renamed. Since the rename would replace a
    device or a pipe by a file, those are refused. If two write the same file at the same time, the second
    waits for the first. `mode` is the file's from the beginning, less what the umask takes away.
    """
    with writing_whole(path, mode) as file:
        file.write(content)


@contextmanager
def writing_whole(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """The same for content that is written piece by piece: the file is there when all of it is."""
    if not path.name:  # such as "."
        raise StorageError(path, "it is a folder")
    try:
        _check_is_file(path)
        with _writing_aside(path.with_name(f".{path.name}.partial"), path, mode) as file:
            yield file
        _sync_folder(path.parent)
    except OSError as error:
        raise StorageError(path, error) from error


@contextmanager
def _writing_aside(aside: Path, path: Path, mode: int) -> Iterator[BinaryIO]:
    handle = _held_alone(aside, mode)
    try:
        if not mode & 0o077:  # a file of that name may have been there, with other permissions
            os.fchmod(handle, mode)
        with os.fdopen(os.dup(handle), "wb") as file:
            file.truncate()  # a process that was killed may have left a part of its content
            yield file
            file.flush()
            os.fsync(handle)
        aside.replace(path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
    finally:
        os.close(handle)


def _held_alone(aside: Path, mode: int) -> int:
    """Open a file that no other process or thread writes now; its name is the same for all of them, so that
    no leftovers pile up when they are killed."""
    while True:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, mode)
        try:
            with suppress(OSError):  # some network file systems have no locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):  # whoever held it has renamed it
                if os.path.samestat(os.fstat(handle), os.stat(aside)):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def check_can_be_written(path: Path) -> None:
    """Refuse a place that `write_whole` would refuse, before the work whose result is to be written there."""
    try:
        if not path.absolute().parent.is_dir():
            raise StorageError(path, "there is no such folder")
        _check_is_file(path)
    except OSError as error:  # a name that is too long, or a folder that may not be read
        raise StorageError(path, error) from error


def _check_is_file(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise StorageError(path, "it is a folder" if path.is_dir() else "it is a device or a pipe")


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


def read_json_of_others(path: Path, most: int = 1 << 16) -> dict[str, Any]:
    """The object in a JSON file in a folder that an untrusted process writes; empty if it is no such file.

    A link is not followed, and nothing large, and no device or pipe is read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1 or about.st_size > most:
                return {}
            content = json.loads(file.read(most))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """What changes whenever a file does; None if there is none."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def make_folder(folder: Path, mode: int = 0o777) -> Path:
    """Make a folder with these permissions, and those above it, unless it exists."""
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(folder, error) from error
    return folder


@contextmanager
def making_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name when all of it is written; on an error, nothing is left.

    Raises:
        RunError: There is something of that name already, other than an empty folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(folder, "already exists: choose another folder")
    aside = folder.absolute().with_name(f".{folder.absolute().name}.partial")
    shutil.rmtree(aside, ignore_errors=True)  # a process that was killed may have left a part
    try:
        yield make_folder(aside)
        aside.replace(folder)
    except OSError as error:
        raise StorageError(folder, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


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
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(path, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise RunError(folder, f"is in use by {holder} {owner}") from error
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:  # the disk is full
        os.close(handle)
        raise StorageError(path, error) from error
    return handle


@contextmanager
def holding_lock(path: Path, folder: Path, holder: str = "process") -> Iterator[None]:
    """Inside, the lock file is held, see `hold_lock`."""
    handle = hold_lock(path, folder, holder)
    try:
        yield
    finally:
        os.close(handle)  # releases the lock, as the end of the process would


@contextmanager
def waiting_for_lock(path: Path) -> Iterator[None]:
    """Inside, the lock file is held; whoever else does so is waited for."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
