"""Calls and answers as bytes and back: numbers and arrays, and nothing that could run.

    magic, kind, version (8) | header's length (4, little-endian) | header (JSON, then spaces)
    arrays back to back, little-endian, row-major, each followed by zeros up to a multiple of 8 bytes

The header is a list of one entry per call or answer: [verb, problem, {number}, [[name, dtype, [size]]]].
There is one way to write a message, and whatever is spelled otherwise is refused. What the header declares
must add up to the bytes that are there before an array is made: no message makes its reader hold more than
was sent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.calls import Call
from cnfgnn.transports.remote.header import (
    ALIGNED,
    ANSWERS,
    CALLS,
    LONGEST_TEXT,
    Declared,
    Malformed,
    Part,
    read,
    written,
)

__all__ = [
    "Answer",
    "Check",
    "Malformed",
    "Part",
    "decode_answers",
    "decode_calls",
    "encode_answers",
    "encode_calls",
    "encoded_size",
    "part_of",
]

assert sys.byteorder == "little", "arrays travel as they lie in memory"

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Answer:
    """What became of one call: named tensors, or the problem that ended the message; later calls were not
    carried out and have no answer."""

    verb: str
    problem: str | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


Check = Callable[[Sequence[Part]], object]
"""Looks at a header and raises Malformed at what may not be in it; no array has been made yet."""

# ---- out ----------------------------------------------------------------------------------------------


def encode_calls(calls: Sequence[Call]) -> bytes:
    return _encoded(CALLS, [part_of(call) for call in calls], [call.tensors for call in calls])


def encode_answers(answers: Sequence[Answer]) -> bytes:
    return _encoded(ANSWERS, [part_of(answer) for answer in answers], [a.tensors for a in answers])


def encoded_size(message: Sequence[Call] | Sequence[Answer]) -> int:
    """The bytes that encoding will give, without doing it."""
    parts = [part_of(one) for one in message]
    kind = ANSWERS if message and isinstance(message[0], Answer) else CALLS
    return len(written(kind, parts)) + sum(d.room for part in parts for d in part.tensors.values())


def part_of(one: Call | Answer) -> Part:
    """The header's entry of a call or an answer."""
    numbers, problem = (one.numbers, None) if isinstance(one, Call) else ({}, one.problem)
    if problem is not None:  # whatever an exception said: in one line that every terminal can show
        problem = "".join(c if c.isprintable() else " " for c in problem)[:LONGEST_TEXT] or "failed"
    return Part(
        one.verb, problem, numbers, {k: Declared(t.dtype, tuple(t.shape)) for k, t in one.tensors.items()}
    )


def _encoded(kind: bytes, parts: Sequence[Part], tensors: Sequence[Mapping[str, Tensor]]) -> bytes:
    pieces: list[Any] = [written(kind, parts)]
    for named in tensors:
        for tensor in named.values():
            raw = _raw(tensor)
            pieces += [raw, bytes(-raw.nbytes % ALIGNED)]
    return b"".join(pieces)


def _raw(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The tensor's bytes, where they lie if they lie there in order."""
    if tensor.numel() == 0:
        return np.empty(0, dtype=np.uint8)
    whole = tensor.detach().cpu().contiguous()
    # strides said anew: those of an expanded tensor with one element are 0, which cannot be seen as bytes
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy()


# ---- in -----------------------------------------------------------------------------------------------


def decode_calls(message: Buffer, check: Check | None = None, most: int | None = None) -> list[Call]:
    """`most` bytes at most. Tensors are views of the message where it can be written to, as a bytearray."""
    parts, tensors = _decoded(CALLS, message, check, most)
    return [Call(part.verb, part.numbers, named) for part, named in zip(parts, tensors, strict=True)]


def decode_answers(message: Buffer, check: Check | None = None, most: int | None = None) -> list[Answer]:
    """As `decode_calls` does."""
    parts, tensors = _decoded(ANSWERS, message, check, most)
    return [Answer(part.verb, part.problem, named) for part, named in zip(parts, tensors, strict=True)]


def _decoded(
    kind: bytes, message: Buffer, check: Check | None, most: int | None
) -> tuple[list[Part], list[dict[str, Tensor]]]:
    data = memoryview(message).cast("B")
    if most is not None and len(data) > most:
        raise Malformed(f"the message has {len(data)} bytes, and {most} are allowed")
    parts, start = read(kind, data)
    declared = [d for part in parts for d in part.tensors.values()]
    size = sum(d.room for d in declared)
    if size != len(data) - start:
        raise Malformed(f"arrays of {size} bytes are declared, and {len(data) - start} are there")
    if check is not None:
        check(parts)
    arrays = _arrays(data[start:], declared)
    return parts, [{name: next(arrays) for name in part.tensors} for part in parts]


def _arrays(payload: memoryview, declared: Sequence[Declared]) -> Iterator[Tensor]:
    """Views of the payload, of a copy where that is read-only or lies badly."""
    raw = np.frombuffer(payload, dtype=np.uint8)
    if not raw.flags.writeable or raw.ctypes.data % ALIGNED:
        raw = raw.copy()
    whole = torch.from_numpy(raw)
    position = 0
    for d in declared:
        part, rest = whole[position : position + d.room].tensor_split([d.bytes])
        if rest.any():
            raise Malformed("there is something between two arrays")
        if d.dtype == torch.bool and part.numel() and part.max() > 1:
            raise Malformed("a truth value is neither 0 nor 1")
        yield part.view(d.dtype).view(d.shape) if d.bytes else torch.empty(d.shape, dtype=d.dtype)
        position += d.room
