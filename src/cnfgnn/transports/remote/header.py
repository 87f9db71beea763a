"""A message's header: which verbs, numbers and arrays it has, and the bounds that it must keep to."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cnfgnn.algorithm.calls import Number

MAGIC, VERSION, CALLS, ANSWERS = b"cnfgnn", b"\x01", b"C", b"A"
PREFIX = struct.Struct("<8sI")  # magic, kind and version; how long the JSON that follows is
ALIGNED = 8
MOST_HEADER = 1 << 20  # bytes
MOST_CALLS, MOST_TENSORS, MOST_NUMBERS, MOST_DIMENSIONS = 4096, 1024, 64, 8
MOST_ELEMENTS = 1 << 48  # also of an empty array, its zeros taken for ones: torch multiplies sizes in 64 bits
LONGEST_TEXT = 1000
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,63}")
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Malformed(ValueError):
    """A message that is not one of ours, said in one sentence."""


@dataclass(frozen=True)
class Declared:
    """An array as the header announces it."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def room(self) -> int:
        """Bytes with the zeros that follow."""
        return self.bytes + -self.bytes % ALIGNED


@dataclass(frozen=True)
class Part:
    """One entry of the header: a call or an answer before its arrays are made."""

    verb: str
    problem: str | None
    numbers: Mapping[str, Number]
    tensors: Mapping[str, Declared]


def written(kind: bytes, parts: Sequence[Part]) -> bytes:
    """All that stands before the arrays, held to what its reader will hold it to."""
    for part in parts:
        for name, tensor in part.tensors.items():
            if tensor.dtype not in _NAMES:
                raise Malformed(f"{name} is of {tensor.dtype}, which cannot be sent")
    entries = [
        [
            part.verb,
            part.problem,
            dict(part.numbers),
            [[name, _NAMES[d.dtype], list(d.shape)] for name, d in part.tensors.items()],
        ]
        for part in parts
    ]
    try:
        header = _json(entries)
    except (TypeError, ValueError) as error:
        raise Malformed(f"a number cannot be sent: {error}") from None
    if len(header) > MOST_HEADER:
        raise Malformed(f"the header has {len(header)} bytes, and {MOST_HEADER} are allowed")
    _check_kind(kind, _parts(entries))
    return PREFIX.pack(MAGIC + kind + VERSION, len(header)) + header


def _json(entries: Any) -> bytes:
    text = json.dumps(entries, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    return text + b" " * (-(PREFIX.size + len(text)) % ALIGNED)


def read(kind: bytes, data: memoryview) -> tuple[list[Part], int]:
    """The header of a message, and where its arrays begin."""
    if len(data) < PREFIX.size:
        raise Malformed("the message is too short")
    magic, length = PREFIX.unpack_from(data)
    if magic != MAGIC + kind + VERSION:
        raise Malformed("the message is of another kind or version")
    if length > MOST_HEADER:
        raise Malformed(f"the header has {length} bytes, and {MOST_HEADER} are allowed")
    if length > len(data) - PREFIX.size:
        raise Malformed("the header is cut off")
    header = bytes(data[PREFIX.size : PREFIX.size + length])
    try:
        entries = json.loads(header)
        same = _json(entries) == header  # NaN, 1e999, names given twice, other spellings: none comes back
    except (ValueError, RecursionError):
        raise Malformed("the header is not what it should be") from None
    if not same:
        raise Malformed("the header is not spelled as it should be")
    parts = _parts(entries)
    _check_kind(kind, parts)
    return parts, PREFIX.size + length


def _check_kind(kind: bytes, parts: Sequence[Part]) -> None:
    """A call has no problem; of answers only the last may have one, and then nothing else."""
    for k, part in enumerate(parts):
        ends = kind == ANSWERS and k == len(parts) - 1 and not part.tensors
        if part.problem is not None and not ends:
            raise Malformed("a problem stands where none can be")
        if kind == ANSWERS and part.numbers:
            raise Malformed("an answer has numbers")


def _parts(entries: Any) -> list[Part]:
    _is_list(entries, "a message", MOST_CALLS)
    parts = []
    for entry in entries:
        if len(_is_list(entry, "an entry", 4)) != 4:
            raise Malformed("an entry is not of four")
        verb, problem, numbers, tensors = entry
        if problem is not None and not _is_text(problem):
            raise Malformed("a problem is not said in a line")
        if not isinstance(numbers, dict) or len(numbers) > MOST_NUMBERS:
            raise Malformed("numbers are not named, or are too many")
        for name, value in numbers.items():
            _check_number(_named(name), value)
        declared = dict(map(_declared, _is_list(tensors, "the list of tensors", MOST_TENSORS)))
        if len(declared) != len(tensors):
            raise Malformed("two tensors have the same name")
        parts.append(Part(_named(verb), problem, numbers, declared))
    return parts


def _declared(entry: Any) -> tuple[str, Declared]:
    if len(_is_list(entry, "a tensor", 3)) != 3:
        raise Malformed("a tensor has a name, a type and sizes")
    name, dtype, shape = entry
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise Malformed(f"{_named(name)} is of no type that can be sent")
    if not _is_list(shape, "a shape", MOST_DIMENSIONS):
        raise Malformed(f"{_named(name)} has no node axis")
    elements = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise Malformed(f"a size of {_named(name)} is not a number of elements")
        elements *= max(size, 1)
    if elements > MOST_ELEMENTS:
        raise Malformed(f"{_named(name)} has too many elements")
    return _named(name), Declared(DTYPES[dtype], tuple(shape))


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool):
        return
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return
    if not (isinstance(value, float) and math.isfinite(value)) and not _is_text(value):
        raise Malformed(f"{name} is no number, truth value or short text")


def _is_list(value: Any, what: str, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise Malformed(f"{what} is not a list, or is too long")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT and value.isprintable()


def _named(value: Any) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise Malformed("a name has characters that no name has")
    return value
