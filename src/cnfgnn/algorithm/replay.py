"""CUDA graphs: a step of hundreds of small kernels, recorded once and launched as one.

A recording stays on one side of a verb: what crosses between nodes and server, and is counted there, is never
part of it. On the CPU everything here calls through.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

Key = tuple[Any, ...]


class Replay:
    """A function of tensors that is run on its first call, recorded on the second and replayed from then on,
    apart for each combination of shapes.

    It may read and change tensors around it as long as these stay where they are: who replaces them makes a
    new Replay. What it returns is overwritten by the next call.
    """

    def __init__(self, function: Callable[..., Tensor | None], device: torch.device) -> None:
        self.function, self.device = function, device
        self._seen: set[Key] = set()
        self._records: dict[Key, tuple[torch.cuda.CUDAGraph, list[Tensor | None], Tensor | None]] = {}

    def __call__(self, *inputs: Tensor | None) -> Tensor | None:
        if self.device.type != "cuda":
            return self.function(*inputs)
        key = tuple(None if x is None else (x.shape, x.dtype) for x in inputs)
        if key not in self._seen:
            self._seen.add(key)
            return self.function(*inputs)
        if key not in self._records:
            self._records[key] = self._recorded(inputs)
        graph, places, output = self._records[key]
        for place, x in zip(places, inputs, strict=True):
            if place is not None and x is not None:
                place.copy_(x)
        graph.replay()
        return output

    def _recorded(
        self, inputs: tuple[Tensor | None, ...]
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor | None], Tensor | None]:
        places = [None if x is None else x.clone() for x in inputs]
        graph, here, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with _no_collection(), torch.cuda.stream(aside):
            graph.capture_begin()
            try:
                output = self.function(*places)
            finally:
                graph.capture_end()
        here.wait_stream(aside)
        return graph, places, output


class _Bound(nn.Module):
    """A module with its constant arguments bound, in the form that torch records."""

    def __init__(self, module: nn.Module, constants: tuple[Any, ...], bf16: bool, has_present: bool) -> None:
        super().__init__()
        self.module, self.constants, self.bf16, self.has_present = module, constants, bf16, has_present

    def forward(self, h_c: Tensor, *present: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            out: Tensor = self.module(h_c, *self.constants, present[0] if self.has_present else None)
        return out


def graphed(
    module: nn.Module, constants: tuple[Any, ...], h_c: Tensor, present: Tensor | None, bf16: bool
) -> Callable[..., Tensor]:
    """The module on inputs like these, forward and backward recorded apart so that a verb fits between."""
    # each shape is recorded on a stream of its own, and all of them share the weights: torch need not wonder
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    examples = [h_c.detach().clone().requires_grad_(h_c.requires_grad)]
    examples += [] if present is None else [present.clone()]
    bound = _Bound(module, constants, bf16, present is not None)
    with _no_collection():
        return cast(Callable[..., Tensor], torch.cuda.make_graphed_callables(bound, tuple(examples)))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Were the garbage collector to find an old recording now, freeing it would break the one under way."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
