"""The same calls to many sites: what is alike for all of them is worked out and encoded once.

An exchange with 200 sites is 200 messages that differ in the rows of their arrays, if at all, and 200 answers
with the same header. `Outgoing` holds the bytes of the arrays, `Question` what all sites of one size have in
common, and `Gathering` takes the arrays of valid answers straight to their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.transports.remote.codec import as_bytes, read_checked
from cnfgnn.transports.remote.deadlines import work_of
from cnfgnn.transports.remote.header import (
    ALIGNED,
    ANSWERS,
    CALLS,
    PREFIX,
    Declared,
    Malformed,
    Part,
    written,
)
from cnfgnn.transports.remote.messages import Buffer
from cnfgnn.transports.remote.schema import after, check_answers, largest_answer

ZEROS = bytes(ALIGNED)
MOST_LAYOUTS = 8  # of answers to one question that are remembered; sites that agree all have the same


Place = slice | np.ndarray[Any, Any]
"""The places of a site's nodes among those that are asked: a range, or any places in any order."""


def place_of(rows: Tensor) -> Place:
    first = int(rows[0]) if len(rows) else 0
    in_order = torch.equal(rows, torch.arange(first, first + len(rows)))
    return slice(first, first + len(rows)) if in_order else rows.numpy()


class _Array(NamedTuple):
    """The bytes of a tensor, and how many of them belong to one row; 0 if all nodes share it."""

    data: np.ndarray[Any, Any]
    row: int


class Outgoing:
    """Calls whose arrays have been brought into memory as they are sent."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self._arrays = [
            _Array(as_bytes(tensor), 0 if len(tensor) == 1 else tensor.nbytes // max(1, len(tensor)))
            for call in calls
            for tensor in call.tensors.values()
        ]
        self.shared = all(array.row == 0 for array in self._arrays)

    def parts(self, n: int) -> list[Part]:
        """The calls as the header of a message to n nodes declares them."""
        return [
            Part(call.verb, None, call.numbers, {name: _cut(t, n) for name, t in call.tensors.items()})
            for call in self.calls
        ]

    def message(self, header: bytes, place: Place) -> bytes:
        """The message with this header to the nodes in these places."""
        pieces: list[Any] = [header]
        for data, row in self._arrays:
            if row:
                data = data.reshape(-1, row)[place]
            pieces += [data, bytes(-data.nbytes % ALIGNED)]
        return b"".join(pieces)


def _cut(tensor: Tensor, n: int) -> Declared:
    return Declared(tensor.dtype, (1 if len(tensor) == 1 else n, *tensor.shape[1:]))


class Found(NamedTuple):
    """An array in an answer: the number of the call, its name, its type and shape, and its bytes."""

    call: int
    name: str
    declared: Declared
    start: int
    end: int


class Layout(NamedTuple):
    """Where the arrays are in an answer that has been checked."""

    arrays: Sequence[Found]
    padding: Sequence[tuple[int, int]]  # the bytes between arrays, which are zero
    size: int  # bytes of the whole message
    failed: str = ""  # the verb that failed at the site, if one did
    problem: str = ""  # and why


class Question:
    """Calls to sites with n nodes of which the same is known."""

    def __init__(self, outgoing: Outgoing, known: Sizes) -> None:
        self.outgoing, self.known = outgoing, known
        self.calls = outgoing.parts(known.n)
        self.verb = self.calls[-1].verb
        self.work = work_of(self.calls, known)
        self.known_after = after(self.calls, known)
        self.largest_answer = largest_answer(self.calls, known)
        self._header = written(CALLS, self.calls)
        self._same: bytes | None = None
        self._layouts: dict[bytes, Layout] = {}

    def message(self, place: Place) -> bytes:
        if not self.outgoing.shared:
            return self.outgoing.message(self._header, place)
        if self._same is None:
            self._same = self.outgoing.message(self._header, place)
        return self._same

    def layout(self, answer: Buffer) -> Layout:
        """Check the header of an answer; raises Malformed."""
        head = bytes(answer[: PREFIX.size + _header_length(answer)])
        layout = self._layouts.get(head)
        if layout is None:
            layout = self._checked(answer)
            if len(self._layouts) < MOST_LAYOUTS:
                self._layouts[head] = layout
        elif len(answer) != layout.size:
            self._checked(answer)  # raises Malformed: its header declares another size
        return layout

    def _checked(self, answer: Buffer) -> Layout:
        parts, start = read_checked(
            ANSWERS, answer, lambda parts: check_answers(parts, self.calls, self.known)
        )
        if parts and (last := parts[-1]).problem is not None:
            return Layout((), (), len(answer), last.verb, last.problem)
        arrays, padding = [], []
        for k, part in enumerate(parts):
            for name, declared in part.tensors.items():
                end = start + declared.bytes
                arrays.append(Found(k, name, declared, start, end))
                start += declared.padded
                if start > end:
                    padding.append((end, start))
        return Layout(arrays, padding, len(answer))


def _header_length(answer: Buffer) -> int:
    return int(PREFIX.unpack_from(answer)[1]) if len(answer) >= PREFIX.size else 0


class Gathering:
    """The answers of all sites: for each call named tensors with a row per node, zeros for absent nodes."""

    def __init__(self, calls: int, n: int) -> None:
        self.n = n
        self.replies: list[dict[str, Tensor]] = [{} for _ in range(calls)]
        self._bytes: dict[tuple[int, str], np.ndarray[Any, Any]] = {}  # of each reply, a row per node

    def put(self, place: Place, layout: Layout, answer: Buffer) -> None:
        """Copy the arrays of an answer to the rows of its nodes."""
        data = memoryview(answer)
        for start, end in layout.padding:
            if data[start:end] != ZEROS[: end - start]:
                raise Malformed("the padding after an array is not zero")
        for found in layout.arrays:
            whole = self.replies[found.call].get(found.name)
            if whole is None:
                whole = self._room_for(found)
            if found.start == found.end:
                continue  # it has no values
            arrived = np.frombuffer(data[found.start : found.end], dtype=np.uint8)
            if whole.dtype == found.declared.dtype:
                rows = self._bytes[found.call, found.name]
                rows[place] = arrived.reshape(-1, rows.shape[1])
            else:  # a site may compute in another precision
                other = torch.from_numpy(arrived.copy()).view(found.declared.dtype)
                whole[place] = other.view(found.declared.shape).to(whole)

    def _room_for(self, found: Found) -> Tensor:
        whole = torch.zeros((self.n, *found.declared.shape[1:]), dtype=found.declared.dtype)
        self.replies[found.call][found.name] = whole
        self._bytes[found.call, found.name] = as_bytes(whole).reshape(self.n, whole.nbytes // self.n)
        return whole

    def of_site(self, place: Place) -> list[Mapping[str, Tensor]]:
        """The answers of one site."""
        return [{name: tensor[place] for name, tensor in reply.items()} for reply in self.replies]

    def drop(self, place: Place) -> None:
        """Forget the answers of one site."""
        for reply in self.replies:
            for tensor in reply.values():
                tensor[place] = 0
