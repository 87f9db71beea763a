"""A site that goes wrong when its kit says so: for tests of what the others then do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from cnfgnn.algorithm.clients import Clients
from cnfgnn.federation.flare.executor import SiteExecutor
from cnfgnn.transports.remote.endpoint import Terms

EXECUTOR = "tests.federation.faulty.FaultySite"
FAULT = "fault"  # a file in the kit: which verb, and what becomes of it the next time that it is asked
STANDS = "stands"  # there while a verb stands still
PHASES = {1: "update", 2: "encode", 3: "backward", 4: "embed"}  # the verb of each phase

BENT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nan": lambda w: w * torch.nan,
    "shape": lambda w: w[..., :1],
    "large": lambda w: w * 1000,
}


def arm(kit: Path, verb: str, what: str, number: int | None = None) -> None:
    """The next time that the verb comes, or comes with the minibatch of this number."""
    aside = kit / f".{FAULT}"
    aside.write_text(f"{verb} {what} {number}")
    aside.replace(kit / FAULT)


class FaultySite(SiteExecutor):
    """Asked for the verb that its kit names, it stands still (to be killed there) or answers nonsense."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        super().handle_event(event_type, fl_ctx)
        if self.endpoint is None or hasattr(self, "kit"):
            return
        self.kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        join = self.endpoint.join
        self.endpoint.join = lambda terms: self._spoilt(join, terms)

    def _spoilt(self, join: Callable[[Terms], Clients], terms: Terms) -> Clients:
        clients = join(terms)
        for verb in ("update", "encode", "backward", "embed", "weights"):
            setattr(clients, verb, self._watched(verb, getattr(clients, verb)))
        return clients

    def _watched(self, verb: str, right: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **more: Any) -> Any:
            evaluating = more.get("for_evaluation") or more.get("split", "train") != "train"
            draw = more.get("draw")
            what = "" if evaluating else self._fault(verb, None if draw is None else draw.number)
            if what == "stand":
                (self.kit / STANDS).touch()
                threading.Event().wait()
            answer = right(*args, **more)
            return {name: BENT[what](w) for name, w in answer.items()} if what else answer

        return watched

    def _fault(self, verb: str, number: int | None) -> str:
        try:
            named, what, at = (self.kit / FAULT).read_text().split()
        except FileNotFoundError:
            return ""
        if named != verb or at not in ("None", str(number)):
            return ""
        (self.kit / FAULT).unlink()
        return what
