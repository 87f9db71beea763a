"""The same calls to many sites: what is alike for all of them is worked out and encoded once.

An exchange with 200 sites is 200 messages that differ in the rows of their arrays, if at all, and 200 answers
with the same header. `Outgoing` holds the bytes of the arrays, `Question` what all sites of one size have in
common, and `Gathering` takes the arrays of valid answers straight to their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.calls import Call
from cnfgnn.algorithm.shapes import Sizes
from cnfgnn.transports.remote.codec import as_bytes, read_answers
from cnfgnn.transports.remote.deadlines import work_of
from cnfgnn.transports.remote.header import ALIGNED, CALLS, PREFIX, Declared, Malformed, Part, written
from cnfgnn.transports.remote.messages import Buffer
from cnfgnn.transports.remote.schema import after, check_answers, largest_answer

MOST_LAYOUTS = 8  # of answers to one question that are remembered; sites that agree all have the same


@dataclass(frozen=True)
class Place:
    """The places of a site's nodes among those that are asked: a range, or any places in any order."""

    rows: Tensor
    first: int  # of a range; -1 if they are none

    @classmethod
    def of(cls, rows: Tensor) -> Place:
        first = int(rows[0]) if len(rows) else 0
        in_order = torch.equal(rows, torch.arange(first, first + len(rows)))
        return cls(rows, first if in_order else -1)


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
            if row and place.first >= 0:
                data = data[place.first * row : (place.first + len(place.rows)) * row]
            elif row:
                data = data.reshape(-1, row)[place.rows.numpy()]
            pieces += [data, bytes(-data.nbytes % ALIGNED)]
        return b"".join(pieces)


def _cut(tensor: Tensor, n: int) -> Declared:
    return Declared(tensor.dtype, (1 if len(tensor) == 1 else n, *tensor.shape[1:]))


class Layout(NamedTuple):
    """Where the arrays are in an answer that has been checked."""

    arrays: Sequence[tuple[int, str, Declared, int]]  # the number of the call, its name, its first byte
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
        parts, start = read_answers(answer, lambda parts: check_answers(parts, self.calls, self.known))
        if parts and (last := parts[-1]).problem is not None:
            return Layout((), len(answer), last.verb, last.problem)
        arrays = []
        for k, part in enumerate(parts):
            for name, declared in part.tensors.items():
                arrays.append((k, name, declared, start))
                start += declared.padded
        return Layout(arrays, len(answer))


def _header_length(answer: Buffer) -> int:
    return int(PREFIX.unpack_from(answer)[1]) if len(answer) >= PREFIX.size else 0


class Gathering:
    """The answers of all sites: for each call named tensors with a row per node, zeros for absent nodes."""

    def __init__(self, calls: int, n: int) -> None:
        self.n = n
        self.replies: list[dict[str, Tensor]] = [{} for _ in range(calls)]
        self._bytes: dict[tuple[int, str], np.ndarray[Any, Any]] = {}

    def put(self, place: Place, layout: Layout, answer: Buffer) -> None:
        """Copy the arrays of an answer to the rows of its nodes."""
        found = np.frombuffer(answer, dtype=np.uint8)
        for k, name, declared, start in layout.arrays:
            end = start + declared.bytes
            if found[end : start + declared.padded].any():
                raise Malformed("the padding after an array is not zero")
        for k, name, declared, start in layout.arrays:
            if declared.bytes:
                self._put(k, name, declared, place, found[start : start + declared.bytes])
            elif name not in self.replies[k]:
                self.replies[k][name] = torch.zeros((self.n, *declared.shape[1:]), dtype=declared.dtype)

    def _put(self, k: int, name: str, declared: Declared, place: Place, data: np.ndarray[Any, Any]) -> None:
        whole = self.replies[k].get(name)
        if whole is None:
            whole = torch.zeros((self.n, *declared.shape[1:]), dtype=declared.dtype)
            self.replies[k][name] = whole
            self._bytes[k, name] = as_bytes(whole)
        row = declared.bytes // len(place.rows)
        if whole.dtype == declared.dtype and place.first >= 0:
            self._bytes[k, name][place.first * row : place.first * row + len(data)] = data
        else:  # a site may compute in another precision
            whole[place.rows] = (
                torch.from_numpy(data.copy()).view(declared.dtype).view(declared.shape).to(whole)
            )

    def of_rows(self, rows: Tensor) -> list[Mapping[str, Tensor]]:
        """The answers of some nodes."""
        return [{name: tensor[rows] for name, tensor in reply.items()} for reply in self.replies]

    def drop(self, rows: Tensor) -> None:
        """Forget the answers of some nodes."""
        for reply in self.replies:
            for tensor in reply.values():
                tensor[rows] = 0
