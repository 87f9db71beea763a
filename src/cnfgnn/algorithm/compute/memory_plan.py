"""How h_c and h_G of all training windows are stored: in full precision, in bf16, or h_c not at all.

They are by far the largest part of what a run holds and grow with nodes times windows. How much is computed
at a time is another question (`working_memory.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.messages.calls import MemoryLimit
from cnfgnn.algorithm.messages.cost import GIB
from cnfgnn.algorithm.messages.settings import StateFormat
from cnfgnn.errors import ConfigError, NodeError

FORMATS: tuple[StateFormat, ...] = ("full", "bf16", "recomputed")  # the most precise first


@dataclass(frozen=True)
class MemoryPlan:
    """The format that was chosen at set-up, and the bytes that decided: how many it needs and may use."""

    state_format: StateFormat = "full"
    needed: int = 0
    limit: int = 0
    site: str = ""  # the site whose memory decided; empty if it was the server's

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> MemoryPlan:
        """From the first event of a run."""
        return cls(stored["how"], stored["takes"], stored["may_take"], stored["site"])

    def as_json(self) -> dict[str, Any]:
        """Keys are those of format 1 of a run folder."""
        return {
            "how": self.state_format,
            "takes": self.needed,
            "may_take": self.limit,
            "site": self.site,
        }

    def __str__(self) -> str:
        stored = {
            "full": "kept in full",
            "bf16": "kept in bf16",
            "recomputed": "not kept: nodes encode again for each minibatch and keep embeddings in bf16",
        }[self.state_format]
        setting = f"memory of site {self.site}" if self.site else "compute.memory"
        sizes = f"{self.needed / GIB:.2f} of {self.limit / GIB:.2f} GiB"
        return f"hidden states of all training windows are {stored} ({sizes}, {setting})"


class SiteStates(NamedTuple):
    """Elements of h_c and h_G over a site's training windows, and the memory that it has for them."""

    limit: MemoryLimit
    h_c: int
    h_G: int


def stored_dtype(state_format: StateFormat, computed: torch.dtype) -> torch.dtype:
    """The type in which a party that computes in `computed` stores h_c and h_G."""
    return computed if state_format == "full" else torch.bfloat16


def bytes_needed(h_c: int, h_G: int, computed: torch.dtype) -> dict[StateFormat, int]:
    """Bytes that so many elements take at the peak, by format.

    The peak is phase (4), with h_c, the new h_G and the one that it replaces. If h_c is recomputed, h_G is
    replaced minibatch by minibatch and there is only one.
    """
    return {
        "full": (h_c + 2 * h_G) * computed.itemsize,
        "bf16": (h_c + 2 * h_G) * torch.bfloat16.itemsize,
        "recomputed": h_G * torch.bfloat16.itemsize,
    }


def plan_memory(
    compute: Compute, memory: float, h_c: int, h_G: int, sites: Sequence[SiteStates] = ()
) -> MemoryPlan:
    """The most precise format that fits into `memory` GiB at the server (0: half of what its device has) and
    into the limit of each site.

    h_c and h_G are numbers of elements over all training windows. All parties use the same format, or results
    would depend on which nodes share a site.
    """
    limit = replace(compute, gib=memory).limit
    chosen = _first_that_fits(bytes_needed(h_c, h_G, compute.dtype), limit, "")
    for site in sites:
        if site.limit.bytes:
            needed = bytes_needed(site.h_c, site.h_G, compute.dtype)
            at_site = _first_that_fits(needed, site.limit.bytes, site.limit.site)
            if FORMATS.index(at_site.state_format) > FORMATS.index(chosen.state_format):
                chosen = at_site
    return chosen


def _first_that_fits(needed: dict[StateFormat, int], limit: int, site: str) -> MemoryPlan:
    for state_format in FORMATS:
        if needed[state_format] <= limit:
            return MemoryPlan(state_format, needed[state_format], limit, site)
    key = f"memory of site {site}" if site else "compute.memory"
    raise ConfigError(
        key,
        f"embeddings of all training windows take {needed['recomputed'] / GIB:.3g} GiB even in bf16, and"
        f" {limit / GIB:.3g} may be used: allow more, or train on fewer sensors or readings",
    )


def check_limit(limit: MemoryLimit, needed: int) -> None:
    """At a site, which may have been away when the server made the plan: refuse to hold more than allowed."""
    if limit.bytes and needed > limit.bytes:
        raise NodeError(
            limit.site,
            "embed",
            f"hidden states and embeddings take {needed / GIB:.3g} GiB, and this site's memory is"
            f" {limit.bytes / GIB:.3g} GiB: raise it, or train on fewer sensors or readings",
        )
