"""CUDA graphs: a step of hundreds of small kernels, recorded once and launched as one.

A recording never crosses a verb: the ledger counts in Python, which does not run on replay. On the CPU
everything here simply calls the function.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

Key = tuple[Any, ...]
Function = Callable[..., Tensor | None]


class RecordingPool:
    """The stream and the memory that successive recordings of one kind share.

    Without it every new recording, one in each round, would take memory of its own, and PyTorch never frees
    that of the old ones. Recordings that share a pool must not need each other's results later on.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        self._last: torch.cuda.CUDAGraph | None = None  # kept alive, so that its memory is not freed

    @contextmanager
    def recording(self) -> Iterator[torch.cuda.CUDAGraph]:
        """Record what happens inside instead of running it."""
        here = torch.cuda.current_stream(self.device)
        self._stream = self._stream or torch.cuda.Stream(self.device)
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(here)
        with _no_collection(), torch.cuda.stream(self._stream):
            graph.capture_begin(None if self._last is None else self._last.pool())
            try:
                yield graph
            finally:
                graph.capture_end()
        here.wait_stream(self._stream)
        self._last = graph


class _Recording:
    """The kernels of a function for inputs of certain shapes, and the buffers from which they read."""

    def __init__(self, function: Function, inputs: tuple[Tensor | None, ...], memory: RecordingPool) -> None:
        self.places = [None if x is None else _copy(x) for x in inputs]
        with memory.recording() as self.graph:
            self.output = function(*self.places)

    def first(self) -> Tensor | None:
        """Run with the inputs that it was recorded with."""
        self.graph.replay()
        return self.output

    @torch.no_grad()
    def replay(self, inputs: tuple[Tensor | None, ...]) -> Tensor | None:
        for place, x in zip(self.places, inputs, strict=True):
            if place is not None and x is not None:
                place.copy_(x)
        return self.first()


class Replay:
    """A function of tensors that is run on its first call, recorded on the second and replayed from then on,
    separately for each combination of shapes.

    The function may also read and change other tensors, as long as these stay at the same address; after they
    are replaced, a new Replay is needed. The next call overwrites the result.
    """

    def __init__(self, function: Function, memory: RecordingPool) -> None:
        self.function, self.memory = function, memory
        self._recordings: dict[Key, _Recording | None] = {}

    def __call__(self, *inputs: Tensor | None) -> Tensor | None:
        key = _key(inputs)
        if self.memory.device.type != "cuda" or key not in self._recordings:
            self._recordings[key] = None
            return self.function(*inputs)
        if (recording := self._recordings[key]) is not None:
            return recording.replay(inputs)
        recording = self._recordings[key] = _Recording(self.function, inputs, self.memory)
        return recording.first()


class _Stage(IntEnum):
    RUN, RECORD, REPLAY = range(3)


class ReplayBoth:
    """The same for two functions that are called in turn, of which the second back-propagates through the
    first. Anything may happen between the two, such as a verb."""

    def __init__(self, there: Function, back: Function, memory: RecordingPool) -> None:
        self.there, self.back, self.memory = there, back, memory
        self._stages: dict[Key, _Stage] = {}
        self._recordings: dict[Key, list[_Recording]] = {}
        self._now: Key = ()

    def forward(self, *inputs: Tensor | None) -> Tensor | None:
        self._now = key = _key(inputs)
        if self._stage == _Stage.RUN:
            return self.there(*inputs)
        if self._stage == _Stage.REPLAY:
            return self._recordings[key][0].replay(inputs)
        recording = _Recording(self.there, inputs, self.memory)
        self._recordings[key] = [recording]
        return recording.first()

    def backward(self, *inputs: Tensor | None) -> Tensor | None:
        key, stage = self._now, self._stage
        if stage == _Stage.REPLAY:
            return self._recordings[key][1].replay(inputs)
        self._stages[key] = _Stage(stage + 1)
        if stage == _Stage.RUN:
            return self.back(*inputs)
        recordings = self._recordings[key]
        recordings.append(_Recording(self.back, inputs, self.memory))
        return recordings[1].first()

    @property
    def _stage(self) -> _Stage:
        return self._stages.get(self._now, _Stage.RUN) if self.memory.device.type == "cuda" else _Stage.RUN


def _key(inputs: tuple[Tensor | None, ...]) -> Key:
    return tuple(None if x is None else (x.shape, x.dtype, x.requires_grad) for x in inputs)


def _copy(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


@contextmanager
def _no_collection() -> Iterator[None]:
    """If the garbage collector freed an old recording now, it would break the one in progress."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
