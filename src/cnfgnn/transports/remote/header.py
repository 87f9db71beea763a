"""The header of a message: its verbs, numbers and arrays, and the limits that they must keep."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cnfgnn.algorithm.messages.calls import Number
from cnfgnn.transports.remote.limits import Malformed as Malformed

MAGIC, VERSION, CALLS, ANSWERS = b"cnfgnn", b"\x01", b"C", b"A"
PREFIX = struct.Struct("<8sI")  # magic, kind and version; the length of the JSON that follows
ALIGNED = 8
MOST_HEADER = 1 << 20  # bytes
MOST_CALLS, MOST_TENSORS, MOST_NUMBERS, MOST_DIMENSIONS = 4096, 1024, 64, 8
MOST_ELEMENTS = 1 << 48  # of an array, zeros counted as ones: torch multiplies sizes in 64 bits
LONGEST_TEXT = 1000
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,63}")
SENT = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.int8, torch.bool)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in SENT}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Declared:
    """An array as the header declares it."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def padded(self) -> int:
        """Bytes including the zeros that follow the array."""
        return self.bytes + -self.bytes % ALIGNED


@dataclass(frozen=True)
class Part:
    """One entry of the header: a call or an answer before its arrays are allocated."""

    verb: str
    problem: str | None
    numbers: Mapping[str, Number]
    tensors: Mapping[str, Declared]


def written(kind: bytes, parts: Sequence[Part]) -> bytes:
    """Everything that precedes the arrays, checked just as the reader will check it."""
    entries = [[part.verb, part.problem, dict(part.numbers), _entries(part.tensors)] for part in parts]
    try:
        header = _json(entries)
    except (TypeError, ValueError) as error:
        raise Malformed(f"a number cannot be sent: {error}") from None
    if len(header) > MOST_HEADER:
        raise Malformed(f"the header has {len(header)} bytes, and {MOST_HEADER} are allowed")
    _check_kind(kind, _parts(entries))
    return PREFIX.pack(MAGIC + kind + VERSION, len(header)) + header


def _entries(tensors: Mapping[str, Declared]) -> list[Any]:
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise Malformed(f"{name} has the type {tensor.dtype}, which cannot be sent")
    return [[name, _NAMES[tensor.dtype], list(tensor.shape)] for name, tensor in tensors.items()]


def _json(entries: Any) -> bytes:
    text = json.dumps(entries, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    return text + b" " * (-(PREFIX.size + len(text)) % ALIGNED)


def read(kind: bytes, data: memoryview) -> tuple[list[Part], int]:
    """The header of a message, and the position at which its arrays begin."""
    if len(data) < PREFIX.size:
        raise Malformed("the message is too short")
    magic, length = PREFIX.unpack_from(data)
    if magic != MAGIC + kind + VERSION:
        raise Malformed("the message is of another kind or version")
    if length > MOST_HEADER:
        raise Malformed(f"the header has {length} bytes, and {MOST_HEADER} are allowed")
    if length > len(data) - PREFIX.size:
        raise Malformed("the header is truncated")
    header = bytes(data[PREFIX.size : PREFIX.size + length])
    try:
        entries = json.loads(header)
        same = _json(entries) == header  # not so with NaN, 1e999, duplicate names or any other spelling
    except (ValueError, RecursionError):
        raise Malformed("the header is not valid JSON") from None
    if not same:
        raise Malformed("the header is not in canonical form")
    parts = _parts(entries)
    _check_kind(kind, parts)
    return parts, PREFIX.size + length


def _check_kind(kind: bytes, parts: Sequence[Part]) -> None:
    """Calls have no error field. Of answers only the last may have one, and then it has no arrays."""
    for k, part in enumerate(parts):
        ends = kind == ANSWERS and k == len(parts) - 1 and not part.tensors
        if part.problem is not None and not ends:
            raise Malformed("unexpected error field")
        if kind == ANSWERS and part.numbers:
            raise Malformed("an answer has numbers")


def _parts(entries: Any) -> list[Part]:
    _is_list(entries, "a message", MOST_CALLS)
    parts = []
    for entry in entries:
        if len(_is_list(entry, "an entry", 4)) != 4:
            raise Malformed("an entry does not have four parts")
        verb, problem, numbers, tensors = entry
        if problem is not None and not _is_text(problem):
            raise Malformed("an error field is not one line of text")
        if not isinstance(numbers, dict) or len(numbers) > MOST_NUMBERS:
            raise Malformed("the numbers are not a dictionary, or there are too many")
        for name, value in numbers.items():
            _check_number(_named(name), value)
        declared = dict(map(_declared, _is_list(tensors, "the list of tensors", MOST_TENSORS)))
        if len(declared) != len(tensors):
            raise Malformed("two tensors have the same name")
        parts.append(Part(_named(verb), problem, numbers, declared))
    return parts


def _declared(entry: Any) -> tuple[str, Declared]:
    if len(_is_list(entry, "a tensor", 3)) != 3:
        raise Malformed("a tensor is not declared by name, type and shape")
    name, dtype, shape = entry
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise Malformed(f"{_named(name)} has a type that cannot be sent")
    if not _is_list(shape, "a shape", MOST_DIMENSIONS):
        raise Malformed(f"{_named(name)} has no node axis")
    elements = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise Malformed(f"a size of {_named(name)} is not a non-negative integer")
        elements *= max(size, 1)
    if elements > MOST_ELEMENTS:
        raise Malformed(f"{_named(name)} has too many elements")
    return _named(name), Declared(DTYPES[dtype], tuple(shape))


def _check_number(name: str, value: Any) -> None:
    whole = isinstance(value, int) and -(1 << 63) <= value < 1 << 63  # so is a boolean
    if not (whole or (isinstance(value, float) and math.isfinite(value)) or _is_text(value)):
        raise Malformed(f"{name} is not a number, a boolean or a short text")


def _is_list(value: Any, what: str, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise Malformed(f"{what} is not a list, or is too long")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT and value.isprintable()


def _named(value: Any) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise Malformed("a name has characters that are not allowed")
    return value
