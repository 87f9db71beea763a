"""A site that fails when a file in its kit tells it to, for tests of how the others react."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cnfgnn.algorithm.messages.randomness import Draw
from cnfgnn.algorithm.owner import Owner
from cnfgnn.federation.site.nodes import SiteNodes

PROGRAM = """import sys
if "cnfgnn.federation.site.worker" in sys.orig_argv:
    from tests.federation import fault_injection
    fault_injection.install()
"""  # what the processes of a site run first
FAULT = "fault"  # a file in the kit: the verb that fails next, and how
BLOCKED = "blocked"  # a file that exists while a verb is blocked
PHASES = {1: "update", 2: "encode", 3: "backward", 4: "embed"}  # the verb of each phase

CORRUPTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nan": lambda w: w * torch.nan,
    "shape": lambda w: w[..., :1],
    "large": lambda w: w * 1000,
}


def inject(kit: Path, verb: str, fault: str, number: int | None = None, in_round: int | None = None) -> None:
    """Make the next call of the verb fail (or the next one with the minibatch of this number, or of this
    round)."""
    partial = kit / f".{FAULT}"
    partial.write_text(f"{verb} {fault} {number} {in_round}")
    partial.replace(kit / FAULT)


def install() -> None:
    """In a worker: have the nodes of every run fail where their kit says."""
    of_run = SiteNodes._owner

    def with_faults(site: SiteNodes, *args: Any) -> Owner:
        return Faults(site.kit).in_nodes_of(of_run(site, *args))

    SiteNodes._owner = with_faults  # type: ignore[method-assign]


class Faults:
    """Blocks, for something to be killed, or returns corrupted tensors, at the verb that the kit names."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit

    def in_nodes_of(self, owner: Owner) -> Owner:
        for verb in ("update", "encode", "backward", "embed", "weights"):
            setattr(owner.nodes, verb, self._intercepted(verb, getattr(owner.nodes, verb)))
        return owner

    def _intercepted(self, verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def intercepted(*args: Any, **more: Any) -> Any:
            evaluating = more.get("for_evaluation") or more.get("split", "train") != "train"
            fault = "" if evaluating else self._fault(verb, more.get("draw"))
            if fault == "block":
                (self.kit / BLOCKED).touch()
                while (self.kit / BLOCKED).exists():  # until the process is killed, or the test goes on
                    time.sleep(0.02)
                return method(*args, **more)
            answer = method(*args, **more)
            return {name: CORRUPTED[fault](w) for name, w in answer.items()} if fault else answer

        return intercepted

    def _fault(self, verb: str, draw: Draw | None) -> str:
        try:
            named, fault, number, in_round = (self.kit / FAULT).read_text().split()
        except FileNotFoundError:
            return ""
        now = (None, None) if draw is None else (draw.number, draw.r_g)
        if named != verb or number not in ("None", str(now[0])) or in_round not in ("None", str(now[1])):
            return ""
        (self.kit / FAULT).unlink()
        return fault
