"""All the server may ask of the nodes: the verbs, typed. Nothing else can be sent, or leak."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from cnfgnn.algorithm.messages import verbs
from cnfgnn.algorithm.messages.calls import Call, Payload, Transport, for_rows
from cnfgnn.algorithm.messages.catch_up import CatchUp
from cnfgnn.algorithm.messages.ledger import Ledger, Purpose
from cnfgnn.algorithm.messages.metering import Meter
from cnfgnn.algorithm.messages.quantize import dequantised
from cnfgnn.algorithm.messages.randomness import Draw, Minibatches
from cnfgnn.algorithm.messages.settings import NodeSettings
from cnfgnn.algorithm.messages.sums import Sums
from cnfgnn.algorithm.messages.verb import Verb
from cnfgnn.algorithm.messages.window_plan import plan_of, starts_of
from cnfgnn.config.settings import Missing, Wire
from cnfgnn.data.windows import SPLITS, Split, Windows
from cnfgnn.errors import NoSiteAnswered
from cnfgnn.models.params import Params


class Nodes:
    """The server's view of the nodes in `rows`.

    A tell waits for the next ask and travels with it. The ledger counts both. A site that was away may have
    lost its state: when it rejoins, it is first told everything it needs to take part again (`CatchUp`).
    """

    def __init__(
        self, transport: Transport, ledger: Ledger | None = None, rows: Tensor | None = None
    ) -> None:
        self.transport = transport
        self.ledger = Ledger() if ledger is None else ledger
        self.rows = torch.arange(sum(len(site) for site in transport.sites)) if rows is None else rows
        self.up = torch.ones(len(self.rows), dtype=torch.bool)  # who answered last
        self.has: dict[Split, Tensor] = {}
        self.wire: Wire = "full"
        self._waiting: list[tuple[Purpose, Call]] = []
        self._meter = Meter(self.ledger, transport.sites)
        self._catch_up = CatchUp()
        self._counted = self.up.clone()  # who has answered a census
        self._recovering = False

    def __len__(self) -> int:
        return len(self.rows)

    def among(self, rows: Tensor) -> Nodes:
        """The same verbs for some of the rows: the nodes that train, for one."""
        self.flush()
        selected = Nodes(self.transport, self.ledger, self.rows[rows])
        selected.has = {split: has[rows.to(has.device)] for split, has in self.has.items()}
        selected._catch_up = self._catch_up.among(rows)
        selected._counted, selected.wire = self._counted[rows], self.wire
        return selected

    def grow(self, rows: Tensor) -> None:
        """The transport has more nodes. The nodes in these rows, the new ones among them, are behind: they
        are told everything before they are asked anything."""
        self.flush()
        more = sum(len(site) for site in self.transport.sites) - len(self.rows)
        self.rows = torch.arange(len(self.rows) + more)
        absent = torch.zeros(more, dtype=torch.bool)
        self.up, self._counted = torch.cat([self.up, absent]), torch.cat([self._counted, absent])
        self.up[rows] = False
        for split, has in self.has.items():
            self.has[split] = torch.cat([has, has.new_zeros(more, *has.shape[1:])])

    # ---- ask ----------------------------------------------------------------------------------------

    def census(self, windows: Windows, missing: Missing) -> tuple[Tensor, dict[Split, Tensor]]:
        """Each node's (count, sum, sum of squares) over the training split, and the windows it has."""
        request = verbs.Census(plan_of(windows), missing)
        reply = self._ask(request, starts_of(windows))
        self._counted = self.up.clone()
        return reply["moments"], _has(reply)

    def turn(self, row: int) -> Tensor:
        """In a live task, turn to the window whose history ends with this row; (n 1): which nodes have it."""
        return self._ask(verbs.Turn(row))["has"].bool()

    def weights(self, mean_by: Tensor | None = None) -> Params:
        """Every node's weights: (n, ...). With `mean_by` (n,), nodes in this process that are too many to
        hold the weights of all of them answer with the mean by these numbers: (1, ...)."""
        theta = self._ask(verbs.Weights(), mean_by=mean_by)
        return {name: w.float() if w.dtype == torch.bfloat16 else w for name, w in theta.items()}

    def encode(
        self, draw: Draw | None = None, split: Split = "train", purpose: Purpose = "training"
    ) -> Tensor:
        """h_c of one minibatch, or of all windows of a split: (n w h)."""
        return self._ask(verbs.Encode(split, draw), purpose=purpose)["h_c"]

    def encode_each(self, draws: Sequence[Draw]) -> list[Tensor]:
        """h_c of several minibatches, in one exchange: (n b h) of each."""
        for draw in draws:
            self._tell(verbs.Encode("train", draw))
        return [dequantised(reply)["h_c"] for reply in self._exchange()[-len(draws) :]]

    def levels(self) -> Tensor:
        """The levels of all training windows: (n w k)."""
        return self._ask(verbs.Levels())["levels"]

    def backward(self, h_G: Tensor, draw: Draw, step: int, learn: bool = False) -> Tensor:
        """Each node's gradient of its loss with respect to what is learned in its h_G: (n b h) -> (n b h)."""
        reply = self._ask(verbs.Backward(draw, step, learn), {"h_G": h_G})
        return reply["grad_h_G"].to(h_G.dtype)

    def backward_and_encode(
        self, h_G: Tensor, draw: Draw, step: int, following: Draw
    ) -> tuple[Tensor, Tensor]:
        """The gradient of one minibatch, and h_c of the one that follows, in one exchange."""
        self._tell(verbs.Encode("train", following))
        self._tell(verbs.Backward(draw, step, learn=False), {"h_G": h_G})
        encoded, backward = (dequantised(reply) for reply in self._exchange()[-2:])
        return backward["grad_h_G"].to(h_G.dtype), encoded["h_c"]

    def score(self, split: Split) -> Sums:
        """Summed errors of each node at each step."""
        reply = self._ask(verbs.Score(split))
        return Sums(reply["sums"], reply["told"])

    # ---- tell ---------------------------------------------------------------------------------------

    def prepare(self, settings: NodeSettings, mean: float, std: float, windows: Windows) -> None:
        """Scale the readings, number the windows and draw weights from the seed."""
        self.wire = settings.wire
        request = verbs.Prepare(settings, mean, std, plan_of(windows))
        self._tell(request, starts_of(windows))

    def load(self, theta: Params, purpose: Purpose = "training", wire: Wire | None = None) -> Params:
        """Go on from these weights; returns them as they arrive, which may be rounded to bf16."""
        call = self._tell(verbs.Load(), theta, purpose, wire)
        return {name: w.to(theta[name].dtype) for name, w in call.tensors.items()}

    def inform(self, means: Tensor) -> None:
        """Use these means of the levels of all training windows: (n w 2k)."""
        self._tell(verbs.Inform(), {"means": means})

    def embed(self, h_G: Tensor, for_evaluation: bool = False, draw: Draw | None = None) -> None:
        """Keep these graph embeddings, of one minibatch or of all windows: fixed during the next update, or
        for an evaluation."""
        purpose: Purpose = "evaluation" if for_evaluation else "training"
        self._tell(verbs.Embed(for_evaluation, draw), {"h_G": h_G}, purpose)

    def update(self, r_g: int, r_c: int, step: int, minibatches: Minibatches | None = None) -> None:
        """Train for r_c epochs on your own readings, or for some of the minibatches of these epochs."""
        self._tell(verbs.Update(r_g, r_c, step, minibatches))

    def step(self, grad_h_c: Tensor, draw: Draw) -> None:
        """Finish a `backward(learn=True)` with the server's part of the gradient at the encoder's output."""
        self._tell(verbs.Step(draw), {"grad_h_c": grad_h_c})

    def pull(self, anchor: Params, weight: Tensor) -> None:
        """During the next updates, stay near the anchor, with the strength `weight`: (n, ...), (n,)."""
        arrays = {verbs.ANCHOR + name: w for name, w in anchor.items()} | {"weight": weight}
        self._tell(verbs.Pull(), arrays)

    def forecast(self, levels: Sequence[int] = ()) -> None:
        """Forecast the window that lies ahead, with intervals, for your owner; nothing comes back."""
        ranges = verbs.Ranges(" ".join(map(str, levels))) if levels else None
        self._tell(verbs.Forecast(ranges))

    def save(self, tag: str, keep: Collection[str]) -> None:
        """Save your state under this tag, and delete all others but those to keep."""
        self._tell(verbs.Save(tag, " ".join(sorted(keep))))

    def restore(self, tag: str) -> None:
        """Go back to the state that was saved under this tag."""
        self._tell(verbs.Restore(tag))

    def inherit(self, run: str, tag: str) -> None:
        """Begin with the weights of another run: those that you saved under this tag."""
        self._tell(verbs.Inherit(run, tag))

    # -------------------------------------------------------------------------------------------------

    def present(self, split: Split, windows: Tensor | slice = slice(None)) -> Tensor | None:
        """(n b) or (n 1): who has these windows and answered last; None if all nodes do."""
        has = self.has.get(split)
        if has is None:
            return None if bool(self.up.all()) else self.up[:, None]
        return has[:, windows] & self.up[:, None].to(has.device)

    def flush(self) -> None:
        """Deliver the tells that are waiting."""
        if self._waiting:
            self._exchange()

    def rejoin(self) -> bool:
        """Between exchanges: bring nodes that are behind up to date; True if some of them now are."""
        back = self._caught_up((~self.up).nonzero().flatten()) if self._catch_up.needed else self.rows[:0]
        self.up[back] = True
        return bool(len(back))

    @contextmanager
    def recovering(self, yes: bool = True) -> Iterator[None]:
        """Inside, calls repeat what an interruption undid: the ledger counts them as recovery."""
        self._recovering = yes
        try:
            yield
        finally:
            self._recovering = False

    def _tell(
        self,
        request: Verb,
        arrays: Mapping[str, Tensor] | None = None,
        purpose: Purpose | None = None,
        wire: Wire | None = None,
    ) -> Call:
        call = request.call(arrays or {}, wire or self.wire)
        if self._recovering:
            purpose = "recovery"
        self._waiting.append((purpose or request.purpose, call))
        self._catch_up.note(request, call)
        return call

    def _ask(
        self,
        request: Verb,
        arrays: Mapping[str, Tensor] | None = None,
        purpose: Purpose | None = None,
        mean_by: Tensor | None = None,
    ) -> Mapping[str, Tensor]:
        self._tell(request, arrays, purpose)
        if mean_by is not None:
            sent_for, call = self._waiting.pop()
            self._waiting.append((sent_for, replace(call, mean_by=mean_by)))
        return dequantised(self._exchange()[-1])

    def _exchange(self) -> Sequence[Mapping[str, Tensor]]:
        """Deliver the waiting calls to all nodes, after those that rejoin have caught up."""
        waiting, self._waiting = self._waiting, []
        calls = [call for _, call in waiting]
        payload = Payload([{} for _ in calls], torch.zeros(len(self), dtype=torch.bool))
        up = self.up
        while True:
            ready = up.clone()
            ready[self._caught_up((~up).nonzero().flatten())] = True
            remaining = (ready & ~payload.present).nonzero().flatten()
            payload = self._answered(payload, calls, remaining)
            if not self.transport.wait(self.rows[payload.present]):
                break
            up = payload.present
        if any(call.verb == verbs.Update.name for call in calls):
            self._catch_up.nodes_learned()
        self.up = payload.present
        if not self.up.any():
            raise NoSiteAnswered(calls[-1].verb)
        for (purpose, call), reply in zip(waiting, payload.replies, strict=True):
            self._meter.count(purpose, call, reply, self.rows, self.up)
        return payload.replies

    def _answered(self, so_far: Payload, calls: Sequence[Call], places: Tensor) -> Payload:
        """The answers so far, together with those of the nodes in these places."""
        if len(places) == len(self):
            return self.transport.exchange(calls, self.rows)
        if not len(places):
            return so_far
        more = self.transport.exchange([for_rows(call, places) for call in calls], self.rows[places])
        return so_far.joined(more, places)

    def _caught_up(self, behind: Tensor) -> Tensor:
        """Bring the nodes in these places up to date; returns the places of those that now are.

        Ask only these: a site that rejoins a moment later still holds stale state.
        """
        if not len(behind) or not self._catch_up.needed:
            return behind
        calls = self._catch_up.calls(behind)
        uncounted = not bool(self._counted[behind].all())
        if uncounted:  # they were away when windows were counted
            calls.append(self._catch_up.census())
        payload = self.transport.exchange(calls, self.rows[behind])
        for call, reply in zip(calls, payload.replies, strict=True):
            self._meter.count("recovery", call, reply, self.rows[behind], payload.present)
        back = behind[payload.present]
        if uncounted and len(back):
            for split, has in _has(payload.replies[-1]).items():
                if split in self.has:
                    self.has[split][back] = has[payload.present].to(self.has[split].device)
            self._counted[back] = True
        return back


def _has(reply: Mapping[str, Tensor]) -> dict[Split, Tensor]:
    return {split: reply[f"has.{split}"].bool() for split in SPLITS}
