"""How h_c and h_G of all training windows are kept: as they are, in bf16, or h_c not at all.

They are by far the largest of what a run holds, and grow with nodes times windows; everything else is bounded
by a minibatch or by the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from cnfgnn.algorithm.calls import Room
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
    site: str = ""  # whose memory decided; the server's where there is no name

    def __str__(self) -> str:
        kept = {
            "full": "kept in full",
            "bf16": "kept in bf16",
            "recomputed": "not kept: nodes encode again for each minibatch and keep embeddings in bf16",
        }[self.how]
        return (
            f"hidden states of all training windows are {kept}"
            f" ({self.takes / GIB:.2f} of {self.may_take / GIB:.2f} GiB,"
            f" {f'memory of site {self.site}' if self.site else 'compute.memory'})"
        )


class Held(NamedTuple):
    """What a site would hold: numbers of elements over its training windows."""

    room: Room
    h_c: int
    h_G: int


def kept_dtype(how: How, computed: torch.dtype) -> torch.dtype:
    """The type in which h_c and h_G are stored by a party that computes in `computed`."""
    return computed if how == "full" else torch.bfloat16


def sizes(h_c: int, h_G: int, computed: torch.dtype) -> dict[How, int]:
    """Bytes that so many elements take at the peak, the most precise way first.

    The peak is phase (4): there are h_c, the new h_G and the one it replaces. Where h_c is recomputed, h_G is
    replaced minibatch by minibatch: there is one.
    """
    return {
        "full": (h_c + 2 * h_G) * computed.itemsize,
        "bf16": (h_c + 2 * h_G) * torch.bfloat16.itemsize,
        "recomputed": h_G * torch.bfloat16.itemsize,
    }


def choose(compute: Compute, memory: float, h_c: int, h_G: int, sites: Sequence[Held] = ()) -> Keeping:
    """The most precise way that fits into `memory` GiB of the server and into what each site can hold.

    h_c and h_G are numbers of elements over all training windows; with a memory of 0 the server may take half
    of all that its device has. All memory decides, not what is free of it: a run that is resumed must choose
    as it did. Everybody keeps them the same way, or results would depend on who shares a site.
    """
    may_take = int(memory * GIB) if memory else int(SHARE * compute.memory())
    chosen = _fitting(sizes(h_c, h_G, compute.dtype), may_take, "")
    for held in sites:
        if held.room.bytes:
            at_site = sizes(held.h_c, held.h_G, compute.dtype)
            its = _fitting(at_site, held.room.bytes, held.room.site)
            chosen = max(chosen, its, key=lambda one: _WAYS.index(one.how))  # the first of equals
    return chosen


def _fitting(takes: dict[How, int], may_take: int, site: str) -> Keeping:
    for how, size in takes.items():
        if size <= may_take:
            return Keeping(how, size, may_take, site)
    key = f"memory of site {site}" if site else "compute.memory"
    raise ConfigError(
        key,
        f"embeddings of all training windows take {takes['recomputed'] / GIB:.3g} GiB even in bf16, and"
        f" {may_take / GIB:.3g} may be used: allow more, or train on fewer sensors or readings",
    )


_WAYS: tuple[How, ...] = ("full", "bf16", "recomputed")
