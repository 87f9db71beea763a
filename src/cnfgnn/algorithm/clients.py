"""Algorithm 2: what a group of nodes does. Axis 0 is the node axis, whether the group has one row or all.

The simulator holds every node in one such object, a federated site the nodes it owns; methods have the names
of the verbs in `nodes.py`, and `dispatch.run` is the one way in for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.adam import Adam
from cnfgnn.algorithm.compute import Compute
from cnfgnn.algorithm.cost import GIB
from cnfgnn.algorithm.cuda_graphs import Memory, Replay
from cnfgnn.algorithm.fmtl import Pull, ToAnchor, pull_of
from cnfgnn.algorithm.memory_plan import kept_dtype, sizes
from cnfgnn.algorithm.nodes import windows_of
from cnfgnn.algorithm.randomness import (
    CLIENT_BATCHES,
    NODE_WEIGHTS,
    SERVER_BATCHES,
    Batches,
    Coins,
    Draw,
    decay,
    generator,
)
from cnfgnn.algorithm.settings import NodeSettings
from cnfgnn.algorithm.store import Store
from cnfgnn.config.settings import Missing, Wire
from cnfgnn.data.batch import Batch
from cnfgnn.data.series import PreparedSeries, Scaler, Series
from cnfgnn.data.windows import SPLITS, Split
from cnfgnn.errors import NodeError
from cnfgnn.models.params import Params, models, own, part, rows, shared, with_personal
from cnfgnn.models.plus import node_model


class Clients:
    """A group of n nodes with their readings, their weights and what the server last told them."""

    def __init__(
        self,
        series: Series,
        compute: Compute,
        store: Store,
        name: str = "site",
        tick: Callable[[], None] = lambda: None,
        room: int = 0,
    ) -> None:
        self.series, self.compute, self.store, self.name = series, compute, store, name
        self.room = room  # bytes that hidden states and embeddings may take here; 0: as much as they need
        self.tick = tick  # called after every minibatch, for whoever waits
        self._learning, self._answering = Memory(compute.device), Memory(compute.device)
        self.wire: Wire = "full"  # until something else is agreed on
        self.theta: Params = {}
        self.adam: Adam | None = None
        self.h_G: Tensor | None = None  # of the training windows, fixed while the node learns
        self._judged_h_G: Tensor | None = None  # of the split that is about to be scored
        self.forecasts: Tensor | None = None
        self.pulling: Pull | None = None  # to the neighbours' weights
        self._h_c: Tensor | None = None  # of all training windows, while weights stand still
        self._decoder_grads: tuple[Draw, Params, Tensor] | None = None

    # ---- set-up -------------------------------------------------------------------------------------

    def census(self, missing: Missing, **plan: Any) -> dict[str, Tensor]:
        windows = windows_of(**plan)
        has = {s: self.series.available(windows.starts[s], windows, missing) for s in SPLITS}
        reply = {f"has.{s}": torch.from_numpy(has[s].view(np.uint8)) for s in SPLITS}
        return reply | {"moments": torch.from_numpy(self.series.moments(windows, missing))}

    def prepare(self, mean: float, std: float, **more: Any) -> None:
        self.settings = s = NodeSettings(**{f.name: more.pop(f.name) for f in fields(NodeSettings)})
        self.wire = s.wire
        windows = windows_of(**more)
        device = self.compute.device
        told, count = (s.missing, windows, self.compute.dtype, device), windows.count("train")
        self.data = PreparedSeries(self.series, Scaler(mean, std), *told, s.gaps, s.profile)
        self.client_batches = Batches(s.seed, CLIENT_BATCHES, count, s.client_batch, device)
        self.server_batches = Batches(s.seed, SERVER_BATCHES, count, s.server_batch, device)
        self.coins = Coins(s.seed, self.data.horizon, s.sampling, device)
        self.model = node_model(s.hidden, s.layers, s.embedding, windows.history, windows.horizon, s.options)
        self.sent = s.numbers_sent
        self.load(**self.model.init(generator(s.seed, NODE_WEIGHTS)))
        self.adam, self.h_G, self.pulling = None, None, None
        self.kept_dtype = kept_dtype(s.keeping, self.compute.dtype)
        sequences = self.series.nodes * count
        h_c, h_G = sequences * s.hidden * s.layers, sequences * s.embedding
        self._held = sizes(h_c, h_G, self.compute.dtype)[s.keeping]

    # ---- Algorithm 2 --------------------------------------------------------------------------------

    def update(self, r_g: int, r_c: int, step: int, first: int = 0, until: int | None = None) -> None:
        """ClientUpdate: r_c epochs over the node's own windows, h_G fixed; or some of their minibatches."""
        self._own()
        if self.adam is None or not (self.settings.keep_optimizer or first):
            self.adam = Adam(self.theta, self.settings.client_lr)
        self.adam.set_rate(self.settings.client_lr * decay(r_g, self.settings.decay_rounds))
        minibatch = Replay(self._learn, self._learning)
        each = len(self.client_batches)
        for number in range(first, r_c * each if until is None else min(until, r_c * each)):
            windows = self.client_batches[Draw(r_g, *divmod(number, each))]
            minibatch(windows, self._at(self.h_G, windows), self.coins[step + number])
            self.tick()
        self._stand_still()

    def _learn(self, windows: Tensor, h_G: Tensor | None, truth: Tensor | None) -> None:
        """One minibatch: every node takes a step along the gradient of its own loss."""
        assert self.adam is not None
        batch, has = self.data.batch("train", windows)
        for some in self.compute.some(*batch.y.shape[:2]):
            theta = {name: w.detach()[some].requires_grad_() for name, w in self.theta.items()}
            losses = self.losses(theta, batch.rows(some), _rows(h_G, some), truth)
            gradients = torch.autograd.grad(losses.sum(), list(theta.values()))
            grads = dict(zip(theta, gradients, strict=True))
            if self.pulling is not None:
                self.pulling.add(theta, grads, some)
            self.adam.step(theta, grads, _rows(_active(has), some), some)

    @torch.no_grad()
    def encode(
        self, split: Split, r_g: int | None = None, epoch: int | None = None, number: int | None = None
    ) -> Tensor:
        """ClientEncode: h_c of one minibatch, or of every window of the split."""
        if r_g is not None and epoch is not None and number is not None:
            return self._encoded("train", self.server_batches[Draw(r_g, epoch, number)])[..., : self.sent]
        if split == "train":
            self._check_room()
        shape = (self.series.nodes, len(self.data.starts[split]), self.model.hidden * self.model.layers)
        h_c = torch.empty(shape, dtype=self.kept_dtype, device=self.compute.device)
        for some in self.data.chunks(split):
            h_c[:, some] = self._encoded(split, some)
        if split == "train":
            self._h_c = h_c
        return h_c[..., : self.sent]

    def backward(self, h_G: Tensor, r_g: int, epoch: int, number: int, step: int, learn: bool) -> Tensor:
        """ClientBackward: d loss / d h_G; with `learn` the node also keeps its own gradients for `step`."""
        draw = Draw(r_g, epoch, number)
        windows = self.server_batches[draw]
        if not learn:
            h_c = self._at(self._h_c, windows)
            h_c = self._encoded("train", windows) if h_c is None else h_c
            grad_h_G = self._answer(windows, h_c, h_G.detach(), self.coins[step])
            assert grad_h_G is not None
            return grad_h_G
        batch, _ = self.data.batch("train", windows)
        h_G = h_G.detach().requires_grad_()
        self._own()
        theta = {name: w for name, w in self.theta.items() if not name.startswith("encoder")}
        h_c = self._encoded("train", windows).detach().requires_grad_()
        losses = self.losses(self.theta, batch, h_G, self.coins[step], h_c)
        grad_h_G, grad_h_c, *grads = torch.autograd.grad(losses.sum(), [h_G, h_c, *theta.values()])
        self._decoder_grads = draw, dict(zip(theta, grads, strict=True)), grad_h_c
        return grad_h_G

    def _grad_h_G(self, windows: Tensor, h_c: Tensor, h_G: Tensor, truth: Tensor | None) -> Tensor:
        batch, _ = self.data.batch("train", windows)
        grad_h_G = torch.empty_like(h_G)
        for some in self.compute.some(*h_G.shape[:2]):
            theta, part_h_G = rows(self.theta, some), h_G[some].detach().requires_grad_()
            losses = self.losses(theta, batch.rows(some), part_h_G, truth, h_c[some])
            grad_h_G[some] = torch.autograd.grad(losses.sum(), part_h_G)[0]
        return grad_h_G

    def step(self, grad_h_c: Tensor, r_g: int, epoch: int, number: int) -> None:
        """The second half of joint split learning: encoder gradients from both sides, then one Adam step."""
        if self._decoder_grads is None or self._decoder_grads[0] != (r_g, epoch, number):
            return  # it was away when the first half was asked for
        draw, grads, own_grad = self._decoder_grads
        self._decoder_grads = None
        batch, has = self.data.batch("train", self.server_batches[draw])
        encoder = {name: w for name, w in self.theta.items() if name.startswith("encoder")}
        with self.compute.autocast():
            h_c = self.model.encode(self.theta, batch)
        own_grad[..., : self.sent] += grad_h_c
        of_encoder = torch.autograd.grad(h_c, list(encoder.values()), own_grad.to(h_c.dtype))
        grads |= dict(zip(encoder, of_encoder, strict=True))
        if self.adam is None:
            self.adam = Adam(self.theta, self.settings.client_lr)
        self.adam.set_rate(self.settings.client_lr * decay(r_g, self.settings.decay_rounds))
        self.adam.step(self.theta, grads, _active(has))
        self._h_c = None

    def losses(
        self, theta: Params, batch: Batch, h_G: Tensor | None, truth: Tensor | None, h_c: Tensor | None = None
    ) -> Tensor:
        """(n,): each node's mean squared error over the targets it has, on scaled values."""
        with self.compute.autocast():
            return batch.losses(self.model.forecast(theta, batch, h_G, truth, h_c), self.settings.loss)

    # ---- what the server tells ----------------------------------------------------------------------

    def load(self, **theta: Tensor) -> None:
        # a copy: shared weights may be the very tensors that another group of this process also got
        loaded = {
            name: w.detach().to(self.compute.device, self.compute.dtype, copy=True)
            for name, w in theta.items()
        }
        self.theta = with_personal(loaded, self.theta, self.series.nodes)
        self._stand_still()

    def embed(self, h_G: Tensor, judge: bool, **draw: int) -> None:
        if judge:
            self._judged_h_G = h_G
        elif not draw:
            self._check_room()
            self.h_G, self._h_c = h_G.to(self.kept_dtype), None  # h_c has done its duty
        else:
            if self.h_G is None:
                self._check_room()
                shape = (self.series.nodes, self.client_batches.windows, h_G.shape[-1])
                self.h_G = torch.zeros(shape, dtype=self.kept_dtype, device=self.compute.device)
            self.h_G[:, self.server_batches[Draw(**draw)]] = h_G.to(self.kept_dtype)

    def pull(self, weight: Tensor, **anchor: Tensor) -> None:
        self.pulling = ToAnchor(part(anchor, "anchor."), weight)

    # ---- what the server asks -----------------------------------------------------------------------

    def weights(self) -> Params:
        """One row per node, also where all have the same."""
        n = self.series.nodes
        return {name: w.detach().expand(n, *w.shape[1:]) for name, w in shared(self.theta).items()}

    @torch.no_grad()
    def score(self, split: Split) -> Tensor:
        """(n t 8): summed errors; nothing of a single window leaves."""
        sums = self.data.inputs.new_zeros(self.series.nodes, self.data.horizon, 8, dtype=torch.float64)
        for windows in self.data.chunks(split):
            sums += self.data.errors(self.forecasts_of(split, windows), split, windows)
        self._judged_h_G = None  # it was sent for this; the next round's will differ
        return sums

    @torch.no_grad()
    def forecast(self) -> None:
        """The readings ahead, in their own unit, stay here (n t); NaN for a node that was silent."""
        y_hat = self.data.unscaled(self.forecasts_of("test", slice(0, 1)))[:, 0]
        has = self.data.available["test"]
        self.forecasts = y_hat if has is None else y_hat.masked_fill(~has, torch.nan)

    # ---- state --------------------------------------------------------------------------------------

    def save(self, tag: str, keep: str) -> None:
        """h_G is left out: the server computes it again from what is saved, to the last bit."""
        state = {f"theta.{name}": w for name, w in self.theta.items()}
        if self.adam is not None and self.settings.keep_optimizer:
            state |= {f"adam.{name}": w for name, w in self.adam.state().items()}
        if self.pulling is not None:
            state |= self.pulling.state()
        self.store.write(tag, state | self.data.state(), keep.split())

    def restore(self, tag: str) -> None:
        state, device = self.store.read(tag), self.compute.device
        if not state:
            return  # it was not there yet when others kept theirs: it goes on as it was prepared
        self.load(**part(state, "theta."))
        self.data.restore(state)
        self.h_G, self.adam, self.pulling = None, None, pull_of(state, device)
        if adam := part(state, "adam.", device):
            self.adam = Adam(own(self.theta, self.series.nodes), self.settings.client_lr)
            self.adam.load(adam)

    # -------------------------------------------------------------------------------------------------

    def _encoded(self, split: Split, windows: Tensor | slice) -> Tensor:
        batch, _ = self.data.batch(split, windows)
        with self.compute.autocast(), torch.no_grad():
            groups = self.compute.some(*batch.x.shape[:2])
            return torch.cat([self.model.encode(rows(self.theta, s), batch.rows(s)) for s in groups])

    @torch.no_grad()
    def forecasts_of(self, split: Split, windows: slice) -> Tensor:
        """y_hat of some windows, scaled (n b t), for whoever holds this object: it is no verb."""
        batch, _ = self.data.batch(split, windows)
        h_G, groups = self._at(self._judged_h_G, windows), self.compute.some(*batch.y.shape[:2])
        with self.compute.autocast():
            parts = ((rows(self.theta, some), batch.rows(some), _rows(h_G, some)) for some in groups)
            return torch.cat([self.model.forecast(*part) for part in parts])

    def _check_room(self) -> None:
        """Refuse to hold more than the owner allows: the server may not have known of it."""
        if self.room and self._held > self.room:
            kept = f"hidden states and embeddings take {self._held / GIB:.3g} GiB"
            problem = f"{kept}, and this site's memory is {self.room / GIB:.3g} GiB"
            raise NodeError(self.name, "embed", problem)

    def _at(self, x: Tensor | None, windows: Tensor | slice) -> Tensor | None:
        """Some windows of what is kept of all, in the type in which nodes compute."""
        return None if x is None else x[:, windows].to(self.compute.dtype)

    def _own(self) -> None:
        """A copy of its own for each node, ready to learn."""
        n = self.series.nodes
        theta = own(self.theta, n) if models(self.theta) != n else self.theta
        self.theta = {name: w.detach().requires_grad_() for name, w in theta.items()}
        self._h_c = None

    def _stand_still(self) -> None:
        self.theta = {name: w.detach() for name, w in self.theta.items()}
        self._h_c, self._decoder_grads = None, None
        self._answer = Replay(self._grad_h_G, self._answering)  # of these weights


def _rows(x: Tensor | None, nodes: slice) -> Tensor | None:
    return None if x is None else x[nodes]


def _active(has: Tensor | None) -> Tensor | None:
    """(n,): the nodes that have at least one of these windows."""
    return None if has is None else has.any(dim=1)
