"""Types and shapes of the arrays that verbs carry, from what is known of a site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from cnfgnn.algorithm.messages.number_rules import InvalidCall, check_names
from cnfgnn.algorithm.messages.quantize import SCALE
from cnfgnn.algorithm.messages.randomness import Draw
from cnfgnn.config.settings import Wire
from cnfgnn.data.windows import SPLITS

INT64, UINT8, INT8 = (frozenset({dtype}) for dtype in (torch.int64, torch.uint8, torch.int8))
FLOAT64, FLOAT32, BF16 = (frozenset({dtype}) for dtype in (torch.float64, torch.float32, torch.bfloat16))
FLOATS = FLOAT32 | FLOAT64
MOST_WINDOWS = 1 << 24

Shape = tuple[int, ...]


class Array(Protocol):
    """A tensor, or the declaration of one in a message's header."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def shape(self) -> Shape: ...


class Allowed(NamedTuple):
    """The types and the shapes that an array may have."""

    dtypes: frozenset[torch.dtype]
    shapes: Sequence[Shape]


Arrays = Mapping[str, Array]
Expected = dict[str, Allowed]
"""Exactly these arrays, by name."""


@dataclass(frozen=True)
class Sizes:
    """What is known of a site with n nodes; everything but n comes with `prepare`."""

    n: int
    prepared: bool = False
    hidden: int = 0  # the width of h_c as it is sent
    embedding: int = 0
    levels: int = 0
    horizon: int = 0
    client_batch: int = 1
    server_batch: int = 1
    wire: Wire = "full"
    windows: Mapping[str, int] = field(default_factory=dict)  # by split
    model: Mapping[str, Shape] = field(default_factory=dict)  # the shared weights of one model

    def drawn(self, draw: Draw) -> int:
        """The windows in a minibatch: fewer if it is the last of an epoch, none if it does not exist."""
        first = draw.number * self.server_batch
        return max(0, min(self.server_batch, self.windows["train"] - first))

    def starts(self, came: Arrays) -> Expected:
        """The start rows of each split's windows: (1 w)."""
        expected: Expected = {}
        for split in SPLITS:
            count = came[split].shape[-1] if split in came else 0
            expected[split] = Allowed(INT64, [(1, min(count, MOST_WINDOWS))])
        return expected

    def states(self, name: str, *shapes: Shape) -> Expected:
        """Hidden states or gradients of them, in the format that `prepare` announced."""
        if self.wire == "int8":
            scales = [(n, width) for n, _, width in shapes]
            return {name: Allowed(INT8, shapes), name + SCALE: Allowed(FLOAT32, scales)}
        # with wire = "full" also in bf16, if that is how they are stored
        return {name: Allowed(BF16 if self.wire == "bf16" else FLOATS | BF16, shapes)}

    def weights(self, *models: int) -> Expected:
        """The shared weights of so many models."""
        dtypes = FLOATS if self.wire == "full" else BF16
        return {name: Allowed(dtypes, [(m, *shape) for m in models]) for name, shape in self.model.items()}


def check_arrays(expected: Expected, found: Arrays) -> None:
    """Name, type and shape of each array; InvalidCall if one is not as expected."""
    check_names(expected, found)
    for name, (dtypes, shapes) in expected.items():
        array = found[name]
        if array.dtype not in dtypes:
            raise InvalidCall(f"{name} cannot be of {str(array.dtype).removeprefix('torch.')}")
        if tuple(array.shape) not in shapes:
            allowed = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
            raise InvalidCall(f"{name} has the shape {tuple(array.shape)} instead of {allowed}")
