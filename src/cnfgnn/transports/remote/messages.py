"""Notes: the small messages between server and site that carry calls and answers piece by piece."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cnfgnn.transports.remote.limits import LARGEST_PIECE as LARGEST_PIECE
from cnfgnn.transports.remote.limits import PIECE as PIECE
from cnfgnn.transports.remote.limits import Malformed
from cnfgnn.version import __version__

_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 16  # bytes of the fields of a note


@dataclass(frozen=True)
class Note:
    """Its kind, a few numbers and short strings, and a payload that is not interpreted here."""

    kind: str
    fields: Mapping[str, Any]
    payload: memoryview | bytes = b""

    def whole(self, name: str, most: int = 2**53) -> int:
        """A field that must be a non-negative integer."""
        value = self.fields.get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise Malformed(f"{self.kind}: {name} must be a non-negative integer of at most {most}")
        return value


Buffer = bytes | bytearray | memoryview


class Unreachable(Exception):
    """A site that cannot be reached at the moment."""


class NotPermitted(Exception):
    """A request that the owner of a site does not permit; the reason in one sentence."""


class Channel(Protocol):
    """Carries a note to a site and the answer back; raises Unreachable."""

    def ask(self, site: str, request: bytes, timeout: float) -> bytes | memoryview: ...


def legible(text: object, most: int = 300) -> str:
    """Text from a site, safe to show: one line of printable characters."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:most])


def pack(kind: str, payload: bytes | memoryview = b"", **fields: Any) -> bytes:
    fields["kind"] = kind
    written = json.dumps(fields).encode()
    return b"".join([_LENGTH.pack(len(written)), written, payload])


def refused(asked: Note, reason: str, for_good: bool = False) -> bytes:
    """A site's answer to what its owner does not permit: the site is there, and takes no part.

    Its state stays as it is, and hellos tell the server when it takes part again. `for_good` says that it
    will not in this task, so that nobody waits for it.
    """
    if asked.kind != "hello":
        return pack("refused", reason=reason[:300])
    about: dict[str, Any] = {"version": __version__, "clock": time.time(), "busy": False}
    return pack("hello", ready=False, problem=reason[:300], refused=for_good, **about)


def unpack(data: bytes | bytearray | memoryview) -> Note:
    view = memoryview(data)
    if len(view) < _LENGTH.size:
        raise Malformed("a note is truncated")
    (length,) = _LENGTH.unpack_from(view)
    if length > min(_LONGEST, len(view) - _LENGTH.size):
        raise Malformed("a note is truncated, or its fields are too long")
    try:
        fields = json.loads(str(view[_LENGTH.size : _LENGTH.size + length], "utf-8"))
    except (ValueError, RecursionError) as error:
        raise Malformed("the fields of a note are not JSON") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
        raise Malformed("a note has no kind")
    return Note(fields.pop("kind"), fields, view[_LENGTH.size + length :])


def pieces(data: bytes | bytearray, size: int) -> list[memoryview]:
    """The data cut into pieces for one note each; at least one piece."""
    view = memoryview(data)
    return [view[start : start + size] for start in range(0, max(len(view), 1), size)]
