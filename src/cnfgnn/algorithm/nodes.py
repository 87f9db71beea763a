"""All the server may ask of the sensors: a handful of verbs. What is no verb cannot leak and cannot cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from cnfgnn.algorithm.draws import Draw
from cnfgnn.algorithm.ledger import Bytes, Direction, Item, Ledger, Purpose
from cnfgnn.config import Missing
from cnfgnn.data.windows import SPLITS, Split, Windows
from cnfgnn.models.params import Params

Number = int | float | str | bool


@dataclass(frozen=True)
class Call:
    """One verb with its arguments; a tensor is (1, ...) if all nodes get the same, else a row per node."""

    verb: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Payload:
    """The nodes' answers: for each call named tensors, a row per node asked, zeros where it was absent."""

    replies: Sequence[Mapping[str, Tensor]]
    present: Tensor  # (rows,) bool


class Transport(Protocol):
    """Carries calls to the nodes. `sites` holds each site's rows; `exchange` runs the calls in order on every
    site that has one of `rows`, and answers node-major."""

    @property
    def sites(self) -> Sequence[Tensor]: ...

    def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload: ...


@dataclass(frozen=True)
class NodeSettings:
    """What every node must know to take part: it travels with `prepare`."""

    seed: int
    hidden: int
    layers: int
    embedding: int
    client_batch: int
    server_batch: int
    client_lr: float
    keep_optimizer: bool
    sampling: float
    missing: Missing


class Nodes:
    """The verbs, typed. A tell waits for the next ask and rides with it; the ledger counts both."""

    def __init__(
        self, transport: Transport, ledger: Ledger | None = None, rows: Tensor | None = None
    ) -> None:
        self.transport = transport
        self.ledger = Ledger() if ledger is None else ledger
        self.rows = torch.arange(sum(len(site) for site in transport.sites)) if rows is None else rows
        self.up = torch.ones(len(self.rows), dtype=torch.bool)  # who answered last
        self.has: dict[Split, Tensor] = {}
        self._waiting: list[Call] = []
        self._recovering = False

    def __len__(self) -> int:
        return len(self.rows)

    def among(self, rows: Tensor) -> Nodes:
        """The same verbs for some of the rows: seen nodes, sites present."""
        self.flush()
        some = Nodes(self.transport, self.ledger, self.rows[rows])
        some.has = {split: has[rows.to(has.device)] for split, has in self.has.items()}
        return some

    # ---- ask ----------------------------------------------------------------------------------------

    def census(self, windows: Windows, missing: Missing) -> tuple[Tensor, dict[Split, Tensor]]:
        """Each node's (count, sum, sum of squares) over the training split, and the windows it has."""
        reply = self._ask("census", "set-up", {**_plan(windows), "missing": missing}, _starts(windows))
        has = {split: reply[f"has.{split}"].bool() for split in SPLITS}
        return reply["moments"], has

    def weights(self) -> Params:
        """Every node's weights: (n, ...)."""
        return dict(self._ask("weights", "training"))

    def encode(self, draw: Draw | None = None, split: Split = "train") -> Tensor:
        """h_c of one minibatch, or of all windows of a split: (n w h)."""
        purpose: Purpose = "training" if split == "train" else "evaluation"
        return self._ask("encode", purpose, _numbers(draw, split=split))["h_c"]

    def backward(self, h_G: Tensor, draw: Draw, step: int, learn: bool = False) -> Tensor:
        """Each node's gradient of its loss with respect to its h_G: (n b h) -> (n b h)."""
        numbers = _numbers(draw, step=step, learn=learn)
        return self._ask("backward", "training", numbers, {"h_G": h_G})["grad_h_G"]

    def score(self, split: Split) -> Tensor:
        """Summed errors of each node at each step: (n t 8)."""
        return self._ask("score", "evaluation", {"split": split})["sums"]

    # ---- tell ---------------------------------------------------------------------------------------

    def prepare(self, settings: NodeSettings, mean: float, std: float, windows: Windows) -> None:
        """Scale, number the windows and initialise weights from the seed."""
        numbers = {**vars(settings), **_plan(windows), "mean": mean, "std": std}
        self._tell("prepare", "set-up", numbers, _starts(windows))

    def load(self, theta: Params, purpose: Purpose = "training") -> None:
        """Go on from these weights."""
        self._tell("load", purpose, {}, theta)

    def embed(self, h_G: Tensor, split: Split = "train") -> None:
        """Keep these graph embeddings: for the next client update, or to be scored with."""
        self._tell("embed", "training" if split == "train" else "evaluation", {"split": split}, {"h_G": h_G})

    def update(self, r_g: int, r_c: int, step: int) -> None:
        """Train for r_c epochs on your own data."""
        self._tell("update", "training", {"r_g": r_g, "r_c": r_c, "step": step})

    def step(self, grad_h_c: Tensor, draw: Draw) -> None:
        """Finish a `backward(learn=True)`: the server's part of the gradient at the encoder's output."""
        self._tell("step", "training", _numbers(draw), {"grad_h_c": grad_h_c})

    def pull(self, anchor: Params, weight: Tensor) -> None:
        """During the next updates, be drawn to the anchor with this weight: (n, ...), (n,)."""
        self._tell(
            "pull", "training", {}, {**{f"anchor.{k}": w for k, w in anchor.items()}, "weight": weight}
        )

    def forecast(self) -> None:
        """Keep your forecasts of the window that lies ahead; nothing comes back."""
        self._tell("forecast", "evaluation")

    def save(self, tag: str, keep: Collection[str]) -> None:
        """Keep your state under this name, and of the others only those named."""
        self._tell("save", "training", {"tag": tag, "keep": " ".join(keep)})

    def restore(self, tag: str) -> None:
        """Go back to the state of that name."""
        self._tell("restore", "training", {"tag": tag})

    # -------------------------------------------------------------------------------------------------

    def present(self, split: Split, windows: Tensor | slice = slice(None)) -> Tensor | None:
        """(n b) or (n 1): who takes part in these windows; None if everybody does."""
        has = self.has.get(split)
        if has is None:
            return None if bool(self.up.all()) else self.up[:, None]
        return has[:, windows] & self.up[:, None].to(has.device)

    def flush(self) -> None:
        """Deliver what waits."""
        if self._waiting:
            calls, self._waiting = self._waiting, []
            self.up = self.transport.exchange(calls, self.rows).present

    @contextmanager
    def recovering(self) -> Iterator[None]:
        """What is exchanged in here repeats what was counted before the interruption."""
        self._recovering = True
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
    ) -> None:
        self._count(purpose, verb, "down", tensors or {})
        self._waiting.append(Call(verb, numbers or {}, tensors or {}))

    def _ask(
        self,
        verb: str,
        purpose: Purpose,
        numbers: Mapping[str, Number] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> Mapping[str, Tensor]:
        self._tell(verb, purpose, numbers, tensors)
        calls, self._waiting = self._waiting, []
        payload = self.transport.exchange(calls, self.rows)
        self.up = payload.present
        reply = payload.replies[-1]
        self._count(purpose, verb, "up", reply)
        return reply

    def _count(
        self, purpose: Purpose, verb: str, direction: Direction, tensors: Mapping[str, Tensor]
    ) -> None:
        if not tensors:
            return
        n, sites = len(self.rows), len(self.transport.sites)
        asked = (
            sum(bool(torch.isin(site, self.rows).any()) for site in self.transport.sites) if sites > 1 else 1
        )
        per_node = per_site = 0
        for tensor in tensors.values():
            shared = tensor.shape[0] == 1 and n > 1
            size = tensor.numel() * tensor.element_size()
            per_node += size * (n if shared else 1)
            per_site += size * (asked if shared else 1)
        item = Item("recovery" if self._recovering else purpose, verb, direction)
        self.ledger.add(item, Bytes(per_node, per_site))


def _numbers(draw: Draw | None, **more: Number) -> dict[str, Number]:
    return dict(more) if draw is None else {**draw._asdict(), **more}


def _plan(windows: Windows) -> dict[str, Number]:
    return {"history": windows.history, "horizon": windows.horizon, "ahead": windows.ahead}


def _starts(windows: Windows) -> dict[str, Tensor]:
    return {split: torch.from_numpy(windows.starts[split])[None] for split in SPLITS}
