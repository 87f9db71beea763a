"""The event log of a run, `events.jsonl`: one JSON object per line, which tables, figures and pages read."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from cnfgnn.errors import RunError, StorageError


class EventLog:
    """An append-only file of events.

    The manifest records how many bytes of it belong to completed work. Whatever lies beyond that length was
    written by a process that was interrupted; it is ignored, and cut off when the run resumes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def length(self) -> int:
        """The size of the file in bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, event: str, **fields: Any) -> None:
        """Write one event; it is on disk when this returns."""
        line = json.dumps(plain({"event": event, "time": round(time.time(), 3), **fields}), allow_nan=False)
        try:
            with self.path.open("ab") as file:
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(self.path, error) from error

    def rewind(self, length: int) -> None:
        """Cut the file back to `length` bytes, after checking that those are readable."""
        found = self.length
        if found < length:
            raise self._lost()
        if found > length:
            try:
                os.truncate(self.path, length)
            except OSError as error:
                raise StorageError(self.path, error) from error
        if length:
            self.read(length)

    def read(self, length: int) -> list[dict[str, Any]]:
        """The events in the first `length` bytes, in order; another process may be writing more now."""
        try:
            with self.path.open("rb") as file:
                content = file.read(length)
            if len(content) < length:
                raise self._lost()
            return [json.loads(line) for line in content.decode().splitlines()]
        except OSError as error:
            raise RunError(self.path, f"cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise RunError(self.path, "is damaged: a line is not JSON") from error

    def length_without_last(self, length: int) -> int:
        """How long the log would be without the last event of its first `length` bytes."""
        content = self.path.read_bytes()[:length]
        return content.rstrip(b"\n").rfind(b"\n") + 1

    def _lost(self) -> RunError:
        return RunError(self.path, "is damaged: events that the run had written are gone")


def plain(value: Any) -> Any:
    """Convert to what any JSON reader understands: dataclasses become dicts, NaN and infinity become null."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
