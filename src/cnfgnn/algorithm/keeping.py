"""How h_c and h_G of all training windows are kept: as they are, in bf16, or h_c not at all.

They are by far the largest of what a run holds, and grow with nodes times windows; everything else is bounded
by a minibatch or by the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from cnfgnn.algorithm.compute import Compute
from cnfgnn.algorithm.cost import GIB
from cnfgnn.errors import ConfigError

How = Literal["full", "bf16", "recomputed"]
SHARE = 0.5  # of the device's memory, where nothing is said: the rest is for minibatches and weights


@dataclass(frozen=True)
class Keeping:
    """The choice that a run's set-up makes, and the numbers that it was made from, in bytes."""

    how: How = "full"
    takes: int = 0
    may_take: int = 0

    def __str__(self) -> str:
        kept = {
            "full": "kept in full",
            "bf16": "kept in bf16",
            "recomputed": "not kept: nodes encode again for each minibatch and keep embeddings in bf16",
        }[self.how]
        return (
            f"hidden states of all training windows are {kept}"
            f" ({self.takes / GIB:.2f} of {self.may_take / GIB:.2f} GiB, compute.memory)"
        )


def kept_dtype(how: How, computed: torch.dtype) -> torch.dtype:
    """The type in which h_c and h_G are stored by a party that computes in `computed`."""
    return computed if how == "full" else torch.bfloat16


def choose(compute: Compute, memory: float, h_c: int, h_G: int) -> Keeping:
    """The most precise way that fits into `memory` GiB (0: half of all the device has, free or not).

    h_c and h_G are numbers of elements over all training windows. At the peak, in phase (4), there are h_c,
    the new h_G and the one it replaces. Where h_c is recomputed, h_G is replaced minibatch by minibatch:
    there is one. All memory decides, not what is free of it: a run that is resumed must choose as it did.
    """
    may_take = int(memory * GIB) if memory else int(SHARE * compute.memory())
    takes: dict[How, int] = {
        "full": (h_c + 2 * h_G) * compute.dtype.itemsize,
        "bf16": (h_c + 2 * h_G) * torch.bfloat16.itemsize,
        "recomputed": h_G * torch.bfloat16.itemsize,
    }
    for how, size in takes.items():
        if size <= may_take:
            return Keeping(how, size, may_take)
    raise ConfigError(
        "compute.memory",
        f"embeddings of all training windows take {takes['recomputed'] / GIB:.3g} GiB even in bf16, and"
        f" {may_take / GIB:.3g} may be used: allow more, or train on fewer sensors or readings",
    )
