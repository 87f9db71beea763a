"""Calls and answers as bytes and back: numbers and arrays, nothing executable.

    magic, kind, version (8) | header's length (4, little-endian) | header (JSON, then spaces)
    arrays back to back, little-endian, row-major, each followed by zeros up to a multiple of 8 bytes

The header is a list of one entry per call or answer: [verb, error, {name: number}, [[name, dtype, [size]]]].
There is exactly one way to write a message; anything else is rejected. The sizes that the header declares
must add up to the bytes that are there before any array is allocated, so that no message makes its reader
allocate more than was sent.

Why not safetensors: its reader of bytes copies every tensor at once, drops the metadata and accepts several
spellings of one header, so that names, types and shapes could not be checked before arrays are allocated. The
numbers, the errors and the order of calls would need a second format inside its map of strings. We would
still write and check a header of our own, so this is the simpler way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.transports.remote.header import ALIGNED, ANSWERS, CALLS, LONGEST_TEXT, Declared, Malformed, Part
from cnfgnn.transports.remote.header import read as read_header
from cnfgnn.transports.remote.header import written as written_header
from cnfgnn.transports.remote.messages import Buffer

assert sys.byteorder == "little", "arrays are sent as they lie in memory"


@dataclass(frozen=True)
class Answer:
    """The outcome of one call: named tensors, or the error that ended the message. Later calls were not
    carried out and have no answer."""

    verb: str
    problem: str | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


Check = Callable[[Sequence[Part]], object]
"""Checks a header and raises Malformed; no array has been allocated yet."""

# ---- out ----------------------------------------------------------------------------------------------


def encode_answers(answers: Sequence[Answer]) -> bytes:
    return encoded(ANSWERS, answers)


def encoded(kind: bytes, message: Sequence[Call] | Sequence[Answer]) -> bytes:
    pieces: list[Any] = [written_header(kind, [part_of(one) for one in message])]
    for one in message:
        for tensor in one.tensors.values():
            raw = as_bytes(tensor)
            pieces += [raw, bytes(-raw.nbytes % ALIGNED)]
    return b"".join(pieces)


def part_of(one: Call | Answer) -> Part:
    """The entry of a call or an answer in the header."""
    declared = {name: Declared(t.dtype, tuple(t.shape)) for name, t in one.tensors.items()}
    if isinstance(one, Call):
        return Part(one.verb, None, one.numbers, declared)
    problem = one.problem
    if problem is not None:  # the message of any exception: one line that is safe to print
        problem = "".join(c if c.isprintable() else " " for c in problem)[:LONGEST_TEXT] or "failed"
    return Part(one.verb, problem, {}, declared)


def as_bytes(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The bytes of a tensor, without a copy if it is contiguous."""
    if tensor.numel() == 0:
        return np.empty(0, dtype=np.uint8)
    whole = tensor.detach().cpu().contiguous()
    # an expanded tensor with one element has strides of 0, which cannot be viewed as bytes
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy()


# ---- in -----------------------------------------------------------------------------------------------


def decode_calls(message: Buffer, check: Check | None = None, most: int | None = None) -> list[Call]:
    """Of `most` bytes at most. If the message is writable, as a bytearray is, tensors are views of it."""
    return [Call(part.verb, part.numbers, named) for part, named in decoded(CALLS, message, check, most)]


def decoded(
    kind: bytes, message: Buffer, check: Check | None = None, most: int | None = None
) -> list[tuple[Part, dict[str, Tensor]]]:
    """The entries of a message with their tensors; see `decode_calls`."""
    if most is not None and memoryview(message).nbytes > most:
        raise Malformed(f"the message has {memoryview(message).nbytes} bytes, and {most} are allowed")
    parts, start = read_checked(kind, message, check)
    arrays = _arrays(
        memoryview(message).cast("B")[start:], [d for part in parts for d in part.tensors.values()]
    )
    return [(part, {name: next(arrays) for name in part.tensors}) for part in parts]


def read_checked(kind: bytes, message: Buffer, check: Check | None) -> tuple[list[Part], int]:
    """The checked header of a message, and the position at which its arrays begin; allocates no array."""
    data = memoryview(message).cast("B")
    parts, start = read_header(kind, data)
    size = sum(d.padded for part in parts for d in part.tensors.values())
    if size != len(data) - start:
        raise Malformed(f"the header declares arrays of {size} bytes, and {len(data) - start} follow it")
    if check is not None:
        check(parts)
    return parts, start


def _arrays(payload: memoryview, declared: Sequence[Declared]) -> Iterator[Tensor]:
    """Views of the payload, or of a copy if it is read-only or not aligned."""
    raw = np.frombuffer(payload, dtype=np.uint8)
    if not raw.flags.writeable or raw.ctypes.data % ALIGNED:
        raw = raw.copy()
    whole = torch.from_numpy(raw)
    position = 0
    for d in declared:
        part, rest = whole[position : position + d.padded].tensor_split([d.bytes])
        if rest.any():
            raise Malformed("the padding after an array is not zero")
        if d.dtype == torch.bool and part.numel() and part.max() > 1:
            raise Malformed("a boolean is neither 0 nor 1")
        yield part.view(d.dtype).view(d.shape) if d.bytes else torch.empty(d.shape, dtype=d.dtype)
        position += d.padded
