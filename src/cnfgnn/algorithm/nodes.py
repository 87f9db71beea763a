"""All the server may ask of the sensors: a handful of verbs. What is no verb cannot leak and cannot cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from cnfgnn.algorithm.calls import Call, Number, Payload, Transport, for_rows
from cnfgnn.algorithm.ledger import Bytes, Direction, Item, Ledger, Purpose
from cnfgnn.algorithm.quantize import narrowed, widened
from cnfgnn.algorithm.randomness import Draw
from cnfgnn.algorithm.settings import NodeSettings
from cnfgnn.config.settings import Missing, Wire
from cnfgnn.data.windows import SPLITS, Split, Windows
from cnfgnn.errors import EVERYBODY, NodeError
from cnfgnn.models.params import Params

_LESSON = ("prepare", "restore", "load", "pull", "embed")  # in this order: each goes on from what came before


class Nodes:
    """The verbs, typed. A tell waits for the next ask and rides with it; the ledger counts both.

    A site that was away has missed what defines its state, and may have lost all of it; when it is back it is
    told again, before anything else, what it must know to take part: how to prepare, which of its own states
    to go back to, and the weights, anchors and embeddings that were sent since.
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
        self._lesson: dict[str, list[Call]] = {}  # what a returning site is told: verb -> its last calls
        self._counted = self.up.clone()  # who has answered a census
        self._recovering = False

    def __len__(self) -> int:
        return len(self.rows)

    def among(self, rows: Tensor) -> Nodes:
        """The same verbs for some of the rows: seen nodes, sites present."""
        self.flush()
        some = Nodes(self.transport, self.ledger, self.rows[rows])
        some.has = {split: has[rows.to(has.device)] for split, has in self.has.items()}
        some._lesson = {v: [for_rows(call, rows) for call in calls] for v, calls in self._lesson.items()}
        some._counted, some.wire = self._counted[rows], self.wire
        return some

    # ---- ask ----------------------------------------------------------------------------------------

    def census(self, windows: Windows, missing: Missing) -> tuple[Tensor, dict[Split, Tensor]]:
        """Each node's (count, sum, sum of squares) over the training split, and the windows it has."""
        numbers: dict[str, Number] = {**_plan(windows), "missing": missing}
        reply = self._ask("census", "set-up", numbers, _starts(windows))
        self._counted = self.up.clone()
        return reply["moments"], _has(reply)

    def weights(self) -> Params:
        """Every node's weights: (n, ...)."""
        theta = self._ask("weights", "training")
        return {name: w.float() if w.dtype == torch.bfloat16 else w for name, w in theta.items()}

    def encode(
        self, draw: Draw | None = None, split: Split = "train", purpose: Purpose = "training"
    ) -> Tensor:
        """h_c of one minibatch, or of all windows of a split: (n w h)."""
        return self._ask("encode", purpose, _numbers(draw, split=split))["h_c"]

    def backward(self, h_G: Tensor, draw: Draw, step: int, learn: bool = False) -> Tensor:
        """Each node's gradient of its loss with respect to its h_G: (n b h) -> (n b h)."""
        numbers = _numbers(draw, step=step, learn=learn)
        return self._ask("backward", "training", numbers, {"h_G": h_G})["grad_h_G"].to(h_G.dtype)

    def score(self, split: Split) -> Tensor:
        """Summed errors of each node at each step: (n t 8)."""
        return self._ask("score", "evaluation", {"split": split})["sums"]

    # ---- tell ---------------------------------------------------------------------------------------

    def prepare(self, settings: NodeSettings, mean: float, std: float, windows: Windows) -> None:
        """Scale, number the windows and initialise weights from the seed."""
        numbers = {**vars(settings), **_plan(windows), "mean": mean, "std": std}
        self.wire = settings.wire
        self._lesson = {"prepare": [self._tell("prepare", "set-up", numbers, _starts(windows))]}

    def load(self, theta: Params, purpose: Purpose = "training", wire: Wire | None = None) -> Params:
        """Go on from these weights; returns them as they arrive."""
        call = self._tell("load", purpose, {}, theta, wire)
        self._lesson["load"] = [call]
        return {name: w.to(theta[name].dtype) for name, w in call.tensors.items()}

    def embed(self, h_G: Tensor, purpose: Purpose = "training", draw: Draw | None = None) -> None:
        """Keep these graph embeddings, of one minibatch or of all windows: fixed during the next update, or
        to be scored with."""
        judge = purpose == "evaluation"
        call = self._tell("embed", purpose, _numbers(draw, judge=judge), {"h_G": h_G})
        if not judge:
            first = draw is None or draw.number == 0
            self._lesson["embed"] = [call] if first else [*self._lesson.get("embed", []), call]

    def update(self, r_g: int, r_c: int, step: int, first: int = 0, until: int | None = None) -> None:
        """Train for r_c epochs on your own data; of their minibatches, counted through, from `first` on and
        before `until`."""
        part = {} if until is None else {"first": first, "until": until}
        self._tell("update", "training", {"r_g": r_g, "r_c": r_c, "step": step, **part})

    def step(self, grad_h_c: Tensor, draw: Draw) -> None:
        """Finish a `backward(learn=True)`: the server's part of the gradient at the encoder's output."""
        self._tell("step", "training", _numbers(draw), {"grad_h_c": grad_h_c})

    def pull(self, anchor: Params, weight: Tensor) -> None:
        """During the next updates, be drawn to the anchor with this weight: (n, ...), (n,)."""
        tensors = {**{f"anchor.{k}": w for k, w in anchor.items()}, "weight": weight}
        self._lesson["pull"] = [self._tell("pull", "training", {}, tensors)]

    def forecast(self) -> None:
        """Keep your forecasts of the window that lies ahead; nothing comes back."""
        self._tell("forecast", "evaluation")

    def save(self, tag: str, keep: Collection[str]) -> None:
        """Keep your state under this name, and of the others only those named."""
        self._tell("save", "training", {"tag": tag, "keep": " ".join(keep)})
        self._lesson["restore"] = [Call("restore", {"tag": tag})]

    def restore(self, tag: str) -> None:
        """Go back to the state of that name."""
        restore = self._tell("restore", "training", {"tag": tag})
        self._lesson = {"prepare": self._lesson.get("prepare", []), "restore": [restore]}

    # -------------------------------------------------------------------------------------------------

    def present(self, split: Split, windows: Tensor | slice = slice(None)) -> Tensor | None:
        """(n b) or (n 1): who has these windows and answered last; None if everybody does."""
        has = self.has.get(split)
        if has is None:
            return None if bool(self.up.all()) else self.up[:, None]
        return has[:, windows] & self.up[:, None].to(has.device)

    def flush(self) -> None:
        """Deliver what waits."""
        if self._waiting:
            self._exchange()

    @contextmanager
    def recovering(self, yes: bool = True) -> Iterator[None]:
        """What is exchanged in here repeats what was counted before the interruption."""
        self._recovering = yes
        try:
            yield
        finally:
            self._recovering = False

    def _tell(
        self,
        verb: str,
        purpose: Purpose,
        numbers: Mapping[str, Number] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
        wire: Wire | None = None,
    ) -> Call:
        call = Call(verb, numbers or {}, narrowed(verb, tensors or {}, wire or self.wire))
        self._waiting.append(("recovery" if self._recovering else purpose, call))
        return call

    def _ask(
        self,
        verb: str,
        purpose: Purpose,
        numbers: Mapping[str, Number] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> Mapping[str, Tensor]:
        self._tell(verb, purpose, numbers, tensors)
        return widened(self._exchange()[-1])

    def _exchange(self) -> Sequence[Mapping[str, Tensor]]:
        """Deliver what waits to everybody, after those who are behind have been told what they missed."""
        waiting, self._waiting = self._waiting, []
        calls = [call for _, call in waiting]
        payload = Payload([{} for _ in calls], torch.zeros(len(self), dtype=torch.bool))
        up = self.up
        while True:
            ready = up.clone()
            ready[self._taught((~up).nonzero().flatten())] = True
            late = (ready & ~payload.present).nonzero().flatten()
            payload = self._answered(payload, calls, late)
            if not self.transport.wait(self.rows[payload.present]):
                break
            up = payload.present
        if any(call.verb == "update" for call in calls):
            self._lesson.pop("load", None)  # from now on a node's weights are its own
        self.up = payload.present
        if not self.up.any():
            raise NodeError(EVERYBODY, waiting[-1][1].verb, "every site is absent or failed")
        for (purpose, call), reply in zip(waiting, payload.replies, strict=True):
            self._count(purpose, call.verb, "down", call.tensors, self.up, self.rows)
            self._count(purpose, call.verb, "up", reply, self.up, self.rows)
        return payload.replies

    def _answered(self, so_far: Payload, calls: Sequence[Call], places: Tensor) -> Payload:
        """With the answers of those in these places."""
        if len(places) == len(self):
            return self.transport.exchange(calls, self.rows)
        if not len(places):
            return so_far
        some = self.transport.exchange([for_rows(call, places) for call in calls], self.rows[places])
        return so_far.joined(some, places)

    def _taught(self, behind: Tensor) -> Tensor:
        """Tell those in these places what they must know to take part; the places of those who do now.

        Nobody else may be asked: one that comes back a moment later would answer from what it knew before.
        """
        if not len(behind) or "prepare" not in self._lesson:
            return behind
        lesson = [for_rows(call, behind) for verb in _LESSON for call in self._lesson.get(verb, [])]
        new = not bool(self._counted[behind].all())
        if new:  # they were not there when windows were counted
            told = lesson[0]
            plan = {name: told.numbers[name] for name in ("history", "horizon", "ahead", "missing")}
            lesson.append(Call("census", plan, told.tensors))
        payload = self.transport.exchange(lesson, self.rows[behind])
        for call, reply in zip(lesson, payload.replies, strict=True):
            self._count("recovery", call.verb, "down", call.tensors, payload.present, self.rows[behind])
            self._count("recovery", call.verb, "up", reply, payload.present, self.rows[behind])
        back = behind[payload.present]
        if new and len(back):
            for split, has in _has(payload.replies[-1]).items():
                if split in self.has:
                    self.has[split][back] = has[payload.present].to(self.has[split].device)
            self._counted[back] = True
        return back

    def _count(
        self,
        purpose: Purpose,
        verb: str,
        direction: Direction,
        tensors: Mapping[str, Tensor],
        present: Tensor,
        rows: Tensor,
    ) -> None:
        """Tensors that went to, or came from, the rows that are present."""
        if not tensors or not present.any():
            return
        n, there = len(rows), rows[present]
        count, sites = len(there), 1
        if len(self.transport.sites) > 1:
            sites = sum(bool(torch.isin(site, there).any()) for site in self.transport.sites)
        per_node = per_site = 0
        for tensor in tensors.values():
            shared = tensor.shape[0] == 1 and n > 1
            size = tensor.numel() * tensor.element_size()
            per_node += size * count if shared else size // n * count
            per_site += size * sites if shared else size // n * count
        self.ledger.add(Item(purpose, verb, direction), Bytes(per_node, per_site))


def _has(reply: Mapping[str, Tensor]) -> dict[Split, Tensor]:
    return {split: reply[f"has.{split}"].bool() for split in SPLITS}


def _numbers(draw: Draw | None, **more: Number) -> dict[str, Number]:
    return dict(more) if draw is None else {**draw._asdict(), **more}


def _plan(windows: Windows) -> dict[str, Number]:
    return {"history": windows.history, "horizon": windows.horizon, "ahead": windows.ahead}


def _starts(windows: Windows) -> dict[str, Tensor]:
    return {split: torch.from_numpy(windows.starts[split])[None] for split in SPLITS}


def windows_of(history: int, horizon: int, ahead: bool, **starts: Tensor) -> Windows:
    """The windows that `census` and `prepare` carry, at the other end."""
    return Windows({split: starts[split][0].cpu().numpy() for split in SPLITS}, history, horizon, ahead)
